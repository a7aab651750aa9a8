//! Why a record cannot be applied, or a page cannot take it.

use pg_types::{BlockNumber, Lsn, PageKey, PgMajor};
use pg_wal::records::MainDataError;
use pg_wal::{ImageError, RmgrId};

/// A record that did not fit the page it was applied to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("redo of {rmgr} record with info {info:#04x} ending at {end} on {key}: {fault}")]
pub struct RedoError {
    /// The page.
    pub key: PageKey,
    /// Resource manager of the record.
    pub rmgr: RmgrId,
    /// The resource manager's bits of the record's info.
    pub info: u8,
    /// End of the record.
    pub end: Lsn,
    /// What disagreed.
    pub fault: RedoFault,
}

/// What disagreed between a record and a page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedoFault {
    /// Data of the record ends too early.
    #[error("the record's {what} ends too early")]
    Truncated {
        /// Which data.
        what: &'static str,
    },
    /// Data of the record goes on where it should end.
    #[error("the record's {what} has {left} bytes too many")]
    Trailing {
        /// Which data.
        what: &'static str,
        /// Bytes left over.
        left: u32,
    },
    /// A value in the record that cannot be.
    #[error("the record's {what} is impossible")]
    BadValue {
        /// Which value.
        what: &'static str,
    },
    /// An access beyond the page.
    #[error("bytes {at} to {at}+{len} lie outside of the page")]
    OutsidePage {
        /// First byte.
        at: u32,
        /// Bytes.
        len: u32,
    },
    /// A page header that no initialised page has.
    #[error("page header is not sane: lower {lower}, upper {upper}, special {special}")]
    BadHeader {
        /// `pd_lower`.
        lower: u16,
        /// `pd_upper`.
        upper: u16,
        /// `pd_special`.
        special: u16,
    },
    /// The page has no such line pointer.
    #[error("line pointer {number} does not exist: the page has {count}")]
    NoItem {
        /// Offset number.
        number: u16,
        /// Line pointers there are.
        count: u16,
    },
    /// The line pointer does not point to a tuple.
    #[error("line pointer {number} does not point to a tuple")]
    NotNormal {
        /// Offset number.
        number: u16,
    },
    /// A new tuple was to take a line pointer that is in use.
    #[error("line pointer {number} is in use")]
    InUse {
        /// Offset number.
        number: u16,
    },
    /// A line pointer that points outside of the tuple area.
    #[error("line pointer {number} points to {len} bytes at {offset}, outside of the tuples")]
    CorruptItem {
        /// Offset number.
        number: u16,
        /// Where it points.
        offset: u16,
        /// Bytes it points to.
        len: u16,
    },
    /// The page is too full for a new tuple.
    #[error("no room for a tuple of {need} bytes: the page has {have}")]
    NoRoom {
        /// Bytes of the tuple.
        need: u16,
        /// Free bytes.
        have: u16,
    },
    /// A tuple on the page that is not what the record takes it for.
    #[error("tuple {number} is not as the record expects: {what}")]
    BadTuple {
        /// Offset number.
        number: u16,
        /// What is wrong.
        what: &'static str,
    },
    /// The special area has another size than pages of this kind have.
    #[error("special area begins at {found}, not at {expected}")]
    BadSpecial {
        /// `pd_special`.
        found: u16,
        /// Where it should begin.
        expected: u16,
    },
    /// The record has no such block reference.
    #[error("the record has no block reference {id}")]
    NoBlock {
        /// The reference.
        id: u8,
    },
    /// The page given is not the one the record changes.
    #[error("the record does not change this page")]
    WrongPage,
    /// The record cannot be applied without an image of the page.
    #[error("block reference {id} has no page image, and redo of it needs one")]
    NoImage {
        /// The reference.
        id: u8,
    },
    /// A block reference this type of record does not have.
    #[error("block reference {id} has no meaning in this record")]
    UnexpectedBlock {
        /// The reference.
        id: u8,
    },
    /// No redo for this type of record.
    #[error("this type of record is unknown")]
    UnknownRecord,
    /// The page image is damaged.
    #[error("{0}")]
    Image(Box<ImageError>),
    /// The main data is damaged.
    #[error("{0}")]
    MainData(Box<MainDataError>),
}

impl From<ImageError> for RedoFault {
    #[cold]
    fn from(error: ImageError) -> RedoFault {
        RedoFault::Image(Box::new(error))
    }
}

impl From<MainDataError> for RedoFault {
    #[cold]
    fn from(error: MainDataError) -> RedoFault {
        RedoFault::MainData(Box::new(error))
    }
}

/// A record whose changes are not known; ingestion must stop at it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rmgr} record with info {info:#04x} of PostgreSQL {major}: {reason}")]
pub struct UnsupportedRecord {
    /// Resource manager of the record.
    pub rmgr: RmgrId,
    /// The resource manager's bits of the record's info.
    pub info: u8,
    /// Major of the server that wrote it.
    pub major: PgMajor,
    /// Why it is not supported.
    pub reason: UnsupportedReason,
}

/// Why the changes of a record are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnsupportedReason {
    /// A resource manager that is neither PostgreSQL's nor an extension's.
    #[error("this resource manager is unknown")]
    UnknownRmgr,
    /// The resource manager has no such record.
    #[error("this type of record is unknown")]
    UnknownInfo,
    /// Pages of this resource manager are taken from after-images, and one is missing.
    #[error(
        "block reference {id} (block {block}) has no page image; wal_consistency_checking must list {rmgr}"
    )]
    NeedsAfterImage {
        /// The resource manager to list.
        rmgr: RmgrId,
        /// The reference.
        id: u8,
        /// Its block.
        block: BlockNumber,
    },
    /// A record of an extension that names no page: what it changes cannot be known.
    #[error("a record of an extension that names no page cannot be followed")]
    NoBlocks,
    /// The record is damaged.
    #[error("{0}")]
    Malformed(#[from] RedoFault),
}
