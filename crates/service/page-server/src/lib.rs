//! The storage node: receives WAL from the log stores, turns it into page versions, serves pages at
//! an LSN and skeletons of data directories; and the import that makes its first pages.
//!
//! **Invariant.** A page is served exactly as of the LSN asked for, or not at all; and the log stores
//! are told that WAL is no longer needed only when everything it says is in layer files. Without the
//! first, a compute node mixes pages of different moments; without the second, a restart of the
//! storage node loses what the log stores have already forgotten.
//!
//! The parts: [`run`] wires them, `receiver` streams WAL, `ingestor` applies it, `page_server`
//! answers the page shim, `control` answers the compute manager, [`import`] reads a stopped cluster.

#![deny(clippy::indexing_slicing)]

mod block_history;
mod control;
pub mod import;
mod ingestor;
mod local_ingest;
mod node;
mod page_server;
mod receiver;
mod status;
#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests that fails is a failed test"
)]
mod stock_cluster;

pub use local_ingest::LocalIngest;
pub use node::{StorageNode, run};
