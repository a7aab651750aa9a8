//! Control requests to the supervisor of one machine, `strandline up`.

use std::path::PathBuf;

use pg_types::PgMajor;
use serde::{Deserialize, Serialize};

use crate::compute::ComputeStatus;
use crate::log::LogStatus;
use crate::storage::StorageStatus;

/// A request to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum SupervisorRequest {
    /// Answered by [`SupervisorResponse::Status`].
    Status,
    /// Start the compute node and wait until it is ready. Answered by `Compute`.
    ComputeStart,
    /// Stop the compute node cleanly. Answered by `Compute`.
    ComputeStop,
    /// Kill the compute node. Answered by `Compute`.
    ComputeKill {
        /// Leave it stopped.
        #[serde(default)]
        stay_down: bool,
    },
}

/// An answer of the supervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "response")]
pub enum SupervisorResponse {
    /// The state of every part.
    Status(Box<ClusterStatus>),
    /// The state of the compute node after the request.
    Compute(Box<ComputeStatus>),
    /// The request was not carried out.
    Refused {
        /// Why, for a person.
        message: String,
    },
}

/// Every part of a cluster on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The data directory.
    pub data: PathBuf,
    /// System identifier.
    pub system_identifier: u64,
    /// PostgreSQL major.
    pub major: PgMajor,
    /// Process id of the supervisor.
    pub pid: u32,
    /// Stores that must have a commit.
    pub quorum: usize,
    /// The log stores.
    pub log_stores: Vec<Part<LogStatus>>,
    /// The storage node.
    pub storage: Part<StorageStatus>,
    /// The compute node.
    pub compute: Part<ComputeStatus>,
}

/// A process of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part<T> {
    /// Its name, which is its log file's too.
    pub name: String,
    /// Whether the process runs.
    pub running: bool,
    /// Its process id.
    pub pid: Option<u32>,
    /// How often it has been restarted.
    pub restarts: u64,
    /// How it ended last, if it did.
    pub last_exit: Option<String>,
    /// What it says of itself; `None` when it does not answer.
    pub status: Option<T>,
}
