//! Heap records (`access/heapam_xlog.h`, `RM_HEAP_ID`).
//!
//! A record's changes to the visibility map are not made here: see [`crate::visibility_map`].

use pg_page::heap_tuple::HEAP_TUPLE_HEADER_LEN;
use pg_page::page_header::{self, ALL_VISIBLE};
use pg_types::{BlockNumber, FIRST_NORMAL_XID, Xid};
use pg_wal::Record;

use crate::heap_tuple::{MOVED_PARTITIONS, NewTuple, TupleHeader, item_pointer};
use crate::items::Slot;
use crate::page::{PageMut, TupleSpan};
use crate::reader::Reader;
use crate::{BlockRedo, RedoFault};

/// `XLOG_HEAP_OPMASK`.
pub(crate) const OP_MASK: u8 = 0x70;
/// `XLOG_HEAP_INIT_PAGE`.
pub(crate) const INIT_PAGE: u8 = 0x80;

pub(crate) const INSERT: u8 = 0x00;
pub(crate) const DELETE: u8 = 0x10;
pub(crate) const UPDATE: u8 = 0x20;
pub(crate) const TRUNCATE: u8 = 0x30;
pub(crate) const HOT_UPDATE: u8 = 0x40;
pub(crate) const CONFIRM: u8 = 0x50;
pub(crate) const LOCK: u8 = 0x60;
pub(crate) const INPLACE: u8 = 0x70;

/// In the flags of inserts, deletes and updates (old page): the page was all-visible.
pub(crate) const ALL_VISIBLE_CLEARED: u8 = 0x01;
/// In the flags of updates: the new page was all-visible.
pub(crate) const NEW_ALL_VISIBLE_CLEARED: u8 = 0x02;
/// In the flags of inserts: all tuples of the page are frozen.
const ALL_FROZEN_SET: u8 = 0x20;
const DELETE_IS_SUPER: u8 = 0x08;
const DELETE_IS_PARTITION_MOVE: u8 = 0x10;
const PREFIX_FROM_OLD: u8 = 0x20;
const SUFFIX_FROM_OLD: u8 = 0x40;

/// Redoes a heap record on one of its heap pages.
pub(crate) fn redo(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let op = redo.record.info() & OP_MASK;
    match (op, redo.block.id) {
        (INSERT, 0) => insert(page, redo),
        (DELETE, 0) => delete(page, redo),
        (UPDATE | HOT_UPDATE, 0 | 1) => update(page, redo, op == HOT_UPDATE),
        (CONFIRM, 0) => confirm(page, redo),
        (LOCK, 0) => lock(page, redo),
        (INPLACE, 0) => overwrite_in_place(page, redo),
        (TRUNCATE, _) => Err(RedoFault::UnexpectedBlock { id: redo.block.id }),
        (_, id) => Err(RedoFault::UnexpectedBlock { id }),
    }?;
    page.set_lsn(redo.end);
    Ok(())
}

/// Initialises the page if the record inserts its first tuple.
#[inline]
pub(crate) fn init_if_first(page: &mut PageMut<'_>, record: &Record<'_>) {
    if record.info() & INIT_PAGE != 0 {
        page.init(0);
    }
}

/// Marks the page as one that pruning may find something on (`PageSetPrunable`).
#[inline]
fn set_prunable(page: &mut PageMut<'_>, xid: Xid) {
    let old = page_header::prune_xid(page.bytes);
    let precedes = xid.wrapping_sub(old).cast_signed() < 0;
    if xid >= FIRST_NORMAL_XID && (old < FIRST_NORMAL_XID || precedes) {
        page_header::set_prune_xid(page.bytes, xid);
    }
}

/// Sets or clears the page's all-visible flag as the flags of an insert say.
pub(crate) fn change_all_visible(page: &mut PageMut<'_>, flags: u8) {
    if flags & ALL_VISIBLE_CLEARED != 0 {
        page.change_flags(ALL_VISIBLE, 0);
    }
    if flags & ALL_FROZEN_SET != 0 {
        page.change_flags(0, ALL_VISIBLE);
    }
}

