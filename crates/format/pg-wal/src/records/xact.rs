//! Transaction ends (`access/xact.h`).
//!
//! The optional parts of commit and abort records follow one another without padding, each present
//! when its bit in `xinfo` is set; the order is fixed. A part misread shifts all that follow: the
//! transaction id of a `COMMIT PREPARED` would be taken from an invalidation message.

use pg_types::{Lsn, Oid, PgMajor, RelFileLocator, Xid};

use super::{Array, Element, Fields, MainDataError};
use crate::cursor::Cursor;
use crate::{Record, RmgrId};

/// `XLOG_XACT_OPMASK`: the bits of info that tell the record type.
pub const OP_MASK: u8 = 0x70;
/// `XLOG_XACT_HAS_INFO`: `xinfo` follows the time.
const HAS_INFO: u8 = 0x80;

const COMMIT: u8 = 0x00;
const PREPARE: u8 = 0x10;
const ABORT: u8 = 0x20;
const COMMIT_PREPARED: u8 = 0x30;
const ABORT_PREPARED: u8 = 0x40;
const ASSIGNMENT: u8 = 0x50;
const INVALIDATIONS: u8 = 0x60;

const HAS_DBINFO: u32 = 1 << 0;
const HAS_SUBXACTS: u32 = 1 << 1;
const HAS_RELFILELOCATORS: u32 = 1 << 2;
const HAS_INVALS: u32 = 1 << 3;
const HAS_TWOPHASE: u32 = 1 << 4;
const HAS_ORIGIN: u32 = 1 << 5;
const HAS_GID: u32 = 1 << 7;
const HAS_DROPPED_STATS: u32 = 1 << 8;

/// Bytes of a `SharedInvalidationMessage`.
const INVAL_LEN: usize = 16;

/// A record of the transaction manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XactRecord<'a> {
    /// `COMMIT` or `COMMIT PREPARED`.
    Commit(Completion<'a>),
    /// `ABORT` or `ROLLBACK PREPARED`.
    Abort(Completion<'a>),
    /// `PREPARE TRANSACTION`.
    Prepare(Prepare<'a>),
    /// Subtransactions of a top-level transaction; only hot standbys need it.
    Assignment {
        /// The top-level transaction.
        top: Xid,
        /// Its subtransactions.
        subxacts: Array<'a, Xid>,
    },
    /// Invalidations in the midst of a transaction; only logical decoding needs them.
    Invalidations,
}

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion<'a> {
    /// The transaction that ended: the prepared one, or the record's own.
    pub xid: Xid,
    /// Whether it had been prepared.
    pub prepared: bool,
    /// When, in microseconds since 2000.
    pub time: i64,
    /// `xinfo`, zero when absent.
    pub xinfo: u32,
    /// Database and its tablespace.
    pub database: Option<(Oid, Oid)>,
    /// Committed or aborted subtransactions.
    pub subxacts: Array<'a, Xid>,
    /// Relations whose files, of all forks, are removed.
    pub dropped: Array<'a, RelFileLocator>,
    /// Number of statistics entries dropped (15 and later).
    pub dropped_stats: usize,
    /// Number of invalidation messages.
    pub invalidations: usize,
    /// Global identifier of the prepared transaction; empty when the record does not name it.
    pub gid: &'a [u8],
    /// Where the transaction was replayed from.
    pub origin: Option<XactOrigin>,
}

/// Progress of the replication origin a transaction came from; which origin is in the record's
/// `origin` field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XactOrigin {
    /// End of the commit at its origin.
    pub lsn: Lsn,
    /// Commit time at its origin.
    pub time: i64,
}

/// `PREPARE TRANSACTION`: the main data is the body of the two-phase file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepare<'a> {
    /// The prepared transaction.
    pub xid: Xid,
    /// Its database.
    pub database: Oid,
    /// When it was prepared.
    pub time: i64,
    /// Owner.
    pub owner: Oid,
    /// Global identifier.
    pub gid: &'a [u8],
    /// Subtransactions.
    pub subxacts: Array<'a, Xid>,
    /// Relations dropped if it commits.
    pub dropped_on_commit: Array<'a, RelFileLocator>,
    /// Relations dropped if it aborts.
    pub dropped_on_abort: Array<'a, RelFileLocator>,
    /// Where the transaction was replayed from; both zero if it is local.
    pub origin: XactOrigin,
    /// All of the main data: the file without its checksum.
    pub state: &'a [u8],
}

