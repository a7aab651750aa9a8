//! The PostgreSQL majors Strandline knows, and the numbers by which files name them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A supported major release of PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub enum PgMajor {
    /// PostgreSQL 14.
    V14,
    /// PostgreSQL 15.
    V15,
    /// PostgreSQL 16.
    V16,
    /// PostgreSQL 17.
    V17,
    /// PostgreSQL 18.
    V18,
}

/// A number, page magic or control-file version of no supported major.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:#x} belongs to no supported PostgreSQL major (14 to 18)")]
pub struct UnknownMajor {
    /// Which number was looked up.
    pub what: &'static str,
    /// Its value.
    pub value: u32,
}

impl PgMajor {
    /// Every supported major, oldest first.
    pub const ALL: [PgMajor; 5] = [
        PgMajor::V14,
        PgMajor::V15,
        PgMajor::V16,
        PgMajor::V17,
        PgMajor::V18,
    ];

    /// The number users know, 14 to 18.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            PgMajor::V14 => 14,
            PgMajor::V15 => 15,
            PgMajor::V16 => 16,
            PgMajor::V17 => 17,
            PgMajor::V18 => 18,
        }
    }

    /// `xlp_magic` of this major's WAL pages (`XLOG_PAGE_MAGIC`).
    #[must_use]
    pub const fn wal_magic(self) -> u16 {
        match self {
            PgMajor::V14 => 0xD10D,
            PgMajor::V15 => 0xD110,
            PgMajor::V16 => 0xD113,
            PgMajor::V17 => 0xD116,
            PgMajor::V18 => 0xD118,
        }
    }

    /// The major whose WAL pages carry `magic`.
    ///
    /// # Errors
    /// [`UnknownMajor`] when no supported major uses it.
    pub fn from_wal_magic(magic: u16) -> Result<PgMajor, UnknownMajor> {
        Self::ALL
            .into_iter()
            .find(|major| major.wal_magic() == magic)
            .ok_or(UnknownMajor {
                what: "WAL page magic",
                value: u32::from(magic),
            })
    }

    /// `CATALOG_VERSION_NO` of this major, part of tablespace directory names.
    #[must_use]
    pub const fn catalog_version(self) -> u32 {
        match self {
            PgMajor::V14 => 202_107_181,
            PgMajor::V15 => 202_209_061,
            PgMajor::V16 => 202_307_071,
            PgMajor::V17 => 202_406_281,
            PgMajor::V18 => 202_506_291,
        }
    }

    /// The major whose control file carries `pg_control_version` and `catalog_version`.
    ///
    /// # Errors
    /// [`UnknownMajor`] naming the catalog version when no supported major uses it.
    pub fn from_catalog_version(catalog_version: u32) -> Result<PgMajor, UnknownMajor> {
        Self::ALL
            .into_iter()
            .find(|major| major.catalog_version() == catalog_version)
            .ok_or(UnknownMajor {
                what: "catalog version",
                value: catalog_version,
            })
    }

    /// Name of the directory that a tablespace of this major keeps its databases in, such as
    /// `PG_17_202406281` (`TABLESPACE_VERSION_DIRECTORY`).
    #[must_use]
    pub fn tablespace_directory(self) -> String {
        format!("PG_{}_{}", self.number(), self.catalog_version())
    }
}

impl fmt::Display for PgMajor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number())
    }
}

impl From<PgMajor> for u32 {
    fn from(major: PgMajor) -> u32 {
        major.number()
    }
}

impl TryFrom<u32> for PgMajor {
    type Error = UnknownMajor;

    fn try_from(number: u32) -> Result<PgMajor, UnknownMajor> {
        Self::ALL
            .into_iter()
            .find(|major| major.number() == number)
            .ok_or(UnknownMajor {
                what: "major",
                value: number,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_leads_back_to_its_major() {
        for major in PgMajor::ALL {
            assert_eq!(PgMajor::from_wal_magic(major.wal_magic()), Ok(major));
            assert_eq!(
                PgMajor::from_catalog_version(major.catalog_version()),
                Ok(major)
            );
            assert_eq!(PgMajor::try_from(major.number()), Ok(major));
        }
        assert!(PgMajor::from_wal_magic(0xD119).is_err());
    }
}
