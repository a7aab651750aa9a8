//! The storage node's engine: a versioned store, key → LSN → value.
//!
//! **Invariant.** [`PageStore::get_page`] returns the page exactly as of the LSN asked for, or an
//! error; and everything up to [`PageStore::disk_consistent`] survives any crash. Without the first,
//! a compute node would get a page of another moment and silently corrupt an index; without the
//! second, the log stores would be told to forget WAL that is nowhere else.
//!
//! **How.** Ingestion puts each record's changes, split by page, into the *open layer* in memory
//! (`mem_layer`). At a size limit it is frozen, written to a *delta layer* file sorted by page and
//! LSN (`delta_layer`), and listed in the *manifest* (`manifest`), which is what moves
//! `disk_consistent`. *Image layers* (`image_layer`) hold whole pages at one LSN: from import, and
//! from background replay of pages with long chains (`materialise`). A read (`read`) finds the newest
//! state that needs nothing before it and applies only that page's changes since.
//!
//! **What is not here.** Nothing is ever deleted or compacted: every LSN from
//! [`PageStore::oldest`] on stays readable, and the indexes of all delta layers stay in memory. The
//! store does not know what a relation is; lives of blocks come from [`BlockHistory`].

#![deny(clippy::indexing_slicing)]

mod background;
mod batch;
mod chain;
mod cursor;
mod delta_block;
mod delta_index;
mod delta_layer;
mod delta_writer;
mod disk;
mod entry;
mod error;
mod history;
mod identity;
mod image_file;
mod image_layer;
mod image_writer;
pub mod inspect;
mod key_filter;
mod key_hash;
mod layer_error;
mod layer_file;
mod layer_set;
mod manifest;
mod materialise;
mod mem_layer;
mod open;
mod options;
mod page_cache;
mod poison;
mod progress;
mod read;
mod read_run;
mod replay;
mod shared;
mod stats;
mod store;

pub use batch::{IngestBatch, MAX_META_KEY};
pub use disk::{DiskFaults, DiskOperation, Fault};
pub use error::{
    Corruption, CreateError, DiskError, FlushError, GetPageError, ImageWriteError, IngestError,
    OpenError, ReplayError, WaitError,
};
pub use history::{BlockHistory, PageBase, PageOrigin};
pub use identity::{StoreIdentity, Watermark};
pub use image_writer::ImageLayerWriter;
pub use key_hash::{BuildPageKeyHasher, PageKeyHasher};
pub use layer_file::LayerKind;
pub use options::StoreOptions;
pub use read::PageInfo;
pub use stats::StoreStats;
pub use store::PageStore;