impl<'a> XactRecord<'a> {
    /// Decodes the main data of a transaction record.
    ///
    /// # Errors
    /// [`MainDataError`] when it is not one this major writes.
    pub fn decode(record: &Record<'a>) -> Result<XactRecord<'a>, MainDataError> {
        let mut fields = Fields::of(record, RmgrId::XACT, OP_MASK)?;
        match fields.info {
            COMMIT | COMMIT_PREPARED => completion(fields, record).map(XactRecord::Commit),
            ABORT | ABORT_PREPARED => completion(fields, record).map(XactRecord::Abort),
            PREPARE => prepare(fields, record).map(XactRecord::Prepare),
            ASSIGNMENT => {
                let top = fields.xid("top-level xid")?;
                let count = fields.count("number of subtransactions")?;
                let subxacts = fields.array(count, "subtransactions")?;
                Ok(XactRecord::Assignment { top, subxacts })
            }
            INVALIDATIONS => Ok(XactRecord::Invalidations),
            _ => Err(fields.unknown_info()),
        }
    }
}

fn completion<'a>(
    mut fields: Fields<'a>,
    record: &Record<'a>,
) -> Result<Completion<'a>, MainDataError> {
    let time = fields.i64("time")?;
    let xinfo = if record.info() & HAS_INFO != 0 {
        fields.u32("xinfo")?
    } else {
        0
    };
    let has = |flag| xinfo & flag != 0;
    let mut database = None;
    if has(HAS_DBINFO) {
        database = Some((fields.oid("database")?, fields.oid("tablespace")?));
    }
    let mut subxacts = Array::default();
    if has(HAS_SUBXACTS) {
        let count = fields.count("number of subtransactions")?;
        subxacts = fields.array(count, "subtransactions")?;
    }
    let mut dropped = Array::default();
    if has(HAS_RELFILELOCATORS) {
        let count = fields.count("number of relations")?;
        dropped = fields.array(count, "relations")?;
    }
    let mut dropped_stats = 0;
    // The bit has no meaning in 14.
    if has(HAS_DROPPED_STATS) && fields.major >= PgMajor::V15 {
        dropped_stats = fields.count("number of statistics entries")?;
        skip(
            &mut fields,
            dropped_stats,
            stats_item_len(record.major),
            "statistics entries",
        )?;
    }
    let mut invalidations = 0;
    if has(HAS_INVALS) {
        invalidations = fields.count("number of invalidations")?;
        skip(&mut fields, invalidations, INVAL_LEN, "invalidations")?;
    }
    let prepared = matches!(fields.info, COMMIT_PREPARED | ABORT_PREPARED);
    let mut xid = record.header.xid;
    let mut gid: &[u8] = &[];
    if has(HAS_TWOPHASE) {
        xid = fields.xid("prepared xid")?;
        if has(HAS_GID) {
            gid = fields.c_string("global identifier")?;
        }
    } else if prepared {
        // Without it the record does not say which transaction ended.
        return Err(fields.bad("xinfo"));
    }
    let mut origin = None;
    if has(HAS_ORIGIN) {
        let lsn = Lsn(fields.u64("origin LSN")?);
        origin = Some(XactOrigin {
            lsn,
            time: fields.i64("origin time")?,
        });
    }
    Ok(Completion {
        xid,
        prepared,
        time,
        xinfo,
        database,
        subxacts,
        dropped,
        dropped_stats,
        invalidations,
        gid,
        origin,
    })
}

/// Bytes of an `xl_xact_stats_item`: its object id grew to 64 bits in 18.
const fn stats_item_len(major: PgMajor) -> usize {
    match major {
        PgMajor::V14 | PgMajor::V15 | PgMajor::V16 | PgMajor::V17 => 12,
        PgMajor::V18 => 16,
    }
}

fn skip(
    fields: &mut Fields<'_>,
    count: usize,
    len: usize,
    field: &'static str,
) -> Result<(), MainDataError> {
    let bytes = fields.check(count.checked_mul(len), field)?;
    fields.bytes(bytes, field)?;
    Ok(())
}

/// `xl_xact_prepare` (64 bytes in 14, 72 from 15 on) and the arrays behind it, each of which begins
/// at a multiple of 8.
fn prepare<'a>(mut fields: Fields<'a>, record: &Record<'a>) -> Result<Prepare<'a>, MainDataError> {
    fields.u32("magic")?;
    let total_len = fields.u32("total length")? as usize;
    // The length counts the checksum that only the file has, so it exceeds the record's data.
    if total_len < record.main.len() {
        return Err(fields.bad("total length"));
    }
    let xid = fields.xid("xid")?;
    let database = fields.oid("database")?;
    let time = fields.i64("time")?;
    let owner = fields.oid("owner")?;
    let subxacts = fields.count("number of subtransactions")?;
    let commit_rels = fields.count("number of relations dropped by commit")?;
    let abort_rels = fields.count("number of relations dropped by abort")?;
    if fields.major >= PgMajor::V15 {
        fields.count("number of statistics entries dropped by commit")?;
        fields.count("number of statistics entries dropped by abort")?;
    }
    fields.count("number of invalidations")?;
    fields.flag("relcache flag")?;
    // Padding of the two-byte length behind a bool.
    fields.u8("padding")?;
    let gid_len = usize::from(fields.u16("length of global identifier")?);
    let lsn = Lsn(fields.u64("origin LSN")?);
    let origin = XactOrigin {
        lsn,
        time: fields.i64("origin time")?,
    };
    let gid = fields.bytes(gid_len, "global identifier")?;
    let gid = gid.strip_suffix(&[0]).unwrap_or(gid);
    align(&mut fields, gid_len);
    let subxacts: Array<'_, Xid> = aligned_array(&mut fields, subxacts, "subtransactions")?;
    let dropped_on_commit = aligned_array(&mut fields, commit_rels, "relations of commit")?;
    let dropped_on_abort = aligned_array(&mut fields, abort_rels, "relations of abort")?;
    Ok(Prepare {
        xid,
        database,
        time,
        owner,
        gid,
        subxacts,
        dropped_on_commit,
        dropped_on_abort,
        origin,
        state: record.main,
    })
}

fn aligned_array<'a, T: Element>(
    fields: &mut Fields<'a>,
    count: usize,
    field: &'static str,
) -> Result<Array<'a, T>, MainDataError> {
    let array = fields.array(count, field)?;
    align(fields, count * T::LEN);
    Ok(array)
}

/// Skips the padding behind a part of `len` bytes; at the end of the data it may be missing.
fn align(fields: &mut Fields<'_>, len: usize) {
    let padding = len.next_multiple_of(8) - len;
    let rest = fields.at.bytes;
    fields.at = Cursor::new(rest.get(padding..).unwrap_or_default());
}