/// Adds a tuple that its record holds in full: `data` is all of it behind the fixed header.
#[inline]
pub(crate) fn add_new_tuple(
    page: &mut PageMut<'_>,
    number: u16,
    header: [u8; HEAP_TUPLE_HEADER_LEN],
    data: &[u8],
) -> Result<(), RedoFault> {
    let at = page.add_item(number, HEAP_TUPLE_HEADER_LEN + data.len(), Slot::Reuse)?;
    page.put(at, header)?;
    page.put_bytes(at + HEAP_TUPLE_HEADER_LEN, data)
}

fn insert(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let mut main = Reader::new(redo.record.main, "insert");
    let number = main.u16()?;
    let flags = main.u8()?;
    init_if_first(page, redo.record);
    let mut data = Reader::new(redo.block.data, "tuple");
    let tuple = NewTuple::read(&mut data)?;
    let header = tuple.header(
        redo.record.header.xid,
        0,
        item_pointer(redo.block.block, number),
    );
    add_new_tuple(page, number, header, data.rest())?;
    change_all_visible(page, flags);
    Ok(())
}

fn delete(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let mut main = Reader::new(redo.record.main, "delete");
    let xmax = main.u32()?;
    let number = main.u16()?;
    let infobits = main.u8()?;
    let flags = main.u8()?;
    let (mut tuple, _) = TupleHeader::of(page, number)?;
    tuple.set_lock_bits(infobits)?;
    tuple.set_hot_updated(false)?;
    if flags & DELETE_IS_SUPER != 0 {
        // A speculative insertion that lost: nobody may ever see the tuple.
        tuple.set_xmin(0)?;
    } else {
        tuple.set_xmax(xmax)?;
    }
    tuple.clear_command_id()?;
    tuple.set_ctid(if flags & DELETE_IS_PARTITION_MOVE != 0 {
        MOVED_PARTITIONS
    } else {
        item_pointer(redo.block.block, number)
    })?;
    set_prunable(page, redo.record.header.xid);
    if flags & ALL_VISIBLE_CLEARED != 0 {
        page.change_flags(ALL_VISIBLE, 0);
    }
    Ok(())
}

/// `xl_heap_update`.
struct Update {
    old_xmax: Xid,
    old_number: u16,
    old_infobits: u8,
    flags: u8,
    new_xmax: Xid,
    new_number: u16,
    new_block: BlockNumber,
    hot: bool,
}

/// Redoes an update on the page of the new tuple (reference 0), of the old one (1), or on the one
/// page that holds both (0, when there is no 1).
fn update(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>, hot: bool) -> Result<(), RedoFault> {
    let mut main = Reader::new(redo.record.main, "update");
    let new_block = redo
        .record
        .block(0)
        .ok_or(RedoFault::NoBlock { id: 0 })?
        .block;
    let update = Update {
        old_xmax: main.u32()?,
        old_number: main.u16()?,
        old_infobits: main.u8()?,
        flags: main.u8()?,
        new_xmax: main.u32()?,
        new_number: main.u16()?,
        new_block,
        hot,
    };
    if redo.block.id == 1 {
        expire_old(page, redo, &update)?;
        return Ok(());
    }
    if redo.record.block(1).is_none() {
        let old = expire_old(page, redo, &update)?;
        return add_updated(page, redo, &update, Some(old));
    }
    init_if_first(page, redo.record);
    add_updated(page, redo, &update, None)
}

/// Marks the old version as updated and returns where it lies.
fn expire_old(
    page: &mut PageMut<'_>,
    redo: &BlockRedo<'_, '_>,
    update: &Update,
) -> Result<TupleSpan, RedoFault> {
    let (mut tuple, span) = TupleHeader::of(page, update.old_number)?;
    tuple.set_lock_bits(update.old_infobits)?;
    tuple.set_hot_updated(update.hot)?;
    tuple.set_xmax(update.old_xmax)?;
    tuple.clear_command_id()?;
    tuple.set_ctid(item_pointer(update.new_block, update.new_number))?;
    set_prunable(page, redo.record.header.xid);
    if update.flags & ALL_VISIBLE_CLEARED != 0 {
        page.change_flags(ALL_VISIBLE, 0);
    }
    Ok(span)
}

