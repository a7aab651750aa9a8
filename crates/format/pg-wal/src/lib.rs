//! PostgreSQL's write-ahead log as bytes: pages, segments, records, block images, and the few
//! records that Strandline writes itself.
//!
//! **Invariant.** Whatever bytes come in, decoding ends in a value or a typed error: no panic, no
//! read past the input, no guess. WAL arrives from networks and disks; a decoder that guesses turns
//! one flipped bit into a wrong page.
//!
//! Records are decoded by what they carry (flags and block references), never by the minor
//! version of the server that wrote them (DESIGN invariant 10).

#![deny(clippy::indexing_slicing)]

mod cursor;
mod image;
mod mini;
pub mod page_header;
mod record;
pub mod records;
mod rmgr;
mod stream;
mod write;

pub use image::ImageError;
pub use mini::{MiniError, MiniRecord, Target};
pub use page_header::{LongHeader, PageHeaderError, WalGeometry, WalPageHeader};
pub use record::{
    BlockImage, BlockRef, Compression, MAX_BLOCK_ID, RECORD_HEADER_LEN, Record, RecordError,
    RecordHeader,
};
pub use rmgr::RmgrId;
pub use stream::{EndReason, StreamError, StreamedRecord, WalStream};
pub use write::{PlacedRecord, encode_record, place_record};
