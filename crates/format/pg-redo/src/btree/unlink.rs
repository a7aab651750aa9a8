//! Deleting pages: a leaf becomes half-dead when its parent forgets it, then it is unlinked from its
//! siblings.

use pg_page::btree::{DELETED, HALF_DEAD, HAS_FULLXID, LEAF};
use pg_page::page_header::{self, PAGE_HEADER_LEN};

use super::tuple::pivot_without_key;
use super::{HIGH_KEY, NEXT_AT, PREV_AT, Special, check_special, init};
use crate::items::Slot;
use crate::page::PageMut;
use crate::reader::Reader;
use crate::{BlockRedo, RedoFault};

/// `MARK_PAGE_HALFDEAD` on the leaf (0) or on its parent (1).
pub(super) fn mark_half_dead(
    page: &mut PageMut<'_>,
    redo: &BlockRedo<'_, '_>,
    id: u8,
) -> Result<(), RedoFault> {
    let mut main = Reader::new(redo.record.main, "half-dead page");
    let downlink = main.u16()?;
    main.skip(2 + 4)?;
    let (prev, next, top) = (main.u32()?, main.u32()?, main.u32()?);
    if id == 0 {
        return init_half_dead(page, prev, next, top);
    }
    // The downlink takes over the child of the next one, which goes.
    check_special(page)?;
    let behind = downlink.checked_add(1).ok_or(RedoFault::BadValue {
        what: "offset number",
    })?;
    let child: [u8; 4] = page.array(page.storage(behind)?.offset)?;
    let at = page.storage(downlink)?.offset;
    page.put(at, child)?;
    page.delete_tuple(behind)
}

/// Builds a half-dead leaf, whose high key points to the top of the subtree being deleted.
fn init_half_dead(page: &mut PageMut<'_>, prev: u32, next: u32, top: u32) -> Result<(), RedoFault> {
    init(
        page,
        Special {
            prev,
            next,
            level: 0,
            flags: HALF_DEAD | LEAF,
        },
    )?;
    page.add_tuple(HIGH_KEY, &pivot_without_key(top), Slot::Shift)?;
    Ok(())
}

/// `UNLINK_PAGE` on the page itself (0), its left (1) or right sibling (2), or the leaf below (3).
pub(super) fn unlink(
    page: &mut PageMut<'_>,
    redo: &BlockRedo<'_, '_>,
    id: u8,
) -> Result<(), RedoFault> {
    let mut main = Reader::new(redo.record.main, "unlinked page");
    let (prev, next, level) = (main.u32()?, main.u32()?, main.u32()?);
    main.skip(4)?;
    let safe_xid = main.u64()?;
    let (leaf_prev, leaf_next, leaf_top) = (main.u32()?, main.u32()?, main.u32()?);
    match id {
        0 => {
            let leaf = if level == 0 { LEAF } else { 0 };
            init(
                page,
                Special {
                    prev,
                    next,
                    level,
                    flags: DELETED | HAS_FULLXID | leaf,
                },
            )?;
            page.put(PAGE_HEADER_LEN, safe_xid.to_le_bytes())?;
            page_header::set_lower(page.bytes, (PAGE_HEADER_LEN + 8) as u16);
            Ok(())
        }
        1 => {
            check_special(page)?;
            page.put_u32(NEXT_AT, next)
        }
        2 => {
            check_special(page)?;
            page.put_u32(PREV_AT, prev)
        }
        _ => init_half_dead(page, leaf_prev, leaf_next, leaf_top),
    }
}
