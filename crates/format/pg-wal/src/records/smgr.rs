//! Relation files created and truncated (`catalog/storage_xlog.h`).

use pg_types::{BlockNumber, ForkNumber, RelFileLocator};

use super::{Fields, MainDataError};
use crate::{Record, RmgrId};

const CREATE: u8 = 0x10;
const TRUNCATE: u8 = 0x20;

/// `SMGR_TRUNCATE_HEAP`: the main fork is cut.
pub const TRUNCATE_HEAP: u32 = 0x1;
/// `SMGR_TRUNCATE_VM`: the visibility map is cut to match.
pub const TRUNCATE_VM: u32 = 0x2;
/// `SMGR_TRUNCATE_FSM`: the free space map is cut to match.
pub const TRUNCATE_FSM: u32 = 0x4;

/// A record of the storage manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmgrRecord {
    /// A fork comes into being, empty; one of the same name from before is forgotten.
    Create {
        /// The relation.
        rel: RelFileLocator,
        /// The fork.
        fork: ForkNumber,
    },
    /// The relation is cut.
    Truncate {
        /// The relation.
        rel: RelFileLocator,
        /// Blocks its main fork keeps.
        blocks: BlockNumber,
        /// Which forks are cut: [`TRUNCATE_HEAP`] and so on.
        flags: u32,
    },
}

impl SmgrRecord {
    /// Decodes the main data of a storage record.
    ///
    /// # Errors
    /// [`MainDataError`] when it is not one PostgreSQL writes.
    pub fn decode(record: &Record<'_>) -> Result<SmgrRecord, MainDataError> {
        let mut fields = Fields::of(record, RmgrId::SMGR, 0xF0)?;
        match fields.info {
            CREATE => {
                let rel = fields.rel("relation")?;
                let fork = fields.u32("fork")?;
                let fork = ForkNumber::try_from(fork).map_err(|_| fields.bad("fork"))?;
                Ok(SmgrRecord::Create { rel, fork })
            }
            TRUNCATE => {
                let blocks = fields.u32("block")?;
                let rel = fields.rel("relation")?;
                let flags = fields.u32("flags")?;
                Ok(SmgrRecord::Truncate { rel, blocks, flags })
            }
            _ => Err(fields.unknown_info()),
        }
    }
}
