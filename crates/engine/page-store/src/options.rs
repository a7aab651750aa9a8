//! How a store behaves.

use std::sync::Arc;

use crate::disk::DiskFaults;

/// Settings of an open store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Bytes of memory at which the open layer is frozen and written to disk.
    pub freeze_bytes: u64,
    /// Bytes of materialised pages to keep in memory.
    pub cache_bytes: u64,
    /// Frozen layers that may wait to be written; with that many waiting, ingestion waits too.
    /// Memory is bounded by `(max_frozen + 1) × freeze_bytes`.
    pub max_frozen: usize,
    /// A page whose chain of changes in delta layers has more records than this gets an image.
    pub image_chain_records: u32,
    /// A page whose chain of changes in delta layers has more bytes than this gets an image.
    pub image_chain_bytes: u32,
    /// Bytes of pages at which an image layer file is finished and the next one begun.
    pub image_layer_bytes: u64,
    /// Called around every operation on the store's directory; tests make operations fail here.
    pub faults: Option<Arc<dyn DiskFaults>>,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            freeze_bytes: 128 << 20,
            cache_bytes: 256 << 20,
            max_frozen: 2,
            image_chain_records: 64,
            image_chain_bytes: 32 << 10,
            image_layer_bytes: 1 << 30,
            faults: None,
        }
    }
}
