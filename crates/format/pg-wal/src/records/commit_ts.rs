//! Commit timestamp pages (`access/commit_ts.h`).

use pg_types::Xid;

use super::{Fields, MainDataError};
use crate::{Record, RmgrId};

/// A record about `pg_commit_ts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitTsRecord {
    /// A page begins as zeros.
    ZeroPage {
        /// The page.
        page: u64,
    },
    /// Pages before one are removed.
    Truncate {
        /// The first page kept.
        page: u64,
        /// Oldest transaction whose timestamp is kept.
        oldest_xid: Xid,
    },
}

impl CommitTsRecord {
    /// Decodes the main data of a commit-timestamp record.
    ///
    /// # Errors
    /// [`MainDataError`] when it is not one this major writes.
    pub fn decode(record: &Record<'_>) -> Result<CommitTsRecord, MainDataError> {
        let mut fields = Fields::of(record, RmgrId::COMMIT_TS, 0xF0)?;
        match fields.info {
            0x00 => Ok(CommitTsRecord::ZeroPage {
                page: fields.slru_page("page")?,
            }),
            0x10 => Ok(CommitTsRecord::Truncate {
                page: fields.slru_page("page")?,
                oldest_xid: fields.xid("oldest xid")?,
            }),
            _ => Err(fields.unknown_info()),
        }
    }
}
