//! When WAL counts as durable, who may write it, and where the next timeline begins.
//!
//! **Invariant.** An LSN that was ever a quorum LSN stays part of the one history, with the bytes it
//! had. It rests on four rules: a store promises a timeline T once, to one manager, or by taking WAL of
//! it, and then takes nothing from a timeline below T ([`Fence`]); a new timeline begins only after
//! [`promises_needed`] stores promised it, at the end of the highest history among them
//! ([`choose_history`]); it begins, without a byte at first, on a quorum that has been brought up to that
//! end ([`missing`] says what laggards need); and a byte counts only where a quorum has it on one and the
//! same timeline, with no higher promise in between ([`quorum_lsn`], [`Fence::counts`]). Without any one
//! of them a server that was thought dead, or a store that slept through a switch, would bring a second
//! history to life, and commits that clients were told of would vanish.
//!
//! That a timeline begins empty is not a formality: storage nodes must reach its begin before anyone can
//! build the record it starts with, they take only what counts, and nothing counts on a timeline that a
//! higher promise has closed.
//!
//! Everything here is pure. The simulation in `tests/` drives it through crashes, lost messages and
//! half-begun timelines.

#![deny(clippy::indexing_slicing)]

mod fence;
mod history;
mod recovery;
mod watermark;

pub use fence::{Fence, Fenced};
pub use history::{History, HistoryError, TimelineStart};
pub use recovery::{Candidate, Missing, choose_history, missing, promises_needed};
pub use watermark::{Position, counted_end, quorum_lsn};
