//! Page splits and new roots.

use pg_page::btree::{INCOMPLETE_SPLIT, LEAF, ROOT};
use pg_page::page_header;

use super::tuple::{TID_LEN, TupleAt, swap_posting, take_tuple};
use super::{HIGH_KEY, PREV_AT, SPLIT_L, Special, check_special, init};
use crate::items::Slot;
use crate::page::PageMut;
use crate::reader::Reader;
use crate::{BlockRedo, RedoFault};

/// `xl_btree_split`.
struct Split {
    level: u32,
    /// First line pointer of the original page that went right.
    first_right: u16,
    /// Where the new tuple belongs, counted in the original page.
    new_number: u16,
    /// Nonzero: the new tuple falls into the posting list before it, at this place.
    posting_index: u16,
    /// Whether the new tuple went left.
    new_on_left: bool,
}

impl Split {
    fn read(redo: &BlockRedo<'_, '_>) -> Result<Split, RedoFault> {
        let mut main = Reader::new(redo.record.main, "split");
        Ok(Split {
            level: main.u32()?,
            first_right: main.u16()?,
            new_number: main.u16()?,
            posting_index: main.u16()?,
            new_on_left: redo.record.info() == SPLIT_L,
        })
    }

    const fn leaf_flag(&self) -> u16 {
        if self.level == 0 { LEAF } else { 0 }
    }
}

fn block_number(redo: &BlockRedo<'_, '_>, id: u8) -> Result<u32, RedoFault> {
    redo.record
        .block(id)
        .map(|block| block.block)
        .ok_or(RedoFault::NoBlock { id })
}

/// Fills an empty page with tuples stored as they lay on the original page: the tuple of the last
/// line pointer first (`_bt_restore_page`).
fn restore_tuples(page: &mut PageMut<'_>, data: &[u8]) -> Result<(), RedoFault> {
    let mut count = 0u16;
    let mut rest = Reader::new(data, "index tuples");
    while !rest.rest().is_empty() {
        take_tuple(&mut rest)?;
        count = count.saturating_add(1);
    }
    let layout = page.layout()?;
    let used = data.len() + usize::from(count) * 4;
    if layout.lower + used > layout.upper {
        let have = (layout.upper - layout.lower) as u16;
        return Err(RedoFault::NoRoom {
            need: used as u16,
            have,
        });
    }
    let mut at = layout.upper - data.len();
    page.put_bytes(at, data)?;
    page_header::set_lower(page.bytes, (layout.lower + usize::from(count) * 4) as u16);
    page_header::set_upper(page.bytes, at as u16);
    let mut rest = Reader::new(data, "index tuples");
    for number in (1..=count).rev() {
        let len = take_tuple(&mut rest)?.len();
        let item = pg_page::ItemId::new(at as u16, pg_page::ItemState::Normal, len as u16);
        page.set_item(number, item)?;
        at += len;
    }
    Ok(())
}

/// The new right page.
pub(super) fn right(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let split = Split::read(redo)?;
    let next = redo.record.block(2).map_or(0, |block| block.block);
    let flags = split.leaf_flag();
    init(
        page,
        Special {
            prev: block_number(redo, 0)?,
            next,
            level: split.level,
            flags,
        },
    )?;
    restore_tuples(page, redo.block.data)
}

/// The page behind the new right page: its left sibling is a new one.
pub(super) fn sibling(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    check_special(page)?;
    page.put_u32(PREV_AT, block_number(redo, 1)?)
}

/// The original page: its tuples up to the split point, the new tuple if it went left, and a new
/// high key, added one after the other to an empty page.
pub(super) fn left(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let split = Split::read(redo)?;
    let right = block_number(redo, 1)?;
    let mut data = Reader::new(redo.block.data, "left page");
    let new = if split.new_on_left || split.posting_index != 0 {
        Some(take_tuple(&mut data)?)
    } else {
        None
    };
    let high_key = take_tuple(&mut data)?;
    data.finish()?;

    let mut old_bytes = *page.bytes;
    let old = PageMut::new(&mut old_bytes);
    let special = Special::read(&old)?;
    let flags = INCOMPLETE_SPLIT | split.leaf_flag();
    init(
        page,
        Special {
            next: right,
            flags,
            ..special
        },
    )?;
    page.add_tuple(HIGH_KEY, high_key, Slot::Shift)?;

    let replaced = if split.posting_index == 0 {
        None
    } else {
        split.new_number.checked_sub(1)
    };
    // The heap TID that the new tuple gets from the posting list it falls into.
    let mut last_tid = None;
    let mut to = HIGH_KEY + 1;
    for from in special.first_data()..split.first_right {
        if split.new_on_left && from == split.new_number {
            add_new(page, to, new, replaced.is_some(), last_tid)?;
            to += 1;
        }
        copy_tuple(page, &old, from, to)?;
        if Some(from) == replaced {
            let inserted = new.and_then(<[u8]>::first_chunk).copied();
            let inserted = inserted.ok_or(RedoFault::Truncated { what: "new tuple" })?;
            let posting = TupleAt::of(page, to)?;
            last_tid = Some(swap_posting(page, posting, inserted, split.posting_index)?);
        }
        to += 1;
    }
    if split.new_on_left && split.first_right == split.new_number {
        add_new(page, to, new, replaced.is_some(), last_tid)?;
    }
    Ok(())
}

/// Adds the new tuple; if it falls into a posting list, with that list's last heap TID.
fn add_new(
    page: &mut PageMut<'_>,
    number: u16,
    new: Option<&[u8]>,
    into_posting: bool,
    last_tid: Option<[u8; TID_LEN]>,
) -> Result<(), RedoFault> {
    let new = new.ok_or(RedoFault::Truncated { what: "new tuple" })?;
    let at = page.add_tuple(number, new, Slot::Shift)?;
    match last_tid {
        Some(tid) => page.put(at, tid),
        None if into_posting => Err(RedoFault::BadValue {
            what: "place in a posting list",
        }),
        None => Ok(()),
    }
}

fn copy_tuple(
    page: &mut PageMut<'_>,
    old: &PageMut<'_>,
    from: u16,
    to: u16,
) -> Result<(), RedoFault> {
    let span = old.storage(from)?;
    let tuple = old
        .bytes
        .get(span.offset..span.offset + span.len)
        .unwrap_or_default();
    page.add_tuple(to, tuple, Slot::Shift)?;
    Ok(())
}

/// A new root: empty leaf, or the two downlinks of a split old root.
pub(super) fn new_root(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let mut main = Reader::new(redo.record.main, "new root");
    main.skip(4)?;
    let level = main.u32()?;
    let leaf = if level == 0 { LEAF } else { 0 };
    init(
        page,
        Special {
            prev: 0,
            next: 0,
            level,
            flags: ROOT | leaf,
        },
    )?;
    if level > 0 {
        restore_tuples(page, redo.block.data)?;
    }
    Ok(())
}
