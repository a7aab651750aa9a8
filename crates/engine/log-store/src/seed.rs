//! Making a store out of WAL that exists already.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId};

use crate::error::{OpenError, StoreError};
use crate::segments::SegmentDir;
use crate::state::{State, sync_dir};
use crate::watermark::{Note, WatermarkFile};
use crate::writer::Writer;

/// What a new store begins with.
#[derive(Debug, Clone)]
pub struct SeedLog {
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// Major that wrote the WAL.
    pub major: PgMajor,
    /// Bytes of a segment.
    pub segment_size: SegmentSize,
    /// Timeline of the WAL.
    pub timeline: TimelineId,
    /// Text of that timeline's history file; empty for a first timeline.
    pub history_text: String,
    /// Segment files to copy, named as PostgreSQL names them, without a gap: at least the one that
    /// holds the last byte before `end`.
    pub segments: Vec<PathBuf>,
    /// Where the WAL ends: the end of a whole record. What follows it in the files is left out.
    pub end: Lsn,
}

/// Makes a store in `dir`, which is created if need be; durable when it returns.
///
/// # Errors
/// [`OpenError`]: `Exists` when there is one, `SeedEnd` when the WAL does not end at `end`,
/// `Corrupt` when it does not read.
pub fn seed(dir: &Path, log: &SeedLog) -> Result<(), OpenError> {
    if State::exists(dir) {
        return Err(OpenError::Exists {
            dir: dir.to_owned(),
        });
    }
    fs::create_dir_all(dir).map_err(StoreError::io("creating", dir))?;
    let segments = SegmentDir {
        dir: dir.to_owned(),
        size: log.segment_size,
    };
    segments.remove(|_, _| true)?;
    for source in &log.segments {
        copy_segment(&segments, source, log.end)?;
    }
    if !log.history_text.is_empty() {
        segments.write_history(log.timeline, &log.history_text)?;
    }
    let (mut watermark, _) = WatermarkFile::open(dir, log.timeline)?;
    watermark.write(Note {
        timeline: log.timeline,
        flushed: log.end,
    })?;
    watermark.sync()?;
    sync_dir(dir)?;
    State::new(
        log.system_identifier,
        log.major,
        log.segment_size,
        log.timeline,
    )
    .store(dir)?;
    let checked = Writer::open(dir).and_then(|(writer, _)| {
        if writer.record_end() == log.end && writer.flushed == log.end {
            Ok(())
        } else {
            Err(OpenError::SeedEnd {
                expected: log.end,
                found: writer.record_end(),
            })
        }
    });
    if checked.is_err() {
        // A directory without this file is no store: the next attempt starts afresh.
        let path = dir.join("state");
        fs::remove_file(&path).map_err(StoreError::io("removing", &path))?;
    }
    checked
}

/// Copies what lies before `end` of one segment.
fn copy_segment(segments: &SegmentDir, source: &Path, end: Lsn) -> Result<(), StoreError> {
    let name = source.file_name().and_then(|name| name.to_str());
    let Some((timeline, number)) = name.and_then(|name| segments.size.parse_file_name(name)) else {
        let wrong = std::io::Error::other("its name is not that of a WAL segment");
        return Err(StoreError::io("copying", source)(wrong));
    };
    let wanted = end
        .since(segments.size.start_of(number))
        .min(segments.size.bytes());
    if wanted == 0 {
        return Ok(());
    }
    let mut head = Vec::with_capacity(wanted as usize);
    let read = File::open(source).and_then(|file| file.take(wanted).read_to_end(&mut head));
    let read = read.map_err(StoreError::io("reading", source))?;
    if (read as u64) < wanted {
        let short = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        return Err(StoreError::io("reading", source)(short));
    }
    segments.create(timeline, number, "create.tmp", &head)
}
