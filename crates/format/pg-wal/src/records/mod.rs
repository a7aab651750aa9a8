//! What the main data of records says about state that is not in relation blocks: transactions,
//! files, databases, counters, maps.
//!
//! **Invariant.** A decoder reads the layout of the record's own major and refuses an `info` it
//! does not know ([`MainDataError::UnknownInfo`]): guessing at a record's meaning loses state that
//! no page image can bring back. Bytes behind the last known field are allowed, since minor
//! releases append fields.
//!
//! Each module has an enum with one variant a record type and `decode(&Record)`; arrays are lent as
//! [`Array`], so decoding never allocates.

pub mod clog;
pub mod commit_ts;
pub mod dbase;
pub mod multixact;
pub mod relmap;
pub mod replorigin;
pub mod smgr;
pub mod standby;
pub mod tblspc;
pub mod xact;
pub mod xlog;

use std::marker::PhantomData;

use pg_types::{Oid, PgMajor, RelFileLocator, Xid};

use crate::cursor::Cursor;
use crate::{Record, RmgrId};

/// Why the main data of a record is not what its resource manager and `info` say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MainDataError {
    /// The data ends before a field does.
    #[error("{rmgr} record with info {info:#04x} ends within {field}")]
    Truncated {
        /// Resource manager.
        rmgr: RmgrId,
        /// The resource manager's info bits.
        info: u8,
        /// The field cut off.
        field: &'static str,
    },
    /// A field holds what no server writes.
    #[error("{rmgr} record with info {info:#04x} has an impossible {field}")]
    BadField {
        /// Resource manager.
        rmgr: RmgrId,
        /// The resource manager's info bits.
        info: u8,
        /// The field.
        field: &'static str,
    },
    /// A record type that this major does not have.
    #[error("{rmgr} has no record with info {info:#04x} in PostgreSQL {major}")]
    UnknownInfo {
        /// Resource manager.
        rmgr: RmgrId,
        /// The resource manager's info bits.
        info: u8,
        /// The major.
        major: PgMajor,
    },
    /// The record belongs to another resource manager than the decoder.
    #[error("a record of {found} was given to the decoder of {expected}")]
    WrongRmgr {
        /// Resource manager of the record.
        found: RmgrId,
        /// Resource manager of the decoder.
        expected: RmgrId,
    },
}

/// An element of fixed size within main data.
pub trait Element: Sized {
    /// Bytes of an element.
    const LEN: usize;
    /// Reads one element from exactly [`Element::LEN`] bytes.
    fn read(bytes: &[u8]) -> Option<Self>;
}

/// An array lent from a record, decoded while iterating; its bytes need no alignment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Array<'a, T> {
    bytes: &'a [u8],
    element: PhantomData<T>,
}

impl<'a, T: Element> Array<'a, T> {
    const fn new(bytes: &'a [u8]) -> Array<'a, T> {
        Array {
            bytes,
            element: PhantomData,
        }
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() / T::LEN
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + use<'a, T> {
        // Every chunk has the element's length, so `read` never fails; zip keeps the length exact.
        ArrayIter {
            bytes: self.bytes,
            element: PhantomData,
        }
    }
}

impl<T> Default for Array<'_, T> {
    fn default() -> Self {
        Array {
            bytes: &[],
            element: PhantomData,
        }
    }
}

impl<T: Element + std::fmt::Debug> std::fmt::Debug for Array<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

struct ArrayIter<'a, T> {
    bytes: &'a [u8],
    element: PhantomData<T>,
}

impl<T: Element> Iterator for ArrayIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let (element, rest) = self.bytes.split_at_checked(T::LEN)?;
        self.bytes = rest;
        T::read(element)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.bytes.len() / T::LEN;
        (len, Some(len))
    }
}

impl<T: Element> ExactSizeIterator for ArrayIter<'_, T> {}

/// Transaction ids and OIDs.
impl Element for u32 {
    const LEN: usize = 4;

    fn read(bytes: &[u8]) -> Option<u32> {
        Cursor::new(bytes).u32()
    }
}

impl Element for RelFileLocator {
    const LEN: usize = 12;

