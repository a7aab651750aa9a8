//! Pages restored from the images that records carry.
//!
//! An image to apply is the page before or after the record as the server's recovery restores it;
//! an image for checking is the page after the record. Either way the page becomes the image and
//! gets the record's end as its LSN, unless it is a page of zeros. One thing is not in the image: a
//! GiST insertion marks its left child as completely split *after* the image was taken.

use pg_page::page_header;
use pg_types::{BLCKSZ, Lsn};
use pg_wal::{BlockImage, BlockRef, Record, RmgrId};

use crate::RedoFault;
use crate::page::PageMut;

const GIST_PAGE_UPDATE: u8 = 0x00;
const GIST_PAGE_SPLIT: u8 = 0x30;
/// `F_FOLLOW_RIGHT`.
const GIST_FOLLOW_RIGHT: u16 = 0x08;

/// Makes `page` the image of `block`.
pub(crate) fn restore(
    page: &mut [u8; BLCKSZ],
    record: &Record<'_>,
    block: &BlockRef<'_>,
    image: &BlockImage<'_>,
    end: Lsn,
) -> Result<(), RedoFault> {
    image.restore(page)?;
    if page_header::is_new(page) {
        return Ok(());
    }
    page_header::set_lsn(page, end);
    if record.header.rmid == RmgrId::GIST && is_gist_left_child(record, block.id) {
        finish_gist_child(page, end)?;
    }
    Ok(())
}

fn is_gist_left_child(record: &Record<'_>, id: u8) -> bool {
    matches!(
        (record.info(), id),
        (GIST_PAGE_UPDATE, 1) | (GIST_PAGE_SPLIT, 0)
    )
}

/// Sets the node sequence number to the record's end and clears "follow right"
/// (`gistRedoClearFollowRight`).
fn finish_gist_child(page: &mut [u8; BLCKSZ], end: Lsn) -> Result<(), RedoFault> {
    let mut page = PageMut::new(page);
    let special = page.layout()?.special;
    page.put_u32(special, (end.0 >> 32) as u32)?;
    page.put_u32(special + 4, end.0 as u32)?;
    let flags = page.u16_at(special + 12)?;
    page.put_u16(special + 12, flags & !GIST_FOLLOW_RIGHT)
}
