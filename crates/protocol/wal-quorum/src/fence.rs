//! The promise that shuts older timelines out.

use pg_types::TimelineId;
use serde::{Deserialize, Serialize};

/// What a store has promised: to take nothing from a timeline below this one. It must be durable
/// before it is answered, and it never falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(TimelineId);

/// A higher promise stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("timeline {asked} is fenced off: timeline {promised} has been promised")]
pub struct Fenced {
    /// The timeline that was to write or be promised.
    pub asked: TimelineId,
    /// The timeline promised.
    pub promised: TimelineId,
}

impl Fence {
    /// A store that has promised `timeline`.
    #[must_use]
    pub const fn new(timeline: TimelineId) -> Fence {
        Fence(timeline)
    }

    /// The timeline promised.
    #[must_use]
    pub const fn promised(self) -> TimelineId {
        self.0
    }

    /// The fence after promising `timeline`. Each timeline is promised once: were it promised again,
    /// two managers that saw the same stores would both begin it, and their servers would write two
    /// histories under one number. Whoever loses an answer asks for a higher one.
    ///
    /// # Errors
    /// [`Fenced`] when this or a higher one was promised.
    pub const fn promise(self, timeline: TimelineId) -> Result<Fence, Fenced> {
        if timeline.0 <= self.0.0 {
            return Err(Fenced {
                asked: timeline,
                promised: self.0,
            });
        }
        Ok(Fence(timeline))
    }

    /// The fence after taking WAL of `timeline` from its server or from a peer: taking it promises it.
    /// A store that takes WAL of a timeline which it was not asked to promise would otherwise still
    /// obey the server before, go back to it, and lose what it has acknowledged meanwhile.
    ///
    /// # Errors
    /// [`Fenced`] when a higher one was promised.
    pub const fn accept(self, timeline: TimelineId) -> Result<Fence, Fenced> {
        match self.admit(timeline) {
            Ok(()) => Ok(Fence(timeline)),
            Err(fenced) => Err(fenced),
        }
    }

    /// Whether a store whose WAL ends on `ours` may be brought up to the end of another history under
    /// the promise of `under`: only under its last promise, and only until that timeline has begun
    /// here. A request that was delayed beyond the begin would cut off what the new server wrote.
    ///
    /// # Errors
    /// [`Fenced`].
    pub const fn admit_catch_up(self, under: TimelineId, ours: TimelineId) -> Result<(), Fenced> {
        let promised = if ours.0 >= under.0 { ours } else { self.0 };
        if under.0 != self.0.0 || ours.0 >= under.0 {
            return Err(Fenced {
                asked: under,
                promised,
            });
        }
        Ok(())
    }

    /// Whether durable WAL of a store with this fence, ending on `timeline`, counts towards the quorum
    /// LSN. After a higher promise it may have been copied there by a manager that has not begun its
    /// timeline yet; another one may still choose a history without it.
    #[must_use]
    pub const fn counts(self, timeline: TimelineId) -> bool {
        self.0.0 <= timeline.0
    }

    /// Whether `timeline` may still write here.
    ///
    /// # Errors
    /// [`Fenced`] when a higher one was promised.
    pub const fn admit(self, timeline: TimelineId) -> Result<(), Fenced> {
        if timeline.0 < self.0.0 {
            return Err(Fenced {
                asked: timeline,
                promised: self.0,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_only_rise() {
        let fence = Fence::new(TimelineId(3)).promise(TimelineId(5)).unwrap();
        let again = Fenced {
            asked: TimelineId(5),
            promised: TimelineId(5),
        };
        assert_eq!(fence.promise(TimelineId(5)), Err(again));
        let fenced = Fenced {
            asked: TimelineId(4),
            promised: TimelineId(5),
        };
        assert_eq!(fence.promise(TimelineId(4)), Err(fenced));
        assert_eq!(fence.admit(TimelineId(4)), Err(fenced));
        assert_eq!(fence.admit(TimelineId(6)), Ok(()));
        assert_eq!(fence.accept(TimelineId(4)), Err(fenced));
        assert_eq!(fence.accept(TimelineId(6)), Ok(Fence::new(TimelineId(6))));
    }

    #[test]
    fn catching_up_ends_where_the_timeline_begins() {
        let fence = Fence::new(TimelineId(5));
        let under = |under, ours| fence.admit_catch_up(TimelineId(under), TimelineId(ours));
        assert_eq!(under(5, 3), Ok(()));
        assert!(under(4, 3).is_err());
        assert!(under(6, 3).is_err());
        assert!(under(5, 5).is_err());
        assert!(fence.counts(TimelineId(5)));
        assert!(!fence.counts(TimelineId(4)));
    }
}
