//! The compute manager: turns (cluster, LSN) into a running, unmodified PostgreSQL.
//!
//! **Invariant.** Nothing it makes has to survive. Every start takes the log over, builds a new data
//! directory from storage at the end of the log, and runs on a new timeline; a data directory is
//! never reused, because PostgreSQL's local WAL may hold commits that no quorum has.

#![deny(clippy::indexing_slicing)]

pub mod access;
pub mod checkpoint;
pub mod datadir;
pub mod fence;
pub mod incarnation;
pub mod initdb;
pub mod layout;
pub mod leftover;
pub mod manager;
pub mod page_reader;
pub mod postgres;
pub mod recycle;
pub mod settings;
pub mod stores;
