//! The resource managers of stock PostgreSQL.

use std::fmt;

/// Number of a resource manager (`RmgrId`), the part of PostgreSQL that wrote a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RmgrId(pub u8);

/// Defines the constants and their names from one list, so the two cannot drift apart.
macro_rules! resource_managers {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl RmgrId {
            $($(#[$doc])* pub const $name: RmgrId = RmgrId($number);)*

            /// The name `pg_waldump` prints; `None` for ids that stock PostgreSQL does not use.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

resource_managers! {
    /// Checkpoints, counters, full-page images.
    XLOG = 0, "XLOG";
    /// Commit, abort, prepare.
    XACT = 1, "Transaction";
    /// Relation files.
    SMGR = 2, "Storage";
    /// Transaction status pages.
    CLOG = 3, "CLOG";
    /// Databases.
    DBASE = 4, "Database";
    /// Tablespaces.
    TBLSPC = 5, "Tablespace";
    /// Multixacts.
    MULTIXACT = 6, "MultiXact";
    /// Relation maps.
    RELMAP = 7, "RelMap";
    /// Hot-standby support.
    STANDBY = 8, "Standby";
    /// Heap, second page of operations.
    HEAP2 = 9, "Heap2";
    /// Heap.
    HEAP = 10, "Heap";
    /// B-tree.
    BTREE = 11, "Btree";
    /// Hash index.
    HASH = 12, "Hash";
    /// GIN.
    GIN = 13, "Gin";
    /// GiST.
    GIST = 14, "Gist";
    /// Sequences.
    SEQ = 15, "Sequence";
    /// SP-GiST.
    SPGIST = 16, "SPGist";
    /// BRIN.
    BRIN = 17, "BRIN";
    /// Commit timestamps.
    COMMIT_TS = 18, "CommitTs";
    /// Replication origins.
    REPLORIGIN = 19, "ReplicationOrigin";
    /// Generic records of extensions.
    GENERIC = 20, "Generic";
    /// Messages for logical decoding.
    LOGICALMSG = 21, "LogicalMessage";
}

impl RmgrId {
    /// Whether an extension owns this id (PostgreSQL 15 and later, ids 128 to 255).
    #[must_use]
    pub const fn is_custom(self) -> bool {
        self.0 >= 128
    }
}

impl fmt::Display for RmgrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "rmgr {}", self.0),
        }
    }
}

impl fmt::Debug for RmgrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
