//! The durable side of a store: the only code that writes WAL.
//!
//! **Invariant.** `flushed` moves only after `fdatasync` returned, and the timeline in the state file
//! only after everything that timeline needs (its segment's head, its history file, its watermark) is
//! durable. A crash between any two steps leaves the state before or the state after.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use pg_types::{Lsn, TimelineId};
use pg_wal::WalStream;
use wal_quorum::History;

use crate::error::{OpenError, StoreError};
use crate::record_ends::RecordEnds;
use crate::scan::{Scan, drain, scan};
use crate::segments::{
    Preallocator, SegmentDir, ancestor_text, parse_history, timeline_of_segment,
};
use crate::state::State;
use crate::watermark::{Note, WatermarkFile};

/// Everything on disk, and how far it goes.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) dir: SegmentDir,
    pub(crate) state: State,
    pub(crate) history: Arc<History>,
    pub(crate) history_text: Arc<str>,
    pub(crate) flushed: Lsn,
    pub(crate) oldest: Lsn,
    /// Ends of records since they were last taken.
    pub(crate) ends: RecordEnds,
    stream: WalStream,
    watermark: WatermarkFile,
    preallocator: Preallocator,
    open: Option<(TimelineId, u64, File)>,
}

/// A tail that was cut off when the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TornTail {
    /// Valid WAL ends here.
    pub end: Lsn,
    /// Bytes in the rest of that segment that were not zero.
    pub bytes: u64,
}

impl Writer {
    pub(crate) fn open(dir: &Path) -> Result<(Writer, Option<TornTail>), OpenError> {
        let state = State::load(dir)?;
        let segments = SegmentDir {
            dir: dir.to_owned(),
            size: state.segment_size,
        };
        let text = segments.history_text(state.timeline)?.unwrap_or_default();
        let history = parse_history(state.timeline, &text)?;
        let (watermark, noted) = WatermarkFile::open(dir, state.timeline)?;
        let noted = noted.unwrap_or_default().max(history.begin());
        let highest = segments
            .list()?
            .iter()
            .map(|(_, number)| *number)
            .max()
            .unwrap_or(0);
        // Without a note the oldest segment's start is all that is known to be durable.
        let within = noted.max(
            segments
                .size
                .start_of(if noted.is_valid() { 0 } else { highest }),
        );
        let oldest = segments.oldest(&history, within)?;
        let durable = noted.max(oldest);
        let found = scan(&segments, &history, state.major, oldest, durable, true)?;
        let Scan { stream, ends, end } = found;
        let preallocator = Preallocator::start(segments.clone())?;
        let mut writer = Writer {
            dir: segments,
            state,
            history: Arc::new(history),
            history_text: text.into(),
            flushed: end,
            oldest,
            ends,
            stream,
            watermark,
            preallocator,
            open: None,
        };
        let torn = writer.make_tail_clean(durable)?;
        writer.complete_switch()?;
        writer.note(true)?;
        Ok((writer, torn))
    }

    /// Last timeline of the store's history.
    pub(crate) const fn timeline(&self) -> TimelineId {
        self.state.timeline
    }

    /// End of the last whole record.
    pub(crate) const fn record_end(&self) -> Lsn {
        self.stream.record_end()
    }

    /// Start of that record.
    pub(crate) const fn last_record(&self) -> Lsn {
        self.stream.last_record()
    }

    /// Makes what a scan found durable, and zeros what follows it, so that no later scan can take
    /// leftovers for WAL.
    fn make_tail_clean(&mut self, durable: Lsn) -> Result<Option<TornTail>, StoreError> {
        let size = self.dir.size;
        let (first, last) = (size.segment_of(durable), size.segment_of(self.flushed));
        let timeline = self.timeline();
        self.dir
            .remove(|of, number| of == timeline && number > last)?;
        let mut torn = None;
        for number in first..=last {
            let owner = timeline_of_segment(&self.history, size, number);
            let path = self.dir.path(owner, number);
            if !path.exists() {
                continue;
            }
            let file = self.dir.open_or_create(owner, number)?;
            if number == last {
                let offset = size.offset_of(self.flushed);
                let mut tail = vec![0; (size.bytes() - offset) as usize];
                file.read_exact_at(&mut tail, offset)
                    .map_err(StoreError::io("reading", &path))?;
                let bytes = tail.iter().filter(|byte| **byte != 0).count() as u64;
                if bytes > 0 {
                    tail.fill(0);
                    file.write_all_at(&tail, offset)
                        .map_err(StoreError::io("writing", &path))?;
                    torn = Some(TornTail {
                        end: self.flushed,
                        bytes,
                    });
                }
            }
            file.sync_data().map_err(StoreError::io("syncing", &path))?;
        }
        Ok(torn)
    }

