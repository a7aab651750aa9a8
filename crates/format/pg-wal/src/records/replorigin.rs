//! Replication origins (`replication/origin.h`).

use pg_types::Lsn;

use super::{Fields, MainDataError};
use crate::{Record, RmgrId};

/// A record about a replication origin's progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplOriginRecord {
    /// Progress is set.
    Set {
        /// The origin.
        origin: u16,
        /// Everything up to here has been replayed from it.
        remote_lsn: Lsn,
        /// Whether progress may go backwards.
        force: bool,
    },
    /// The origin's progress is forgotten.
    Drop {
        /// The origin.
        origin: u16,
    },
}

impl ReplOriginRecord {
    /// Decodes the main data of a replication-origin record.
    ///
    /// # Errors
    /// [`MainDataError`] when it is not one PostgreSQL writes.
    pub fn decode(record: &Record<'_>) -> Result<ReplOriginRecord, MainDataError> {
        let mut fields = Fields::of(record, RmgrId::REPLORIGIN, 0xF0)?;
        match fields.info {
            0x00 => {
                let remote_lsn = Lsn(fields.u64("remote LSN")?);
                let origin = fields.u16("origin")?;
                let force = fields.flag("force")?;
                Ok(ReplOriginRecord::Set {
                    origin,
                    remote_lsn,
                    force,
                })
            }
            0x10 => Ok(ReplOriginRecord::Drop {
                origin: fields.u16("origin")?,
            }),
            _ => Err(fields.unknown_info()),
        }
    }
}
