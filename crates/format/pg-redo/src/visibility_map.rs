//! The visibility map: bits set by `VISIBLE` records, cleared by every heap record that makes a page
//! less than all-visible, cut off by truncation.
//!
//! **Invariant.** A map bit is never set while the heap page is not all-visible; an index-only scan
//! would return rows that nobody may see. Therefore bits are cleared whenever the record's flags
//! say so. Servers before 17.11 and 18.6 write no block reference for the map page, later ones do
//! only if bits really were set; so each heap block whose map page has no reference has an implied
//! clear.

use pg_page::Page;
use pg_page::page_header;
use pg_page::visibility_map::{HEAP_BLOCKS_PER_PAGE, VM_ALL_FROZEN, VM_BITS, VmPosition};
use pg_types::{BlockNumber, ForkNumber, PageKey, RelFileLocator};
use pg_wal::records::smgr::{SmgrRecord, TRUNCATE_VM};
use pg_wal::{Record, RmgrId};

use crate::page::PageMut;
use crate::{BlockRedo, RedoFault, heap, heap2};

/// The heap blocks of a record whose map bits it clears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cleared {
    pub(crate) rel: RelFileLocator,
    /// Up to two blocks; of an update, the old one and the new one.
    blocks: [Option<BlockNumber>; 2],
    bits: u8,
}

impl Cleared {
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockNumber> + use<> {
        self.blocks.into_iter().flatten()
    }

    /// Clears the bits of those blocks that map page `map_page` covers.
    fn apply(&self, page: &mut Page, map_page: BlockNumber) {
        for block in self.blocks() {
            let position = VmPosition::of(block);
            if position.page == map_page {
                position.clear(page, self.bits);
            }
        }
    }
}

/// Which blocks' bits `record`, one of the heap, clears; `None` when it clears none.
pub(crate) fn cleared_by(record: &Record<'_>) -> Result<Option<Cleared>, RedoFault> {
    // Where the flags are, and whether the record only locks.
    let (flags_at, locks) = match (record.header.rmid, record.info() & heap::OP_MASK) {
        (RmgrId::HEAP, heap::INSERT) => (2, false),
        (RmgrId::HEAP, heap::DELETE | heap::UPDATE | heap::HOT_UPDATE) => (7, false),
        (RmgrId::HEAP, heap::LOCK) | (RmgrId::HEAP2, heap2::LOCK_UPDATED) => (7, true),
        (RmgrId::HEAP2, heap2::MULTI_INSERT) => (0, false),
        _ => return Ok(None),
    };
    let flags = *record
        .main
        .get(flags_at)
        .ok_or(RedoFault::Truncated { what: "flags" })?;
    let is_update = record.header.rmid == RmgrId::HEAP
        && matches!(
            record.info() & heap::OP_MASK,
            heap::UPDATE | heap::HOT_UPDATE
        );
    let old_cleared = flags & heap::ALL_VISIBLE_CLEARED != 0;
    let new_cleared = is_update && flags & heap::NEW_ALL_VISIBLE_CLEARED != 0;
    if !old_cleared && !new_cleared {
        return Ok(None);
    }
    let new = record.block(0).ok_or(RedoFault::NoBlock { id: 0 })?;
    let old = match record.block(1) {
        Some(block) if is_update && block.fork == ForkNumber::Main => block,
        _ => new,
    };
    Ok(Some(Cleared {
        rel: new.rel,
        blocks: [
            old_cleared.then_some(old.block),
            new_cleared.then_some(new.block),
        ],
        bits: if locks { VM_ALL_FROZEN } else { VM_BITS },
    }))
}

/// Redoes a heap record on the map page that one of its block references names.
pub(crate) fn redo_block(
    page: &mut PageMut<'_>,
    redo: &BlockRedo<'_, '_>,
) -> Result<(), RedoFault> {
    let is_visible = redo.record.header.rmid == RmgrId::HEAP2
        && redo.record.info() & heap::OP_MASK == heap2::VISIBLE;
    if is_visible && redo.block.id == 0 {
        return set(page, redo);
    }
    let cleared =
        cleared_by(redo.record)?.ok_or(RedoFault::UnexpectedBlock { id: redo.block.id })?;
    if !page_header::is_new(page.bytes) {
        cleared.apply(page.bytes, redo.block.block);
        page.set_lsn(redo.end);
    }
    Ok(())
}

/// Sets bits as a `VISIBLE` record says.
fn set(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let heap_block = redo
        .record
        .block(1)
        .ok_or(RedoFault::NoBlock { id: 1 })?
        .block;
    let position = VmPosition::of(heap_block);
    if position.page != redo.block.block {
        return Err(RedoFault::WrongPage);
    }
    let flags = *redo.record.main.get(4).ok_or(RedoFault::Truncated {
        what: "visibility flags",
    })?;
    let bits = flags & VM_BITS;
    if page_header::is_new(page.bytes) {
        page.init(0);
    }
    if position.bits(page.bytes) != bits {
        position.set(page.bytes, bits);
        page.set_lsn(redo.end);
    }
    Ok(())
}

/// Clears bits on the map page `key`, which `record` does not refer to. A page that was never
/// initialised has no bits and stays as it is. Like the server, this leaves the page's LSN alone.
pub(crate) fn redo_implied_clear(
    page: &mut Page,
    key: PageKey,
    record: &Record<'_>,
) -> Result<(), RedoFault> {
    let cleared = cleared_by(record)?.ok_or(RedoFault::WrongPage)?;
    if PageKey::relation(cleared.rel, ForkNumber::Vm, key.block) != key {
        return Err(RedoFault::WrongPage);
    }
    if !page_header::is_new(page) {
        cleared.apply(page, key.block);
    }
    Ok(())
}

/// The map page that truncation of a relation cuts in its middle, if it does.
pub(crate) fn cut_page(blocks: BlockNumber, flags: u32) -> Option<BlockNumber> {
    (flags & TRUNCATE_VM != 0 && !blocks.is_multiple_of(HEAP_BLOCKS_PER_PAGE))
        .then_some(blocks / HEAP_BLOCKS_PER_PAGE)
}

/// Clears the bits of the blocks that a truncation removed (`visibilitymap_prepare_truncate`).
pub(crate) fn redo_truncate(
    page: &mut Page,
    key: PageKey,
    record: &Record<'_>,
) -> Result<(), RedoFault> {
    let SmgrRecord::Truncate { rel, blocks, flags } = SmgrRecord::decode(record)? else {
        return Err(RedoFault::WrongPage);
    };
    let cut = cut_page(blocks, flags).ok_or(RedoFault::WrongPage)?;
    if PageKey::relation(rel, ForkNumber::Vm, cut) != key {
        return Err(RedoFault::WrongPage);
    }
    if page_header::is_new(page) {
        return Ok(());
    }
    let first = VmPosition::of(blocks);
    let at = usize::from(first.byte);
    if let Some((byte, behind)) = page.get_mut(at..).and_then(<[u8]>::split_first_mut) {
        *byte &= (1 << first.shift) - 1;
        behind.fill(0);
    }
    Ok(())
}
