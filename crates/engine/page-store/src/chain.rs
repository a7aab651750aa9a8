//! The log chain of one page: the changes that a read must apply, with their bytes.

use pg_types::Lsn;

use crate::entry::EntryKind;

/// Changes of one page, collected from several layers.
#[derive(Default)]
pub(crate) struct Chain {
    bytes: Vec<u8>,
    links: Vec<Link>,
}

/// One change.
#[derive(Clone, Copy)]
struct Link {
    lsn: Lsn,
    kind: EntryKind,
    offset: usize,
    len: usize,
}

/// One change with its bytes.
pub(crate) struct Change<'a> {
    pub(crate) lsn: Lsn,
    pub(crate) kind: EntryKind,
    pub(crate) bytes: &'a [u8],
}

impl Chain {
    /// Empties it, keeping its memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.links.clear();
    }

    /// Adds a change. Changes of equal LSN must be added in the order they were ingested.
    pub(crate) fn push(&mut self, lsn: Lsn, kind: EntryKind, bytes: &[u8]) {
        let offset = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.links.push(Link {
            lsn,
            kind,
            offset,
            len: bytes.len(),
        });
    }

    /// Number of changes.
    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    /// Puts the changes in LSN order; those of equal LSN, which always come from one layer, keep
    /// their order.
    pub(crate) fn sort(&mut self) {
        self.links.sort_by_key(|link| link.lsn);
    }

    /// The changes in their present order.
    pub(crate) fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        self.links.iter().map(|link| Change {
            lsn: link.lsn,
            kind: link.kind,
            bytes: self
                .bytes
                .get(link.offset..link.offset + link.len)
                .unwrap_or_default(),
        })
    }
}

/// Memory that a chain may keep between reads.
const KEPT_BYTES: usize = 1 << 20;

impl Chain {
    /// Gives back memory that an unusually long chain took.
    pub(crate) fn shrink(&mut self) {
        if self.bytes.capacity() > KEPT_BYTES {
            *self = Chain::default();
        }
    }
}

/// A place in a chain to cut back to.
pub(crate) struct ChainMark {
    bytes: usize,
    links: usize,
}

impl Chain {
    /// The present end.
    pub(crate) fn mark(&self) -> ChainMark {
        ChainMark {
            bytes: self.bytes.len(),
            links: self.links.len(),
        }
    }

    /// Removes what was added after `mark`.
    pub(crate) fn cut(&mut self, mark: &ChainMark) {
        self.bytes.truncate(mark.bytes);
        self.links.truncate(mark.links);
    }
}
