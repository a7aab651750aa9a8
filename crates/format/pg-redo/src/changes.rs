//! Which pages a record changes.
//!
//! **Invariant.** Every page is named, and named once; a record whose pages are not known is refused
//! by name. All record types of all majors are listed here, also those that change no page, so that
//! nothing unknown is ignored (DESIGN invariant 11).

use pg_page::slru::{
    ClogPosition, CommitTsPosition, MULTIXACT_MEMBERS_PER_PAGE, MultiXactMemberPosition,
    MultiXactOffsetPosition, last_page,
};
use pg_page::visibility_map::VmPosition;
use pg_types::{BlockNumber, ForkNumber, PageKey, PgMajor, Slru};
use pg_wal::records::MainDataError;
use pg_wal::records::clog::ClogRecord;
use pg_wal::records::commit_ts::CommitTsRecord;
use pg_wal::records::multixact::MultiXactRecord;
use pg_wal::records::smgr::SmgrRecord;
use pg_wal::records::xact::{Completion, XactRecord};
use pg_wal::{BlockRef, Record, RmgrId, Target};

use crate::error::{RedoFault, UnsupportedReason, UnsupportedRecord};
use crate::slru::{ended_xids, next_multi};
use crate::{btree, heap, heap2, sequence, visibility_map};

/// A page that a record changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageChange {
    /// The page.
    pub key: PageKey,
    /// Where the change is in the record.
    pub target: Target,
    /// Whether the page after the record does not depend on the page before it.
    pub initializes: bool,
    /// Whether the mini-record must keep the page image.
    pub keep_image: bool,
}

/// Settings of the cluster that decide what its records change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Major of the server.
    pub major: PgMajor,
    /// Whether LSNs are stamped for hint-like changes: data checksums or `wal_log_hints`.
    pub hint_lsn: bool,
    /// Whether commits write `pg_commit_ts` (`track_commit_timestamp` as the control file has it).
    pub track_commit_timestamp: bool,
}

const FPI_FOR_HINT: u8 = 0xA0;
const FPI: u8 = 0xB0;

/// Calls `sink` for every page that `record` changes.
///
/// # Errors
/// [`UnsupportedRecord`] when its changes are not known; pages given to `sink` before are then not
/// all of them.
pub fn page_changes(
    record: &Record<'_>,
    facts: &Facts,
    sink: &mut impl FnMut(PageChange),
) -> Result<(), UnsupportedRecord> {
    match record.header.rmid {
        RmgrId::HEAP | RmgrId::HEAP2 => heap_changes(record, sink),
        RmgrId::BTREE => native_blocks(record, btree::is_known(record.info()), sink),
        RmgrId::XACT => xact_changes(record, facts, sink),
        RmgrId::XLOG => xlog_changes(record, facts.major, sink),
        RmgrId::SEQ => native_blocks(record, record.info() == sequence::LOG, sink),
        RmgrId::GENERIC => native_blocks(record, record.info() == 0, sink),
        RmgrId::SMGR => smgr_changes(record, sink),
        RmgrId::MULTIXACT => multixact_changes(record, sink),
        RmgrId::CLOG | RmgrId::COMMIT_TS => zeroed_page(record, sink),
        RmgrId::HASH | RmgrId::GIN | RmgrId::GIST | RmgrId::SPGIST | RmgrId::BRIN => {
            if is_known_index_record(record.header.rmid, record.info()) {
                imaged_blocks(record, sink)
            } else {
                Err(UnsupportedReason::UnknownInfo)
            }
        }
        rmgr if rmgr.is_custom() => custom_changes(record, sink),
        rmgr => no_pages(record, rmgr, facts.major),
    }
    .map_err(|reason| unsupported(record, facts.major, reason))
}

#[cold]
fn unsupported(
    record: &Record<'_>,
    major: PgMajor,
    reason: UnsupportedReason,
) -> UnsupportedRecord {
    UnsupportedRecord {
        rmgr: record.header.rmid,
        info: record.info(),
        major,
        reason,
    }
}

type Changes = Result<(), UnsupportedReason>;

fn malformed(fault: RedoFault) -> UnsupportedReason {
    UnsupportedReason::Malformed(fault)
}

fn undecodable(error: MainDataError) -> UnsupportedReason {
    match error {
        MainDataError::UnknownInfo { .. } => UnsupportedReason::UnknownInfo,
        error => malformed(error.into()),
    }
}

/// The change of a block reference; an image for checking is not kept, because redo of the record
/// makes the page.
#[inline]
fn block_change(block: &BlockRef<'_>, use_image: bool) -> PageChange {
    PageChange {
        key: PageKey::relation(block.rel, block.fork, block.block),
        target: Target::Block(block.id),
        initializes: block.will_init || use_image,
        keep_image: use_image,
    }
}

