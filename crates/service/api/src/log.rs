//! Control requests to a log store.
//!
//! The life of a timeline, as the compute manager drives it: `Promise` to a majority (from then on
//! those stores take nothing from older timelines), read their [`LogStatus`], choose the history with
//! the highest (last timeline, end of last whole record), bring at least a quorum up to that end with
//! `ReadWal` and `WriteWal`, then `BeginTimeline` on a quorum; only then may a server run on it.

use std::path::PathBuf;

use pg_types::{Lsn, TimelineId};
use serde::{Deserialize, Serialize};

/// A request to a log store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum LogRequest {
    /// Answered by [`LogResponse::Status`].
    Status,
    /// Durably promise to take nothing from a timeline below `timeline`, and stop receiving.
    /// Answered by `Status` (taken after the promise is durable), or refused if a higher promise exists.
    Promise {
        /// The timeline about to begin.
        timeline: TimelineId,
    },
    /// Bytes of WAL as they stand in this store on the history of its last timeline, durable or not
    /// acknowledged by a quorum. Answered by `Wal` with the bytes attached.
    ReadWal {
        /// First byte.
        from: Lsn,
        /// Upper bound on the bytes returned.
        max_bytes: u32,
    },
    /// Append the attached bytes at `at` on `timeline` (the chosen parent timeline), durably, under
    /// the promise for `promised`. Overlap with bytes that are there is overwritten. `history` is the
    /// text of `timeline`'s history file, empty for a first timeline: a store that lagged behind a
    /// timeline switch learns it here. Answered by `Status`.
    WriteWal {
        /// The promise under which this is written; refused if it is not the highest.
        promised: TimelineId,
        /// Timeline of the bytes.
        timeline: TimelineId,
        /// LSN of the first attached byte.
        at: Lsn,
        /// History of `timeline`.
        history: String,
    },
    /// Begin `timeline` at `switch_at`; the attachment is the WAL from `switch_at` on (the shutdown
    /// checkpoint record with any page headers it crosses), or nothing: then the timeline begins empty,
    /// and the same request with the bytes adds them. Durable before it is answered by `Status`.
    /// Idempotent. Refused unless `timeline` is promised and WAL up to `switch_at` is present.
    BeginTimeline {
        /// The new timeline.
        timeline: TimelineId,
        /// The timeline it continues.
        parent: TimelineId,
        /// Where it continues it: the end of a whole record.
        switch_at: Lsn,
        /// Text of the new timeline's history file.
        history: String,
    },
    /// Stream from this primary until told otherwise, reconnecting as needed. Answered by `Status`.
    Receive {
        /// Where the primary is.
        primary: PrimaryAddress,
    },
    /// Stop streaming. Answered by `Status`.
    StopReceiving,
    /// Wait until the store's timeline or end of durable WAL differ from these, at most `wait_ms`:
    /// how stores follow each other towards the quorum LSN. Answered by `Status`.
    Await {
        /// Last timeline as last heard of.
        timeline: TimelineId,
        /// End of durable WAL as last heard of.
        flushed: Lsn,
        /// Longest wait in milliseconds.
        wait_ms: u64,
    },
}

/// How a log store reaches the primary: stock streaming replication over its Unix socket or TCP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrimaryAddress {
    /// Directory of the server's Unix socket (starts with `/`), or a host name.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Role with the REPLICATION attribute.
    pub user: String,
    /// Physical replication slot reserved for this store.
    pub slot: String,
    /// The timeline the primary writes.
    pub timeline: TimelineId,
}

/// An answer of a log store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "response")]
pub enum LogResponse {
    /// The store's state.
    Status(LogStatus),
    /// WAL bytes are attached; fewer than asked for at the end of the store's WAL.
    Wal {
        /// Timeline of the bytes.
        timeline: TimelineId,
    },
    /// The request was not carried out.
    Refused {
        /// Why, for a person.
        message: String,
        /// A higher promise stands in the way.
        fenced_by: Option<TimelineId>,
    },
}

/// Where a timeline began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineStart {
    /// The timeline.
    pub timeline: TimelineId,
    /// Its first LSN; zero for the first one.
    pub begin: Lsn,
}

/// State of a log store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStatus {
    /// The store's name, which is its `application_name` at the primary.
    pub name: String,
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// Highest timeline promised.
    pub promised: TimelineId,
    /// Last timeline written here.
    pub timeline: TimelineId,
    /// Every timeline of the history up to `timeline`, oldest first.
    pub history: Vec<TimelineStart>,
    /// Text of `timeline`'s history file.
    pub history_text: String,
    /// Oldest LSN kept.
    pub oldest: Lsn,
    /// End of durable WAL.
    pub flushed: Lsn,
    /// End of the last whole, checksummed record.
    pub record_end: Lsn,
    /// Start of that record.
    pub last_record: Lsn,
    /// Highest LSN known to be durable on a quorum; what is served.
    pub quorum: Lsn,
    /// Whether a primary is streaming to this store now.
    pub receiving: bool,
    /// Why the store has stopped acknowledging, if it has.
    pub error: Option<String>,
}

/// Configuration of a log store process, a TOML file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogStoreConfig {
    /// Name; also the `application_name` by which the primary counts it.
    pub name: String,
    /// Directory of its WAL and state.
    pub dir: PathBuf,
    /// Control endpoint, such as `unix:/run/strandline/log-0.ctl`.
    pub control: rpc::Endpoint,
    /// Where it serves stock streaming replication: a directory in which the socket
    /// `.s.PGSQL.<port>` is made.
    pub replication_socket_dir: PathBuf,
    /// The port in that socket's name, and of `replication_listen` if set.
    pub replication_port: u16,
    /// Optional TCP address for replication clients, such as `127.0.0.1:6001`.
    #[serde(default)]
    pub replication_listen: Option<String>,
    /// How many stores must have a byte durable before it counts, this one included.
    pub quorum: usize,
    /// The other stores.
    #[serde(default)]
    pub peers: Vec<LogPeer>,
}

/// Another log store of the same cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogPeer {
    /// Its name.
    pub name: String,
    /// Its control endpoint.
    pub control: rpc::Endpoint,
    /// Host (or socket directory) of its replication server.
    pub replication_host: String,
    /// Port of its replication server.
    pub replication_port: u16,
}
