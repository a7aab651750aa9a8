//! Answering the compute manager and `status`.

use std::sync::Arc;
use std::time::Duration;

use api::storage::{StorageRequest, StorageResponse, StorageStatus};
use page_store::PageStore;
use pg_types::Lsn;

use crate::block_history::SharedHistory;
use crate::status::NodeStatus;

/// What control requests are answered from.
pub(crate) struct Control {
    pub(crate) store: Arc<PageStore>,
    pub(crate) history: Arc<SharedHistory>,
    pub(crate) status: Arc<NodeStatus>,
}

impl Control {
    pub(crate) fn answer(&self, request: &StorageRequest) -> StorageResponse {
        match request {
            StorageRequest::Status => StorageResponse::Status(self.status()),
            StorageRequest::Skeleton { lsn, wait_ms } => self.skeleton(*lsn, *wait_ms),
            StorageRequest::Flush => match self.store.flush() {
                Ok(_) => StorageResponse::Status(self.status()),
                Err(error) => StorageResponse::Refused {
                    message: error.to_string(),
                },
            },
        }
    }

    fn status(&self) -> StorageStatus {
        let stats = self.store.stats();
        let identity = self.store.identity();
        StorageStatus {
            system_identifier: identity.system_identifier,
            major: identity.major,
            timeline: stats.applied.timeline,
            applied: stats.applied.lsn,
            disk_consistent: stats.disk_consistent.lsn,
            quorum: self.status.quorum().max(stats.applied.lsn),
            oldest: stats.oldest,
            records: self.status.records(),
            wal_bytes: self.status.wal_bytes(),
            pages_served: self.status.pages_served(),
            cache_hits: stats.cache_hits,
            open_layer_bytes: stats.open_layer_bytes,
            delta_layers: stats.delta_layers,
            image_layers: stats.image_layers,
            layer_bytes: stats.layer_bytes,
            longest_chain: stats.longest_chain,
            receiving: self.status.receiving(),
            error: stats.error.or_else(|| self.status.error()),
        }
    }

    /// The start of the last record is known for the newest LSN only; for earlier ones the answer has
    /// an invalid LSN there.
    fn skeleton(&self, lsn: Lsn, wait_ms: u64) -> StorageResponse {
        let refused = |message| StorageResponse::Refused { message };
        self.status.note_wanted(lsn);
        if let Err(error) = self.store.wait_applied(lsn, Duration::from_millis(wait_ms)) {
            let why = self
                .status
                .error()
                .map(|why| format!(" ({why})"))
                .unwrap_or_default();
            return refused(format!("{error}{why}"));
        }
        let newest = self.store.applied_watermark();
        let last_record = if newest.lsn == lsn {
            newest.last_record
        } else {
            Lsn::INVALID
        };
        match self.history.read().skeleton_at(lsn, last_record) {
            Ok(skeleton) => StorageResponse::Skeleton(Box::new(skeleton)),
            Err(error) => refused(error.to_string()),
        }
    }
}
