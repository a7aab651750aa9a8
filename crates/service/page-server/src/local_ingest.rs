//! Ingestion of WAL that the caller has, without a network: for benchmarks and tests.

use std::path::Path;
use std::sync::Arc;

use page_store::{PageStore, StoreOptions};
use pg_types::Lsn;

use crate::ingestor::{ApplyError, Ingestor};
use crate::node::open_store;
use crate::status::NodeStatus;

/// A store that takes WAL from its caller, by the same code as a storage node takes it from a log
/// store.
pub struct LocalIngest {
    store: Arc<PageStore>,
    status: Arc<NodeStatus>,
    ingestor: Ingestor,
}

impl LocalIngest {
    /// Opens the store in `dir`, to go on where its layer files end.
    ///
    /// # Errors
    /// When the store is damaged, incomplete or in use.
    pub fn open(dir: &Path, options: StoreOptions) -> anyhow::Result<LocalIngest> {
        let (store, history) = open_store(dir, options)?;
        let status = Arc::new(NodeStatus::default());
        let ingestor = Ingestor::resume(Arc::clone(&store), history, Arc::clone(&status))?;
        Ok(LocalIngest {
            store,
            status,
            ingestor,
        })
    }

    /// Takes the WAL `bytes` that stand at `at`, in pieces of any size; what came before is skipped.
    ///
    /// # Errors
    /// A [`pg_wal::StreamError`] when the bytes are not the WAL that follows; another one when they
    /// hold a record that cannot be ingested. The records before it are ingested then.
    pub fn apply(&mut self, at: Lsn, bytes: &[u8]) -> anyhow::Result<()> {
        self.ingestor.apply(at, bytes).map_err(|error| match error {
            ApplyError::Stream(error) => error.into(),
            error => error.into(),
        })
    }

    /// Records ingested.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.status.records()
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &PageStore {
        &self.store
    }
}
