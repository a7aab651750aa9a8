//! Writing one image layer file.

use std::path::{Path, PathBuf};

use pg_types::{BLCKSZ, PageKey};

use crate::batch::is_zero_page;
use crate::delta_layer::following;
use crate::disk::Disk;
use crate::error::DiskError;
use crate::image_layer::{ImageIndex, PAGES_OFFSET, Run, overlap};
use crate::layer_file::{HEADER_LEN, LayerFileWriter, LayerName};

/// An image layer file being written. Pages may come in any order; runs of neighbours that come
/// one after another are stored as one.
pub(crate) struct ImageFileWriter {
    out: LayerFileWriter,
    index: ImageIndex,
    pages: u64,
}

impl ImageFileWriter {
    /// Begins a file.
    pub(crate) fn create(
        disk: &Disk,
        dir: &Path,
        name: LayerName,
        system_identifier: u64,
    ) -> Result<ImageFileWriter, DiskError> {
        let mut out = LayerFileWriter::create(disk, dir, name, system_identifier)?;
        out.file.append(&[0; PAGES_OFFSET as usize - HEADER_LEN])?;
        Ok(ImageFileWriter {
            out,
            index: ImageIndex::default(),
            pages: 0,
        })
    }

    /// Bytes so far.
    pub(crate) fn length(&self) -> u64 {
        self.out.file.length()
    }

    /// Adds a page.
    pub(crate) fn add(&mut self, key: PageKey, page: &[u8; BLCKSZ]) -> Result<(), DiskError> {
        self.pages += 1;
        let next_slot = self.index.checksums.len() as u32;
        let zero = is_zero_page(page);
        if !zero {
            self.out.file.append(page)?;
            self.index.checksums.push(crc32c::crc32c(page));
        }
        if let Some(run) = self.index.runs.last_mut() {
            let adjoins = following(&run.key, &key) == Some(run.count);
            let same_kind = run.slot.is_none() == zero;
            let stored_next = run.slot.is_none_or(|slot| slot + run.count == next_slot);
            if adjoins && same_kind && stored_next {
                run.count += 1;
                return Ok(());
            }
        }
        let slot = if zero { None } else { Some(next_slot) };
        self.index.runs.push(Run {
            key,
            count: 1,
            slot,
        });
        Ok(())
    }

    /// Sorts the index; returns a page that came twice, if one did.
    pub(crate) fn sort(&mut self) -> Option<PageKey> {
        self.index.runs.sort_unstable_by_key(|run| run.key);
        overlap(&self.index.runs)
    }

    /// Finishes the file, durable under its name when this returns; the directory is not synced
    /// yet. The index must have been sorted.
    pub(crate) fn finish(self) -> Result<PathBuf, DiskError> {
        self.out
            .finish(&self.index.encode(), self.pages, self.pages)
    }
}
