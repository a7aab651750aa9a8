//! Whose pages a store holds, and how far it has come.

use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId};
use serde::{Deserialize, Serialize};

/// The cluster a store belongs to; fixed when the store is created and repeated in every layer
/// file, so that a layer of another cluster can never be read as this one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity {
    /// System identifier from the control file.
    pub system_identifier: u64,
    /// Major of the cluster, by which records are decoded.
    pub major: PgMajor,
    /// WAL segment size.
    pub segment_size: SegmentSize,
    /// Whether the cluster's pages carry checksums.
    pub data_checksums: bool,
}

/// A position in the log that ingestion can resume from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Watermark {
    /// End of a whole record: everything at or below is in.
    pub lsn: Lsn,
    /// Start of that record.
    pub last_record: Lsn,
    /// Timeline of that record.
    pub timeline: TimelineId,
}
