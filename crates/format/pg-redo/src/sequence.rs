//! Sequences (`commands/sequence.c`): every record rebuilds the one page.

use crate::items::Slot;
use crate::page::PageMut;
use crate::{BlockRedo, RedoFault};

/// `SEQ_MAGIC`, in the special area.
const MAGIC: u32 = 0x1717;
const SPECIAL_LEN: u16 = 8;
const SPECIAL_AT: usize = 8184;
/// Bytes of the relation's locator before the tuple.
const LOCATOR_LEN: usize = 12;

pub(crate) const LOG: u8 = 0x00;

/// Redoes a sequence record.
pub(crate) fn redo(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    if redo.record.info() != LOG {
        return Err(RedoFault::UnknownRecord);
    }
    if redo.block.id != 0 {
        return Err(RedoFault::UnexpectedBlock { id: redo.block.id });
    }
    let tuple = redo
        .record
        .main
        .get(LOCATOR_LEN..)
        .ok_or(RedoFault::Truncated {
            what: "sequence tuple",
        })?;
    page.init(SPECIAL_LEN);
    page.put_u32(SPECIAL_AT, MAGIC)?;
    page.add_tuple(1, tuple, Slot::Reuse)?;
    page.set_lsn(redo.end);
    Ok(())
}
