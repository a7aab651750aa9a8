//! Rules left out on purpose, one at a time: the simulation must notice each of them.

/// A rule that does not hold in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weakness {
    /// A store promises the same timeline to two managers.
    PromiseTwice,
    /// A store that takes a timeline from a peer does not promise it.
    AcceptWithoutPromise,
    /// WAL copied under a promise, or on an older timeline, counts towards the quorum LSN, and a
    /// timeline begins only after the storage node has reached it.
    CountCatchUp,
    /// A storage node is told of a timeline before anything on it is within the quorum.
    AnnounceEarly,
    /// The longest log is chosen, whatever its timeline.
    LongestLog,
}
