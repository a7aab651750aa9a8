//! The second set of heap records (`RM_HEAP2_ID`).

use pg_page::page_header::ALL_VISIBLE;
use pg_types::PgMajor;

use crate::heap::{INIT_PAGE, OP_MASK, add_new_tuple, change_all_visible, init_if_first};
use crate::heap_tuple::{NewTuple, TupleHeader, item_pointer};
use crate::page::PageMut;
use crate::prune;
use crate::reader::{Reader, U16s};
use crate::{BlockRedo, RedoFault};

pub(crate) const REWRITE: u8 = 0x00;
/// 14 to 16: prune, vacuum and freeze; 17 on: the three reasons for one common record.
pub(crate) const PRUNE: u8 = 0x10;
pub(crate) const VACUUM: u8 = 0x20;
pub(crate) const FREEZE: u8 = 0x30;
pub(crate) const VISIBLE: u8 = 0x40;
pub(crate) const MULTI_INSERT: u8 = 0x50;
pub(crate) const LOCK_UPDATED: u8 = 0x60;
pub(crate) const NEW_CID: u8 = 0x70;

/// Redoes a record on one of its heap pages.
pub(crate) fn redo(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let merged = redo.major >= PgMajor::V17;
    match (redo.record.info() & OP_MASK, redo.block.id) {
        (PRUNE | VACUUM | FREEZE, 0) if merged => prune::prune_and_freeze(page, redo)?,
        (PRUNE, 0) => prune::prune(page, redo)?,
        (VACUUM, 0) => prune::vacuum(page, redo)?,
        (FREEZE, 0) => prune::freeze_page(page, redo)?,
        (MULTI_INSERT, 0) => multi_insert(page, redo)?,
        (LOCK_UPDATED, 0) => lock_updated(page, redo)?,
        (VISIBLE, 1) => {
            page.change_flags(0, ALL_VISIBLE);
            if !redo.hint_lsn {
                return Ok(());
            }
        }
        (_, id) => return Err(RedoFault::UnexpectedBlock { id }),
    }
    page.set_lsn(redo.end);
    Ok(())
}

fn multi_insert(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let mut main = Reader::new(redo.record.main, "multi-insert");
    let flags = main.u8()?;
    main.skip(1)?;
    let count = main.u16()?;
    let first_tuples = redo.record.info() & INIT_PAGE != 0;
    let numbers = if first_tuples {
        U16s::new(&[])
    } else {
        main.u16s(usize::from(count))?
    };
    init_if_first(page, redo.record);
    let xmin = redo.record.header.xid;
    let mut data = Reader::new(redo.block.data, "tuples");
    let mut add = |number: u16| -> Result<(), RedoFault> {
        // Each tuple begins at an even place of the data.
        data.skip((redo.block.data.len() - data.rest().len()) & 1)?;
        let len = data.u16()?;
        let tuple = NewTuple::read(&mut data)?;
        let body = data.take(usize::from(len))?;
        let header = tuple.header(xmin, 0, item_pointer(redo.block.block, number));
        add_new_tuple(page, number, header, body)
    };
    if first_tuples {
        (1..=count).try_for_each(&mut add)?;
    } else {
        numbers.iter().try_for_each(&mut add)?;
    }
    data.finish()?;
    change_all_visible(page, flags);
    Ok(())
}

/// Locks a version of a tuple that was updated already: unlike a plain lock, its command id and its
/// link to the next version stay.
fn lock_updated(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let mut main = Reader::new(redo.record.main, "lock");
    let xmax = main.u32()?;
    let number = main.u16()?;
    let infobits = main.u8()?;
    let (mut tuple, _) = TupleHeader::of(page, number)?;
    tuple.set_lock_bits(infobits)?;
    tuple.set_xmax(xmax)
}