    /// Writes `bytes` at `at` on the last timeline and makes them durable; what is there already is
    /// skipped. The records in them are not looked at yet: see [`Writer::digest`].
    pub(crate) fn append(&mut self, at: Lsn, bytes: &[u8]) -> Result<(), StoreError> {
        if at > self.flushed {
            return Err(StoreError::Gap {
                have: self.flushed,
                wanted: at,
            });
        }
        let known = usize::try_from(self.flushed.since(at)).unwrap_or(usize::MAX);
        let mut rest = bytes.get(known..).unwrap_or_default();
        let mut lsn = self.flushed;
        while !rest.is_empty() {
            let offset = self.dir.size.offset_of(lsn);
            let room = self.dir.size.bytes() - offset;
            let (piece, after) = rest.split_at(rest.len().min(room as usize));
            let path = self.open_segment(self.dir.size.segment_of(lsn))?;
            if let Some((.., file)) = &self.open {
                file.write_all_at(piece, offset)
                    .map_err(StoreError::io("writing", &path))?;
                file.sync_data().map_err(StoreError::io("syncing", &path))?;
            }
            lsn = lsn.advance(piece.len() as u64);
            rest = after;
        }
        if lsn > self.flushed {
            self.flushed = lsn;
            self.note(false)?;
        }
        Ok(())
    }

    /// Follows the records in `bytes`, which stand at `at` and are durable.
    pub(crate) fn digest(&mut self, at: Lsn, bytes: &[u8]) -> Result<(), StoreError> {
        self.stream.push(at, bytes)?;
        Ok(drain(&mut self.stream, &mut self.ends)?)
    }

    /// Makes the segment `number` of the last timeline the open one.
    fn open_segment(&mut self, number: u64) -> Result<std::path::PathBuf, StoreError> {
        let timeline = self.timeline();
        let path = self.dir.path(timeline, number);
        let is_open = |open: &(TimelineId, u64, File)| open.0 == timeline && open.1 == number;
        if !self.open.as_ref().is_some_and(is_open) {
            self.open = None;
            let file = self.dir.open_or_create(timeline, number)?;
            self.open = Some((timeline, number, file));
            self.preallocator.request(timeline, number + 1);
        }
        Ok(path)
    }

    fn note(&mut self, sync: bool) -> Result<(), StoreError> {
        self.watermark.write(Note {
            timeline: self.timeline(),
            flushed: self.flushed,
        })?;
        if sync { self.watermark.sync() } else { Ok(()) }
    }

    /// Durably promises `timeline`.
    pub(crate) fn promise(&mut self, timeline: TimelineId) -> Result<(), StoreError> {
        let promised = self.state.promised.promise(timeline)?;
        if promised != self.state.promised {
            let state = State {
                promised,
                ..self.state.clone()
            };
            state.store(&self.dir.dir)?;
            self.state = state;
        }
        self.complete_switch()
    }

    /// Durably promises `timeline` by taking WAL of it: the server before it is obeyed no more.
    pub(crate) fn accept(&mut self, timeline: TimelineId) -> Result<(), StoreError> {
        let promised = self.state.promised.accept(timeline)?;
        if promised != self.state.promised {
            let state = State {
                promised,
                ..self.state.clone()
            };
            state.store(&self.dir.dir)?;
            self.state = state;
        }
        Ok(())
    }

