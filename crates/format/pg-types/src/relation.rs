//! Which file a block belongs to.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Oid;

/// Physical name of a relation: PostgreSQL's `RelFileLocator` (`RelFileNode` before 16).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct RelFileLocator {
    /// Tablespace: 1663 is `pg_default`, 1664 is `pg_global`.
    pub spc: Oid,
    /// Database; zero for shared relations.
    pub db: Oid,
    /// The relation's file number.
    pub rel: Oid,
}

impl RelFileLocator {
    /// OID of the tablespace `pg_default`.
    pub const DEFAULT_TABLESPACE: Oid = 1663;
    /// OID of the tablespace `pg_global`.
    pub const GLOBAL_TABLESPACE: Oid = 1664;
}

impl fmt::Display for RelFileLocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.spc, self.db, self.rel)
    }
}

/// A fork of a relation (`ForkNumber`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum ForkNumber {
    /// The relation's data.
    Main = 0,
    /// Free space map, a hint that is never logged.
    Fsm = 1,
    /// Visibility map.
    Vm = 2,
    /// Image of an empty unlogged relation.
    Init = 3,
}

/// A fork number that PostgreSQL does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("fork number {0} is unknown; PostgreSQL has forks 0 to 3")]
pub struct UnknownFork(pub u32);

impl ForkNumber {
    /// Every fork, by number.
    pub const ALL: [ForkNumber; 4] = [
        ForkNumber::Main,
        ForkNumber::Fsm,
        ForkNumber::Vm,
        ForkNumber::Init,
    ];

    /// What a file of this fork has behind the relation's number: `""`, `"_fsm"`, `"_vm"`, `"_init"`.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            ForkNumber::Main => "",
            ForkNumber::Fsm => "_fsm",
            ForkNumber::Vm => "_vm",
            ForkNumber::Init => "_init",
        }
    }
}

impl TryFrom<u32> for ForkNumber {
    type Error = UnknownFork;

    fn try_from(number: u32) -> Result<ForkNumber, UnknownFork> {
        Self::ALL
            .into_iter()
            .find(|fork| *fork as u32 == number)
            .ok_or(UnknownFork(number))
    }
}

/// One fork of one relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RelFork {
    /// The relation.
    pub locator: RelFileLocator,
    /// The fork.
    pub fork: ForkNumber,
}

impl fmt::Display for RelFork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.locator, self.fork.suffix())
    }
}