/// Adds the new version, taking what the record leaves out from the old one on the same page.
fn add_updated(
    page: &mut PageMut<'_>,
    redo: &BlockRedo<'_, '_>,
    update: &Update,
    old: Option<TupleSpan>,
) -> Result<(), RedoFault> {
    let mut data = Reader::new(redo.block.data, "tuple");
    let mut shared_len = |flag| -> Result<usize, RedoFault> {
        if update.flags & flag == 0 {
            Ok(0)
        } else {
            data.u16().map(usize::from)
        }
    };
    let prefix = shared_len(PREFIX_FROM_OLD)?;
    let suffix = shared_len(SUFFIX_FROM_OLD)?;
    let tuple = NewTuple::read(&mut data)?;
    let ctid = item_pointer(update.new_block, update.new_number);
    let header = tuple.header(redo.record.header.xid, update.new_xmax, ctid);
    if prefix == 0 && suffix == 0 {
        add_new_tuple(page, update.new_number, header, data.rest())?;
    } else {
        let bad = |what| RedoFault::BadTuple {
            number: update.old_number,
            what,
        };
        let old = old.ok_or(RedoFault::BadValue {
            what: "prefix or suffix across pages",
        })?;
        let old_body = usize::from(page.u8_at(old.offset + 22)?);
        if old_body + prefix > old.len || suffix > old.len {
            return Err(bad("shorter than the prefix or suffix taken from it"));
        }
        let bitmap = if prefix == 0 {
            &[][..]
        } else {
            let len = usize::from(tuple.header_len).checked_sub(HEAP_TUPLE_HEADER_LEN);
            data.take(len.ok_or(RedoFault::BadValue {
                what: "tuple header length",
            })?)?
        };
        let middle = data.rest();
        let len = HEAP_TUPLE_HEADER_LEN + bitmap.len() + prefix + middle.len() + suffix;
        let at = page.add_item(update.new_number, len, Slot::Reuse)?;
        page.put(at, header)?;
        let mut to = at + HEAP_TUPLE_HEADER_LEN;
        page.put_bytes(to, bitmap)?;
        to += bitmap.len();
        page.shift(old.offset + old_body, to, prefix)?;
        to += prefix;
        page.put_bytes(to, middle)?;
        to += middle.len();
        page.shift(old.offset + old.len - suffix, to, suffix)?;
    }
    if update.flags & NEW_ALL_VISIBLE_CLEARED != 0 {
        page.change_flags(ALL_VISIBLE, 0);
    }
    Ok(())
}

/// A speculative insertion won: its token gives way to the tuple's own address.
fn confirm(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let number = Reader::new(redo.record.main, "confirm").u16()?;
    let (mut tuple, _) = TupleHeader::of(page, number)?;
    tuple.set_ctid(item_pointer(redo.block.block, number))
}

fn lock(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let mut main = Reader::new(redo.record.main, "lock");
    let xmax = main.u32()?;
    let number = main.u16()?;
    let infobits = main.u8()?;
    let (mut tuple, _) = TupleHeader::of(page, number)?;
    tuple.set_lock_bits(infobits)?;
    if tuple.is_locked_only()? {
        tuple.set_hot_updated(false)?;
        tuple.set_ctid(item_pointer(redo.block.block, number))?;
    }
    tuple.set_xmax(xmax)?;
    tuple.clear_command_id()
}

fn overwrite_in_place(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let number = Reader::new(redo.record.main, "inplace").u16()?;
    let (tuple, span) = TupleHeader::of(page, number)?;
    let body = tuple.header_len()?;
    if body + redo.block.data.len() != span.len {
        return Err(RedoFault::BadTuple {
            number,
            what: "not as long as what is to overwrite it",
        });
    }
    page.put_bytes(span.offset + body, redo.block.data)
}
