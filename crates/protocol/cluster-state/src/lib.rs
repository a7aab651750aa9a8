//! Everything a PostgreSQL data directory holds besides the contents of its pages, at every LSN:
//! sizes and lives of relation forks, databases, tablespaces, relation maps, prepared transactions,
//! counters and limits, extents of SLRUs, replication origins.
//!
//! **Invariant.** For every LSN since the import, the state is what a stock server would have after
//! replaying its WAL to there, except what PostgreSQL itself does not log and rebuilds. If a size were
//! too small, rows would be missing; if a dropped fork's pages came back, others would appear.
//!
//! [`ClusterIngest`] turns records into page changes and [`StateChange`]s; [`ClusterHistory`] collects
//! these and answers for any LSN. Neither does I/O: whoever drives them stores both kinds of changes
//! in the page store and gives the history its changes back after a restart. See
//! `docs/formats/cluster-state.md`.

#![deny(clippy::indexing_slicing)]

mod change;
mod fork_hash;
mod fork_history;
mod genesis;
mod history;
mod ingest;
mod skeleton;
mod skeleton_at;
mod slru_extent;
mod versions;

pub use change::{EncodedChange, Identity, STATE_FORMAT_VERSION, StateChange, StateDecodeError};
pub use fork_history::{ForkChange, ForkState};
pub use history::{BlockBase, BlockOrigin, ClusterHistory};
pub use ingest::{ChangeSink, ClusterIngest, IngestError, ResumeError};
pub use skeleton::{
    DatabaseDir, RelationMap, RelationSize, Skeleton, SlruRange, Tablespace, TwoPhaseFile,
};
pub use skeleton_at::SkeletonError;
pub use slru_extent::SlruExtent;
