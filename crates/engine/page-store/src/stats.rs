//! Numbers about a store, for status.

use std::sync::atomic::{AtomicU64, Ordering};

use pg_types::Lsn;
use serde::Serialize;

use crate::identity::Watermark;
use crate::read::PageInfo;

/// A store's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoreStats {
    /// Everything up to here has been ingested and can be read.
    pub applied: Watermark,
    /// Everything up to here is in layer files.
    pub disk_consistent: Watermark,
    /// Oldest LSN that can be read.
    pub oldest: Lsn,
    /// Bytes of memory of the open layer.
    pub open_layer_bytes: u64,
    /// Versions in the open layer.
    pub open_layer_versions: u64,
    /// Layers waiting to be written.
    pub frozen_layers: u64,
    /// Delta layer files.
    pub delta_layers: u64,
    /// Image layer files.
    pub image_layers: u64,
    /// Bytes of layer files.
    pub layer_bytes: u64,
    /// Page versions ingested since the store was opened.
    pub changes_ingested: u64,
    /// Pages read since the store was opened.
    pub pages_read: u64,
    /// Of those, pages that were in the cache just as needed.
    pub cache_hits: u64,
    /// Changes applied by reads since the store was opened.
    pub changes_replayed: u64,
    /// Most changes that one read applied.
    pub longest_chain: u64,
    /// Pages written to image layers in the background since the store was opened.
    pub pages_materialised: u64,
    /// Why the store takes no more changes, if it does not.
    pub error: Option<String>,
}

/// What is counted.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) changes_ingested: AtomicU64,
    pub(crate) pages_read: AtomicU64,
    pub(crate) cache_hits: AtomicU64,
    pub(crate) changes_replayed: AtomicU64,
    pub(crate) longest_chain: AtomicU64,
    pub(crate) pages_materialised: AtomicU64,
}

impl Counters {
    /// Counts one page read.
    pub(crate) fn note_read(&self, info: &PageInfo) {
        self.pages_read.fetch_add(1, Ordering::Relaxed);
        if info.from_cache {
            self.cache_hits.fetch_add(1, Ordering::Relaxed);
        }
        if info.chain > 0 {
            let chain = u64::from(info.chain);
            self.changes_replayed.fetch_add(chain, Ordering::Relaxed);
            self.longest_chain.fetch_max(chain, Ordering::Relaxed);
        }
    }
}