    /// When the last record is `XLOG_SWITCH`, the rest of its segment is padding that nobody reads
    /// and that may not have arrived. The record ends at the next segment, so let durable WAL end
    /// there too: the segment's zeros serve as padding.
    fn complete_switch(&mut self) -> Result<(), StoreError> {
        let (from, to) = (self.flushed, self.record_end());
        if from >= to {
            return Ok(());
        }
        self.open_segment(self.dir.size.segment_of(from))?;
        self.flushed = to;
        self.note(true)?;
        let padding = vec![0; to.since(from) as usize];
        self.digest(from, &padding)
    }

    /// Appends WAL of `target`'s history across its timeline switches; what this store has on
    /// timelines that are not part of it, or beyond their end, is cut off first.
    pub(crate) fn append_on(
        &mut self,
        target: &History,
        text: &str,
        at: Lsn,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.adopt(target)?;
        if at > self.flushed {
            return Err(StoreError::Gap {
                have: self.flushed,
                wanted: at,
            });
        }
        let known = usize::try_from(self.flushed.since(at)).unwrap_or(usize::MAX);
        let mut rest = bytes.get(known..).unwrap_or_default();
        loop {
            self.follow_switches(target, text)?;
            if rest.is_empty() {
                return Ok(());
            }
            let (end, _) = target.end_of(self.timeline()).unwrap_or((Lsn::MAX, None));
            let room = usize::try_from(end.since(self.flushed)).unwrap_or(usize::MAX);
            let (piece, after) = rest.split_at(rest.len().min(room));
            let from = self.flushed;
            self.append(from, piece)?;
            self.digest(from, piece)?;
            rest = after;
        }
    }

    /// Where durable WAL ends exactly at a switch of `target`, goes on to the next timeline.
    pub(crate) fn follow_switches(
        &mut self,
        target: &History,
        text: &str,
    ) -> Result<(), StoreError> {
        while let Some((end, Some(next))) = target.end_of(self.timeline())
            && self.flushed == end
        {
            let text = ancestor_text(target.timeline(), text, next)?;
            self.advance(next, end, &text)?;
        }
        Ok(())
    }

    /// Cuts off what is not part of `target`.
    pub(crate) fn adopt(&mut self, target: &History) -> Result<(), StoreError> {
        let common = target.common_end(&self.history);
        let shared = self.history.starts().iter().zip(target.starts());
        let shared = shared.take_while(|(mine, theirs)| mine == theirs).last();
        let Some((last, _)) = shared else {
            return Err(StoreError::BadTimeline {
                timeline: target.timeline(),
                reason: "its history has nothing in common with this store's".to_owned(),
            });
        };
        let last = last.timeline;
        if last == self.timeline() && self.flushed <= common {
            return Ok(());
        }
        self.rewind(last, self.flushed.min(common))
    }

    /// Goes back to `timeline`, an ancestor or the last one, with durable WAL up to `end`.
    fn rewind(&mut self, timeline: TimelineId, end: Lsn) -> Result<(), StoreError> {
        let text = self.dir.history_text(timeline)?.unwrap_or_default();
        let history = parse_history(timeline, &text)?;
        tracing::warn!(from = %self.timeline(), had = %self.flushed, to = %timeline, %end,
            "cutting off WAL that is not part of the chosen history");
        self.watermark.write(Note {
            timeline,
            flushed: end,
        })?;
        self.watermark.sync()?;
        let state = State {
            timeline,
            ..self.state.clone()
        };
        state.store(&self.dir.dir)?;
        self.state = state;
        self.history = Arc::new(history);
        self.history_text = text.into();
        self.flushed = end;
        self.open = None;
        self.dir.remove(|of, _| of > timeline)?;
        self.rescan()
    }

    /// Puts the splitter where `flushed` is by reading back what is durable.
    fn rescan(&mut self) -> Result<(), StoreError> {
        let found = scan(
            &self.dir,
            &self.history,
            self.state.major,
            self.oldest,
            self.flushed,
            false,
        );
        let found = found.map_err(|error| match error {
            OpenError::Store(error) => error,
            other => StoreError::Poisoned {
                reason: other.to_string(),
            },
        })?;
        self.stream = found.stream;
        self.ends = found.ends;
        Ok(())
    }

