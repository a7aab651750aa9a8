//! Splitting a stream of WAL bytes into records, without I/O.
//!
//! **Invariant.** A record comes out only when its page headers belong where they stand, its
//! back-link names the record before it and its checksum holds; it comes out once, with the LSNs a
//! server would give it. The input may arrive in pieces of any size and any part of it again. A
//! splitter that resumed a byte off would feed garbage to redo, or skip a commit.
//!
//! Bytes are buffered only until their record is whole: a record within one page is lent out from
//! the input buffer, one that crosses pages is put together in a second buffer. Both are reused.

use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId, XLOG_BLCKSZ};

use crate::page_header::{
    FIRST_IS_CONTRECORD, FIRST_IS_OVERWRITE_CONTRECORD, PageHeaderError, WalPageHeader, header_len,
    page_start,
};
use crate::records::xlog;
use crate::{RECORD_HEADER_LEN, Record, RecordHeader, RmgrId};

/// No server writes longer records (`MaxAllocSize`; 16 and later stop at 1020 MiB).
const MAX_RECORD_LEN: u32 = 0x3FFF_FFFF;

/// The assembly buffer is kept up to this size; what a longer record needed is given back.
const ASSEMBLY_KEPT: usize = 4 << 20;

/// A whole record and its place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamedRecord<'a> {
    /// First byte of its header: what the next record's `prev` names.
    pub start: Lsn,
    /// `EndRecPtr`, the LSN that redo stamps on pages: a multiple of 8, not skipping a following
    /// page header; behind `XLOG_SWITCH` the start of the next segment.
    pub end: Lsn,
    /// The record without page headers, for [`Record::decode`]; its checksum has been verified.
    pub bytes: &'a [u8],
}

/// Why a stream cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Bytes are missing between what was pushed and what is pushed now.
    #[error("WAL up to {fed} was followed by WAL from {at}")]
    Gap {
        /// End of what was pushed.
        fed: Lsn,
        /// Start of what was pushed now.
        at: Lsn,
    },
    /// No valid record continues here. A scan of files takes this as the end of the log; in a
    /// stream from a server it means damage.
    #[error("valid WAL ends at {at}: {reason}")]
    EndOfWal {
        /// Start of the record, or of the page, that is not valid.
        at: Lsn,
        /// What is wrong there.
        reason: EndReason,
    },
    /// The timeline was to be switched elsewhere than at the end of the last whole record.
    #[error("timeline {timeline} begins at {at}, but the last record ends at {record_end}")]
    SwitchElsewhere {
        /// Where the switch was to be.
        at: Lsn,
        /// The new timeline.
        timeline: TimelineId,
        /// End of the last whole record.
        record_end: Lsn,
    },
}

impl StreamError {
    /// The position the error speaks of.
    #[must_use]
    pub const fn lsn(&self) -> Lsn {
        match self {
            StreamError::Gap { at, .. }
            | StreamError::EndOfWal { at, .. }
            | StreamError::SwitchElsewhere { at, .. } => *at,
        }
    }
}

/// What ends valid WAL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndReason {
    /// Zeros where a record would begin: nothing was written there yet.
    #[error("no record begins here")]
    ZeroLength,
    /// A length that no record has.
    #[error("a record of {len} bytes is impossible")]
    ImpossibleLength {
        /// The length found.
        len: u32,
    },
    /// The back-link does not lead to the record before.
    #[error("the record says the one before it is at {found}, not {expected}")]
    PrevMismatch {
        /// Start of the last record; for the first record of a stream, its own start, below which
        /// `prev` must lie.
        expected: Lsn,
        /// What the record says.
        found: Lsn,
    },
    /// The checksum does not hold.
    #[error("the record's checksum does not match")]
    BadChecksum,
    /// The page is not the one that belongs here.
    #[error("{0}")]
    Page(#[from] PageHeaderError),
    /// The page says that it continues a record, but none is unfinished.
    #[error("the page continues a record of which nothing is known")]
    UnexpectedContinuation,
    /// A record is unfinished, but the page does not continue it.
    #[error("the page does not continue the record begun at {record}")]
    NoContinuation {
        /// Start of the unfinished record.
        record: Lsn,
    },
    /// The page continues a record with another number of bytes than it lacks.
    #[error("the page continues the record begun at {record} with {found} bytes, not {expected}")]
    RemainingLength {
        /// Start of the unfinished record.
        record: Lsn,
        /// Bytes the page announces.
        found: u32,
        /// Bytes missing.
        expected: u32,
    },
}

