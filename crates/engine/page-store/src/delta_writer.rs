//! Writing a frozen layer to a delta layer file.

use std::path::{Path, PathBuf};

use pg_types::{Lsn, PageKey};

use crate::delta_block::{BLOCK_TARGET, BlockKey, put_entry, put_key};
use crate::delta_index::{BlockPlace, DeltaIndex, KeyEntry};
use crate::disk::Disk;
use crate::entry::EntryKind;
use crate::error::DiskError;
use crate::layer_file::{LayerFileWriter, LayerName};
use crate::mem_layer::{MemLayer, piece};

/// Writes everything in `layer` to a file, durable under its name when this returns; the directory
/// is not synced yet.
pub(crate) fn write_delta(
    disk: &Disk,
    dir: &Path,
    name: LayerName,
    system_identifier: u64,
    layer: &MemLayer,
) -> Result<PathBuf, DiskError> {
    let mut writer = DeltaWriter {
        out: LayerFileWriter::create(disk, dir, name, system_identifier)?,
        block: Vec::with_capacity(BLOCK_TARGET * 2),
        index: DeltaIndex::default(),
        entries: 0,
    };
    writer.meta(layer)?;
    let chunks = layer.chunks();
    for (key, versions) in layer.sorted_pages() {
        let changes = versions
            .iter()
            .map(|version| (version.lsn, version.kind, piece(&chunks, version)));
        writer.page(key, changes)?;
    }
    writer.finish()
}

struct DeltaWriter {
    out: LayerFileWriter,
    /// The block being filled.
    block: Vec<u8>,
    index: DeltaIndex,
    entries: u64,
}

impl DeltaWriter {
    fn meta(&mut self, layer: &MemLayer) -> Result<(), DiskError> {
        let mut failed = Ok(());
        let mut last: Option<Box<[u8]>> = None;
        layer.for_each_meta(&mut |key, lsn, value| {
            if failed.is_err() {
                return;
            }
            let full = self.block.len() >= BLOCK_TARGET;
            if full {
                failed = self.finish_block();
            }
            if self.block.is_empty() || last.as_deref() != Some(key) {
                put_key(&mut self.block, BlockKey::Meta(key));
                last = Some(key.into());
            }
            let kind = if value.is_some() {
                EntryKind::MetaValue
            } else {
                EntryKind::MetaTombstone
            };
            put_entry(&mut self.block, kind, lsn, value.unwrap_or_default());
            self.entries += 1;
        });
        failed?;
        self.finish_block()?;
        self.index.meta_blocks = self.index.blocks.len() as u32;
        Ok(())
    }

    fn page<'a>(
        &mut self,
        key: PageKey,
        changes: impl Iterator<Item = (Lsn, EntryKind, &'a [u8])>,
    ) -> Result<(), DiskError> {
        if self.block.len() >= BLOCK_TARGET {
            self.finish_block()?;
        }
        let mut entry = KeyEntry {
            key,
            block: self.index.blocks.len() as u32,
            offset: self.block.len() as u32,
            first: Lsn::MAX,
            last: Lsn::INVALID,
            records: 0,
            based: false,
            tail_records: 0,
            tail_bytes: 0,
        };
        put_key(&mut self.block, BlockKey::Page(key));
        for (lsn, kind, bytes) in changes {
            if self.block.len() >= BLOCK_TARGET {
                self.finish_block()?;
                put_key(&mut self.block, BlockKey::Page(key));
            }
            put_entry(&mut self.block, kind, lsn, bytes);
            if kind.is_base() {
                entry.based = true;
                entry.tail_records = 0;
                entry.tail_bytes = 0;
            }
            entry.first = entry.first.min(lsn);
            entry.last = entry.last.max(lsn);
            entry.records += 1;
            entry.tail_records += 1;
            entry.tail_bytes = entry.tail_bytes.saturating_add(bytes.len() as u32);
        }
        self.entries += u64::from(entry.records);
        self.index.keys.push(entry);
        Ok(())
    }

    fn finish_block(&mut self) -> Result<(), DiskError> {
        if self.block.is_empty() {
            return Ok(());
        }
        self.index.blocks.push(BlockPlace {
            offset: self.out.file.length(),
            len: self.block.len() as u32,
            crc: crc32c::crc32c(&self.block),
        });
        self.out.file.append(&self.block)?;
        self.block.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<PathBuf, DiskError> {
        self.finish_block()?;
        let keys = self.index.keys.len() as u64;
        self.out.finish(&self.index.encode(), keys, self.entries)
    }
}
