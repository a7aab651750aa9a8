//! Control requests to a storage node.

use std::path::PathBuf;

use cluster_state::Skeleton;
use pg_types::{Lsn, PgMajor, TimelineId};
use serde::{Deserialize, Serialize};

/// A request to a storage node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum StorageRequest {
    /// Answered by [`StorageResponse::Status`].
    Status,
    /// Everything that a compute node needs besides pages to start at `lsn`. Waits until WAL up to
    /// `lsn` has been ingested, at most `wait_ms`. Answered by [`StorageResponse::Skeleton`].
    Skeleton {
        /// End of a whole record.
        lsn: Lsn,
        /// Longest wait in milliseconds.
        wait_ms: u64,
    },
    /// Freeze the open layer and make everything ingested so far durable. Answered by `Status`.
    Flush,
}

/// An answer of a storage node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "response")]
pub enum StorageResponse {
    /// The node's state.
    Status(StorageStatus),
    /// The skeleton asked for.
    Skeleton(Box<Skeleton>),
    /// The request was not carried out.
    Refused {
        /// Why, for a person: names the LSN and the remedy.
        message: String,
    },
}

/// State of a storage node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageStatus {
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// Major of the cluster.
    pub major: PgMajor,
    /// Timeline of the last ingested record.
    pub timeline: TimelineId,
    /// Everything up to here has been ingested and can be read.
    pub applied: Lsn,
    /// Everything up to here is in layer files on disk.
    pub disk_consistent: Lsn,
    /// Where the log stores' quorum LSN stood when last heard of.
    pub quorum: Lsn,
    /// Oldest LSN at which pages can be read.
    pub oldest: Lsn,
    /// Records ingested since the process started.
    pub records: u64,
    /// WAL bytes ingested since the process started.
    pub wal_bytes: u64,
    /// Pages served since the process started.
    pub pages_served: u64,
    /// Of those, pages found materialised in the page cache.
    pub cache_hits: u64,
    /// Bytes in the open layer.
    pub open_layer_bytes: u64,
    /// Delta layers on disk.
    pub delta_layers: u64,
    /// Image layers on disk.
    pub image_layers: u64,
    /// Bytes of layers on disk.
    pub layer_bytes: u64,
    /// Longest log chain replayed for one page since the process started, in records.
    pub longest_chain: u64,
    /// Whether it is receiving WAL now.
    pub receiving: bool,
    /// Why ingestion has stopped, if it has.
    pub error: Option<String>,
}

/// Configuration of a storage node process, a TOML file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageNodeConfig {
    /// Directory of its layers and manifest.
    pub dir: PathBuf,
    /// Control endpoint.
    pub control: rpc::Endpoint,
    /// Where pages are served.
    pub pages: rpc::Endpoint,
    /// Replication servers of the log stores, tried in turn.
    pub log_stores: Vec<WalSource>,
    /// Size in bytes at which the open layer is frozen.
    #[serde(default = "default_freeze_bytes")]
    pub freeze_bytes: u64,
    /// Size in bytes of the cache of materialised pages.
    #[serde(default = "default_cache_bytes")]
    pub cache_bytes: u64,
}

/// A replication server to stream WAL from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalSource {
    /// Host, or directory of its Unix socket.
    pub host: String,
    /// Port.
    pub port: u16,
}

const fn default_freeze_bytes() -> u64 {
    128 << 20
}

const fn default_cache_bytes() -> u64 {
    256 << 20
}
