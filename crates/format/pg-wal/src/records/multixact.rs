//! Multixacts (`access/multixact.h`).

use pg_types::{Oid, Xid};

use super::{Array, Element, Fields, MainDataError};
use crate::cursor::Cursor;
use crate::{Record, RmgrId};

/// A record about multixacts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MultiXactRecord<'a> {
    /// A page of `pg_multixact/offsets` begins as zeros.
    ZeroOffsetsPage {
        /// The page.
        page: u64,
    },
    /// A page of `pg_multixact/members` begins as zeros.
    ZeroMembersPage {
        /// The page.
        page: u64,
    },
    /// A multixact comes into being.
    Create {
        /// Its id.
        multi: u32,
        /// Where its members begin.
        offset: u32,
        /// Its members.
        members: Array<'a, MultiXactMember>,
    },
    /// Old multixacts are forgotten.
    Truncate {
        /// The database with the oldest multixact left.
        oldest_db: Oid,
        /// Oldest multixact before.
        start_multi: u32,
        /// Oldest multixact now.
        end_multi: u32,
        /// First member before.
        start_member: u32,
        /// First member now.
        end_member: u32,
    },
}

/// A transaction that locks or updates a tuple together with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultiXactMember {
    /// The transaction.
    pub xid: Xid,
    /// What it does (`MultiXactStatus`, 0 to 5).
    pub status: u8,
}

impl Element for MultiXactMember {
    const LEN: usize = 8;

    fn read(bytes: &[u8]) -> Option<MultiXactMember> {
        let mut at = Cursor::new(bytes);
        let xid = at.u32()?;
        // An enum in four bytes of which three bits are used.
        let status = at.u8()?;
        Some(MultiXactMember { xid, status })
    }
}

impl<'a> MultiXactRecord<'a> {
    /// Decodes the main data of a multixact record.
    ///
    /// # Errors
    /// [`MainDataError`] when it is not one this major writes.
    pub fn decode(record: &Record<'a>) -> Result<MultiXactRecord<'a>, MainDataError> {
        let mut fields = Fields::of(record, RmgrId::MULTIXACT, 0xF0)?;
        match fields.info {
            0x00 => Ok(MultiXactRecord::ZeroOffsetsPage {
                page: fields.slru_page("page")?,
            }),
            0x10 => Ok(MultiXactRecord::ZeroMembersPage {
                page: fields.slru_page("page")?,
            }),
            0x20 => {
                let multi = fields.u32("multixact")?;
                let offset = fields.u32("offset")?;
                let count = fields.count("number of members")?;
                let members: Array<'_, MultiXactMember> = fields.array(count, "members")?;
                if members.iter().any(|member| member.status > 5) {
                    return Err(fields.bad("member status"));
                }
                Ok(MultiXactRecord::Create {
                    multi,
                    offset,
                    members,
                })
            }
            0x30 => Ok(MultiXactRecord::Truncate {
                oldest_db: fields.oid("database")?,
                start_multi: fields.u32("start of offsets")?,
                end_multi: fields.u32("end of offsets")?,
                start_member: fields.u32("start of members")?,
                end_member: fields.u32("end of members")?,
            }),
            _ => Err(fields.unknown_info()),
        }
    }
}
