//! PostgreSQL's pages and the small files around them, for majors 14 to 18: what the bytes mean,
//! and nothing about where they are kept.
//!
//! **Invariant.** Whatever is read is checked against what its writer must have put there (length,
//! magic, CRC, counts) before a field is believed, and whatever is written is bit for bit what
//! PostgreSQL itself would have written; otherwise a damaged file is served as a good one, or a
//! server refuses a file that we made.
//!
//! No function here panics on any input: offsets that come out of a page are bounds-checked and
//! yield `None` or an error.

#![deny(clippy::indexing_slicing)]

pub mod btree;
pub mod checksum;
pub mod control;
pub mod heap_tuple;
pub mod item;
mod layout;
pub mod page_header;
pub mod relation_map;
pub mod replication_origin;
pub mod slru;
pub mod timeline_history;
pub mod two_phase;
pub mod visibility_map;

pub use checksum::{checksum, checksum_matches, set_checksum};
pub use control::{ClusterState, ControlFile, ControlFileError, ParameterLimits};
pub use heap_tuple::HeapTupleHeader;
pub use item::{ItemId, ItemState};
pub use page_header::PageHeader;
pub use relation_map::{RelationMap, RelationMapError};
pub use replication_origin::{OriginProgress, ReplicationOrigins, ReplicationOriginsError};
pub use timeline_history::{HistoryEntry, TimelineHistory, TimelineHistoryError};
pub use two_phase::{TwoPhaseError, TwoPhaseState};

/// A page of a relation or an SLRU.
pub type Page = [u8; pg_types::BLCKSZ];
