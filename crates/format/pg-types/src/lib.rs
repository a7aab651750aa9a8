//! The identifiers every other crate speaks in: LSNs, timelines, relations, blocks and the
//! PostgreSQL majors Strandline knows.
//!
//! **Invariant.** Each id is a type of its own, so an LSN can never be passed where a block number
//! is meant, and every number that reaches a disk or a wire has one byte order, chosen here.
//! Otherwise two crates disagree silently and a page is looked up under another page's key.

#![deny(clippy::indexing_slicing)]

pub mod checkpoint;
mod lsn;
mod major;
mod page_key;
mod relation;
mod segment;
mod xid;

pub use checkpoint::CheckPoint;
pub use lsn::{Lsn, LsnParseError};
pub use major::{PgMajor, UnknownMajor};
pub use page_key::{PageKey, Slru};
pub use relation::{ForkNumber, RelFileLocator, RelFork, UnknownFork};
pub use segment::{SegmentSize, SegmentSizeError, TimelineId};
pub use xid::{FIRST_NORMAL_XID, FullXid, Xid};

/// Bytes in a page; Strandline supports only the default block size of 8 KiB.
pub const BLCKSZ: usize = 8192;

/// Blocks in one segment file of a relation (1 GiB at 8 KiB blocks, PostgreSQL's default).
pub const RELSEG_BLOCKS: u32 = 131_072;

/// Bytes in a WAL page (`XLOG_BLCKSZ`, PostgreSQL's default).
pub const XLOG_BLCKSZ: u64 = 8192;

/// PostgreSQL's object identifier.
pub type Oid = u32;

/// Number of a block within a relation fork, or of a page within an SLRU.
pub type BlockNumber = u32;
