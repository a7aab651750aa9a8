//! Pruning, vacuuming and freezing heap pages.
//!
//! 14 to 16 have a record each for pruning, for vacuum's second pass and for freezing; 17 and later
//! have one record with optional parts for all three.

use pg_page::{ItemId, ItemState};
use pg_types::{PgMajor, Xid};

use crate::heap_tuple::TupleHeader;
use crate::page::PageMut;
use crate::reader::{Reader, U16s};
use crate::{BlockRedo, RedoFault};

// Flags of the common record (`XLHP_*`).
const CLEANUP_LOCK: u8 = 0x04;
const HAS_FREEZE_PLANS: u8 = 0x10;
const HAS_REDIRECTIONS: u8 = 0x20;
const HAS_DEAD_ITEMS: u8 = 0x40;
const HAS_NOW_UNUSED_ITEMS: u8 = 0x80;

/// `XLH_FREEZE_XVAC` and `XLH_INVALID_XVAC`: what becomes of an old-style vacuum's id.
const FREEZE_XVAC: u8 = 0x02;
const INVALID_XVAC: u8 = 0x04;
const FROZEN_XID: Xid = 2;

/// Bytes of a freeze plan.
const PLAN_LEN: usize = 12;

/// What a frozen tuple's header becomes.
struct FreezePlan {
    xmax: Xid,
    infomask2: u16,
    infomask: u16,
    flags: u8,
}

impl FreezePlan {
    fn freeze(&self, page: &mut PageMut<'_>, number: u16) -> Result<(), RedoFault> {
        let (mut tuple, _) = TupleHeader::of(page, number)?;
        tuple.set_xmax(self.xmax)?;
        if self.flags & FREEZE_XVAC != 0 {
            tuple.set_xvac(FROZEN_XID)?;
        }
        if self.flags & INVALID_XVAC != 0 {
            tuple.set_xvac(0)?;
        }
        tuple.set_infomask2(self.infomask2)?;
        tuple.set_infomask(self.infomask)
    }
}

/// Executes `plans` (12 bytes each) on the tuples that `numbers` lists, plan after plan.
fn execute_plans(
    page: &mut PageMut<'_>,
    mut plans: Reader<'_>,
    count: u16,
    numbers: &mut Reader<'_>,
) -> Result<(), RedoFault> {
    for _ in 0..count {
        let plan = FreezePlan {
            xmax: plans.u32()?,
            infomask2: plans.u16()?,
            infomask: plans.u16()?,
            flags: plans.u8()?,
        };
        plans.skip(1)?;
        for _ in 0..plans.u16()? {
            plan.freeze(page, numbers.u16()?)?;
        }
    }
    Ok(())
}

/// Redirects, kills and frees line pointers.
fn change_items(
    page: &mut PageMut<'_>,
    redirected: U16s<'_>,
    dead: U16s<'_>,
    unused: U16s<'_>,
) -> Result<(), RedoFault> {
    for (from, to) in redirected.pairs() {
        page.set_item(from, ItemId::new(to, ItemState::Redirect, 0))?;
    }
    for number in dead.iter() {
        page.set_item(number, ItemId::new(0, ItemState::Dead, 0))?;
    }
    for number in unused.iter() {
        page.set_item(number, ItemId::new(0, ItemState::Unused, 0))?;
    }
    Ok(())
}

/// Closes the gaps between tuples (`PageRepairFragmentation`); 15 and later also cut unused line
/// pointers off the end.
fn repair_fragmentation(page: &mut PageMut<'_>, major: PgMajor) -> Result<(), RedoFault> {
    page.pack()?;
    if major >= PgMajor::V15 {
        page.trim_items(0)?;
    }
    page.note_free_items()
}

/// Frees line pointers that have no storage left, so that only the array shrinks
/// (`PageTruncateLinePointerArray`).
fn truncate_items(page: &mut PageMut<'_>) -> Result<(), RedoFault> {
    page.layout()?;
    page.trim_items(1)?;
    page.note_free_items()
}

/// `XLOG_HEAP2_PRUNE` of 14 to 16.
pub(crate) fn prune(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let mut main = Reader::new(redo.record.main, "prune");
    main.skip(4)?;
    let redirected = usize::from(main.u16()?);
    let dead = usize::from(main.u16()?);
    let mut data = Reader::new(redo.block.data, "pruned line pointers");
    let redirected = data.u16s(redirected * 2)?;
    let dead = data.u16s(dead)?;
    change_items(page, redirected, dead, U16s::new(data.rest()))?;
    repair_fragmentation(page, redo.major)
}

/// `XLOG_HEAP2_VACUUM` of 14 to 16.
pub(crate) fn vacuum(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let none = U16s::new(&[]);
    change_items(page, none, none, U16s::new(redo.block.data))?;
    truncate_items(page)
}

/// `XLOG_HEAP2_FREEZE_PAGE` of 14 to 16.
pub(crate) fn freeze_page(
    page: &mut PageMut<'_>,
    redo: &BlockRedo<'_, '_>,
) -> Result<(), RedoFault> {
    let mut main = Reader::new(redo.record.main, "freeze");
    main.skip(4)?;
    let count = main.u16()?;
    let mut data = Reader::new(redo.block.data, "freeze plans");
    if redo.major >= PgMajor::V16 {
        let plans = Reader::new(data.take(PLAN_LEN * usize::from(count))?, "freeze plans");
        execute_plans(page, plans, count, &mut data)?;
        return data.finish();
    }
    for _ in 0..count {
        let xmax = data.u32()?;
        let number = data.u16()?;
        let plan = FreezePlan {
            xmax,
            infomask2: data.u16()?,
            infomask: data.u16()?,
            flags: data.u8()?,
        };
        data.skip(1)?;
        plan.freeze(page, number)?;
    }
    data.finish()
}

/// The common record of 17 and later.
pub(crate) fn prune_and_freeze(
    page: &mut PageMut<'_>,
    redo: &BlockRedo<'_, '_>,
) -> Result<(), RedoFault> {
    let mut main = Reader::new(redo.record.main, "prune");
    main.skip(1)?;
    let flags = main.u8()?;
    let mut data = Reader::new(redo.block.data, "pruned line pointers");
    let (mut plan_count, mut plans) = (0, Reader::new(&[], "freeze plans"));
    if flags & HAS_FREEZE_PLANS != 0 {
        plan_count = data.u16()?;
        data.skip(2)?;
        plans = Reader::new(
            data.take(PLAN_LEN * usize::from(plan_count))?,
            "freeze plans",
        );
    }
    let mut list = |flag, width: usize| -> Result<U16s<'_>, RedoFault> {
        if flags & flag == 0 {
            return Ok(U16s::new(&[]));
        }
        let count = usize::from(data.u16()?);
        data.u16s(count * width)
    };
    let redirected = list(HAS_REDIRECTIONS, 2)?;
    let dead = list(HAS_DEAD_ITEMS, 1)?;
    let unused = list(HAS_NOW_UNUSED_ITEMS, 1)?;
    if redirected.len() + dead.len() + unused.len() > 0 {
        change_items(page, redirected, dead, unused)?;
        if flags & CLEANUP_LOCK != 0 {
            repair_fragmentation(page, redo.major)?;
        } else {
            truncate_items(page)?;
        }
    }
    execute_plans(page, plans, plan_count, &mut data)?;
    data.finish()
}
