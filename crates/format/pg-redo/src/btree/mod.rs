//! B-tree records (`access/nbtxlog.h`).
//!
//! One module a kind of change: inserting ([`insert`]), splitting and new roots ([`split`]), merging
//! duplicates ([`dedup`]), removing tuples ([`delete`]), removing pages ([`unlink`]).

mod dedup;
mod delete;
mod insert;
mod split;
mod tuple;
mod unlink;

use pg_page::btree::{BTREE_MAGIC, BTREE_SPECIAL_LEN, INCOMPLETE_SPLIT, META};
use pg_page::page_header::{self, PAGE_HEADER_LEN};
use pg_types::{BLCKSZ, BlockNumber};

use crate::page::PageMut;
use crate::reader::Reader;
use crate::{BlockRedo, RedoFault};

const INSERT_LEAF: u8 = 0x00;
const INSERT_UPPER: u8 = 0x10;
const INSERT_META: u8 = 0x20;
const SPLIT_L: u8 = 0x30;
const SPLIT_R: u8 = 0x40;
const INSERT_POST: u8 = 0x50;
const DEDUP: u8 = 0x60;
const DELETE: u8 = 0x70;
const UNLINK_PAGE: u8 = 0x80;
const UNLINK_PAGE_META: u8 = 0x90;
const NEWROOT: u8 = 0xA0;
const MARK_PAGE_HALFDEAD: u8 = 0xB0;
const VACUUM: u8 = 0xC0;
/// Page reuse: only standbys need it.
const REUSE_PAGE: u8 = 0xD0;
const META_CLEANUP: u8 = 0xE0;

/// Where the special area of a B-tree page begins, and the fields in it.
const SPECIAL_AT: usize = BLCKSZ - BTREE_SPECIAL_LEN;
const PREV_AT: usize = SPECIAL_AT;
const NEXT_AT: usize = SPECIAL_AT + 4;
const LEVEL_AT: usize = SPECIAL_AT + 8;
const FLAGS_AT: usize = SPECIAL_AT + 12;
const CYCLE_ID_AT: usize = SPECIAL_AT + 14;

/// The high key's line pointer.
const HIGH_KEY: u16 = 1;

/// Whether B-trees have a record with `info`.
pub(crate) const fn is_known(info: u8) -> bool {
    info <= META_CLEANUP
}

/// Redoes a B-tree record on one of its pages.
pub(crate) fn redo(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    match (redo.record.info(), redo.block.id) {
        (INSERT_LEAF | INSERT_UPPER | INSERT_META, 0) => insert::insert(page, redo)?,
        (INSERT_POST, 0) => insert::insert_into_posting(page, redo)?,
        (INSERT_UPPER | INSERT_META | NEWROOT, 1) | (SPLIT_L | SPLIT_R, 3) => {
            finish_child_split(page)?;
        }
        (INSERT_META | NEWROOT, 2) | (UNLINK_PAGE_META, 4) | (META_CLEANUP, 0) => {
            restore_meta(page, redo.block.data)?;
        }
        (SPLIT_L | SPLIT_R, 0) => split::left(page, redo)?,
        (SPLIT_L | SPLIT_R, 1) => split::right(page, redo)?,
        (SPLIT_L | SPLIT_R, 2) => split::sibling(page, redo)?,
        (NEWROOT, 0) => split::new_root(page, redo)?,
        (DEDUP, 0) => dedup::dedup(page, redo)?,
        (DELETE | VACUUM, 0) => delete::delete(page, redo)?,
        (MARK_PAGE_HALFDEAD, id @ (0 | 1)) => unlink::mark_half_dead(page, redo, id)?,
        (UNLINK_PAGE | UNLINK_PAGE_META, id @ 0..=3) => unlink::unlink(page, redo, id)?,
        (REUSE_PAGE, id) => return Err(RedoFault::UnexpectedBlock { id }),
        (info, id) if is_known(info) => return Err(RedoFault::UnexpectedBlock { id }),
        _ => return Err(RedoFault::UnknownRecord),
    }
    page.set_lsn(redo.end);
    Ok(())
}

/// Fails unless the page has the special area of a B-tree page.
#[inline]
fn check_special(page: &PageMut<'_>) -> Result<(), RedoFault> {
    let found = page_header::special(page.bytes);
    if usize::from(found) == SPECIAL_AT {
        Ok(())
    } else {
        Err(RedoFault::BadSpecial {
            found,
            expected: SPECIAL_AT as u16,
        })
    }
}

/// `BTPageOpaqueData`.
#[derive(Debug, Clone, Copy)]
struct Special {
    prev: BlockNumber,
    next: BlockNumber,
    level: u32,
    flags: u16,
}

impl Special {
    fn read(page: &PageMut<'_>) -> Result<Special, RedoFault> {
        check_special(page)?;
        Ok(Special {
            prev: page.u32_at(PREV_AT)?,
            next: page.u32_at(NEXT_AT)?,
            level: page.u32_at(LEVEL_AT)?,
            flags: page.u16_at(FLAGS_AT)?,
        })
    }

    /// Writes it with a cycle id of zero.
    fn write(self, page: &mut PageMut<'_>) -> Result<(), RedoFault> {
        page.put_u32(PREV_AT, self.prev)?;
        page.put_u32(NEXT_AT, self.next)?;
        page.put_u32(LEVEL_AT, self.level)?;
        page.put_u16(FLAGS_AT, self.flags)?;
        page.put_u16(CYCLE_ID_AT, 0)
    }

    /// The first line pointer that is not the high key: the rightmost page of a level has none.
    const fn first_data(self) -> u16 {
        if self.next == 0 {
            HIGH_KEY
        } else {
            HIGH_KEY + 1
        }
    }
}

/// Initialises the page as an empty B-tree page.
fn init(page: &mut PageMut<'_>, special: Special) -> Result<(), RedoFault> {
    page.init(BTREE_SPECIAL_LEN as u16);
    special.write(page)
}

fn clear_flags(page: &mut PageMut<'_>, flags: u16) -> Result<(), RedoFault> {
    check_special(page)?;
    let old = page.u16_at(FLAGS_AT)?;
    page.put_u16(FLAGS_AT, old & !flags)
}

/// The downlink to the child's new sibling is in: its split is complete.
fn finish_child_split(page: &mut PageMut<'_>) -> Result<(), RedoFault> {
    clear_flags(page, INCOMPLETE_SPLIT)
}

/// Rebuilds the metapage (`_bt_restore_meta`).
fn restore_meta(page: &mut PageMut<'_>, data: &[u8]) -> Result<(), RedoFault> {
    let mut data = Reader::new(data, "metapage");
    init(
        page,
        Special {
            prev: 0,
            next: 0,
            level: 0,
            flags: META,
        },
    )?;
    page.put_u32(PAGE_HEADER_LEN, BTREE_MAGIC)?;
    // Version, root, level, fast root, fast level, deleted pages at the last cleanup.
    for field in 1..=6 {
        page.put_u32(PAGE_HEADER_LEN + field * 4, data.u32()?)?;
    }
    page.put(PAGE_HEADER_LEN + 32, (-1.0f64).to_le_bytes())?;
    page.put(PAGE_HEADER_LEN + 40, [data.u8()?])?;
    page_header::set_lower(page.bytes, (PAGE_HEADER_LEN + 48) as u16);
    Ok(())
}
