//! Control requests to a compute manager, and its configuration.

use std::path::PathBuf;

use pg_types::{Lsn, TimelineId};
use serde::{Deserialize, Serialize};

/// A request to a compute manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum ComputeRequest {
    /// Answered by [`ComputeResponse::Status`].
    Status,
    /// Start a fresh incarnation unless one runs. Answered by `Status` at once; the state tells
    /// when it is ready.
    Start,
    /// Stop PostgreSQL cleanly and leave it stopped. Answered by `Status` when it has ended.
    Stop,
    /// Kill every process of PostgreSQL, as a crash would; a fresh incarnation follows unless
    /// `stay_down`. Answered by `Status` when they have ended.
    Kill {
        /// Leave it stopped.
        #[serde(default)]
        stay_down: bool,
    },
}

/// An answer of a compute manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "response")]
pub enum ComputeResponse {
    /// The manager's state.
    Status(Box<ComputeStatus>),
    /// The request was not carried out.
    Refused {
        /// Why, for a person.
        message: String,
    },
}

/// What a compute node is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeState {
    /// Fencing, building a data directory, or waiting for PostgreSQL.
    Starting,
    /// PostgreSQL accepts connections and its commits reach a quorum.
    Ready,
    /// PostgreSQL has been asked to end.
    Stopping,
    /// Stopped on request.
    Stopped,
    /// The last start failed; it is being tried again.
    Failed,
}

/// State of a compute node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeStatus {
    /// What it is doing.
    pub state: ComputeState,
    /// Process id of the postmaster.
    pub pid: Option<u32>,
    /// The timeline it writes.
    pub timeline: Option<TimelineId>,
    /// The LSN at which it reads pages from storage.
    pub start_lsn: Option<Lsn>,
    /// Incarnations since the manager started.
    pub incarnations: u64,
    /// Milliseconds from the beginning of the last start to readiness.
    pub start_ms: Option<u64>,
    /// How to connect.
    pub connection: String,
    /// Directory of its Unix socket.
    pub socket_dir: PathBuf,
    /// Version that the `postgres` binary reports.
    pub server_version: Option<String>,
    /// The local page cache.
    pub cache: Option<CacheStatus>,
    /// Why the last start or run failed.
    pub error: Option<String>,
}

/// Counters of the page shim for the running incarnation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// Fetched blocks held locally.
    pub present_blocks: u64,
    /// Most of them to hold; zero for no limit.
    pub limit_blocks: u64,
    /// Blocks that existed at the start LSN.
    pub base_blocks: u64,
    /// Blocks fetched because they were read.
    pub fetched: u64,
    /// Blocks fetched ahead of a read.
    pub prefetched: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// Reads that found the block local.
    pub hits: u64,
    /// Reads that failed.
    pub errors: u64,
    /// Processes waiting for the storage node now.
    pub waiting: u64,
    /// Reconnections to the storage node.
    pub reconnects: u64,
}

impl CacheStatus {
    /// Share of reads that found the block local, 0 to 1; `None` before the first read.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn hit_ratio(&self) -> Option<f64> {
        let reads = self.hits + self.fetched;
        (reads > 0).then(|| self.hits as f64 / reads as f64)
    }
}

/// Configuration of a compute manager process, a TOML file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeConfig {
    /// The data directory that holds `cluster.toml`.
    pub data: PathBuf,
    /// Directory for Unix sockets.
    pub run: PathBuf,
    /// Control endpoint.
    pub control: rpc::Endpoint,
    /// Directory of the `postgres` binary.
    pub pg_bin: PathBuf,
    /// The page shim, `libstrandline_shim.so`.
    pub shim: PathBuf,
    /// Addresses to listen on, PostgreSQL's `listen_addresses`.
    pub listen_host: String,
    /// Port.
    pub listen_port: u16,
    /// How many log stores must have a commit.
    pub quorum: usize,
    /// The log stores.
    pub log_stores: Vec<LogStoreAddress>,
    /// The storage node's control endpoint.
    pub storage_control: rpc::Endpoint,
    /// The storage node's page endpoint.
    pub storage_pages: rpc::Endpoint,
    /// Bytes of fetched pages to keep locally at most; zero for no limit.
    #[serde(default)]
    pub cache_bytes: u64,
    /// Milliseconds a read waits for an unreachable storage node before it fails; zero waits forever.
    #[serde(default = "default_read_timeout_ms")]
    pub read_timeout_ms: u64,
}

/// A log store as the compute manager reaches it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogStoreAddress {
    /// Its name.
    pub name: String,
    /// Its control endpoint.
    pub control: rpc::Endpoint,
}

const fn default_read_timeout_ms() -> u64 {
    300_000
}
