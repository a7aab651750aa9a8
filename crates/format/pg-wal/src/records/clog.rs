//! Transaction status pages (`access/clog.h`).

use pg_types::{Oid, Xid};

use super::{Fields, MainDataError};
use crate::{Record, RmgrId};

/// A record about `pg_xact`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClogRecord {
    /// A page begins as zeros.
    ZeroPage {
        /// The page.
        page: u64,
    },
    /// Pages before one are removed.
    Truncate {
        /// The first page kept.
        page: u64,
        /// Oldest transaction whose status is kept.
        oldest_xid: Xid,
        /// The database that needs it.
        oldest_db: Oid,
    },
}

impl ClogRecord {
    /// Decodes the main data of a transaction-status record.
    ///
    /// # Errors
    /// [`MainDataError`] when it is not one this major writes.
    pub fn decode(record: &Record<'_>) -> Result<ClogRecord, MainDataError> {
        let mut fields = Fields::of(record, RmgrId::CLOG, 0xF0)?;
        match fields.info {
            0x00 => Ok(ClogRecord::ZeroPage {
                page: fields.slru_page("page")?,
            }),
            0x10 => Ok(ClogRecord::Truncate {
                page: fields.slru_page("page")?,
                oldest_xid: fields.xid("oldest xid")?,
                oldest_db: fields.oid("database")?,
            }),
            _ => Err(fields.unknown_info()),
        }
    }
}
