//! Timeline history files: `pg_wal/%08X.history` (`access/transam/timeline.c`).
//!
//! One line for each ancestor, oldest first: timeline, the LSN at which the next one left it, and a
//! reason, separated by tabs. Blank lines and lines beginning with `#` mean nothing.

use std::fmt::{self, Write as _};

use pg_types::{Lsn, TimelineId};
use thiserror::Error;

/// An ancestor of a timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The ancestor.
    pub timeline: TimelineId,
    /// Where the next timeline left it: the end of its last record that is still part of history.
    pub switch_lsn: Lsn,
    /// Why; free text of one line.
    pub reason: String,
}

/// The ancestors of a timeline, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineHistory {
    timeline: TimelineId,
    entries: Vec<HistoryEntry>,
}

/// What is wrong with a history file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TimelineHistoryError {
    /// A line without a timeline number and an LSN.
    #[error(
        "line {line} of the history of timeline {timeline} is not a timeline and an LSN: \"{text}\""
    )]
    Syntax {
        /// Whose history it is.
        timeline: TimelineId,
        /// Number of the line, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// Timelines must grow from line to line and stay below the file's own.
    #[error(
        "line {line} of the history of timeline {timeline} names timeline {found}, which is not \
         between the line before it and {timeline}"
    )]
    Order {
        /// Whose history it is.
        timeline: TimelineId,
        /// Number of the line, from 1.
        line: usize,
        /// The timeline it names.
        found: TimelineId,
    },
    /// A timeline ends before the one it came from does.
    #[error(
        "line {line} of the history of timeline {timeline} ends at {found}, before the timeline \
         it came from ({previous})"
    )]
    Backwards {
        /// Whose history it is.
        timeline: TimelineId,
        /// Number of the line, from 1.
        line: usize,
        /// Where the timeline ends.
        found: Lsn,
        /// Where the one before it ends.
        previous: Lsn,
    },
}

impl TimelineHistory {
    /// The history of a timeline without ancestors, which has no file.
    #[must_use]
    pub const fn root(timeline: TimelineId) -> TimelineHistory {
        TimelineHistory {
            timeline,
            entries: Vec::new(),
        }
    }

    /// Reads the history file of `timeline`.
    ///
    /// # Errors
    /// [`TimelineHistoryError`] for a line that cannot be read or does not follow from the one
    /// before it.
    pub fn parse(
        timeline: TimelineId,
        text: &str,
    ) -> Result<TimelineHistory, TimelineHistoryError> {
        let mut entries: Vec<HistoryEntry> = Vec::new();
        for (index, raw) in text.lines().enumerate() {
            let (line, trimmed) = (index + 1, raw.trim_start());
            if trimmed.is_empty() || trimmed.starts_with('#') {
                continue;
            }
            let entry = parse_line(trimmed).ok_or_else(|| TimelineHistoryError::Syntax {
                timeline,
                line,
                text: raw.to_owned(),
            })?;
            let (oldest, previous) = entries
                .last()
                .map_or((TimelineId(0), Lsn::INVALID), |last| {
                    (last.timeline, last.switch_lsn)
                });
            if entry.timeline <= oldest || entry.timeline >= timeline {
                let found = entry.timeline;
                return Err(TimelineHistoryError::Order {
                    timeline,
                    line,
                    found,
                });
            }
            if entry.switch_lsn < previous {
                let found = entry.switch_lsn;
                return Err(TimelineHistoryError::Backwards {
                    timeline,
                    line,
                    found,
                    previous,
                });
            }
            entries.push(entry);
        }
        Ok(TimelineHistory { timeline, entries })
    }

    /// The history of `timeline`, which leaves this one's timeline at `switch_lsn`.
    ///
    /// Line ends and tabs in `reason` become spaces.
    ///
    /// # Errors
    /// [`TimelineHistoryError`] unless `timeline` is higher and `switch_lsn` not before the latest
    /// switch.
    pub fn branch(
        &self,
        timeline: TimelineId,
        switch_lsn: Lsn,
        reason: &str,
    ) -> Result<TimelineHistory, TimelineHistoryError> {
        let line = self.entries.len() + 1;
        if timeline <= self.timeline {
            return Err(TimelineHistoryError::Order {
                timeline,
                line,
                found: self.timeline,
            });
        }
        let previous = self
            .entries
            .last()
            .map_or(Lsn::INVALID, |last| last.switch_lsn);
        if switch_lsn < previous {
            let found = switch_lsn;
            return Err(TimelineHistoryError::Backwards {
                timeline,
                line,
                found,
                previous,
            });
        }
        let reason = reason.replace(['\n', '\r', '\t'], " ").trim().to_owned();
        let mut entries = self.entries.clone();
        entries.push(HistoryEntry {
            timeline: self.timeline,
            switch_lsn,
            reason,
        });
        Ok(TimelineHistory { timeline, entries })
    }

    /// The timeline whose history this is.
    #[must_use]
    pub const fn timeline(&self) -> TimelineId {
        self.timeline
    }

