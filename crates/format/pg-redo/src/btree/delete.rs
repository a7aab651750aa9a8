//! Removing tuples, and heap TIDs from posting tuples.

use pg_page::btree::HAS_GARBAGE;
use pg_types::PgMajor;

use super::tuple::{TID_LEN, TupleAt, finish_formed, formed_len};
use super::{CYCLE_ID_AT, VACUUM, check_special, clear_flags};
use crate::page::PageMut;
use crate::reader::{Reader, U16s};
use crate::{BlockRedo, RedoFault};

/// `DELETE` and `VACUUM`, which differ in their main data.
pub(super) fn delete(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    check_special(page)?;
    let is_vacuum = redo.record.info() == VACUUM;
    let mut main = Reader::new(redo.record.main, "deletion");
    if !is_vacuum {
        // The conflict horizon.
        main.skip(4)?;
    }
    let deleted = usize::from(main.u16()?);
    let updated = usize::from(main.u16()?);
    let mut data = Reader::new(redo.block.data, "deleted tuples");
    let deleted = data.u16s(deleted)?;
    let updated = data.u16s(updated)?;
    // Updates come first: their line pointers are those before the deletion.
    for number in updated.iter() {
        let count = usize::from(data.u16()?);
        remove_tids(page, number, data.u16s(count)?)?;
    }
    data.finish()?;
    if deleted.len() > 0 {
        page.delete_tuples(deleted)?;
    }
    clear_flags(page, HAS_GARBAGE)?;
    if is_vacuum && redo.major >= PgMajor::V18 {
        page.put_u16(CYCLE_ID_AT, 0)?;
    }
    Ok(())
}

/// Removes the heap TIDs with the indexes `removed` (ascending) from a posting tuple; with one left
/// it becomes a plain tuple.
fn remove_tids(page: &mut PageMut<'_>, number: u16, removed: U16s<'_>) -> Result<(), RedoFault> {
    let tuple = TupleAt::of(page, number)?;
    if !tuple.is_posting() || removed.len() >= tuple.count {
        return Err(RedoFault::BadTuple {
            number,
            what: "not a posting tuple with TIDs to spare",
        });
    }
    let mut doomed = removed.iter().peekable();
    let mut kept = 0;
    for index in 0..tuple.count {
        if doomed
            .next_if(|doomed| usize::from(*doomed) == index)
            .is_some()
        {
            continue;
        }
        page.shift(tuple.tid_at(index), tuple.tid_at(kept), TID_LEN)?;
        kept += 1;
    }
    if doomed.next().is_some() {
        return Err(RedoFault::BadTuple {
            number,
            what: "it has no such heap TID",
        });
    }
    let single = page.array(tuple.tid_at(0))?;
    finish_formed(page, tuple.offset, tuple.key_len, kept, single)?;
    page.shrink_tuple(number, formed_len(tuple.key_len, kept))
}