fn implied(key: PageKey, initializes: bool) -> PageChange {
    PageChange {
        key,
        target: Target::Implied,
        initializes,
        keep_image: false,
    }
}

/// Every block reference, redone natively unless it has an image to apply.
#[inline]
fn native_blocks(
    record: &Record<'_>,
    is_known: bool,
    sink: &mut impl FnMut(PageChange),
) -> Changes {
    if !is_known {
        return Err(UnsupportedReason::UnknownInfo);
    }
    for block in &record.blocks {
        sink(block_change(
            block,
            block.image.is_some_and(|image| image.apply),
        ));
    }
    Ok(())
}

/// Every block reference, taken from its image.
fn imaged_blocks(record: &Record<'_>, sink: &mut impl FnMut(PageChange)) -> Changes {
    for block in &record.blocks {
        if block.image.is_none() {
            return Err(UnsupportedReason::NeedsAfterImage {
                rmgr: record.header.rmid,
                id: block.id,
                block: block.block,
            });
        }
        sink(block_change(block, true));
    }
    Ok(())
}

fn custom_changes(record: &Record<'_>, sink: &mut impl FnMut(PageChange)) -> Changes {
    if record.blocks.is_empty() {
        return Err(UnsupportedReason::NoBlocks);
    }
    imaged_blocks(record, sink)
}

/// Whether `rmgr`, an index that is taken from images, has a record with `info`.
const fn is_known_index_record(rmgr: RmgrId, info: u8) -> bool {
    match rmgr {
        RmgrId::HASH => info <= 0xC0,
        RmgrId::GIN => info >= 0x10 && info <= 0x90,
        RmgrId::GIST => matches!(info, 0x00 | 0x10 | 0x20 | 0x30 | 0x60 | 0x70),
        RmgrId::SPGIST => info >= 0x10 && info <= 0x80,
        // The highest bit says that the record initialises the page.
        RmgrId::BRIN => info & 0x70 <= 0x50,
        _ => false,
    }
}

#[inline]
fn heap_changes(record: &Record<'_>, sink: &mut impl FnMut(PageChange)) -> Changes {
    let op = record.info() & heap::OP_MASK;
    let pageless = if record.header.rmid == RmgrId::HEAP {
        op == heap::TRUNCATE
    } else {
        matches!(op, heap2::REWRITE | heap2::NEW_CID)
    };
    if pageless {
        return Ok(());
    }
    native_blocks(record, true, sink)?;
    let Some(cleared) = visibility_map::cleared_by(record).map_err(malformed)? else {
        return Ok(());
    };
    let mut named = None;
    for block in cleared.blocks() {
        let page = VmPosition::of(block).page;
        let has_reference = record
            .blocks
            .iter()
            .any(|block| block.fork == ForkNumber::Vm && block.block == page);
        if !has_reference && named != Some(page) {
            sink(implied(
                PageKey::relation(cleared.rel, ForkNumber::Vm, page),
                false,
            ));
            named = Some(page);
        }
    }
    Ok(())
}

fn smgr_changes(record: &Record<'_>, sink: &mut impl FnMut(PageChange)) -> Changes {
    let decoded = SmgrRecord::decode(record).map_err(undecodable)?;
    if let SmgrRecord::Truncate { rel, blocks, flags } = decoded
        && let Some(page) = visibility_map::cut_page(blocks, flags)
    {
        sink(implied(PageKey::relation(rel, ForkNumber::Vm, page), false));
    }
    Ok(())
}

fn xlog_changes(record: &Record<'_>, major: PgMajor, sink: &mut impl FnMut(PageChange)) -> Changes {
    match record.info() {
        FPI => {
            for block in &record.blocks {
                if block.image.is_none() {
                    return Err(malformed(RedoFault::NoImage { id: block.id }));
                }
                sink(block_change(block, true));
            }
            Ok(())
        }
        // Without an image (full_page_writes off) the server only stamped the page's LSN.
        FPI_FOR_HINT => {
            record
                .blocks
                .iter()
                .filter(|block| block.image.is_some())
                .for_each(|block| sink(block_change(block, true)));
            Ok(())
        }
        // Checkpoints, no-op, next OID, switch, backup end, parameter change, restore point, FPW
        // change, end of recovery.
        0x00 | 0x10 | 0x20 | 0x30 | 0x40 | 0x50 | 0x60 | 0x70 | 0x80 | 0x90 => Ok(()),
        // Overwritten contrecord.
        0xD0 => Ok(()),
        // The redo point of an online checkpoint.
        0xE0 if major >= PgMajor::V17 => Ok(()),
        _ => Err(UnsupportedReason::UnknownInfo),
    }
}

