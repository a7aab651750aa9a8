//! The blocks of a delta layer: versions of keys, in order of key, then LSN.
//!
//! A block is a sequence of items: a key item names the key of the entries after it. Every block
//! begins with a key item, so each can be read alone, and what is read can be compared with what
//! was asked for.

use pg_types::{Lsn, PageKey};

use crate::batch::MAX_META_KEY;
use crate::cursor::Cursor;
use crate::entry::EntryKind;

/// Size at which a block is finished. An entry is never split, so a block may be larger.
pub(crate) const BLOCK_TARGET: usize = 32 << 10;

const ITEM_KEY: u8 = 1;
const ITEM_ENTRY: u8 = 2;
const KEY_META: u8 = 0;
const KEY_PAGE: u8 = 1;

/// A key in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BlockKey<'a> {
    /// A metadata key.
    Meta(&'a [u8]),
    /// A page.
    Page(PageKey),
}

/// An item of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    /// The entries after this are of this key.
    Key(BlockKey<'a>),
    /// A version of the key.
    Entry {
        kind: EntryKind,
        lsn: Lsn,
        bytes: &'a [u8],
    },
}

/// Appends a key item.
pub(crate) fn put_key(out: &mut Vec<u8>, key: BlockKey<'_>) {
    out.push(ITEM_KEY);
    match key {
        BlockKey::Meta(bytes) => {
            out.push(KEY_META);
            out.push(bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
        BlockKey::Page(key) => {
            out.push(KEY_PAGE);
            out.push(PageKey::ENCODED_LEN as u8);
            out.extend_from_slice(&key.encode());
        }
    }
}

/// Appends an entry item.
pub(crate) fn put_entry(out: &mut Vec<u8>, kind: EntryKind, lsn: Lsn, bytes: &[u8]) {
    out.push(ITEM_ENTRY);
    out.push(kind as u8);
    out.extend_from_slice(&lsn.0.to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The items of a block from some place on.
pub(crate) struct Items<'a> {
    cursor: Cursor<'a>,
}

impl<'a> Items<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Items<'a> {
        Items {
            cursor: Cursor::new(bytes),
        }
    }

    /// The next item; `Ok(None)` at the end, `Err` with what is wrong.
    pub(crate) fn next(&mut self) -> Result<Option<Item<'a>>, &'static str> {
        let Some(tag) = self.cursor.u8() else {
            return Ok(None);
        };
        match tag {
            ITEM_KEY => self.key().map(Some),
            ITEM_ENTRY => self.entry().map(Some),
            _ => Err("an item of unknown type"),
        }
    }

    fn key(&mut self) -> Result<Item<'a>, &'static str> {
        let mut fields = || {
            let (space, len) = (self.cursor.u8()?, self.cursor.u8()?);
            Some((space, self.cursor.take(usize::from(len))?))
        };
        let (space, bytes) = fields().ok_or("a key that is cut off")?;
        match space {
            KEY_META if bytes.len() <= MAX_META_KEY => Ok(Item::Key(BlockKey::Meta(bytes))),
            KEY_PAGE => {
                let key = bytes
                    .try_into()
                    .map_err(|_| "a page key of the wrong length")?;
                Ok(Item::Key(BlockKey::Page(PageKey::decode(key))))
            }
            _ => Err("a key of unknown type or length"),
        }
    }

    fn entry(&mut self) -> Result<Item<'a>, &'static str> {
        let mut fields = || {
            let kind = self.cursor.u8()?;
            let (lsn, len) = (self.cursor.lsn()?, self.cursor.u32()?);
            Some((kind, lsn, self.cursor.take(len as usize)?))
        };
        let (kind, lsn, bytes) = fields().ok_or("an entry that is cut off")?;
        let kind = EntryKind::from_number(kind).ok_or("an entry of unknown kind")?;
        Ok(Item::Entry { kind, lsn, bytes })
    }
}
