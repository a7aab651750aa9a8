//! Delta layers: the changes of a range of LSNs, sorted by key and LSN.

use std::path::Path;

use pg_types::{Lsn, PageKey};

use crate::batch::MetaVisitor;
use crate::chain::Chain;
use crate::delta_block::{BlockKey, Item, Items};
use crate::delta_index::{BlockPlace, DeltaIndex, KeyEntry};
use crate::disk::{Disk, ReadFile};
use crate::entry::EntryKind;
use crate::error::{Corruption, OpenError};
use crate::key_filter::KeyFilter;
use crate::layer_error::LayerError;
use crate::layer_file::{Footer, LayerKind, corrupt, open_frame};

/// Receives an entry of a block; says what is wrong with it, if anything.
pub(crate) type EntryVisitor<'a> =
    dyn FnMut(BlockKey<'_>, EntryKind, Lsn, &[u8]) -> Result<(), &'static str> + 'a;

/// An open delta layer file.
pub(crate) struct DeltaLayer {
    file: ReadFile,
    footer: Footer,
    index: DeltaIndex,
    filter: KeyFilter,
}

impl DeltaLayer {
    /// Opens a file and loads its index.
    pub(crate) fn open(disk: &Disk, path: &Path) -> Result<DeltaLayer, OpenError> {
        let frame = open_frame(disk, path)?;
        if frame.footer.stamp.kind != LayerKind::Delta {
            return Err(corrupt(path, 0, "this is no delta layer".to_owned()).into());
        }
        let index = DeltaIndex::decode(path, &frame.footer, &frame.index)?;
        let filter = KeyFilter::new(index.keys.iter().map(|entry| &entry.key));
        Ok(DeltaLayer {
            file: frame.file,
            footer: frame.footer,
            index,
            filter,
        })
    }

    /// Everything in it is above this LSN.
    pub(crate) fn start(&self) -> Lsn {
        self.footer.stamp.start
    }

    /// Everything in it is at or below this LSN.
    pub(crate) fn end(&self) -> Lsn {
        self.footer.stamp.end
    }

    /// Bytes of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file.length()
    }

    /// The footer.
    pub(crate) fn footer(&self) -> &Footer {
        &self.footer
    }

    /// Where every page's changes are.
    pub(crate) fn keys(&self) -> &[KeyEntry] {
        &self.index.keys
    }

    /// The blocks of the file.
    pub(crate) fn block_count(&self) -> usize {
        self.index.blocks.len()
    }

    /// The entry of `key`.
    pub(crate) fn entry(&self, key: &PageKey) -> Option<&KeyEntry> {
        let at = self.position(key)?;
        self.index.keys.get(at)
    }

    fn position(&self, key: &PageKey) -> Option<usize> {
        if !self.filter.may_have(key) {
            return None;
        }
        self.index
            .keys
            .binary_search_by(|entry| entry.key.cmp(key))
            .ok()
    }

    /// Marks in `touched` which of the pages from `key` on may have a change in `(above, upto]`;
    /// a page that is not marked certainly has none.
    pub(crate) fn mark_touched(&self, key: &PageKey, above: Lsn, upto: Lsn, touched: &mut [bool]) {
        let keys = &self.index.keys;
        let from = keys.partition_point(|entry| entry.key < *key);
        for entry in keys.iter().skip(from) {
            let Some(number) = following(key, &entry.key) else {
                break;
            };
            let Some(mark) = touched.get_mut(number as usize) else {
                break;
            };
            *mark |= entry.last > above && entry.first <= upto;
        }
    }

    /// Adds to `chain` the versions of `key` in `(above, upto]`, beginning with the last of them that
    /// needs no earlier one. Returns whether there was such a one.
    pub(crate) fn collect(
        &self,
        key: &PageKey,
        above: Lsn,
        upto: Lsn,
        chain: &mut Chain,
    ) -> Result<bool, LayerError> {
        let Some(position) = self.position(key) else {
            return Ok(false);
        };
        let Some(entry) = self.index.keys.get(position) else {
            return Ok(false);
        };
        if entry.last <= above || entry.first > upto {
            return Ok(false);
        }
        let mark = chain.mark();
        let mut based = false;
        let mut seen = 0u32;
        let mut offset = entry.offset;
        let mut number = entry.block;
        // The changes go on in the following blocks until another key comes.
        while seen < entry.records {
            let place = self.block(number)?;
            let bytes = self.read_block(place)?;
            let bad = |what: &str| {
                corrupt(
                    self.file.path(),
                    place.offset,
                    format!("the block has {what}"),
                )
            };
            let mut items = Items::new(bytes.get(offset as usize..).unwrap_or_default());
            let mut ours = false;
            while seen < entry.records {
                match items.next().map_err(bad)? {
                    None => break,
                    Some(Item::Key(BlockKey::Page(found))) if found == *key => ours = true,
                    Some(Item::Key(_)) => {
                        return Err(bad("another page than the index says").into());
                    }
                    Some(Item::Entry { kind, lsn, bytes }) => {
                        if !ours || !kind.is_page() || lsn < entry.first || lsn > entry.last {
                            return Err(bad("an entry that the index does not have there").into());
                        }
                        seen += 1;
                        if lsn <= above || lsn > upto {
                            continue;
                        }
                        if kind.is_base() {
                            chain.cut(&mark);
                            based = true;
                        }
                        chain.push(lsn, kind, bytes);
                    }
                }
            }
            number = number.saturating_add(1);
            offset = 0;
        }
        Ok(based)
    }

    /// Calls `visit` with every metadata version, in order of key, then LSN.
    pub(crate) fn for_each_meta(&self, visit: &mut MetaVisitor<'_>) -> Result<(), LayerError> {
        for number in 0..self.index.meta_blocks {
            self.for_each_in_block(number, &mut |key, kind, lsn, value| {
                let BlockKey::Meta(key) = key else {
                    return Err("a page among the metadata");
                };
                match kind {
                    EntryKind::MetaValue => visit(key, lsn, Some(value)),
                    EntryKind::MetaTombstone => visit(key, lsn, None),
                    _ => return Err("a page's change under a metadata key"),
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Calls `visit` with every entry of a block.
    pub(crate) fn for_each_in_block(
        &self,
        number: u32,
        visit: &mut EntryVisitor<'_>,
    ) -> Result<(), LayerError> {
        let place = self.block(number)?;
        let bytes = self.read_block(place)?;
        let bad = |what: &str| {
            corrupt(
                self.file.path(),
                place.offset,
                format!("the block has {what}"),
            )
        };
        let mut items = Items::new(&bytes);
        let mut key = None;
        while let Some(item) = items.next().map_err(bad)? {
            match item {
                Item::Key(next) => key = Some(next),
                Item::Entry { kind, lsn, bytes } => {
                    let key = key.ok_or_else(|| bad("an entry before any key"))?;
                    visit(key, kind, lsn, bytes).map_err(bad)?;
                }
            }
        }
        Ok(())
    }

    fn block(&self, number: u32) -> Result<BlockPlace, Corruption> {
        self.index
            .blocks
            .get(number as usize)
            .copied()
            .ok_or_else(|| {
                let what = format!("block {number} is missing, the index needs it");
                corrupt(self.file.path(), self.footer.index_offset, what)
            })
    }

    fn read_block(&self, place: BlockPlace) -> Result<Vec<u8>, LayerError> {
        let mut bytes = vec![0; place.len as usize];
        self.file.read_at(place.offset, &mut bytes)?;
        if crc32c::crc32c(&bytes) != place.crc {
            let what = "block checksum is wrong".to_owned();
            return Err(corrupt(self.file.path(), place.offset, what).into());
        }
        Ok(bytes)
    }
}

/// How many blocks `key` lies after `first` in the same fork.
pub(crate) fn following(first: &PageKey, key: &PageKey) -> Option<u32> {
    let same =
        (first.space, first.db, first.rel, first.fork) == (key.space, key.db, key.rel, key.fork);
    if same {
        key.block.checked_sub(first.block)
    } else {
        None
    }
}
