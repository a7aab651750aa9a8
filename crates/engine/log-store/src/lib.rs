//! Durable WAL: segment files under PostgreSQL's names, a receiver that is a synchronous standby of
//! the primary, and a replication server that gives WAL to whoever asks by the stock protocol.
//!
//! **Invariant.** A flush position goes to the primary only after `fdatasync` of the bytes below it;
//! only whole records below the quorum LSN are served; a store that promised timeline T takes nothing
//! from a lower one; and after any failed write or sync the store acknowledges nothing any more. The
//! first broken rule loses an acknowledged commit, the second lets a storage node build pages on WAL
//! that is cut off later, the third forks history.
//!
//! Files are described in `docs/formats/log-store.md`.

#![deny(clippy::indexing_slicing)]

mod batch;
mod catch_up;
mod error;
mod receiver;
mod record_ends;
mod scan;
mod seed;
mod segments;
mod serve;
mod session;
mod state;
mod store;
mod walsender;
mod watermark;
mod writer;

pub use error::{OpenError, StoreError};
pub use receiver::Primary;
pub use seed::{SeedLog, seed};
pub use serve::{ReplicationServer, ServeError};
pub use store::{LogStore, LogStoreOptions, Peer, Status};
pub use writer::TornTail;
