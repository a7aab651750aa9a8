//! Valid WAL made record by record, so that every boundary is known, and a store that has it.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use log_store::{LogStore, OpenError, SeedLog, StoreError, seed};
use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId};
use pg_wal::{RmgrId, WalGeometry, encode_record, place_record};

pub const SIZE: u64 = 1 << 20;
const SYSTEM: u64 = 77;

pub fn size() -> SegmentSize {
    SegmentSize::new(SIZE).unwrap()
}

/// A writer of valid WAL.
pub struct Tape {
    pub at: Lsn,
    pub prev: Lsn,
    pub timeline: TimelineId,
}

impl Tape {
    /// Positioned at the first segment's start.
    pub fn new() -> Tape {
        Tape {
            at: Lsn(SIZE),
            prev: Lsn(0),
            timeline: TimelineId(1),
        }
    }

    /// The bytes of one more record with `len` bytes of payload.
    pub fn record(&mut self, len: usize) -> Vec<u8> {
        let geometry = WalGeometry {
            major: PgMajor::V15,
            system_identifier: SYSTEM,
            segment_size: size(),
            timeline: self.timeline,
        };
        let payload: Vec<u8> = (0..len).map(|n| (n as u64 + self.at.0) as u8).collect();
        let record = encode_record(RmgrId::XLOG, 0x20, 0, self.prev, &payload);
        let placed = place_record(self.at, &record, &geometry);
        (self.prev, self.at) = (placed.start, placed.end);
        placed.bytes
    }
}

/// A store whose WAL is `tape`'s first record.
pub fn seeded(dir: &Path) -> Tape {
    let mut tape = Tape::new();
    let mut segment = tape.record(100);
    segment.resize(SIZE as usize, 0);
    std::fs::create_dir_all(dir).unwrap();
    let source = dir.join(size().file_name(TimelineId(1), 1));
    std::fs::write(&source, segment).unwrap();
    let log = SeedLog {
        system_identifier: SYSTEM,
        major: PgMajor::V15,
        segment_size: size(),
        timeline: TimelineId(1),
        history_text: String::new(),
        segments: vec![source.clone()],
        end: tape.at,
    };
    let store = dir.join("store");
    seed(&store, &log).unwrap();
    assert!(matches!(seed(&store, &log), Err(OpenError::Exists { .. })));
    tape
}

pub fn write(store: &LogStore, tape: &mut Tape, len: usize) -> Result<Lsn, StoreError> {
    // A store takes WAL by control requests only under a promise whose timeline has not begun.
    let status = store.status();
    if status.promised == status.timeline {
        store.promise(status.timeline.next())?;
    }
    let (promised, at, timeline) = (store.status().promised, tape.at, tape.timeline);
    let bytes = tape.record(len);
    let history = store.status().history_text;
    let status = store.write_wal(promised, timeline, at, &history, &bytes)?;
    Ok(status.flushed)
}

/// Begins the promised timeline at `at` with `bytes`, or empty: from now on what was written counts.
pub fn begin(store: &LogStore, at: Lsn, bytes: &[u8]) -> TimelineId {
    let status = store.status();
    let (timeline, parent) = (status.promised, status.timeline);
    let history = format!("{}{parent}\t{at}\ttest\n", status.history_text);
    store
        .begin_timeline(timeline, parent, at, &history, bytes)
        .unwrap();
    timeline
}