fn xact_changes(record: &Record<'_>, facts: &Facts, sink: &mut impl FnMut(PageChange)) -> Changes {
    let (end, committed) = match XactRecord::decode(record).map_err(undecodable)? {
        XactRecord::Commit(end) => (end, true),
        XactRecord::Abort(end) => (end, false),
        XactRecord::Prepare(_) | XactRecord::Assignment { .. } | XactRecord::Invalidations => {
            return Ok(());
        }
    };
    slru_pages(&end, Slru::Clog, |xid| ClogPosition::of(xid).page, sink);
    if committed && facts.track_commit_timestamp {
        slru_pages(
            &end,
            Slru::CommitTs,
            |xid| CommitTsPosition::of(xid).page,
            sink,
        );
    }
    Ok(())
}

/// Names each page of `slru` that holds an id decided by `end` once.
fn slru_pages(
    end: &Completion<'_>,
    slru: Slru,
    page_of: impl Fn(u32) -> BlockNumber,
    sink: &mut impl FnMut(PageChange),
) {
    let mut named: smallvec::SmallVec<[BlockNumber; 4]> = smallvec::SmallVec::new();
    for xid in ended_xids(end) {
        let page = page_of(xid);
        // Ids ascend, so a page seen before is nearly always the last one.
        if named.last() != Some(&page) && !named.contains(&page) {
            sink(implied(PageKey::slru(slru, page), false));
            named.push(page);
        }
    }
}

fn multixact_changes(record: &Record<'_>, sink: &mut impl FnMut(PageChange)) -> Changes {
    match MultiXactRecord::decode(record).map_err(undecodable)? {
        MultiXactRecord::ZeroOffsetsPage { page } => zeroed(Slru::MultiXactOffsets, page, sink),
        MultiXactRecord::ZeroMembersPage { page } => zeroed(Slru::MultiXactMembers, page, sink),
        MultiXactRecord::Create {
            multi,
            offset,
            members,
        } => {
            let own = MultiXactOffsetPosition::of(multi).page;
            let next = MultiXactOffsetPosition::of(next_multi(multi)).page;
            sink(implied(PageKey::slru(Slru::MultiXactOffsets, own), false));
            if next != own {
                sink(implied(PageKey::slru(Slru::MultiXactOffsets, next), false));
            }
            member_pages(offset, members.len() as u32, sink);
            Ok(())
        }
        MultiXactRecord::Truncate { .. } => Ok(()),
    }
}

/// Names the pages of `count` members from `offset` on; their numbers wrap around at 2^32.
fn member_pages(offset: u32, count: u32, sink: &mut impl FnMut(PageChange)) {
    let mut at = offset;
    let mut left = count;
    while left > 0 {
        let page = MultiXactMemberPosition::of(at).page;
        sink(implied(PageKey::slru(Slru::MultiXactMembers, page), false));
        let behind = if page == last_page(Slru::MultiXactMembers) {
            u32::MAX - at + 1
        } else {
            MULTIXACT_MEMBERS_PER_PAGE - at % MULTIXACT_MEMBERS_PER_PAGE
        };
        left = left.saturating_sub(behind);
        at = at.wrapping_add(behind);
    }
}

fn zeroed_page(record: &Record<'_>, sink: &mut impl FnMut(PageChange)) -> Changes {
    if record.header.rmid == RmgrId::CLOG {
        if let ClogRecord::ZeroPage { page } = ClogRecord::decode(record).map_err(undecodable)? {
            return zeroed(Slru::Clog, page, sink);
        }
    } else if let CommitTsRecord::ZeroPage { page } =
        CommitTsRecord::decode(record).map_err(undecodable)?
    {
        return zeroed(Slru::CommitTs, page, sink);
    }
    Ok(())
}

fn zeroed(slru: Slru, page: u64, sink: &mut impl FnMut(PageChange)) -> Changes {
    let page = BlockNumber::try_from(page)
        .ok()
        .filter(|page| *page <= last_page(slru))
        .ok_or_else(|| malformed(RedoFault::BadValue { what: "SLRU page" }))?;
    sink(implied(PageKey::slru(slru, page), true));
    Ok(())
}

/// Resource managers none of whose records changes a page kept here; what they change is the
/// business of those who keep files, databases, relation maps and replication origins.
fn no_pages(record: &Record<'_>, rmgr: RmgrId, major: PgMajor) -> Changes {
    let known: &[u8] = match rmgr {
        RmgrId::DBASE if major == PgMajor::V14 => &[0x00, 0x10],
        RmgrId::DBASE => &[0x00, 0x10, 0x20],
        RmgrId::TBLSPC | RmgrId::REPLORIGIN => &[0x00, 0x10],
        RmgrId::RELMAP | RmgrId::LOGICALMSG => &[0x00],
        RmgrId::STANDBY => &[0x00, 0x10, 0x20],
        _ => return Err(UnsupportedReason::UnknownRmgr),
    };
    if known.contains(&record.info()) && record.blocks.is_empty() {
        Ok(())
    } else {
        Err(UnsupportedReason::UnknownInfo)
    }
}