/// A record that crosses a page boundary, as far as it has come.
#[derive(Debug, Clone, Copy)]
struct Partial {
    start: Lsn,
    tot_len: u32,
}

/// What parsing one step found.
enum Step {
    /// The input does not hold the next thing completely.
    NeedMore,
    /// Something was consumed.
    Advanced,
    /// A record of this many bytes lies at the read position, within its page.
    Lent { tot_len: usize },
    /// The record in the assembly buffer is complete; it began here.
    Assembled { start: Lsn },
}

/// The record splitter: [`WalStream::push`] bytes, take records with [`WalStream::next_record`].
#[derive(Debug)]
pub struct WalStream {
    major: PgMajor,
    segment_size: SegmentSize,
    /// Bytes from `next` on, at `input[consumed..]`, unless `next` is beyond `fed`.
    input: Vec<u8>,
    consumed: usize,
    next: Lsn,
    fed: Lsn,
    /// The first bytes of `partial`.
    assembly: Vec<u8>,
    partial: Option<Partial>,
    /// Until the first record is found, pages that continue a record begun before are passed over.
    scanning: bool,
    record_end: Lsn,
    last_record: Lsn,
    timeline: TimelineId,
    failed: Option<StreamError>,
}

impl WalStream {
    /// A stream that begins at `at`, the end of a record: it may be a page boundary before its
    /// header, or the place behind that header. Of the first record's back-link only its order is
    /// checked.
    #[must_use]
    pub fn new(at: Lsn, major: PgMajor, segment_size: SegmentSize) -> WalStream {
        let at = at.align8();
        WalStream {
            major,
            segment_size,
            input: Vec::new(),
            consumed: 0,
            next: at,
            fed: at,
            assembly: Vec::new(),
            partial: None,
            scanning: false,
            record_end: at,
            last_record: Lsn::INVALID,
            timeline: TimelineId(0),
            failed: None,
        }
    }

    /// A stream that begins at the start of the page that `at` lies in, wherever records begin
    /// there: the rest of a record from before is passed over.
    #[must_use]
    pub fn scan_from_page(at: Lsn, major: PgMajor, segment_size: SegmentSize) -> WalStream {
        let mut stream = WalStream::new(page_start(at), major, segment_size);
        stream.scanning = true;
        stream
    }

    /// Takes the WAL `bytes` that stand at `at`. What was pushed before is skipped.
    ///
    /// # Errors
    /// [`StreamError::Gap`] when bytes between are missing; nothing is taken then.
    pub fn push(&mut self, at: Lsn, bytes: &[u8]) -> Result<(), StreamError> {
        if at > self.fed {
            return Err(StreamError::Gap { fed: self.fed, at });
        }
        let end = at.advance(bytes.len() as u64);
        if end <= self.fed {
            return Ok(());
        }
        if self.consumed * 2 >= self.input.len() {
            self.input.drain(..self.consumed);
            self.consumed = 0;
        }
        let wanted = usize::try_from(self.fed.max(self.next).since(at)).unwrap_or(usize::MAX);
        self.input
            .extend_from_slice(bytes.get(wanted..).unwrap_or_default());
        self.fed = end;
        Ok(())
    }