    fn read(bytes: &[u8]) -> Option<RelFileLocator> {
        let mut at = Cursor::new(bytes);
        Some(RelFileLocator {
            spc: at.u32()?,
            db: at.u32()?,
            rel: at.u32()?,
        })
    }
}

/// A reader of one record's main data that names the field in its errors.
struct Fields<'a> {
    at: Cursor<'a>,
    rmgr: RmgrId,
    info: u8,
    major: PgMajor,
}

impl<'a> Fields<'a> {
    /// The main data of `record`, which must be of `rmgr`; `mask` selects the bits of `info` that
    /// tell the record type.
    fn of(record: &Record<'a>, rmgr: RmgrId, mask: u8) -> Result<Fields<'a>, MainDataError> {
        if record.header.rmid != rmgr {
            return Err(MainDataError::WrongRmgr {
                found: record.header.rmid,
                expected: rmgr,
            });
        }
        Ok(Fields {
            at: Cursor::new(record.main),
            rmgr,
            info: record.info() & mask,
            major: record.major,
        })
    }

    const fn unknown_info(&self) -> MainDataError {
        MainDataError::UnknownInfo {
            rmgr: self.rmgr,
            info: self.info,
            major: self.major,
        }
    }

    const fn bad(&self, field: &'static str) -> MainDataError {
        MainDataError::BadField {
            rmgr: self.rmgr,
            info: self.info,
            field,
        }
    }

    fn check<T>(&self, value: Option<T>, field: &'static str) -> Result<T, MainDataError> {
        value.ok_or(MainDataError::Truncated {
            rmgr: self.rmgr,
            info: self.info,
            field,
        })
    }

    fn u8(&mut self, field: &'static str) -> Result<u8, MainDataError> {
        let value = self.at.u8();
        self.check(value, field)
    }

    fn flag(&mut self, field: &'static str) -> Result<bool, MainDataError> {
        Ok(self.u8(field)? != 0)
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, MainDataError> {
        let value = self.at.u16();
        self.check(value, field)
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, MainDataError> {
        let value = self.at.u32();
        self.check(value, field)
    }

    fn xid(&mut self, field: &'static str) -> Result<Xid, MainDataError> {
        self.u32(field)
    }

    fn oid(&mut self, field: &'static str) -> Result<Oid, MainDataError> {
        self.u32(field)
    }

    fn i32(&mut self, field: &'static str) -> Result<i32, MainDataError> {
        let value = self.at.i32();
        self.check(value, field)
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, MainDataError> {
        let value = self.at.u64();
        self.check(value, field)
    }

    fn i64(&mut self, field: &'static str) -> Result<i64, MainDataError> {
        let value = self.at.i64();
        self.check(value, field)
    }

    fn rel(&mut self, field: &'static str) -> Result<RelFileLocator, MainDataError> {
        Ok(RelFileLocator {
            spc: self.oid(field)?,
            db: self.oid(field)?,
            rel: self.oid(field)?,
        })
    }

    fn bytes(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], MainDataError> {
        let value = self.at.take(len);
        self.check(value, field)
    }

    /// An `int` that counts; negative ones are impossible.
    fn count(&mut self, field: &'static str) -> Result<usize, MainDataError> {
        usize::try_from(self.i32(field)?).map_err(|_| self.bad(field))
    }

    /// `count` elements.
    fn array<T: Element>(
        &mut self,
        count: usize,
        field: &'static str,
    ) -> Result<Array<'a, T>, MainDataError> {
        let len = self.check(count.checked_mul(T::LEN), field)?;
        Ok(Array::new(self.bytes(len, field)?))
    }

    /// Bytes up to a NUL, which is consumed.
    fn c_string(&mut self, field: &'static str) -> Result<&'a [u8], MainDataError> {
        let len = self.at.bytes.iter().position(|byte| *byte == 0);
        let len = self.check(len, field)?;
        let text = self.bytes(len, field)?;
        self.u8(field)?;
        Ok(text)
    }

    /// Page number of an SLRU: `int` up to 16, `int64` from 17 on.
    fn slru_page(&mut self, field: &'static str) -> Result<u64, MainDataError> {
        let page = if self.major >= PgMajor::V17 {
            self.i64(field)?
        } else {
            i64::from(self.i32(field)?)
        };
        u64::try_from(page).map_err(|_| self.bad(field))
    }
}
