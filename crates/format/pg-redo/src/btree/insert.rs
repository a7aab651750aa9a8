//! Inserting a tuple.

use super::tuple::{TID_LEN, TupleAt, swap_posting};
use crate::items::Slot;
use crate::page::PageMut;
use crate::reader::Reader;
use crate::{BlockRedo, RedoFault};

/// Adds the record's tuple.
pub(super) fn insert(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let number = Reader::new(redo.record.main, "insert").u16()?;
    page.add_tuple(number, redo.block.data, Slot::Shift)?;
    Ok(())
}

/// Adds a tuple whose heap TID lies within those of the posting tuple before it.
pub(super) fn insert_into_posting(
    page: &mut PageMut<'_>,
    redo: &BlockRedo<'_, '_>,
) -> Result<(), RedoFault> {
    let number = Reader::new(redo.record.main, "insert").u16()?;
    let mut data = Reader::new(redo.block.data, "tuple");
    let index = data.u16()?;
    let inserted = Reader::new(data.rest(), "tuple").array::<TID_LEN>()?;
    let before = number.checked_sub(1).ok_or(RedoFault::BadValue {
        what: "offset number",
    })?;
    let posting = TupleAt::of(page, before)?;
    let last = swap_posting(page, posting, inserted, index)?;
    let new = page.add_tuple(number, data.rest(), Slot::Shift)?;
    page.put(new, last)
}
