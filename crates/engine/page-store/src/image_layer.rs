//! Image layers: whole pages at one LSN.
//!
//! Pages are stored as they are, one after another, so a run of neighbouring blocks is one read.
//! All-zero pages are only noted in the index. Each stored page has its own checksum: a damaged one
//! costs that page, not its neighbours.

use std::path::Path;

use pg_types::{BLCKSZ, Lsn, PageKey};

use crate::cursor::Cursor;
use crate::delta_layer::following;
use crate::disk::{Disk, ReadFile};
use crate::error::{Corruption, OpenError};
use crate::layer_error::LayerError;
use crate::layer_file::{Footer, LayerKind, corrupt, open_frame};

/// Where the first page is in the file: pages are aligned, for direct I/O some day.
pub(crate) const PAGES_OFFSET: u64 = 4096;
/// Bytes of a run in the index.
const RUN_LEN: usize = 26;

/// Neighbouring blocks of one fork that are stored one after another, or that are all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first page.
    pub(crate) key: PageKey,
    /// Pages.
    pub(crate) count: u32,
    /// Slot of the first page; `None` when all are zeros.
    pub(crate) slot: Option<u32>,
}

impl Run {
    /// The key after the run's last.
    pub(crate) fn end_block(&self) -> u64 {
        u64::from(self.key.block) + u64::from(self.count)
    }
}

/// The first page that two of these runs have; they must be in order of key.
pub(crate) fn overlap(runs: &[Run]) -> Option<PageKey> {
    let both = |(run, next): (&Run, &Run)| {
        let apart = following(&run.key, &next.key)?;
        (apart < run.count).then_some(next.key)
    };
    runs.iter().zip(runs.iter().skip(1)).find_map(both)
}

/// Where a page of an image layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nowhere: it is all zeros.
    Zero,
    /// In the file.
    Stored(u32),
}

/// The index of an image layer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageIndex {
    /// In order of key, without overlaps.
    pub(crate) runs: Vec<Run>,
    /// CRC-32C of every stored page.
    pub(crate) checksums: Vec<u32>,
}

impl ImageIndex {
    /// The index's bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + self.runs.len() * RUN_LEN + self.checksums.len() * 4);
        out.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.checksums.len() as u32).to_le_bytes());
        for run in &self.runs {
            out.extend_from_slice(&run.key.encode());
            out.push(u8::from(run.slot.is_none()));
            out.extend_from_slice(&run.count.to_le_bytes());
            out.extend_from_slice(&run.slot.unwrap_or(0).to_le_bytes());
        }
        for checksum in &self.checksums {
            out.extend_from_slice(&checksum.to_le_bytes());
        }
        out
    }

    fn decode(path: &Path, footer: &Footer, bytes: &[u8]) -> Result<ImageIndex, Corruption> {
        let bad = |what: &str| corrupt(path, footer.index_offset, format!("the index {what}"));
        let mut cursor = Cursor::new(bytes);
        let mut counts = || Some((cursor.u32()?, cursor.u32()?));
        let (run_count, slot_count) = counts().ok_or_else(|| bad("is cut off"))?;
        let need = u64::from(run_count) * RUN_LEN as u64 + u64::from(slot_count) * 4;
        if need != cursor.left() as u64 {
            return Err(bad("does not have the size its counts give"));
        }
        if PAGES_OFFSET + u64::from(slot_count) * BLCKSZ as u64 != footer.index_offset {
            return Err(bad("is not where the last page ends"));
        }
        let mut index = ImageIndex::default();
        let mut pages = 0u64;
        for _ in 0..run_count {
            let run = decode_run(&mut cursor).ok_or_else(|| bad("is cut off"))?;
            let stored = run.slot.is_none_or(|slot| {
                slot.checked_add(run.count)
                    .is_some_and(|end| end <= slot_count)
            });
            let ordered = index.runs.last().is_none_or(|last: &Run| {
                last.key < run.key
                    && following(&last.key, &run.key).is_none_or(|apart| apart >= last.count)
            });
            if !stored || !ordered || run.count == 0 || run.end_block() > 1 << 32 {
                return Err(bad("has an impossible run of pages"));
            }
            pages += u64::from(run.count);
            index.runs.push(run);
        }
        if pages != footer.keys {
            return Err(bad("does not have as many pages as the footer says"));
        }
        for _ in 0..slot_count {
            index
                .checksums
                .push(cursor.u32().ok_or_else(|| bad("is cut off"))?);
        }
        Ok(index)
    }
}

