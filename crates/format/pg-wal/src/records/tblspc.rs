//! Tablespaces created and dropped (`commands/tablespace.h`).

use pg_types::Oid;

use super::{Fields, MainDataError};
use crate::{Record, RmgrId};

/// A record about a tablespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TblspcRecord<'a> {
    /// A tablespace comes into being.
    Create {
        /// The tablespace.
        space: Oid,
        /// The directory it links to; empty for one inside the data directory.
        path: &'a [u8],
    },
    /// A tablespace is removed.
    Drop {
        /// The tablespace.
        space: Oid,
    },
}

impl<'a> TblspcRecord<'a> {
    /// Decodes the main data of a tablespace record.
    ///
    /// # Errors
    /// [`MainDataError`] when it is not one PostgreSQL writes.
    pub fn decode(record: &Record<'a>) -> Result<TblspcRecord<'a>, MainDataError> {
        let mut fields = Fields::of(record, RmgrId::TBLSPC, 0xF0)?;
        match fields.info {
            0x00 => Ok(TblspcRecord::Create {
                space: fields.oid("tablespace")?,
                path: fields.c_string("path")?,
            }),
            0x10 => Ok(TblspcRecord::Drop {
                space: fields.oid("tablespace")?,
            }),
            _ => Err(fields.unknown_info()),
        }
    }
}
