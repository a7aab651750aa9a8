//! When WAL counts as durable, who may write it, and where the next timeline begins.
//!
//! **Invariant.** An LSN that was ever a quorum LSN stays part of the one history, with the bytes it
//! had. It rests on three rules: a store that promised timeline T takes nothing from a timeline below
//! T ([`Fence`]); a new timeline begins only after [`promises_needed`] stores promised it, at the end
//! of the highest history among them ([`choose_history`]), and that end is first made durable on a
//! quorum ([`missing`] says what laggards need); and a byte counts only where it was written on a
//! timeline of the same history ([`quorum_lsn`]). Without any one of them a server that was thought
//! dead, or a store that slept through a switch, would bring a second history to life, and commits
//! that clients were told of would vanish.
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
