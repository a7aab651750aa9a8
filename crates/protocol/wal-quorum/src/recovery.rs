//! Where the next timeline begins, and what stores lack until there.

use pg_types::{Lsn, TimelineId};

use crate::History;

/// How far a store's WAL goes, in the terms by which histories are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its last timeline.
    pub timeline: TimelineId,
    /// End of its last whole record.
    pub record_end: Lsn,
}

/// Bytes that a store lacks, `from` inclusive to `to` exclusive; nothing when they are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Up to here the store's WAL is part of the chosen history.
    pub from: Lsn,
    /// Where the chosen history ends.
    pub to: Lsn,
}

/// How many of `stores` must promise before a history may be chosen: enough to meet every possible
/// quorum of `quorum` in at least one store, and enough to meet each other (so that no two choices
/// can be made side by side).
#[must_use]
pub const fn promises_needed(stores: usize, quorum: usize) -> usize {
    let meets_quorums = stores.saturating_sub(quorum) + 1;
    let meets_itself = stores / 2 + 1;
    if meets_quorums > meets_itself {
        meets_quorums
    } else {
        meets_itself
    }
}

/// Index of the history to continue: the highest last timeline, and on it the highest end. A later
/// timeline wins over a longer earlier one, because it began at the end of a history that was chosen
/// so itself; what is longer on the earlier one was never acknowledged. `None` of none.
#[must_use]
pub fn choose_history(candidates: &[Candidate]) -> Option<usize> {
    let ranked = candidates.iter().enumerate();
    ranked
        .max_by_key(|(_, it)| (it.timeline, it.record_end))
        .map(|(index, _)| index)
}

/// What a store with WAL up to `flushed` on `theirs` lacks of the history `chosen` that ends at
/// `end`. WAL that it has beyond `end`, or on a timeline that `chosen` does not know, does not count.
#[must_use]
pub fn missing(chosen: &History, end: Lsn, theirs: &History, flushed: Lsn) -> Missing {
    Missing {
        from: flushed.min(chosen.common_end(theirs)).min(end),
        to: end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majorities() {
        assert_eq!(promises_needed(1, 1), 1);
        assert_eq!(promises_needed(3, 2), 2);
        assert_eq!(promises_needed(3, 1), 3);
        assert_eq!(promises_needed(3, 3), 2);
        assert_eq!(promises_needed(5, 3), 3);
    }

    #[test]
    fn a_later_timeline_wins_over_a_longer_earlier_one() {
        let on = |timeline, end| Candidate {
            timeline: TimelineId(timeline),
            record_end: Lsn(end),
        };
        assert_eq!(
            choose_history(&[on(1, 900), on(2, 500), on(2, 600)]),
            Some(2)
        );
        assert_eq!(choose_history(&[]), None);
    }

    #[test]
    fn laggards_lack_what_is_not_shared() {
        let root = History::root(TimelineId(1));
        let chosen = root.branch(TimelineId(2), Lsn(100)).unwrap();
        let orphan = root.branch(TimelineId(3), Lsn(60)).unwrap();
        let lacks = |theirs: &History, flushed| missing(&chosen, Lsn(200), theirs, Lsn(flushed));
        assert_eq!(
            lacks(&root, 80),
            Missing {
                from: Lsn(80),
                to: Lsn(200)
            }
        );
        assert_eq!(
            lacks(&root, 180),
            Missing {
                from: Lsn(100),
                to: Lsn(200)
            }
        );
        assert_eq!(
            lacks(&chosen, 180),
            Missing {
                from: Lsn(180),
                to: Lsn(200)
            }
        );
        assert_eq!(
            lacks(&chosen, 280),
            Missing {
                from: Lsn(200),
                to: Lsn(200)
            }
        );
        assert_eq!(
            lacks(&orphan, 900),
            Missing {
                from: Lsn(60),
                to: Lsn(200)
            }
        );
    }
}