    /// Begins `timeline` at `at`, where durable WAL ends: its segment starts with a copy of what is
    /// before `at`, as PostgreSQL's does.
    fn advance(&mut self, timeline: TimelineId, at: Lsn, text: &str) -> Result<(), StoreError> {
        let history = self.history.branch(timeline, at)?;
        if parse_history(timeline, text)? != history {
            return Err(StoreError::BadTimeline {
                timeline,
                reason: format!("its history file does not continue this store's at {at}"),
            });
        }
        // Leftovers of an attempt that was never finished.
        self.dir.remove(|of, _| of >= timeline)?;
        let (number, offset) = (self.dir.size.segment_of(at), self.dir.size.offset_of(at));
        if offset > 0 {
            let mut head = vec![0; offset as usize];
            let start = self.dir.size.start_of(number);
            if self.dir.read(&self.history, start, &mut head)? < head.len() {
                return Err(StoreError::Removed {
                    wanted: start,
                    oldest: self.oldest,
                });
            }
            self.dir.create(timeline, number, "create.tmp", &head)?;
        }
        self.dir.write_history(timeline, text)?;
        self.watermark.write(Note {
            timeline,
            flushed: at,
        })?;
        self.watermark.sync()?;
        let state = State {
            timeline,
            ..self.state.clone()
        };
        state.store(&self.dir.dir)?;
        self.state = state;
        self.history = Arc::new(history);
        self.history_text = text.into();
        self.open = None;
        if self.stream.switch_timeline(at, timeline).is_err() {
            self.rescan()?;
        }
        Ok(())
    }

    /// Begins `timeline` at `switch_at` with the WAL `bytes`; without any, it begins empty, and the
    /// same call with bytes adds them later.
    pub(crate) fn begin_timeline(
        &mut self,
        timeline: TimelineId,
        parent: TimelineId,
        switch_at: Lsn,
        text: &str,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let bad = |reason: String| StoreError::BadTimeline { timeline, reason };
        self.state.promised.admit(timeline)?;
        if self.state.promised.promised() != timeline {
            return Err(bad("it was not promised here".to_owned()));
        }
        if !bytes.is_empty() {
            self.check_first_record(switch_at, bytes)?;
        }
        let target = parse_history(timeline, text)?;
        let left = target.end_of(parent);
        if left != Some((switch_at, Some(timeline))) {
            return Err(bad(format!(
                "its history file does not say that it left {parent} at {switch_at}"
            )));
        }
        if self.timeline() != timeline {
            self.adopt(&target)?;
            if self.timeline() != parent || self.flushed != switch_at {
                return Err(StoreError::Gap {
                    have: self.flushed,
                    wanted: switch_at,
                });
            }
            self.advance(timeline, switch_at, text)?;
        } else if *self.history != target {
            return Err(bad("it began elsewhere already".to_owned()));
        }
        let known = self.flushed;
        self.append(switch_at, bytes)?;
        if self.flushed > known {
            self.digest(switch_at, bytes)?;
        }
        Ok(())
    }

    fn check_first_record(&self, at: Lsn, bytes: &[u8]) -> Result<(), StoreError> {
        let mut stream = WalStream::new(at, self.state.major, self.state.segment_size);
        stream.push(at, bytes)?;
        drain(&mut stream, &mut RecordEnds::default())?;
        if !stream.last_record().is_valid() {
            return Err(StoreError::BadTimeline {
                timeline: self.timeline(),
                reason: "no whole record came with it".to_owned(),
            });
        }
        Ok(())
    }

    /// Removes segments that end at least one whole segment before `needed`.
    pub(crate) fn remove_before(&mut self, needed: Lsn) -> Result<(), StoreError> {
        let keep = self
            .dir
            .size
            .segment_of(needed.min(self.flushed))
            .saturating_sub(1);
        if self.dir.size.segment_of(self.oldest) >= keep {
            return Ok(());
        }
        self.dir.remove(|_, number| number < keep)?;
        self.oldest = self.dir.size.start_of(keep);
        Ok(())
    }
}
