//! Adding, removing and packing the tuples of a page.
//!
//! **Invariant.** Every operation leaves the tuples at the very bytes where PostgreSQL's function of
//! the same purpose (`storage/page/bufpage.c`) leaves them: later records address tuples by line
//! pointer, but checksums, page images and a stock server that takes over see the bytes.

use pg_page::page_header;
use pg_page::{ItemId, ItemState};
use pg_types::BLCKSZ;

use crate::RedoFault;
use crate::page::{Layout, PageMut, align8, corrupt};

/// What to do when the line pointer for a new tuple exists already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Take it over; it must be unused (heap).
    Reuse,
    /// Move it and those behind it up by one (indexes).
    Shift,
}

/// Whether the line pointer leads to bytes that packing has to keep.
fn has_tuple(item: ItemId) -> bool {
    !item.is_empty() && item.state() != ItemState::Unused
}

impl PageMut<'_> {
    /// Makes room for a tuple of `len` bytes under line pointer `number` (`PageAddItemExtended`) and
    /// returns where its bytes go.
    #[inline]
    pub(crate) fn add_item(
        &mut self,
        number: u16,
        len: usize,
        slot: Slot,
    ) -> Result<usize, RedoFault> {
        let Layout { lower, upper, .. } = self.layout()?;
        let count = self.item_count();
        if number == 0 || number > count + 1 {
            return Err(RedoFault::NoItem { number, count });
        }
        let at = Self::item_at(number);
        let is_new = number > count || slot == Slot::Shift;
        let lower_after = if is_new { lower + 4 } else { lower };
        let room = align8(len);
        if lower_after + room > upper || len > 0x7FFF {
            return Err(RedoFault::NoRoom {
                need: len as u16,
                have: (upper - lower) as u16,
            });
        }
        if !is_new {
            let old = ItemId(self.u32_at(at)?);
            if old.state() != ItemState::Unused || !old.is_empty() {
                return Err(RedoFault::InUse { number });
            }
        } else if number <= count {
            self.shift(at, at + 4, lower - at)?;
        }
        let offset = upper - room;
        self.put_u32(
            at,
            ItemId::new(offset as u16, ItemState::Normal, len as u16).0,
        )?;
        page_header::set_lower(self.bytes, lower_after as u16);
        page_header::set_upper(self.bytes, offset as u16);
        Ok(offset)
    }

    /// Adds `tuple` under line pointer `number` and returns where its bytes lie.
    pub(crate) fn add_tuple(
        &mut self,
        number: u16,
        tuple: &[u8],
        slot: Slot,
    ) -> Result<usize, RedoFault> {
        let offset = self.add_item(number, tuple.len(), slot)?;
        self.put_bytes(offset, tuple)?;
        Ok(offset)
    }

    /// Packs all tuples towards the special area in the order of their line pointers
    /// (`compactify_tuples`).
    pub(crate) fn pack(&mut self) -> Result<(), RedoFault> {
        let Layout {
            lower,
            upper: old_upper,
            special,
        } = self.layout()?;
        // Where each tuple lies below the one before it, as on most pages, moving one never overwrites
        // another that has yet to move, and no copy of the page is needed.
        let original = if self.tuples_descend()? {
            None
        } else {
            Some(*self.bytes)
        };
        let mut upper = special;
        for number in 1..=self.item_count() {
            let at = Self::item_at(number);
            let item = ItemId(self.u32_at(at)?);
            if !has_tuple(item) {
                continue;
            }
            let from = usize::from(item.offset());
            let room = align8(usize::from(item.len()));
            let inside = from >= old_upper && from + room <= special;
            let (Some(next_upper), true) = (upper.checked_sub(room), inside) else {
                return Err(corrupt(number, item));
            };
            if next_upper < lower {
                return Err(corrupt(number, item));
            }
            upper = next_upper;
            if from != upper {
                match &original {
                    None => self.shift(from, upper, room)?,
                    Some(original) => {
                        let tuple = original.get(from..from + room).unwrap_or_default();
                        self.put_bytes(upper, tuple)?;
                    }
                }
                let moved = ItemId::new(upper as u16, item.state(), item.len());
                self.put_u32(at, moved.0)?;
            }
        }
        page_header::set_upper(self.bytes, upper as u16);
        Ok(())
    }

    /// Whether each tuple ends where the tuple of the line pointer before it begins, or below.
    fn tuples_descend(&self) -> Result<bool, RedoFault> {
        let mut above = BLCKSZ;
        for number in 1..=self.item_count() {
            let item = ItemId(self.u32_at(Self::item_at(number))?);
            if has_tuple(item) {
                let from = usize::from(item.offset());
                if from + align8(usize::from(item.len())) > above {
                    return Ok(false);
                }
                above = from;
            }
        }
        Ok(true)
    }

    /// Cuts unused line pointers off the end of the array, keeping `keep` at least.
    pub(crate) fn trim_items(&mut self, keep: u16) -> Result<(), RedoFault> {
        let mut count = self.item_count();
        while count > keep && self.item(count)?.state() == ItemState::Unused {
            count -= 1;
        }
        page_header::set_lower(self.bytes, Self::item_at(count + 1) as u16);
        Ok(())
    }

    /// Sets `PD_HAS_FREE_LINES` to whether an unused line pointer exists.
    pub(crate) fn note_free_items(&mut self) -> Result<(), RedoFault> {
        let mut free = 0;
        for number in 1..=self.item_count() {
            if self.item(number)?.state() == ItemState::Unused {
                free = page_header::HAS_FREE_LINES;
                break;
            }
        }
        self.change_flags(page_header::HAS_FREE_LINES, free);
        Ok(())
    }

    /// Removes line pointer `number` and its tuple, closing both gaps (`PageIndexTupleDelete`).
    pub(crate) fn delete_tuple(&mut self, number: u16) -> Result<(), RedoFault> {
        let Layout {
            lower,
            upper,
            special,
        } = self.layout()?;
        let item = self.item(number)?;
        let (offset, room) = (usize::from(item.offset()), align8(usize::from(item.len())));
        if room == 0 || offset < upper || offset + room > special {
            return Err(corrupt(number, item));
        }
        let at = Self::item_at(number);
        self.shift(at + 4, at, lower - at - 4)?;
        self.shift(upper, upper + room, offset - upper)?;
        page_header::set_lower(self.bytes, (lower - 4) as u16);
        page_header::set_upper(self.bytes, (upper + room) as u16);
        self.move_offsets(offset, room)
    }

    /// Removes the tuples whose line pointers `numbers` lists in ascending order
    /// (`PageIndexMultiDelete`): two or fewer one by one from the last, more by packing the rest.
    pub(crate) fn delete_tuples(
        &mut self,
        numbers: crate::reader::U16s<'_>,
    ) -> Result<(), RedoFault> {
        if numbers.len() <= 2 {
            return numbers
                .iter()
                .rev()
                .try_for_each(|number| self.delete_tuple(number));
        }
        self.layout()?;
        let count = self.item_count();
        let mut doomed = numbers.iter().peekable();
        let mut kept = 0;
        for number in 1..=count {
            let item = self.item(number)?;
            if doomed.next_if_eq(&number).is_some() {
                continue;
            }
            kept += 1;
            self.put_u32(Self::item_at(kept), item.0)?;
        }
        if let Some(number) = doomed.next() {
            // Not on the page, or out of order.
            return Err(RedoFault::NoItem { number, count });
        }
        page_header::set_lower(self.bytes, Self::item_at(kept + 1) as u16);
        self.pack()
    }

    /// Shrinks the tuple of line pointer `number` to its first `len` bytes, closing the gap
    /// (`PageIndexTupleOverwrite` with a tuple that was made in place).
    pub(crate) fn shrink_tuple(&mut self, number: u16, len: usize) -> Result<(), RedoFault> {
        let Layout { upper, special, .. } = self.layout()?;
        let item = self.item(number)?;
        let (offset, room) = (usize::from(item.offset()), align8(usize::from(item.len())));
        let kept = align8(len);
        if kept > room || offset < upper || offset + room > special {
            return Err(corrupt(number, item));
        }
        let gap = room - kept;
        if gap > 0 {
            self.shift(upper, upper + gap, offset - upper + kept)?;
            self.move_offsets(offset, gap)?;
            page_header::set_upper(self.bytes, (upper + gap) as u16);
        }
        let item = self.item(number)?;
        self.set_item(number, ItemId::new(item.offset(), item.state(), len as u16))
    }

    /// Adds `by` to the offsets of all tuples that lie at `limit` or before it.
    fn move_offsets(&mut self, limit: usize, by: usize) -> Result<(), RedoFault> {
        for number in 1..=self.item_count() {
            let at = Self::item_at(number);
            let item = ItemId(self.u32_at(at)?);
            if !item.is_empty() && usize::from(item.offset()) <= limit {
                let offset = usize::from(item.offset()) + by;
                if offset >= BLCKSZ {
                    return Err(corrupt(number, item));
                }
                self.put_u32(at, ItemId::new(offset as u16, item.state(), item.len()).0)?;
            }
        }
        Ok(())
    }
}
