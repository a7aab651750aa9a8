//! Generic records (`access/generic_xlog.h`), by which extensions such as bloom log their pages.

use crate::page::PageMut;
use crate::reader::Reader;
use crate::{BlockRedo, RedoFault};

/// Redoes a generic record: runs of bytes that changed, then the hole is zeroed.
pub(crate) fn redo(page: &mut PageMut<'_>, redo: &BlockRedo<'_, '_>) -> Result<(), RedoFault> {
    let mut delta = Reader::new(redo.block.data, "delta");
    while !delta.rest().is_empty() {
        let at = usize::from(delta.u16()?);
        let len = usize::from(delta.u16()?);
        page.put_bytes(at, delta.take(len)?)?;
    }
    let layout = page.layout()?;
    page.zero(layout.lower, layout.upper)?;
    page.set_lsn(redo.end);
    Ok(())
}
