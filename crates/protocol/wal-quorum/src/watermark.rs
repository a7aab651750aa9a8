//! The quorum LSN.

use pg_types::{Lsn, TimelineId};

use crate::History;

/// How far a store's durable WAL goes, and on which timeline it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Its last timeline.
    pub timeline: TimelineId,
    /// End of its durable WAL.
    pub flushed: Lsn,
}

/// How much of a peer's WAL counts for a store on the history `mine`: everything when it is on the same
/// timeline, nothing otherwise. WAL on an older timeline of this history is the same up to the switch,
/// yet it does not count: while this timeline has begun on too few stores, a store with a timeline in
/// between may still be chosen, and its history cuts that WAL off.
#[must_use]
pub fn counted_end(mine: &History, peer: Position) -> Lsn {
    if peer.timeline == mine.timeline() {
        peer.flushed
    } else {
        Lsn::INVALID
    }
}

/// The highest LSN that `quorum` stores have durable: this one, with `flushed` on `mine`, and `peers`
/// as last heard of. Zero while fewer are known. Only stores whose fence [counts](crate::Fence::counts)
/// may be given, this one included. The caller keeps the highest value it ever got: a peer that is away
/// does not take back what it made durable.
#[must_use]
pub fn quorum_lsn(
    mine: &History,
    flushed: Lsn,
    peers: impl IntoIterator<Item = Position>,
    quorum: usize,
) -> Lsn {
    let mut ends: Vec<Lsn> = peers
        .into_iter()
        .map(|peer| counted_end(mine, peer))
        .collect();
    ends.push(flushed);
    ends.sort_unstable();
    quorum
        .checked_sub(1)
        .and_then(|nth| ends.iter().rev().nth(nth).copied())
        .unwrap_or(Lsn::INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_qth_highest_on_one_history_counts() {
        let mine = History::root(TimelineId(1))
            .branch(TimelineId(2), Lsn(100))
            .unwrap();
        let on = |timeline, flushed| Position {
            timeline: TimelineId(timeline),
            flushed: Lsn(flushed),
        };
        let lsn = |peers: &[Position], q| quorum_lsn(&mine, Lsn(150), peers.iter().copied(), q);
        assert_eq!(lsn(&[], 1), Lsn(150));
        assert_eq!(lsn(&[], 2), Lsn(0));
        assert_eq!(lsn(&[on(2, 140), on(2, 120)], 2), Lsn(140));
        assert_eq!(lsn(&[on(2, 200), on(2, 120)], 2), Lsn(150));
        // What is on another timeline does not count, not even before the switch.
        assert_eq!(lsn(&[on(1, 140), on(1, 90)], 2), Lsn(0));
        assert_eq!(lsn(&[on(3, 400), on(2, 90)], 2), Lsn(90));
    }
}