fn decode_run(cursor: &mut Cursor<'_>) -> Option<Run> {
    let key = cursor.page_key()?;
    let zero = cursor.u8()? != 0;
    let (count, slot) = (cursor.u32()?, cursor.u32()?);
    Some(Run {
        key,
        count,
        slot: if zero { None } else { Some(slot) },
    })
}

/// An open image layer file.
pub(crate) struct ImageLayer {
    file: ReadFile,
    footer: Footer,
    index: ImageIndex,
}

impl ImageLayer {
    /// Opens a file and loads its index.
    pub(crate) fn open(disk: &Disk, path: &Path) -> Result<ImageLayer, OpenError> {
        let frame = open_frame(disk, path)?;
        if frame.footer.stamp.kind != LayerKind::Image {
            return Err(corrupt(path, 0, "this is no image layer".to_owned()).into());
        }
        let index = ImageIndex::decode(path, &frame.footer, &frame.index)?;
        Ok(ImageLayer {
            file: frame.file,
            footer: frame.footer,
            index,
        })
    }

    /// Its pages are as of this LSN.
    pub(crate) fn lsn(&self) -> Lsn {
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

    /// Its runs of pages, in order of key.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.index.runs
    }

    /// Pages stored in the file.
    pub(crate) fn stored(&self) -> u32 {
        self.index.checksums.len() as u32
    }

    /// Where `key` is, if the layer has it.
    pub(crate) fn find(&self, key: &PageKey) -> Option<Slot> {
        let after = self.index.runs.partition_point(|run| run.key <= *key);
        let run = self.index.runs.get(after.checked_sub(1)?)?;
        let number = following(&run.key, key).filter(|number| *number < run.count)?;
        Some(
            run.slot
                .map_or(Slot::Zero, |slot| Slot::Stored(slot + number)),
        )
    }

    /// Calls `visit` with the number and place of each of the `count` pages from `key` on that the
    /// layer has.
    pub(crate) fn find_run(&self, key: &PageKey, count: u32, visit: &mut dyn FnMut(u32, Slot)) {
        let runs = &self.index.runs;
        let from = runs
            .partition_point(|run| run.key <= *key)
            .saturating_sub(1);
        let last = PageKey {
            block: key.block.saturating_add(count.saturating_sub(1)),
            ..*key
        };
        for run in runs.iter().skip(from) {
            if run.key > last {
                break;
            }
            let same = following(&run.key, key).is_some() || following(key, &run.key).is_some();
            if !same {
                continue;
            }
            let end = run.end_block().min(u64::from(last.block) + 1);
            let first = u64::from(run.key.block.max(key.block));
            for block in first..end {
                let block = block as u32;
                let slot = run.slot.map(|slot| slot + (block - run.key.block));
                visit(block - key.block, slot.map_or(Slot::Zero, Slot::Stored));
            }
        }
    }

    /// Reads one page.
    pub(crate) fn read(&self, slot: Slot, page: &mut [u8; BLCKSZ]) -> Result<(), LayerError> {
        match slot {
            Slot::Zero => page.fill(0),
            Slot::Stored(slot) => {
                self.file.read_at(slot_offset(slot), page)?;
                self.check(slot, page)?;
            }
        }
        Ok(())
    }

    /// Reads the stored pages from `slot` on into `bytes`, without looking at their checksums.
    pub(crate) fn read_unchecked(&self, slot: u32, bytes: &mut [u8]) -> Result<(), LayerError> {
        Ok(self.file.read_at(slot_offset(slot), bytes)?)
    }

    /// Checks a page that was read from `slot`.
    pub(crate) fn check(&self, slot: u32, page: &[u8; BLCKSZ]) -> Result<(), Corruption> {
        if self.index.checksums.get(slot as usize) == Some(&crc32c::crc32c(page)) {
            return Ok(());
        }
        let what = "page checksum is wrong".to_owned();
        Err(corrupt(self.file.path(), slot_offset(slot), what))
    }
}

/// Offset of a stored page in the file.
fn slot_offset(slot: u32) -> u64 {
    PAGES_OFFSET + u64::from(slot) * BLCKSZ as u64
}
