//! Databases created and dropped (`commands/dbcommands_xlog.h`). 15 inserted a record type, so the
//! same `info` means another record there.

use pg_types::{Oid, PgMajor};

use super::{Array, Fields, MainDataError};
use crate::{Record, RmgrId};

/// A record about a database's directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DbaseRecord<'a> {
    /// A directory is copied from another file by file, as it is at this record.
    CreateFileCopy {
        /// The new database.
        db: Oid,
        /// Its tablespace.
        space: Oid,
        /// The database copied.
        source_db: Oid,
        /// The tablespace copied from.
        source_space: Oid,
    },
    /// An empty directory comes into being; its contents follow as WAL (15 and later).
    CreateWalLog {
        /// The new database.
        db: Oid,
        /// Its tablespace.
        space: Oid,
    },
    /// The database's directories in these tablespaces are removed.
    Drop {
        /// The database.
        db: Oid,
        /// The tablespaces.
        spaces: Array<'a, Oid>,
    },
}

impl<'a> DbaseRecord<'a> {
    /// Decodes the main data of a database record.
    ///
    /// # Errors
    /// [`MainDataError`] when it is not one this major writes.
    pub fn decode(record: &Record<'a>) -> Result<DbaseRecord<'a>, MainDataError> {
        let mut fields = Fields::of(record, RmgrId::DBASE, 0xF0)?;
        match (fields.major, fields.info) {
            (_, 0x00) => Ok(DbaseRecord::CreateFileCopy {
                db: fields.oid("database")?,
                space: fields.oid("tablespace")?,
                source_db: fields.oid("source database")?,
                source_space: fields.oid("source tablespace")?,
            }),
            (PgMajor::V14, 0x10) => drop_record(fields),
            (PgMajor::V14, _) => Err(fields.unknown_info()),
            (_, 0x10) => Ok(DbaseRecord::CreateWalLog {
                db: fields.oid("database")?,
                space: fields.oid("tablespace")?,
            }),
            (_, 0x20) => drop_record(fields),
            _ => Err(fields.unknown_info()),
        }
    }
}

fn drop_record(mut fields: Fields<'_>) -> Result<DbaseRecord<'_>, MainDataError> {
    let db = fields.oid("database")?;
    let count = fields.count("number of tablespaces")?;
    Ok(DbaseRecord::Drop {
        db,
        spaces: fields.array(count, "tablespaces")?,
    })
}
