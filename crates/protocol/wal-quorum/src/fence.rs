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

    /// The fence after promising `timeline`. Promising the same one again changes nothing, so that a
    /// lost answer may be asked for again.
    ///
    /// # Errors
    /// [`Fenced`] when a higher one was promised.
    pub const fn promise(self, timeline: TimelineId) -> Result<Fence, Fenced> {
        match self.admit(timeline) {
            Ok(()) => Ok(Fence(timeline)),
            Err(fenced) => Err(fenced),
        }
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
        assert_eq!(fence.promise(TimelineId(5)), Ok(fence));
        let fenced = Fenced {
            asked: TimelineId(4),
            promised: TimelineId(5),
        };
        assert_eq!(fence.promise(TimelineId(4)), Err(fenced));
        assert_eq!(fence.admit(TimelineId(4)), Err(fenced));
        assert_eq!(fence.admit(TimelineId(6)), Ok(()));
    }
}
