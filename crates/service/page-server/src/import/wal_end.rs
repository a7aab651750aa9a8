//! The end of the cluster's WAL: its shutdown checkpoint.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pg_types::{Lsn, TimelineId};
use pg_wal::records::xlog::XlogRecord;
use pg_wal::{Record, WalStream};

use super::ImportError;
use super::error::disk;
use super::source::SourceCluster;

/// The shutdown checkpoint and the WAL around it.
#[derive(Debug)]
pub(super) struct WalEnd {
    /// End of the record.
    pub(super) lsn: Lsn,
    /// Its start.
    pub(super) last_record: Lsn,
    pub(super) timeline: TimelineId,
    pub(super) history_text: String,
    /// Start of the segment that `last_record` lies in.
    pub(super) wal_start: Lsn,
    /// Bytes from there to `lsn`.
    pub(super) wal: Vec<u8>,
}

/// Finds the record that the control file names, and checks that it is the shutdown checkpoint the
/// control file has a copy of. PostgreSQL itself would start from it.
///
/// # Errors
/// [`ImportError::Checkpoint`] when it is not there.
pub(super) fn read(source: &SourceCluster) -> Result<WalEnd, ImportError> {
    let control = &source.control;
    let at = control.checkpoint_lsn();
    let timeline = control.checkpoint().timeline;
    let (major, segment_size) = (control.major(), control.segment_size());
    let directory = source.pgdata.join("pg_wal");
    let refused = |reason: String| ImportError::Checkpoint {
        lsn: at,
        path: directory.clone(),
        reason,
    };
    let first = segment_size.segment_of(at);
    let wal_start = segment_size.start_of(first);
    let mut stream = WalStream::new(at, major, segment_size);
    let mut wal = Vec::new();
    // The record may go on in the next segment.
    for segment in [first, first + 1] {
        let path = directory.join(segment_size.file_name(timeline, segment));
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(refused(format!("{} is missing", path.display())));
            }
            Err(error) => return Err(disk("open", &path)(error)),
        };
        let mut bytes = vec![0; usize::try_from(segment_size.bytes()).unwrap_or_default()];
        file.read_exact_at(&mut bytes, 0)
            .map_err(disk("read", &path))?;
        let start = segment_size.start_of(segment);
        let from = at.max(start);
        let offset = usize::try_from(from.since(start)).unwrap_or_default();
        stream
            .push(from, bytes.get(offset..).unwrap_or_default())
            .map_err(|error| refused(error.to_string()))?;
        wal.extend_from_slice(&bytes);
        let Some(record) = stream
            .next_record()
            .map_err(|error| refused(error.to_string()))?
        else {
            continue;
        };
        let decoded =
            Record::decode(record.bytes, major).map_err(|error| refused(error.to_string()))?;
        match XlogRecord::decode(&decoded) {
            Ok(XlogRecord::CheckpointShutdown(checkpoint))
                if checkpoint.redo == control.checkpoint().redo => {}
            _ => return Err(refused("another record is there".to_owned())),
        }
        let length = usize::try_from(record.end.since(wal_start)).unwrap_or_default();
        wal.truncate(length);
        return Ok(WalEnd {
            lsn: record.end,
            last_record: record.start,
            timeline,
            history_text: history_text(source, timeline)?,
            wal_start,
            wal,
        });
    }
    Err(refused("the record does not end".to_owned()))
}

fn history_text(source: &SourceCluster, timeline: TimelineId) -> Result<String, ImportError> {
    if timeline <= TimelineId(1) {
        return Ok(String::new());
    }
    let path = source
        .pgdata
        .join("pg_wal")
        .join(timeline.history_file_name());
    std::fs::read_to_string(&path).map_err(disk("read", &path))
}
