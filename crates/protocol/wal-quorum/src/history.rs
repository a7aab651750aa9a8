//! The line of timelines that a store's WAL lies on.

use pg_types::{Lsn, TimelineId};
use serde::{Deserialize, Serialize};

/// Where a timeline began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineStart {
    /// The timeline.
    pub timeline: TimelineId,
    /// Its first LSN; zero for the first one.
    pub begin: Lsn,
}

/// Timelines, oldest first: each owns the LSNs from its begin to the next one's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct History {
    starts: Vec<TimelineStart>,
}

/// A list of timelines that is no history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// No timeline at all.
    #[error("a history needs at least one timeline")]
    Empty,
    /// Timelines or their begins do not rise.
    #[error("timeline {} at {} cannot follow timeline {} at {}", next.timeline, next.begin, before.timeline, before.begin)]
    Order {
        /// The earlier entry.
        before: TimelineStart,
        /// The entry that does not follow from it.
        next: TimelineStart,
    },
}

impl History {
    /// A history of its first timeline only.
    #[must_use]
    pub fn root(timeline: TimelineId) -> History {
        History {
            starts: vec![TimelineStart {
                timeline,
                begin: Lsn(0),
            }],
        }
    }

    /// A checked history.
    ///
    /// # Errors
    /// [`HistoryError`] unless there is a timeline and both numbers and begins rise (two begins may
    /// be equal: a timeline can be left without a byte written on it).
    pub fn new(starts: Vec<TimelineStart>) -> Result<History, HistoryError> {
        if starts.is_empty() {
            return Err(HistoryError::Empty);
        }
        for (before, next) in starts.iter().zip(starts.iter().skip(1)) {
            if next.timeline <= before.timeline || next.begin < before.begin {
                return Err(HistoryError::Order {
                    before: *before,
                    next: *next,
                });
            }
        }
        Ok(History { starts })
    }

    /// Every timeline, oldest first.
    #[must_use]
    pub fn starts(&self) -> &[TimelineStart] {
        &self.starts
    }

    /// The last timeline.
    #[must_use]
    pub fn timeline(&self) -> TimelineId {
        self.starts
            .last()
            .map_or(TimelineId(0), |start| start.timeline)
    }

    /// Where the last timeline began.
    #[must_use]
    pub fn begin(&self) -> Lsn {
        self.starts.last().map_or(Lsn(0), |start| start.begin)
    }

    /// Whether `timeline` is part of this history.
    #[must_use]
    pub fn contains(&self, timeline: TimelineId) -> bool {
        self.starts.iter().any(|start| start.timeline == timeline)
    }

    /// Where the next timeline left `timeline`, and which; [`Lsn::MAX`] and none for the last one.
    /// `None` when it is not part of this history.
    #[must_use]
    pub fn end_of(&self, timeline: TimelineId) -> Option<(Lsn, Option<TimelineId>)> {
        let index = self
            .starts
            .iter()
            .position(|start| start.timeline == timeline)?;
        Some(
            self.starts
                .get(index + 1)
                .map_or((Lsn::MAX, None), |next| (next.begin, Some(next.timeline))),
        )
    }

    /// The timeline that owns the byte at `lsn`.
    #[must_use]
    pub fn timeline_at(&self, lsn: Lsn) -> TimelineId {
        let owner = self.starts.iter().rev().find(|start| start.begin <= lsn);
        owner
            .or(self.starts.first())
            .map_or(TimelineId(0), |start| start.timeline)
    }

    /// Up to where both histories are the same; [`Lsn::MAX`] when they are equal.
    #[must_use]
    pub fn common_end(&self, other: &History) -> Lsn {
        let shared = self
            .starts
            .iter()
            .zip(&other.starts)
            .take_while(|(mine, theirs)| mine == theirs);
        let Some((last, _)) = shared.last() else {
            return Lsn(0);
        };
        let end = |history: &History| history.end_of(last.timeline).map_or(Lsn(0), |(end, _)| end);
        end(self).min(end(other))
    }

    /// This history as it was before any timeline that begins beyond `lsn`; its first timeline
    /// stays in any case.
    #[must_use]
    pub fn up_to(&self, lsn: Lsn) -> History {
        let kept = self.starts.iter().enumerate();
        let kept = kept.filter(|(index, start)| *index == 0 || start.begin <= lsn);
        History {
            starts: kept.map(|(_, start)| *start).collect(),
        }
    }

    /// This history up to `timeline`; `None` when it is not part of it.
    #[must_use]
    pub fn until(&self, timeline: TimelineId) -> Option<History> {
        let index = self
            .starts
            .iter()
            .position(|start| start.timeline == timeline)?;
        Some(History {
            starts: self.starts.iter().take(index + 1).copied().collect(),
        })
    }

    /// This history with `timeline` leaving its last one at `begin`.
    ///
    /// # Errors
    /// [`HistoryError::Order`].
    pub fn branch(&self, timeline: TimelineId, begin: Lsn) -> Result<History, HistoryError> {
        let mut starts = self.starts.clone();
        starts.push(TimelineStart { timeline, begin });
        History::new(starts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(starts: &[(u32, u64)]) -> History {
        let start = |&(timeline, begin)| TimelineStart {
            timeline: TimelineId(timeline),
            begin: Lsn(begin),
        };
        History::new(starts.iter().map(start).collect()).unwrap()
    }

    #[test]
    fn owners_and_ends() {
        let it = history(&[(1, 0), (3, 100), (7, 100), (8, 250)]);
        for (lsn, timeline) in [(0, 1), (99, 1), (100, 7), (249, 7), (250, 8), (900, 8)] {
            assert_eq!(it.timeline_at(Lsn(lsn)), TimelineId(timeline), "{lsn}");
        }
        assert_eq!(
            it.end_of(TimelineId(3)),
            Some((Lsn(100), Some(TimelineId(7))))
        );
        assert_eq!(it.end_of(TimelineId(8)), Some((Lsn::MAX, None)));
        assert_eq!(it.end_of(TimelineId(2)), None);
        assert_eq!(it.up_to(Lsn(100)), history(&[(1, 0), (3, 100), (7, 100)]));
        assert_eq!(it.until(TimelineId(3)), Some(history(&[(1, 0), (3, 100)])));
    }

    #[test]
    fn common_ends() {
        let it = history(&[(1, 0), (2, 100), (3, 200)]);
        assert_eq!(it.common_end(&it), Lsn::MAX);
        assert_eq!(it.common_end(&history(&[(1, 0), (2, 100)])), Lsn(200));
        assert_eq!(
            it.common_end(&history(&[(1, 0), (2, 100), (4, 150)])),
            Lsn(150)
        );
        assert_eq!(it.common_end(&history(&[(1, 0), (4, 300)])), Lsn(100));
        assert_eq!(it.common_end(&history(&[(9, 0)])), Lsn(0));
    }

    #[test]
    fn disorder_is_refused() {
        assert_eq!(History::new(Vec::new()), Err(HistoryError::Empty));
        assert!(history(&[(2, 50)]).branch(TimelineId(2), Lsn(60)).is_err());
        assert!(history(&[(2, 50)]).branch(TimelineId(3), Lsn(40)).is_err());
    }
}
