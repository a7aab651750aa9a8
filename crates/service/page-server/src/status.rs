//! What the node's threads tell about themselves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use pg_types::Lsn;

/// Counters and conditions, written by the threads that know them and read by `status`.
#[derive(Debug, Default)]
pub(crate) struct NodeStatus {
    records: AtomicU64,
    wal_bytes: AtomicU64,
    pages_served: AtomicU64,
    quorum: AtomicU64,
    /// Highest LSN that somebody has waited for.
    wanted: AtomicU64,
    receiving: AtomicBool,
    /// Ingestion has stopped for good.
    stopped: Mutex<Option<String>>,
    /// The last attempt to receive failed; cleared when one succeeds.
    unreachable: Mutex<Option<String>>,
}

impl NodeStatus {
    pub(crate) fn count_wal(&self, records: u64, bytes: u64) {
        self.records.fetch_add(records, Ordering::Relaxed);
        self.wal_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_pages(&self, pages: u64) {
        self.pages_served.fetch_add(pages, Ordering::Relaxed);
    }

    pub(crate) fn note_quorum(&self, lsn: Lsn) {
        self.quorum.fetch_max(lsn.0, Ordering::Relaxed);
    }

    /// Somebody waits for `lsn`, perhaps in vain as long as WAL comes from where it comes from now.
    pub(crate) fn note_wanted(&self, lsn: Lsn) {
        self.wanted.fetch_max(lsn.0, Ordering::Relaxed);
    }

    pub(crate) fn wanted(&self) -> Lsn {
        Lsn(self.wanted.load(Ordering::Relaxed))
    }

    pub(crate) fn set_receiving(&self, receiving: bool) {
        self.receiving.store(receiving, Ordering::Relaxed);
        if receiving {
            *self.unreachable.lock() = None;
        }
    }

    pub(crate) fn set_unreachable(&self, message: String) {
        *self.unreachable.lock() = Some(message);
    }

    pub(crate) fn set_stopped(&self, message: String) {
        *self.stopped.lock() = Some(message);
    }

    /// Why ingestion has stopped for good, if it has.
    pub(crate) fn stopped(&self) -> Option<String> {
        self.stopped.lock().clone()
    }

    /// What a person should know: a stop for good before a passing failure.
    pub(crate) fn error(&self) -> Option<String> {
        self.stopped().or_else(|| self.unreachable.lock().clone())
    }

    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    pub(crate) fn wal_bytes(&self) -> u64 {
        self.wal_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn pages_served(&self) -> u64 {
        self.pages_served.load(Ordering::Relaxed)
    }

    pub(crate) fn quorum(&self) -> Lsn {
        Lsn(self.quorum.load(Ordering::Relaxed))
    }

    pub(crate) fn receiving(&self) -> bool {
        self.receiving.load(Ordering::Relaxed)
    }
}