    /// The ancestors, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[HistoryEntry] {
        &self.entries
    }

    /// Where `timeline` ends in this history: `Some(Lsn::MAX)` for the history's own timeline,
    /// `None` for one that is no ancestor.
    #[must_use]
    pub fn end_of(&self, timeline: TimelineId) -> Option<Lsn> {
        if timeline == self.timeline {
            return Some(Lsn::MAX);
        }
        let entry = self.entries.iter().find(|entry| entry.timeline == timeline);
        entry.map(|entry| entry.switch_lsn)
    }

    /// The timeline that the byte at `lsn` was written on (`tliOfPointInHistory`).
    #[must_use]
    pub fn timeline_at(&self, lsn: Lsn) -> TimelineId {
        let entry = self.entries.iter().find(|entry| lsn < entry.switch_lsn);
        entry.map_or(self.timeline, |entry| entry.timeline)
    }
}

/// Writes the file's text: one line for each ancestor, with its line end.
impl fmt::Display for TimelineHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.entries {
            write!(
                f,
                "{}\t{}\t{}",
                entry.timeline, entry.switch_lsn, entry.reason
            )?;
            f.write_char('\n')?;
        }
        Ok(())
    }
}

/// A line's timeline, LSN and reason; any white space separates the first two.
fn parse_line(line: &str) -> Option<HistoryEntry> {
    let (timeline, rest) = line.split_once(char::is_whitespace)?;
    let rest = rest.trim_start();
    let (lsn, reason) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    Some(HistoryEntry {
        timeline: TimelineId(timeline.parse().ok()?),
        switch_lsn: lsn.parse().ok()?,
        reason: reason.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "1\t0/3000110\tno recovery target specified\n\n\
                        3\t0/5000000\tbefore 2000-01-01 00:00:00+00\n";

    #[test]
    fn a_file_of_postgresql_is_understood() {
        let history = TimelineHistory::parse(TimelineId(4), TEXT).unwrap();
        assert_eq!(history.entries().len(), 2);
        assert_eq!(history.entries()[0].reason, "no recovery target specified");
        let at = |lsn| history.timeline_at(Lsn(lsn)).0;
        assert_eq!((at(0x300_010F), at(0x300_0110), at(0x500_0000)), (1, 3, 4));
        assert_eq!(history.end_of(TimelineId(1)), Some(Lsn(0x300_0110)));
        assert_eq!(history.end_of(TimelineId(2)), None);
        assert_eq!(history.end_of(TimelineId(4)), Some(Lsn::MAX));
        let commented = format!("# by hand\n  {TEXT}");
        assert_eq!(
            TimelineHistory::parse(TimelineId(4), &commented),
            Ok(history)
        );
        let bare = TimelineHistory::parse(TimelineId(2), "1 0/10").unwrap();
        assert_eq!(bare.to_string(), "1\t0/10\t\n");
    }

    #[test]
    fn each_mistake_has_its_own_refusal() {
        use TimelineHistoryError as E;
        let parse = |text| TimelineHistory::parse(TimelineId(4), text).unwrap_err();
        for bad in ["1", "x\t0/1\tr", "1\tzero\tr", "\u{e9}\t0/1"] {
            assert!(matches!(parse(bad), E::Syntax { line: 1, .. }), "{bad}");
        }
        assert!(matches!(parse("4\t0/1\tr"), E::Order { line: 1, .. }));
        assert!(matches!(parse("0\t0/1\tr"), E::Order { line: 1, .. }));
        assert!(matches!(
            parse("2\t0/1\tr\n2\t0/2\tr"),
            E::Order { line: 2, .. }
        ));
        assert!(matches!(
            parse("2\t0/3\tr\n3\t0/2\tr"),
            E::Backwards { line: 2, .. }
        ));
    }

    #[test]
    fn branches_extend_the_history() {
        let first = TimelineHistory::root(TimelineId(1));
        let second = first
            .branch(TimelineId(2), Lsn(0x10), "promoted\nby hand")
            .unwrap();
        let third = second.branch(TimelineId(5), Lsn(0x10), "").unwrap();
        assert_eq!(third.to_string(), "1\t0/10\tpromoted by hand\n2\t0/10\t\n");
        assert!(third.branch(TimelineId(5), Lsn(0x20), "").is_err());
        assert!(third.branch(TimelineId(6), Lsn(0xF), "").is_err());
        assert_eq!(third.timeline_at(Lsn(0x10)), TimelineId(5));
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC*", line in "[0-9]{1,3}[\t ][0-9A-F]{1,4}/[0-9A-F]{1,4}.*") {
            let _ = TimelineHistory::parse(TimelineId(7), &text);
            let _ = TimelineHistory::parse(TimelineId(7), &line);
        }

        #[test]
        fn what_was_written_is_read_back(steps in prop::collection::vec((1u32..5, 0u64..1000, "[a-z ]*"), 0..6)) {
            let mut history = TimelineHistory::root(TimelineId(1));
            let mut lsn = Lsn(8);
            for (timelines, bytes, reason) in steps {
                lsn = lsn.advance(bytes);
                let timeline = TimelineId(history.timeline().0 + timelines);
                history = history.branch(timeline, lsn, &reason).unwrap();
            }
            let again = TimelineHistory::parse(history.timeline(), &history.to_string());
            prop_assert_eq!(again, Ok(history));
        }
    }
}
