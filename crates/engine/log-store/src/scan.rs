//! Finding the end of valid WAL on disk.

use pg_types::{Lsn, PgMajor};
use pg_wal::{StreamError, WalStream};
use wal_quorum::History;

use crate::error::OpenError;
use crate::record_ends::RecordEnds;
use crate::segments::{SegmentDir, timeline_of_segment};

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// Segments before the last that are checked too: WAL that the storage node may still ask for.
const CHECKED_SEGMENTS: u64 = 8;

/// What a scan found.
#[derive(Debug)]
pub(crate) struct Scan {
    /// The splitter, at the end of what is valid or durable.
    pub(crate) stream: WalStream,
    /// Ends of the scanned records.
    pub(crate) ends: RecordEnds,
    /// Whole records or durable bytes end here, whichever is later.
    pub(crate) end: Lsn,
}

/// Reads WAL of `history` from some segments before `watermark` on. Everything below `watermark` was
/// durable and must be valid; beyond it the first thing that is not valid is the end, unless
/// `beyond` is false, then `watermark` is.
pub(crate) fn scan(
    dir: &SegmentDir,
    history: &History,
    major: PgMajor,
    oldest: Lsn,
    watermark: Lsn,
    beyond: bool,
) -> Result<Scan, OpenError> {
    let last = dir.size.segment_of(Lsn(watermark.0.saturating_sub(1)));
    let mut first = last
        .saturating_sub(CHECKED_SEGMENTS)
        .max(dir.size.segment_of(oldest));
    loop {
        let mut stream = WalStream::scan_from_page(dir.size.start_of(first), major, dir.size);
        let mut ends = RecordEnds::default();
        feed(dir, history, &mut stream, watermark, &mut ends)?;
        // All of it may be the inside of one long record: its start is further back.
        if !stream.last_record().is_valid() && first > dir.size.segment_of(oldest) {
            first -= 1;
            continue;
        }
        if beyond {
            feed_beyond(dir, history, &mut stream, &mut ends)?;
        }
        let end = stream.record_end().max(watermark);
        if stream.fed() > end {
            // Drop what follows the valid end, then take back the part of a record that is durable.
            resume(dir, history, &mut stream, watermark)?;
        }
        return Ok(Scan { stream, ends, end });
    }
}

/// Feeds what is durable; anything invalid in it is damage.
fn feed(
    dir: &SegmentDir,
    history: &History,
    stream: &mut WalStream,
    watermark: Lsn,
    ends: &mut RecordEnds,
) -> Result<(), OpenError> {
    let mut buffer = vec![0; CHUNK];
    while stream.fed() < watermark {
        let at = stream.fed();
        let len = (watermark.since(at)).min(CHUNK as u64) as usize;
        let read = dir.read(history, at, buffer.get_mut(..len).unwrap_or_default())?;
        let number = dir.size.segment_of(at);
        let path = dir.path(timeline_of_segment(history, dir.size, number), number);
        if read == 0 {
            return Err(OpenError::MissingSegment { path, watermark });
        }
        let taken = stream.push(at, buffer.get(..read).unwrap_or_default());
        let drained = taken.and_then(|()| drain(stream, ends));
        drained.map_err(|error| {
            let lsn = error.lsn();
            let number = dir.size.segment_of(lsn);
            let path = dir.path(timeline_of_segment(history, dir.size, number), number);
            OpenError::Corrupt {
                path,
                lsn,
                reason: error.to_string(),
                watermark,
            }
        })?;
    }
    Ok(())
}

/// Feeds what may or may not be valid, up to the first thing that is not.
fn feed_beyond(
    dir: &SegmentDir,
    history: &History,
    stream: &mut WalStream,
    ends: &mut RecordEnds,
) -> Result<(), OpenError> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let at = stream.fed();
        let read = dir.read(history, at, &mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        let taken = stream.push(at, buffer.get(..read).unwrap_or_default());
        if taken.and_then(|()| drain(stream, ends)).is_err() {
            return Ok(());
        }
    }
}

/// Puts the splitter back to its last record's end and feeds it again up to `watermark`.
fn resume(
    dir: &SegmentDir,
    history: &History,
    stream: &mut WalStream,
    watermark: Lsn,
) -> Result<(), OpenError> {
    let at = stream.record_end();
    let timeline = history.timeline_at(at);
    if stream.switch_timeline(at, timeline).is_ok() && watermark > at {
        feed(dir, history, stream, watermark, &mut RecordEnds::default())?;
    }
    Ok(())
}

/// Takes every whole record out.
pub(crate) fn drain(stream: &mut WalStream, ends: &mut RecordEnds) -> Result<(), StreamError> {
    while let Some(record) = stream.next_record()? {
        ends.push(record.end);
    }
    Ok(())
}
