//! A store that could not write refuses to take more.
//!
//! After a failed fsync the kernel may have dropped the very pages that failed and report success
//! the next time; after a failed write the disk is full or broken. Going on would let a watermark
//! pass data that is not on disk (trap 29 of the facts). So the first failure is kept, ingestion
//! ends with it, and only opening the store anew, which reads what really is on disk, begins again.

use std::sync::{Arc, OnceLock};

use crate::error::DiskError;

/// The first failed write of a store, if there was one.
#[derive(Default)]
pub(crate) struct Poison(OnceLock<Arc<DiskError>>);

impl Poison {
    /// Keeps `error` unless there was one before.
    pub(crate) fn set(&self, error: Arc<DiskError>) {
        if self.0.set(Arc::clone(&error)).is_ok() {
            tracing::error!(%error, "the page store takes no more changes");
        }
    }

    /// The failure.
    pub(crate) fn get(&self) -> Option<Arc<DiskError>> {
        self.0.get().map(Arc::clone)
    }
}
