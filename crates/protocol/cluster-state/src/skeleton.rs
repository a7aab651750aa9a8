//! The skeleton: what a compute node needs besides pages to start at an LSN without replay.

use pg_types::{BlockNumber, Lsn, Oid, PgMajor, RelFork, SegmentSize, Slru, TimelineId};
use serde::{Deserialize, Serialize};

/// A data directory at `lsn`, without the contents of its pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skeleton {
    /// The LSN this describes: the end of a whole record.
    pub lsn: Lsn,
    /// Start of that record, which the checkpoint record's `xl_prev` must name.
    pub last_record: Lsn,
    /// Timeline of that record.
    pub timeline: TimelineId,
    /// Major of the cluster.
    pub major: PgMajor,
    /// WAL segment size.
    pub segment_size: SegmentSize,
    /// `pg_control` (8192 bytes, hex) as imported, with the parameters, counters and limits of `lsn`
    /// filled into it and its checkPointCopy; the compute manager sets LSNs, timelines, state, times
    /// and the CRC.
    pub control: String,
    /// Size of every fork that exists, unlogged relations' main forks excepted.
    pub relations: Vec<RelationSize>,
    /// Database directories.
    pub databases: Vec<DatabaseDir>,
    /// Tablespaces besides `pg_default` and `pg_global`.
    pub tablespaces: Vec<Tablespace>,
    /// Relation map files.
    pub relation_maps: Vec<RelationMap>,
    /// Prepared transactions.
    pub two_phase: Vec<TwoPhaseFile>,
    /// Pages of every SLRU that exist, as ranges; their contents are read like other pages.
    pub slrus: Vec<SlruRange>,
    /// `pg_logical/replorigin_checkpoint` (hex), if there are origins.
    pub replication_origins: Option<String>,
}

/// Size of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelationSize {
    /// The fork.
    pub fork: RelFork,
    /// Blocks.
    pub blocks: BlockNumber,
}

/// A database's directory in a tablespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseDir {
    /// Tablespace (1663 for `base/`).
    pub spc: Oid,
    /// Database.
    pub db: Oid,
}

/// A tablespace with a location.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tablespace {
    /// Its OID, the name of its link in `pg_tblspc`.
    pub oid: Oid,
    /// The directory the link pointed to; empty for one created in place.
    pub location: String,
}

/// A `pg_filenode.map`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelationMap {
    /// Tablespace of the database directory (1664 for the shared map).
    pub spc: Oid,
    /// Database, zero for the shared map.
    pub db: Oid,
    /// The file, hex.
    pub bytes: String,
}

/// A file of `pg_twophase`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwoPhaseFile {
    /// File name (`%08X` of the xid to 16, `%016X` of the full xid from 17).
    pub name: String,
    /// The file with its CRC, hex.
    pub bytes: String,
}

/// Pages `first..=last` of an SLRU exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlruRange {
    /// The SLRU.
    pub slru: Slru,
    /// First page.
    pub first: BlockNumber,
    /// Last page.
    pub last: BlockNumber,
}
