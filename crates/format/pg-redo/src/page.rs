//! A page that redo may change, with every access checked.
//!
//! **Invariant.** No record and no page content makes an access leave the page: whatever would is
//! an error that says where. Storage applies records to pages it did not build itself (imported
//! ones, say), so both are input from outside.

use pg_page::item::ITEM_ID_LEN;
use pg_page::page_header::{self, PAGE_HEADER_LEN};
use pg_page::{ItemId, ItemState, Page};
use pg_types::{BLCKSZ, Lsn};

use crate::RedoFault;

/// Rounds up to a multiple of 8 (`MAXALIGN`).
#[inline]
pub(crate) const fn align8(len: usize) -> usize {
    (len + 7) & !7
}

/// A page being changed.
pub(crate) struct PageMut<'a> {
    pub(crate) bytes: &'a mut Page,
}

/// Where the parts of a page with line pointers begin; `lower <= upper <= special <= BLCKSZ`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) lower: usize,
    pub(crate) upper: usize,
    pub(crate) special: usize,
}

/// Where a tuple lies on its page; both ends are inside of the page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TupleSpan {
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

#[cold]
fn outside(at: usize, len: usize) -> RedoFault {
    RedoFault::OutsidePage {
        at: at as u32,
        len: len as u32,
    }
}

impl<'a> PageMut<'a> {
    #[inline]
    pub(crate) const fn new(bytes: &'a mut Page) -> PageMut<'a> {
        PageMut { bytes }
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], RedoFault> {
        match self.bytes.get(at..).and_then(<[u8]>::first_chunk::<N>) {
            Some(value) => Ok(*value),
            None => Err(outside(at, N)),
        }
    }

    #[inline]
    pub(crate) fn put<const N: usize>(
        &mut self,
        at: usize,
        value: [u8; N],
    ) -> Result<(), RedoFault> {
        match self
            .bytes
            .get_mut(at..)
            .and_then(<[u8]>::first_chunk_mut::<N>)
        {
            Some(place) => {
                *place = value;
                Ok(())
            }
            None => Err(outside(at, N)),
        }
    }

    #[inline]
    pub(crate) fn u8_at(&self, at: usize) -> Result<u8, RedoFault> {
        self.array(at).map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn u16_at(&self, at: usize) -> Result<u16, RedoFault> {
        self.array(at).map(u16::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u32_at(&self, at: usize) -> Result<u32, RedoFault> {
        self.array(at).map(u32::from_le_bytes)
    }

    #[inline]
    pub(crate) fn put_u16(&mut self, at: usize, value: u16) -> Result<(), RedoFault> {
        self.put(at, value.to_le_bytes())
    }

    #[inline]
    pub(crate) fn put_u32(&mut self, at: usize, value: u32) -> Result<(), RedoFault> {
        self.put(at, value.to_le_bytes())
    }

    #[inline]
    pub(crate) fn put_bytes(&mut self, at: usize, value: &[u8]) -> Result<(), RedoFault> {
        match self.bytes.get_mut(at..at + value.len()) {
            Some(place) => {
                place.copy_from_slice(value);
                Ok(())
            }
            None => Err(outside(at, value.len())),
        }
    }

    pub(crate) fn zero(&mut self, from: usize, to: usize) -> Result<(), RedoFault> {
        match self.bytes.get_mut(from..to) {
            Some(place) => {
                place.fill(0);
                Ok(())
            }
            None => Err(outside(from, to.saturating_sub(from))),
        }
    }

    /// Moves `len` bytes from `from` to `to`; the two may overlap.
    #[inline]
    pub(crate) fn shift(&mut self, from: usize, to: usize, len: usize) -> Result<(), RedoFault> {
        if from.max(to) + len > BLCKSZ {
            return Err(outside(from.max(to), len));
        }
        self.bytes.copy_within(from..from + len, to);
        Ok(())
    }

    /// Initialises the page with a special area of `special_len` bytes (`PageInit`).
    pub(crate) fn init(&mut self, special_len: u16) {
        page_header::init(self.bytes, special_len);
    }

    #[inline]
    pub(crate) fn set_lsn(&mut self, lsn: Lsn) {
        page_header::set_lsn(self.bytes, lsn);
    }

    #[inline]
    pub(crate) fn change_flags(&mut self, clear: u16, set: u16) {
        let flags = page_header::flags(self.bytes);
        page_header::set_flags(self.bytes, flags & !clear | set);
    }

    /// The parts of the page, if its header is sane.
    #[inline]
    pub(crate) fn layout(&self) -> Result<Layout, RedoFault> {
        let lower = page_header::lower(self.bytes);
        let upper = page_header::upper(self.bytes);
        let special = page_header::special(self.bytes);
        let sane = usize::from(lower) >= PAGE_HEADER_LEN
            && lower <= upper
            && upper <= special
            && usize::from(special) <= BLCKSZ;
        if !sane {
            return Err(RedoFault::BadHeader {
                lower,
                upper,
                special,
            });
        }
        Ok(Layout {
            lower: usize::from(lower),
            upper: usize::from(upper),
            special: usize::from(special),
        })
    }

    /// Number of line pointers.
    #[inline]
    pub(crate) fn item_count(&self) -> u16 {
        pg_page::item::item_count(self.bytes)
    }

    /// Byte where line pointer `number` (from 1) stands, whether or not the page has it.
    #[inline]
    pub(crate) const fn item_at(number: u16) -> usize {
        PAGE_HEADER_LEN - ITEM_ID_LEN + number as usize * ITEM_ID_LEN
    }

    /// Line pointer `number`.
    #[inline]
    pub(crate) fn item(&self, number: u16) -> Result<ItemId, RedoFault> {
        let count = self.item_count();
        if number == 0 || number > count {
            return Err(RedoFault::NoItem { number, count });
        }
        self.u32_at(Self::item_at(number)).map(ItemId)
    }

    /// Overwrites line pointer `number`, which the page must have.
    #[inline]
    pub(crate) fn set_item(&mut self, number: u16, item: ItemId) -> Result<(), RedoFault> {
        let count = self.item_count();
        if number == 0 || number > count {
            return Err(RedoFault::NoItem { number, count });
        }
        self.put_u32(Self::item_at(number), item.0)
    }

    /// Where the bytes of line pointer `number` lie, whatever its state, if it has storage.
    #[inline]
    pub(crate) fn storage(&self, number: u16) -> Result<TupleSpan, RedoFault> {
        let item = self.item(number)?;
        let (offset, len) = (usize::from(item.offset()), usize::from(item.len()));
        if len == 0 || offset < PAGE_HEADER_LEN || offset + len > BLCKSZ {
            return Err(corrupt(number, item));
        }
        Ok(TupleSpan { offset, len })
    }

    /// Where the tuple of line pointer `number`, which must be in state normal, lies.
    #[inline]
    pub(crate) fn normal(&self, number: u16) -> Result<TupleSpan, RedoFault> {
        if self.item(number)?.state() != ItemState::Normal {
            return Err(RedoFault::NotNormal { number });
        }
        self.storage(number)
    }
}

/// A line pointer that leads outside of the tuples.
#[cold]
pub(crate) fn corrupt(number: u16, item: ItemId) -> RedoFault {
    RedoFault::CorruptItem {
        number,
        offset: item.offset(),
        len: item.len(),
    }
}
