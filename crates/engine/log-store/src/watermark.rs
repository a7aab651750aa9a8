//! How far WAL was durable, as last noted.
//!
//! After every `fdatasync` of WAL the flushed LSN is noted in one of two slots in turn, without a
//! sync of its own: the note may be lost in a power cut, then an older one stands, but it is never
//! ahead of the WAL. It tells a torn tail (beyond it) from damage (below it).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pg_types::{Lsn, TimelineId};

use crate::error::StoreError;

const MAGIC: u32 = 0x534C_574D;
const SLOT_LEN: usize = 32;
/// Slots lie in sectors of their own, so that a torn sector spoils one note only.
const SLOT_SPACING: u64 = 4096;

/// What was noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) timeline: TimelineId,
    pub(crate) flushed: Lsn,
}

/// The watermark file: two slots of `magic u32, timeline u32, sequence u64, flushed u64, zero u32,
/// crc32c u32`, little-endian.
#[derive(Debug)]
pub(crate) struct WatermarkFile {
    path: PathBuf,
    file: File,
    sequence: u64,
}

impl WatermarkFile {
    /// Opens or makes the file; the LSN is that of the newest readable note about `timeline`.
    pub(crate) fn open(
        dir: &Path,
        timeline: TimelineId,
    ) -> Result<(WatermarkFile, Option<Lsn>), StoreError> {
        let path = dir.join("watermark");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(StoreError::io("opening", &path))?;
        let mut sequence = 0;
        let mut newest: Option<(u64, Lsn)> = None;
        for slot in 0..2 {
            let mut bytes = [0; SLOT_LEN];
            if file.read_exact_at(&mut bytes, slot * SLOT_SPACING).is_err() {
                continue;
            }
            let Some((number, note)) = decode(bytes) else {
                continue;
            };
            sequence = sequence.max(number);
            if note.timeline == timeline && newest.is_none_or(|(newest, _)| number > newest) {
                newest = Some((number, note.flushed));
            }
        }
        Ok((
            WatermarkFile {
                path,
                file,
                sequence,
            },
            newest.map(|(_, flushed)| flushed),
        ))
    }

    /// Notes that WAL up to `note` is durable.
    pub(crate) fn write(&mut self, note: Note) -> Result<(), StoreError> {
        self.sequence += 1;
        let slot = self.sequence % 2;
        self.file
            .write_all_at(&encode(self.sequence, note), slot * SLOT_SPACING)
            .map_err(StoreError::io("writing", &self.path))
    }

    /// Makes the notes themselves durable, where a switch of timelines rests on them.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.file
            .sync_all()
            .map_err(StoreError::io("syncing", &self.path))
    }
}

fn encode(sequence: u64, note: Note) -> [u8; SLOT_LEN] {
    let mut bytes = Vec::with_capacity(SLOT_LEN);
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&note.timeline.0.to_le_bytes());
    bytes.extend_from_slice(&sequence.to_le_bytes());
    bytes.extend_from_slice(&note.flushed.0.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    let mut slot = [0; SLOT_LEN];
    slot.copy_from_slice(&bytes);
    slot
}

fn decode(slot: [u8; SLOT_LEN]) -> Option<(u64, Note)> {
    let (body, crc) = slot.split_last_chunk::<4>()?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let (magic, rest) = body.split_first_chunk::<4>()?;
    let (timeline, rest) = rest.split_first_chunk::<4>()?;
    let (sequence, rest) = rest.split_first_chunk::<8>()?;
    let (flushed, _) = rest.split_first_chunk::<8>()?;
    if u32::from_le_bytes(*magic) != MAGIC {
        return None;
    }
    let note = Note {
        timeline: TimelineId(u32::from_le_bytes(*timeline)),
        flushed: Lsn(u64::from_le_bytes(*flushed)),
    };
    Some((u64::from_le_bytes(*sequence), note))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_note_that_reads_counts() {
        let dir = tempfile::tempdir().unwrap();
        let note = |n| Note {
            timeline: TimelineId(2),
            flushed: Lsn(n),
        };
        let read = |timeline| WatermarkFile::open(dir.path(), TimelineId(timeline)).unwrap();
        let (mut file, none) = read(2);
        assert_eq!(none, None);
        for n in [10, 20, 30] {
            file.write(note(n)).unwrap();
            assert_eq!(read(2).1, Some(Lsn(n)));
            assert_eq!(read(1).1, None);
        }
        // Sequence 3 stands in slot 1; a flipped bit there leaves sequence 2 in slot 0.
        file.file.write_all_at(&[0xFF], SLOT_SPACING + 17).unwrap();
        assert_eq!(read(2).1, Some(Lsn(20)));
    }
}
