//! The index of a delta layer: its blocks, and for every page where its changes are.
//!
//! All indexes together are the version map of what is on disk; they stay in memory.

use std::path::Path;

use pg_types::{Lsn, PageKey};

use crate::cursor::Cursor;
use crate::error::Corruption;
use crate::layer_file::{Footer, HEADER_LEN, corrupt};

/// Bytes of a block's entry in the index.
const BLOCK_LEN: usize = 16;
/// Bytes of a page's entry in the index.
const KEY_LEN: usize = 54;
const FLAG_BASED: u8 = 1;

/// A block of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) crc: u32,
}

/// A page's changes in the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyEntry {
    pub(crate) key: PageKey,
    /// Block in which its changes begin.
    pub(crate) block: u32,
    /// Where in that block.
    pub(crate) offset: u32,
    /// LSN of its first change.
    pub(crate) first: Lsn,
    /// LSN of its last change.
    pub(crate) last: Lsn,
    /// Changes.
    pub(crate) records: u32,
    /// Whether one of them needs none before it.
    pub(crate) based: bool,
    /// Changes from the last such one on; all, when there is none.
    pub(crate) tail_records: u32,
    /// Their bytes.
    pub(crate) tail_bytes: u32,
}

/// The index in memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DeltaIndex {
    pub(crate) blocks: Vec<BlockPlace>,
    /// The first blocks hold metadata, the others pages.
    pub(crate) meta_blocks: u32,
    /// In order of key.
    pub(crate) keys: Vec<KeyEntry>,
}

impl DeltaIndex {
    /// The index's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let size = 16 + self.blocks.len() * BLOCK_LEN + self.keys.len() * KEY_LEN;
        let mut out = Vec::with_capacity(size);
        out.extend_from_slice(&(self.blocks.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.meta_blocks.to_le_bytes());
        out.extend_from_slice(&(self.keys.len() as u64).to_le_bytes());
        for block in &self.blocks {
            out.extend_from_slice(&block.offset.to_le_bytes());
            out.extend_from_slice(&block.len.to_le_bytes());
            out.extend_from_slice(&block.crc.to_le_bytes());
        }
        for entry in &self.keys {
            out.extend_from_slice(&entry.key.encode());
            out.push(if entry.based { FLAG_BASED } else { 0 });
            out.extend_from_slice(&entry.block.to_le_bytes());
            out.extend_from_slice(&entry.offset.to_le_bytes());
            out.extend_from_slice(&entry.first.0.to_le_bytes());
            out.extend_from_slice(&entry.last.0.to_le_bytes());
            out.extend_from_slice(&entry.records.to_le_bytes());
            out.extend_from_slice(&entry.tail_records.to_le_bytes());
            out.extend_from_slice(&entry.tail_bytes.to_le_bytes());
        }
        out
    }

    /// Decodes and checks an index: blocks fill the file up to the index, keys ascend, places exist.
    pub(crate) fn decode(
        path: &Path,
        footer: &Footer,
        bytes: &[u8],
    ) -> Result<DeltaIndex, Corruption> {
        let bad = |what: &str| corrupt(path, footer.index_offset, format!("the index {what}"));
        let mut cursor = Cursor::new(bytes);
        let mut counts = || Some((cursor.u32()?, cursor.u32()?, cursor.u64()?));
        let (block_count, meta_blocks, key_count) = counts().ok_or_else(|| bad("is cut off"))?;
        let need = u64::from(block_count)
            .checked_mul(BLOCK_LEN as u64)
            .zip(key_count.checked_mul(KEY_LEN as u64))
            .and_then(|(blocks, keys)| blocks.checked_add(keys));
        if need != Some(cursor.left() as u64) || key_count != footer.keys {
            return Err(bad("does not have the size its counts give"));
        }
        if meta_blocks > block_count {
            return Err(bad("has more metadata blocks than blocks"));
        }
        let mut index = DeltaIndex {
            meta_blocks,
            ..DeltaIndex::default()
        };
        let mut at = HEADER_LEN as u64;
        for _ in 0..block_count {
            let block = decode_block(&mut cursor).ok_or_else(|| bad("is cut off"))?;
            if block.offset != at || block.len == 0 {
                return Err(bad("has blocks that do not follow each other"));
            }
            at = at.saturating_add(u64::from(block.len));
            index.blocks.push(block);
        }
        if at != footer.index_offset {
            return Err(bad("has blocks that do not end where it begins"));
        }
        for _ in 0..key_count {
            let entry = decode_key(&mut cursor).ok_or_else(|| bad("is cut off"))?;
            let block = index.blocks.get(entry.block as usize);
            let placed = entry.block >= meta_blocks
                && block.is_some_and(|block| entry.offset < block.len)
                && index.keys.last().is_none_or(|last| last.is_before(&entry))
                && entry.first <= entry.last
                && entry.first > footer.stamp.start
                && entry.last <= footer.stamp.end;
            if !placed {
                return Err(bad("has a page at an impossible place"));
            }
            index.keys.push(entry);
        }
        Ok(index)
    }
}

impl KeyEntry {
    fn is_before(&self, next: &KeyEntry) -> bool {
        self.key < next.key && (self.block, self.offset) < (next.block, next.offset)
    }
}

fn decode_block(cursor: &mut Cursor<'_>) -> Option<BlockPlace> {
    Some(BlockPlace {
        offset: cursor.u64()?,
        len: cursor.u32()?,
        crc: cursor.u32()?,
    })
}

fn decode_key(cursor: &mut Cursor<'_>) -> Option<KeyEntry> {
    let key = cursor.page_key()?;
    let flags = cursor.u8()?;
    Some(KeyEntry {
        key,
        based: flags & FLAG_BASED != 0,
        block: cursor.u32()?,
        offset: cursor.u32()?,
        first: cursor.lsn()?,
        last: cursor.lsn()?,
        records: cursor.u32()?,
        tail_records: cursor.u32()?,
        tail_bytes: cursor.u32()?,
    })
}
