//! Changes on their way into the store.

use pg_types::{BLCKSZ, Lsn, PageKey};

use crate::entry::EntryKind;

/// Longest metadata key in bytes.
pub const MAX_META_KEY: usize = 64;

/// Changes collected for one call of [`crate::PageStore::ingest`], in LSN order.
///
/// A batch is emptied by the call but keeps its memory, so one batch reused for every portion of
/// WAL costs no allocation per record.
#[derive(Debug, Default)]
pub struct IngestBatch {
    pub(crate) data: Vec<u8>,
    pub(crate) pages: Vec<BatchPage>,
    pub(crate) meta: Vec<BatchMeta>,
    first: Option<Lsn>,
    last: Lsn,
    /// The first LSN that was below the one before it.
    pub(crate) unordered: Option<Lsn>,
}

/// A page's change; its bytes are in [`IngestBatch::data`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchPage {
    pub(crate) key: PageKey,
    pub(crate) lsn: Lsn,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) kind: EntryKind,
}

/// A metadata change.
#[derive(Debug)]
pub(crate) struct BatchMeta {
    pub(crate) key: Box<[u8]>,
    pub(crate) lsn: Lsn,
    pub(crate) value: Option<Box<[u8]>>,
}

impl IngestBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> IngestBatch {
        IngestBatch::default()
    }

    /// Adds an encoded mini-record (`pg_wal::MiniRecord`) of a record that ends at `end`.
    ///
    /// Only its flag byte is looked at; a mini-record that is malformed shows when its page is read.
    pub fn mini(&mut self, key: PageKey, end: Lsn, encoded: &[u8]) {
        let initializes = encoded.get(1).is_some_and(|flags| flags & 1 != 0);
        let kind = if initializes {
            EntryKind::MiniInit
        } else {
            EntryKind::Mini
        };
        self.page(key, end, encoded, kind);
    }

    /// Adds the page itself as of `lsn`; whatever was before is not needed to read it.
    pub fn image(&mut self, key: PageKey, lsn: Lsn, page: &[u8; BLCKSZ]) {
        if is_zero_page(page) {
            self.page(key, lsn, &[], EntryKind::ZeroImage);
        } else {
            self.page(key, lsn, page, EntryKind::Image);
        }
    }

    /// Adds a version of a metadata entry: a value, or `None` when the key ceases to exist.
    /// Keys are at most [`MAX_META_KEY`] bytes; [`crate::PageStore::ingest`] refuses longer ones.
    pub fn meta(&mut self, key: &[u8], lsn: Lsn, value: Option<&[u8]>) {
        self.note_lsn(lsn);
        self.meta.push(BatchMeta {
            key: key.into(),
            lsn,
            value: value.map(Into::into),
        });
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.meta.is_empty()
    }

    /// Changes in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages.len() + self.meta.len()
    }

    /// Bytes of page changes in it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Lowest and highest LSN in it.
    pub(crate) fn lsn_range(&self) -> Option<(Lsn, Lsn)> {
        self.first.map(|first| (first, self.last))
    }

    /// Drops the changes above `lsn`: those of a record that turned out to be no good.
    pub fn discard_above(&mut self, lsn: Lsn) {
        while let Some(page) = self.pages.pop_if(|page| page.lsn > lsn) {
            self.data.truncate(page.offset);
        }
        while self.meta.pop_if(|meta| meta.lsn > lsn).is_some() {}
        let last_page = self.pages.last().map(|page| page.lsn);
        let last_meta = self.meta.last().map(|meta| meta.lsn);
        self.last = last_page.max(last_meta).unwrap_or(Lsn::INVALID);
        if self.is_empty() {
            self.first = None;
        }
        self.unordered = self.unordered.filter(|unordered| *unordered <= lsn);
    }

    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        self.data.clear();
        self.pages.clear();
        self.meta.clear();
        self.first = None;
        self.last = Lsn::INVALID;
        self.unordered = None;
    }

    fn page(&mut self, key: PageKey, lsn: Lsn, bytes: &[u8], kind: EntryKind) {
        self.note_lsn(lsn);
        let offset = self.data.len();
        self.data.extend_from_slice(bytes);
        self.pages.push(BatchPage {
            key,
            lsn,
            offset,
            len: bytes.len(),
            kind,
        });
    }

    fn note_lsn(&mut self, lsn: Lsn) {
        if self.first.is_none() {
            self.first = Some(lsn);
        } else if lsn < self.last && self.unordered.is_none() {
            self.unordered = Some(lsn);
        }
        self.last = self.last.max(lsn);
    }
}

/// Whether every byte of the page is zero.
pub(crate) fn is_zero_page(page: &[u8; BLCKSZ]) -> bool {
    let (words, _) = page.as_chunks::<64>();
    words.iter().all(|words| *words == [0; 64])
}

/// Receives a metadata version: key, LSN, and its value, or `None` when the key ceased to exist.
pub(crate) type MetaVisitor<'a> = dyn FnMut(&[u8], Lsn, Option<&[u8]>) + 'a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_discarded_leaves_no_trace() {
        let key = |rel| PageKey {
            space: 1663,
            db: 5,
            rel,
            fork: 0,
            block: 0,
        };
        let mut batch = IngestBatch::new();
        batch.mini(key(1), Lsn(8), b"abcd");
        batch.meta(b"k", Lsn(16), Some(b"v"));
        batch.mini(key(2), Lsn(24), b"efgh");
        batch.mini(key(3), Lsn(24), b"ij");
        batch.meta(b"l", Lsn(24), None);
        batch.discard_above(Lsn(16));
        assert_eq!((batch.len(), batch.bytes()), (2, 4));
        assert_eq!(batch.lsn_range(), Some((Lsn(8), Lsn(16))));
        // The same LSN may come again, in order.
        batch.mini(key(4), Lsn(16), b"kl");
        assert_eq!(batch.unordered, None);
        batch.discard_above(Lsn(0));
        assert!(batch.is_empty());
        assert_eq!((batch.bytes(), batch.lsn_range()), (0, None));
    }
}