    /// The next whole record, or `None` until more is pushed.
    ///
    /// # Errors
    /// [`StreamError::EndOfWal`] where the WAL is not valid; again on every further call, until
    /// [`WalStream::switch_timeline`] drops what follows the last record.
    pub fn next_record(&mut self) -> Result<Option<StreamedRecord<'_>>, StreamError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let step = loop {
            match self.step() {
                Ok(Step::Advanced) => {}
                Ok(step) => break step,
                Err((at, reason)) => {
                    let error = StreamError::EndOfWal { at, reason };
                    self.failed = Some(error.clone());
                    return Err(error);
                }
            }
        };
        match step {
            Step::NeedMore | Step::Advanced => Ok(None),
            Step::Lent { tot_len } => {
                let start = self.next;
                let from = self.consumed;
                let end = self.finish(start, from..from + tot_len, false)?;
                self.advance_to(end);
                let bytes = self.input.get(from..from + tot_len).unwrap_or_default();
                Ok(Some(StreamedRecord { start, end, bytes }))
            }
            Step::Assembled { start } => {
                let end = self.finish(start, 0..self.assembly.len(), true)?;
                self.partial = None;
                self.advance_to(end);
                Ok(Some(StreamedRecord {
                    start,
                    end,
                    bytes: &self.assembly,
                }))
            }
        }
    }

    /// End of what was pushed.
    #[must_use]
    pub const fn fed(&self) -> Lsn {
        self.fed
    }

    /// End of the last whole record that was taken out, or where the stream began. Before the first
    /// record of [`WalStream::scan_from_page`] this is the page's start.
    #[must_use]
    pub const fn record_end(&self) -> Lsn {
        self.record_end
    }

    /// Start of the last whole record that was taken out; invalid before the first.
    #[must_use]
    pub const fn last_record(&self) -> Lsn {
        self.last_record
    }

    /// Highest timeline seen in a page header or given by [`WalStream::switch_timeline`].
    #[must_use]
    pub const fn timeline(&self) -> TimelineId {
        self.timeline
    }

    /// Forgets everything beyond the last whole record, a partial record and an error included,
    /// and goes on from there on `timeline` (which may be the one it is on). [`WalStream::fed`]
    /// then is the end of the last record: push from there.
    ///
    /// # Errors
    /// [`StreamError::SwitchElsewhere`] unless `at` is the end of the last record, or the place
    /// behind the page header that follows it.
    pub fn switch_timeline(&mut self, at: Lsn, timeline: TimelineId) -> Result<(), StreamError> {
        if self.behind_header(at) != self.behind_header(self.record_end) {
            return Err(StreamError::SwitchElsewhere {
                at,
                timeline,
                record_end: self.record_end,
            });
        }
        self.input.clear();
        self.consumed = 0;
        self.partial = None;
        self.failed = None;
        self.next = self.record_end;
        self.fed = self.record_end;
        self.timeline = timeline;
        Ok(())
    }

    /// `at` moved behind a page header that begins there.
    fn behind_header(&self, at: Lsn) -> Lsn {
        let at = at.align8();
        if at.0.is_multiple_of(XLOG_BLCKSZ) {
            at.advance(header_len(self.segment_size, at) as u64)
        } else {
            at
        }
    }

    fn available(&self) -> &[u8] {
        self.input.get(self.consumed..).unwrap_or_default()
    }

    /// Moves the read position to `to`, which may lie beyond what was pushed.
    fn advance_to(&mut self, to: Lsn) {
        let distance = usize::try_from(to.since(self.next)).unwrap_or(usize::MAX);
        self.consumed = self.consumed.saturating_add(distance).min(self.input.len());
        self.next = to;
    }

    /// Bytes from the read position to the end of its page.
    fn rest_of_page(&self) -> usize {
        usize::try_from(XLOG_BLCKSZ - self.next.0 % XLOG_BLCKSZ).unwrap_or(usize::MAX)
    }

    fn step(&mut self) -> Result<Step, (Lsn, EndReason)> {
        if self.fed <= self.next {
            return Ok(Step::NeedMore);
        }
        if self.next.0.is_multiple_of(XLOG_BLCKSZ) {
            return self.step_page_header();
        }
        match self.partial {
            Some(partial) => self.step_assemble(partial),
            None => self.step_record(),
        }
    }

    /// At a page's start: checks its header and goes behind it, or, scanning, behind the rest of a
    /// record begun before.
    fn step_page_header(&mut self) -> Result<Step, (Lsn, EndReason)> {
        let at = self.next;
        let Some(header) = WalPageHeader::decode(self.available()) else {
            // The two fields that decide how long the header is may already be wrong.
            return Ok(Step::NeedMore);
        };
        header
            .validate(at, self.major, self.segment_size)
            .map_err(|error| (at, EndReason::Page(error)))?;
        if header.timeline < self.timeline {
            let (found, before) = (header.timeline, self.timeline);
            return Err((at, PageHeaderError::TimelineFell { found, before }.into()));
        }
        let continues = header.has(FIRST_IS_CONTRECORD);
        let mut to = at.advance(header.len() as u64);
        if header.has(FIRST_IS_OVERWRITE_CONTRECORD) {
            self.partial = None;
        }
        match self.partial {
            Some(Partial {
                start: record,
                tot_len,
            }) => {
                let have = u32::try_from(self.assembly.len()).unwrap_or(u32::MAX);
                let (found, expected) = (header.rem_len, tot_len.saturating_sub(have));
                if !continues {
                    return Err((at, EndReason::NoContinuation { record }));
                }
                if found != expected {
                    return Err((
                        at,
                        EndReason::RemainingLength {
                            record,
                            found,
                            expected,
                        },
                    ));
                }
            }
            None if continues && self.scanning => {
                let rest = Lsn(u64::from(header.rem_len)).align8().0;
                to = to.advance(rest).min(at.advance(XLOG_BLCKSZ));
            }
            None if continues => return Err((at, EndReason::UnexpectedContinuation)),
            None => {}
        }
        self.timeline = header.timeline;
        self.advance_to(to);
        Ok(Step::Advanced)
    }

    /// Where a record begins: lends it out if it is whole, begins to assemble it if it goes on in
    /// the next page.
    fn step_record(&mut self) -> Result<Step, (Lsn, EndReason)> {
        let start = self.next;
        let available = self.available();
        // Records begin at multiples of 8, so the length never crosses a page.
        let Some(len) = available.first_chunk::<4>() else {
            return Ok(Step::NeedMore);
        };
        let tot_len = u32::from_le_bytes(*len);
        match tot_len {
            0 => return Err((start, EndReason::ZeroLength)),
            len if (len as usize) < RECORD_HEADER_LEN || len > MAX_RECORD_LEN => {
                return Err((start, EndReason::ImpossibleLength { len }));
            }
            _ => {}
        }
        let in_page = self.rest_of_page();
        let record_len = tot_len as usize;
        if in_page >= RECORD_HEADER_LEN {
            let Some(header) = RecordHeader::decode(available) else {
                return Ok(Step::NeedMore);
            };
            self.check_prev(start, &header)?;
        }
        if record_len <= in_page {
            let whole = available.len() >= record_len;
            return Ok(if whole {
                Step::Lent {
                    tot_len: record_len,
                }
            } else {
                Step::NeedMore
            });
        }
        self.assembly.clear();
        self.assembly.shrink_to(ASSEMBLY_KEPT);
        self.partial = Some(Partial { start, tot_len });
        self.scanning = false;
        Ok(Step::Advanced)
    }

    /// Within a record that crosses pages: takes what this page has of it.
    fn step_assemble(&mut self, partial: Partial) -> Result<Step, (Lsn, EndReason)> {
        let had_header = self.assembly.len() >= RECORD_HEADER_LEN;
        let missing = (partial.tot_len as usize).saturating_sub(self.assembly.len());
        let take = missing.min(self.rest_of_page()).min(self.available().len());
        let piece = self
            .input
            .get(self.consumed..self.consumed + take)
            .unwrap_or_default();
        self.assembly.extend_from_slice(piece);
        self.advance_to(self.next.advance(take as u64));
        // A record that begins less than a header before its page's end was not checked there.
        if !had_header && let Some(header) = RecordHeader::decode(&self.assembly) {
            self.check_prev(partial.start, &header)?;
        }
        if take == missing {
            Ok(Step::Assembled {
                start: partial.start,
            })
        } else {
            Ok(Step::Advanced)
        }
    }

    fn check_prev(&self, start: Lsn, header: &RecordHeader) -> Result<(), (Lsn, EndReason)> {
        let (fits, expected) = if self.last_record.is_valid() {
            (header.prev == self.last_record, self.last_record)
        } else {
            (header.prev < start, start)
        };
        if fits {
            Ok(())
        } else {
            Err((
                start,
                EndReason::PrevMismatch {
                    expected,
                    found: header.prev,
                },
            ))
        }
    }

    /// Checks the checksum of the record at `range` of its buffer, makes it the last one and
    /// returns its end. The read position is at its start (lent) or behind its last byte.
    fn finish(
        &mut self,
        start: Lsn,
        range: std::ops::Range<usize>,
        assembled: bool,
    ) -> Result<Lsn, StreamError> {
        let behind = if assembled {
            self.next
        } else {
            start.advance(range.len() as u64)
        };
        let buffer = if assembled {
            &self.assembly
        } else {
            &self.input
        };
        let bytes = buffer.get(range).unwrap_or_default();
        if Record::verify_checksum(bytes).is_err() {
            let error = StreamError::EndOfWal {
                at: start,
                reason: EndReason::BadChecksum,
            };
            self.failed = Some(error.clone());
            return Err(error);
        }
        let mut end = behind.align8();
        let switches = RecordHeader::decode(bytes)
            .is_some_and(|it| it.rmid == RmgrId::XLOG && it.rmgr_info() == xlog::SWITCH);
        if switches {
            let size = self.segment_size.bytes();
            end = Lsn(end.0.div_ceil(size).saturating_mul(size));
        }
        self.scanning = false;
        self.last_record = start;
        self.record_end = end;
        Ok(end)
    }
}
