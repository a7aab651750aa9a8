//! The cluster's history, shared between the thread that ingests and those that read.

use cluster_state::{BlockBase, ClusterHistory, StateChange};
use page_store::{BlockHistory, PageBase, PageOrigin};
use parking_lot::{RwLock, RwLockReadGuard};
use pg_types::{Lsn, PageKey};

/// A [`ClusterHistory`] that many read while one adds.
///
/// Changes are added before the store's applied LSN reaches them, and nobody reads beyond that, so a
/// reader never sees half of a record's changes.
#[derive(Debug, Default)]
pub(crate) struct SharedHistory {
    history: RwLock<ClusterHistory>,
}

impl SharedHistory {
    pub(crate) fn replace(&self, history: ClusterHistory) {
        *self.history.write() = history;
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, ClusterHistory> {
        self.history.read()
    }

    /// Adds `changes`; readers are locked out once for all of them, and not at all for none.
    pub(crate) fn extend(&self, changes: impl ExactSizeIterator<Item = (Lsn, StateChange)>) {
        if changes.len() == 0 {
            return;
        }
        let mut history = self.history.write();
        for (lsn, change) in changes {
            history.insert(lsn, change);
        }
    }
}

impl BlockHistory for SharedHistory {
    fn origin(&self, key: &PageKey, lsn: Lsn) -> PageOrigin {
        let origin = self.history.read().origin(key, lsn);
        let base = match origin.base {
            BlockBase::Zero => PageBase::Zero,
            BlockBase::CopyOf { key, lsn } => PageBase::CopyOf { key, lsn },
        };
        PageOrigin {
            since: origin.since,
            base,
        }
    }
}
