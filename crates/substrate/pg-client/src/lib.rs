//! A blocking client of PostgreSQL: simple queries and streaming replication.
//!
//! **Invariant.** A position is reported to the sender ([`StatusSender::send_status`]) only by the
//! caller, never by this crate: the primary counts a reported flush position towards its commits, so
//! one report too early would acknowledge what is not durable.
//!
//! Authentication by `trust` or `peer` only: Strandline's parts talk over Unix sockets of one user.
//! Works against stock servers and against log stores, which speak the same protocol.

#![deny(clippy::indexing_slicing)]

mod client;
mod error;
mod replication;
mod socket;

pub use client::{PgClient, QueryResult, SystemIdentity, TimelineHistory};
pub use error::PgClientError;
pub use replication::{ReplicationStream, StatusSender, StreamEvent};
pub use socket::ServerAddress;
