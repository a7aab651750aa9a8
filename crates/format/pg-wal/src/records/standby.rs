//! Records for hot standbys (`storage/standbydefs.h`).

use pg_types::Xid;

use super::{Array, Fields, MainDataError};
use crate::{Record, RmgrId};

/// A record for hot standbys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandbyRecord<'a> {
    /// Access-exclusive locks; only a running standby needs them.
    Lock,
    /// The transactions running now.
    RunningXacts(RunningXacts<'a>),
    /// Invalidations; only a running standby needs them.
    Invalidations,
}

/// The transactions running at a point of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningXacts<'a> {
    /// Whether subtransactions are missing from the list.
    pub subxid_overflow: bool,
    /// Next transaction id to assign.
    pub next_xid: Xid,
    /// Oldest transaction running.
    pub oldest_running_xid: Xid,
    /// Newest transaction that has ended.
    pub latest_completed_xid: Xid,
    /// Top-level transactions.
    pub xids: Array<'a, Xid>,
    /// Subtransactions.
    pub subxids: Array<'a, Xid>,
}

impl<'a> StandbyRecord<'a> {
    /// Decodes the main data of a standby record.
    ///
    /// # Errors
    /// [`MainDataError`] when it is not one PostgreSQL writes.
    pub fn decode(record: &Record<'a>) -> Result<StandbyRecord<'a>, MainDataError> {
        let mut fields = Fields::of(record, RmgrId::STANDBY, 0xF0)?;
        match fields.info {
            0x00 => Ok(StandbyRecord::Lock),
            0x10 => {
                let xids = fields.count("number of transactions")?;
                let subxids = fields.count("number of subtransactions")?;
                let subxid_overflow = fields.flag("overflow flag")?;
                fields.bytes(3, "padding")?;
                Ok(StandbyRecord::RunningXacts(RunningXacts {
                    subxid_overflow,
                    next_xid: fields.xid("next xid")?,
                    oldest_running_xid: fields.xid("oldest running xid")?,
                    latest_completed_xid: fields.xid("latest completed xid")?,
                    xids: fields.array(xids, "transactions")?,
                    subxids: fields.array(subxids, "subtransactions")?,
                }))
            }
            0x20 => Ok(StandbyRecord::Invalidations),
            _ => Err(fields.unknown_info()),
        }
    }
}
