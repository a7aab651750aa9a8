//! Where a block's present life began: what the store asks of the cluster's state.
//!
//! PostgreSQL reuses keys. A block can be truncated away and grown again, a relation number can be
//! dropped and handed out anew, and a database can be created by copying files. None of this leaves
//! a record *of the block*, so the store asks for it. Without the answer a replay would start from a
//! page of the block's earlier life (trap 6 of the facts).

use pg_types::{Lsn, PageKey};

/// Knows the lives of blocks; implemented by the cluster's state.
pub trait BlockHistory: Send + Sync {
    /// The life of `key` that `lsn` falls in.
    fn origin(&self, key: &PageKey, lsn: Lsn) -> PageOrigin;
}

/// The life of a block at some LSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageOrigin {
    /// Changes at or below this LSN belong to an earlier life.
    pub since: Lsn,
    /// What the block held before the first change of this life.
    pub base: PageBase,
}

impl PageOrigin {
    /// A block that has had one life only, and began it as zeros.
    pub const ONLY: PageOrigin = PageOrigin {
        since: Lsn::INVALID,
        base: PageBase::Zero,
    };
}

/// What a block holds before the first change of its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageBase {
    /// Zeros.
    Zero,
    /// The content of another page at an LSN: its database was created by copying files.
    CopyOf {
        /// The page copied.
        key: PageKey,
        /// The LSN it was copied at.
        lsn: Lsn,
    },
}
