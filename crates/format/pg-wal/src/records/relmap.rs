//! Relation maps (`utils/relmapper.h`): the files of catalogs whose names are not in a catalog.

use pg_types::{Oid, PgMajor};

use super::{Fields, MainDataError};
use crate::{Record, RmgrId};

/// A relation map is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelmapUpdate<'a> {
    /// The database; zero for the map of shared catalogs.
    pub db: Oid,
    /// Its tablespace.
    pub space: Oid,
    /// The whole file `pg_filenode.map`: 512 bytes up to 15, 524 from 16 on.
    pub map: &'a [u8],
}

impl<'a> RelmapUpdate<'a> {
    /// Decodes the main data of a relation-map record.
    ///
    /// # Errors
    /// [`MainDataError`] when it is not one this major writes.
    pub fn decode(record: &Record<'a>) -> Result<RelmapUpdate<'a>, MainDataError> {
        let mut fields = Fields::of(record, RmgrId::RELMAP, 0xF0)?;
        if fields.info != 0 {
            return Err(fields.unknown_info());
        }
        let db = fields.oid("database")?;
        let space = fields.oid("tablespace")?;
        let len = fields.count("length of map")?;
        let expected = if fields.major >= PgMajor::V16 {
            524
        } else {
            512
        };
        if len != expected {
            return Err(fields.bad("length of map"));
        }
        Ok(RelmapUpdate {
            db,
            space,
            map: fields.bytes(len, "map")?,
        })
    }
}
