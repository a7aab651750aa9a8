//! Transaction status, multixacts and commit timestamps: pages that records change by saying what
//! happened, not by naming the page.
//!
//! Each function here sets those entries of the record that lie on the page given; [`crate::changes`]
//! names the pages.

use pg_page::Page;
use pg_page::slru::{
    ClogPosition, CommitTsPosition, MultiXactMemberPosition, MultiXactOffsetPosition, XidStatus,
};
use pg_types::{BlockNumber, Slru, Xid};
use pg_wal::Record;
use pg_wal::records::clog::ClogRecord;
use pg_wal::records::commit_ts::CommitTsRecord;
use pg_wal::records::multixact::MultiXactRecord;
use pg_wal::records::xact::{Completion, XactRecord};

use crate::RedoFault;

/// The ids a transaction's end decides: its own, if it has one, and its subtransactions'.
pub(crate) fn ended_xids(end: &Completion<'_>) -> impl Iterator<Item = Xid> {
    std::iter::once(end.xid)
        .chain(end.subxacts.iter())
        .filter(|xid| *xid != 0)
}

/// Redoes a commit or abort on a page of `pg_xact` or, for commits, `pg_commit_ts`.
pub(crate) fn redo_xact(
    page: &mut Page,
    slru: Slru,
    page_number: BlockNumber,
    record: &Record<'_>,
) -> Result<(), RedoFault> {
    match (XactRecord::decode(record)?, slru) {
        (XactRecord::Commit(end), Slru::Clog) => {
            set_status(page, page_number, &end, XidStatus::Committed);
        }
        (XactRecord::Abort(end), Slru::Clog) => {
            set_status(page, page_number, &end, XidStatus::Aborted);
        }
        (XactRecord::Commit(end), Slru::CommitTs) => {
            let time = end.origin.map_or(end.time, |origin| origin.time);
            for xid in ended_xids(&end) {
                let position = CommitTsPosition::of(xid);
                if position.page == page_number {
                    position.set_entry(page, time, record.origin.unwrap_or(0));
                }
            }
        }
        _ => return Err(RedoFault::WrongPage),
    }
    Ok(())
}

fn set_status(page: &mut Page, number: BlockNumber, end: &Completion<'_>, status: XidStatus) {
    for xid in ended_xids(end) {
        let position = ClogPosition::of(xid);
        if position.page == number {
            position.set_status(page, status);
        }
    }
}

/// The multixact after `multi`; zero is not one.
pub(crate) const fn next_multi(multi: u32) -> u32 {
    match multi.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

/// Where the members after `count` ones from `offset` on begin; zero stands for "unset".
const fn next_offset(offset: u32, count: u32) -> u32 {
    match offset.wrapping_add(count) {
        0 => 1,
        next => next,
    }
}

/// Redoes a multixact record on a page of offsets or members.
///
/// Creating a multixact also writes where the members of the *next* one will begin: servers from
/// 14.21, 15.16, 16.12, 17.8 and 18.2 on write it and refuse a multixact without it.
pub(crate) fn redo_multixact(
    page: &mut Page,
    slru: Slru,
    page_number: BlockNumber,
    record: &Record<'_>,
) -> Result<(), RedoFault> {
    match (MultiXactRecord::decode(record)?, slru) {
        (MultiXactRecord::ZeroOffsetsPage { page: number }, Slru::MultiXactOffsets)
        | (MultiXactRecord::ZeroMembersPage { page: number }, Slru::MultiXactMembers) => {
            zero(page, number, page_number)?;
        }
        (
            MultiXactRecord::Create {
                multi,
                offset,
                members,
            },
            Slru::MultiXactOffsets,
        ) => {
            let next = next_offset(offset, members.len() as u32);
            for (multi, offset) in [(multi, offset), (next_multi(multi), next)] {
                let position = MultiXactOffsetPosition::of(multi);
                if position.page == page_number {
                    position.set_offset(page, offset);
                }
            }
        }
        (
            MultiXactRecord::Create {
                offset, members, ..
            },
            Slru::MultiXactMembers,
        ) => {
            let mut at = offset;
            for member in members.iter() {
                let position = MultiXactMemberPosition::of(at);
                if position.page == page_number {
                    position.set_member(page, member.xid, member.status);
                }
                at = at.wrapping_add(1);
            }
        }
        _ => return Err(RedoFault::WrongPage),
    }
    Ok(())
}

/// Redoes the zeroing of a page of `pg_xact` or `pg_commit_ts`.
pub(crate) fn redo_zero_page(
    page: &mut Page,
    slru: Slru,
    page_number: BlockNumber,
    record: &Record<'_>,
) -> Result<(), RedoFault> {
    let number = match slru {
        Slru::Clog => match ClogRecord::decode(record)? {
            ClogRecord::ZeroPage { page } => page,
            ClogRecord::Truncate { .. } => return Err(RedoFault::WrongPage),
        },
        Slru::CommitTs => match CommitTsRecord::decode(record)? {
            CommitTsRecord::ZeroPage { page } => page,
            CommitTsRecord::Truncate { .. } => return Err(RedoFault::WrongPage),
        },
        Slru::MultiXactOffsets | Slru::MultiXactMembers => return Err(RedoFault::WrongPage),
    };
    zero(page, number, page_number)
}

fn zero(page: &mut Page, named: u64, page_number: BlockNumber) -> Result<(), RedoFault> {
    if named != u64::from(page_number) {
        return Err(RedoFault::WrongPage);
    }
    page.fill(0);
    Ok(())
}
