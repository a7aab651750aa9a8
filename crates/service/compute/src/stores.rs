//! Calling log stores and the storage node.
//!
//! A refusal is told apart from a store that does not answer: the first ends an attempt, the second
//! only costs one member of the quorum.

use std::time::Duration;

use api::compute::LogStoreAddress;
use api::log::{LogRequest, LogResponse, LogStatus};
use api::storage::{StorageRequest, StorageResponse, StorageStatus};
use cluster_state::Skeleton;
use pg_types::{Lsn, TimelineId};

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It could not be reached or did not answer.
    #[error("{name}: {source}")]
    Unreachable {
        /// The store.
        name: String,
        /// What the call met.
        #[source]
        source: rpc::RpcError,
    },
    /// It refused.
    #[error("{name} refused: {message}")]
    Refused {
        /// The store.
        name: String,
        /// Why.
        message: String,
        /// The higher promise that stands in the way.
        fenced_by: Option<TimelineId>,
    },
    /// It has gone on with another history than the one that was being read.
    #[error(
        "{name} is on timeline {found}, not on {expected}: another start has overtaken this one"
    )]
    OtherTimeline {
        /// The store.
        name: String,
        /// Its timeline.
        found: TimelineId,
        /// The timeline whose history was to be read.
        expected: TimelineId,
    },
    /// It answered something else.
    #[error("{name} gave an answer that does not belong to the request")]
    Unexpected {
        /// The store.
        name: String,
    },
}

/// A log store.
#[derive(Debug)]
pub struct LogStoreClient {
    name: String,
    client: rpc::Client,
}

impl LogStoreClient {
    /// A client that connects when it is first used.
    #[must_use]
    pub fn new(address: &LogStoreAddress, timeout: Duration) -> LogStoreClient {
        LogStoreClient {
            name: address.name.clone(),
            client: rpc::Client::lazy(&address.control, timeout),
        }
    }

    /// The store's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A request that is answered by the store's status.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn status(
        &mut self,
        request: &LogRequest,
        attachment: &[u8],
    ) -> Result<LogStatus, StoreError> {
        match self.call(request, attachment)? {
            (LogResponse::Status(status), _) => Ok(status),
            _ => Err(StoreError::Unexpected {
                name: self.name.clone(),
            }),
        }
    }

    /// At most `max_bytes` of WAL from `from` on, on the history that ends with `expected`.
    ///
    /// # Errors
    /// [`StoreError`]; `OtherTimeline` when the store's history ends with another timeline.
    pub fn read_wal(
        &mut self,
        from: Lsn,
        max_bytes: u32,
        expected: TimelineId,
    ) -> Result<Vec<u8>, StoreError> {
        match self.call(&LogRequest::ReadWal { from, max_bytes }, &[])? {
            (LogResponse::Wal { timeline }, bytes) if timeline == expected => Ok(bytes),
            (LogResponse::Wal { timeline }, _) => Err(StoreError::OtherTimeline {
                name: self.name.clone(),
                found: timeline,
                expected,
            }),
            _ => Err(StoreError::Unexpected {
                name: self.name.clone(),
            }),
        }
    }

    fn call(
        &mut self,
        request: &LogRequest,
        attachment: &[u8],
    ) -> Result<(LogResponse, Vec<u8>), StoreError> {
        let unreachable = |source| StoreError::Unreachable {
            name: self.name.clone(),
            source,
        };
        let (response, bytes) = self.client.call(request, attachment).map_err(unreachable)?;
        match response {
            LogResponse::Refused { message, fenced_by } => Err(StoreError::Refused {
                name: self.name.clone(),
                message,
                fenced_by,
            }),
            response => Ok((response, bytes)),
        }
    }
}

/// The storage node.
#[derive(Debug)]
pub struct StorageClient {
    client: rpc::Client,
}

const STORAGE: &str = "storage node";

impl StorageClient {
    /// A client that connects when it is first used.
    #[must_use]
    pub fn new(endpoint: &rpc::Endpoint, timeout: Duration) -> StorageClient {
        StorageClient {
            client: rpc::Client::lazy(endpoint, timeout),
        }
    }

    /// The node's status.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn status(&mut self) -> Result<StorageStatus, StoreError> {
        match self.call(&StorageRequest::Status)? {
            StorageResponse::Status(status) => Ok(status),
            _ => Err(StoreError::Unexpected {
                name: STORAGE.to_owned(),
            }),
        }
    }

    /// The skeleton at `lsn`; the node waits up to `wait` for WAL to get there.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn skeleton(&mut self, lsn: Lsn, wait: Duration) -> Result<Skeleton, StoreError> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        self.client.set_timeout(wait + Duration::from_secs(10));
        match self.call(&StorageRequest::Skeleton { lsn, wait_ms })? {
            StorageResponse::Skeleton(skeleton) => Ok(*skeleton),
            _ => Err(StoreError::Unexpected {
                name: STORAGE.to_owned(),
            }),
        }
    }

    fn call(&mut self, request: &StorageRequest) -> Result<StorageResponse, StoreError> {
        let unreachable = |source| StoreError::Unreachable {
            name: STORAGE.to_owned(),
            source,
        };
        let (response, _) = self.client.call(request, &[]).map_err(unreachable)?;
        match response {
            StorageResponse::Refused { message } => Err(StoreError::Refused {
                name: STORAGE.to_owned(),
                message,
                fenced_by: None,
            }),
            response => Ok(response),
        }
    }
}
