//! Checkpoints, counters and settings (`catalog/pg_control.h`, `access/xlog_internal.h`).

use pg_types::checkpoint::CheckPoint;
use pg_types::{Lsn, Oid, PgMajor, TimelineId};

use super::{Fields, MainDataError};
use crate::{Record, RmgrId};

/// `info` of a shutdown checkpoint.
pub const CHECKPOINT_SHUTDOWN: u8 = 0x00;
/// `info` of an online checkpoint.
pub const CHECKPOINT_ONLINE: u8 = 0x10;
/// `info` of a record without meaning.
pub const NOOP: u8 = 0x20;
/// `info` of an advance of the OID counter.
pub const NEXT_OID: u8 = 0x30;
/// `info` of the record that leaves the rest of its segment empty.
pub const SWITCH: u8 = 0x40;
/// `info` of the end of a base backup.
pub const BACKUP_END: u8 = 0x50;
/// `info` of a change of settings that standbys must match.
pub const PARAMETER_CHANGE: u8 = 0x60;
/// `info` of a named restore point.
pub const RESTORE_POINT: u8 = 0x70;
/// `info` of a change of `full_page_writes`.
pub const FPW_CHANGE: u8 = 0x80;
/// `info` of the end of recovery.
pub const END_OF_RECOVERY: u8 = 0x90;
/// `info` of a page image saved because of hint bits.
pub const FPI_FOR_HINT: u8 = 0xA0;
/// `info` of page images.
pub const FPI: u8 = 0xB0;
/// `info` of the record that voids an unfinished one.
pub const OVERWRITE_CONTRECORD: u8 = 0xD0;
/// `info` of the start of an online checkpoint (17 and later).
pub const CHECKPOINT_REDO: u8 = 0xE0;

/// A record of the log itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XlogRecord<'a> {
    /// A checkpoint while shutting down, or the first of a timeline: all its counters are exact.
    CheckpointShutdown(CheckPoint),
    /// A checkpoint of a running server: its counters are lower bounds.
    CheckpointOnline(CheckPoint),
    /// Nothing.
    Noop,
    /// OIDs below this are taken.
    NextOid(Oid),
    /// The rest of the segment is empty.
    Switch,
    /// A base backup that began at this position has ended.
    BackupEnd(Lsn),
    /// Settings changed.
    ParameterChange(Parameters),
    /// A named restore point.
    RestorePoint {
        /// When it was made, in microseconds since 2000.
        time: i64,
        /// Its name.
        name: &'a [u8],
    },
    /// `full_page_writes` was set to this.
    FpwChange(bool),
    /// Recovery ended and the server began to write.
    EndOfRecovery {
        /// When, in microseconds since 2000.
        time: i64,
        /// The timeline it writes.
        timeline: TimelineId,
        /// The timeline it came from.
        prev_timeline: TimelineId,
    },
    /// Page images saved because of hint bits; with `full_page_writes` off there are none.
    FpiForHint,
    /// Page images.
    Fpi,
    /// The record that began at `overwritten` is void.
    OverwriteContrecord {
        /// Where it began.
        overwritten: Lsn,
        /// When that was noticed.
        time: i64,
    },
    /// Redo of the next online checkpoint begins here (17 and later).
    CheckpointRedo,
}

/// Settings in `pg_control` that a standby must match (`xl_parameter_change`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// `max_connections`.
    pub max_connections: i32,
    /// `max_worker_processes`.
    pub max_worker_processes: i32,
    /// `max_wal_senders`.
    pub max_wal_senders: i32,
    /// `max_prepared_transactions`.
    pub max_prepared_transactions: i32,
    /// `max_locks_per_transaction`.
    pub max_locks_per_transaction: i32,
    /// `wal_level`: 0 minimal, 1 replica, 2 logical.
    pub wal_level: i32,
    /// `wal_log_hints`.
    pub wal_log_hints: bool,
    /// `track_commit_timestamp`.
    pub track_commit_timestamp: bool,
}

impl<'a> XlogRecord<'a> {
    /// Decodes the main data of a record of the log itself.
    ///
    /// # Errors
    /// [`MainDataError`] when it is not one this major writes.
    pub fn decode(record: &Record<'a>) -> Result<XlogRecord<'a>, MainDataError> {
        let mut fields = Fields::of(record, RmgrId::XLOG, 0xF0)?;
        let checkpoint = |fields: &Fields<'_>| {
            fields.check(CheckPoint::decode(record.main, record.major), "checkpoint")
        };
        Ok(match fields.info {
            CHECKPOINT_SHUTDOWN => XlogRecord::CheckpointShutdown(checkpoint(&fields)?),
            CHECKPOINT_ONLINE => XlogRecord::CheckpointOnline(checkpoint(&fields)?),
            NOOP => XlogRecord::Noop,
            NEXT_OID => XlogRecord::NextOid(fields.oid("next OID")?),
            SWITCH => XlogRecord::Switch,
            BACKUP_END => XlogRecord::BackupEnd(Lsn(fields.u64("start of backup")?)),
            PARAMETER_CHANGE => XlogRecord::ParameterChange(parameters(&mut fields)?),
            RESTORE_POINT => XlogRecord::RestorePoint {
                time: fields.i64("time")?,
                name: fields.c_string("name")?,
            },
            FPW_CHANGE => XlogRecord::FpwChange(fields.flag("full_page_writes")?),
            END_OF_RECOVERY => XlogRecord::EndOfRecovery {
                time: fields.i64("time")?,
                timeline: TimelineId(fields.u32("timeline")?),
                prev_timeline: TimelineId(fields.u32("previous timeline")?),
            },
            FPI_FOR_HINT => XlogRecord::FpiForHint,
            FPI => XlogRecord::Fpi,
            OVERWRITE_CONTRECORD => XlogRecord::OverwriteContrecord {
                overwritten: Lsn(fields.u64("overwritten LSN")?),
                time: fields.i64("time")?,
            },
            CHECKPOINT_REDO if fields.major >= PgMajor::V17 => XlogRecord::CheckpointRedo,
            _ => return Err(fields.unknown_info()),
        })
    }
}

fn parameters(fields: &mut Fields<'_>) -> Result<Parameters, MainDataError> {
    Ok(Parameters {
        max_connections: fields.i32("max_connections")?,
        max_worker_processes: fields.i32("max_worker_processes")?,
        max_wal_senders: fields.i32("max_wal_senders")?,
        max_prepared_transactions: fields.i32("max_prepared_transactions")?,
        max_locks_per_transaction: fields.i32("max_locks_per_transaction")?,
        wal_level: fields.i32("wal_level")?,
        wal_log_hints: fields.flag("wal_log_hints")?,
        track_commit_timestamp: fields.flag("track_commit_timestamp")?,
    })
}
