//! Line pointers (`ItemIdData`, `storage/itemid.h`): where the tuples of a page are.
//!
//! A line pointer is a u32: offset in bits 0 to 14, state in 15 and 16, length in 17 to 31. Offset
//! numbers count from 1.

use crate::Page;
use crate::layout::u32_at;
use crate::page_header::{PAGE_HEADER_LEN, lower};

/// Bytes of a line pointer.
pub const ITEM_ID_LEN: usize = 4;

/// What a line pointer stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemState {
    /// `LP_UNUSED`: free for a new tuple.
    Unused,
    /// `LP_NORMAL`: points to a tuple.
    Normal,
    /// `LP_REDIRECT`: its offset is the offset number of another line pointer.
    Redirect,
    /// `LP_DEAD`: the tuple is dead; it may still have storage in an index.
    Dead,
}

/// A line pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemId(pub u32);

impl ItemId {
    /// A line pointer from its parts; bits beyond 15 of offset and length are dropped.
    #[must_use]
    pub const fn new(offset: u16, state: ItemState, len: u16) -> ItemId {
        let state = match state {
            ItemState::Unused => 0,
            ItemState::Normal => 1,
            ItemState::Redirect => 2,
            ItemState::Dead => 3,
        };
        ItemId((offset as u32 & 0x7FFF) | state << 15 | (len as u32 & 0x7FFF) << 17)
    }

    /// Byte offset of the tuple in the page; for a redirect, the offset number of its target.
    #[must_use]
    pub const fn offset(self) -> u16 {
        (self.0 & 0x7FFF) as u16
    }

    /// Bytes of the tuple; zero when it has no storage.
    #[must_use]
    pub const fn len(self) -> u16 {
        (self.0 >> 17) as u16
    }

    /// Whether the line pointer has no storage.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// What it stands for.
    #[must_use]
    pub const fn state(self) -> ItemState {
        match self.0 >> 15 & 3 {
            0 => ItemState::Unused,
            1 => ItemState::Normal,
            2 => ItemState::Redirect,
            _ => ItemState::Dead,
        }
    }
}

/// Number of line pointers of `page` (`PageGetMaxOffsetNumber`); zero when `pd_lower` is outside
/// of the page or before the end of its header.
#[must_use]
pub fn item_count(page: &Page) -> u16 {
    let lower = usize::from(lower(page)).min(page.len());
    (lower.saturating_sub(PAGE_HEADER_LEN) / ITEM_ID_LEN) as u16
}

/// The line pointer with offset number `number`, counted from 1; `None` beyond the last one.
#[must_use]
pub fn item(page: &Page, number: u16) -> Option<ItemId> {
    if number == 0 || number > item_count(page) {
        return None;
    }
    u32_at(
        page,
        PAGE_HEADER_LEN + (usize::from(number) - 1) * ITEM_ID_LEN,
    )
    .map(ItemId)
}

/// Every line pointer with its offset number.
pub fn items(page: &Page) -> impl Iterator<Item = (u16, ItemId)> + '_ {
    (1..=item_count(page)).filter_map(|number| Some((number, item(page, number)?)))
}

/// The bytes a line pointer points to; `None` when it has no storage or points outside of the
/// page.
#[must_use]
pub fn item_bytes(page: &Page, item: ItemId) -> Option<&[u8]> {
    if item.is_empty() || matches!(item.state(), ItemState::Unused | ItemState::Redirect) {
        return None;
    }
    let from = usize::from(item.offset());
    page.get(from..from + usize::from(item.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_header::{init, set_lower};
    use pg_types::BLCKSZ;

    #[test]
    fn parts_stay_apart() {
        let states = [
            ItemState::Unused,
            ItemState::Normal,
            ItemState::Redirect,
            ItemState::Dead,
        ];
        for state in states {
            for (offset, len) in [(0, 0), (0x7FFF, 0), (0, 0x7FFF), (8160, 32)] {
                let item = ItemId::new(offset, state, len);
                assert_eq!(
                    (item.offset(), item.state(), item.len()),
                    (offset, state, len)
                );
            }
        }
        assert_eq!(
            ItemId::new(8160, ItemState::Normal, 28).0,
            8160 | 1 << 15 | 28 << 17
        );
    }

    #[test]
    fn only_tuples_inside_the_page_are_given_out() {
        let mut page = [0; BLCKSZ];
        init(&mut page, 0);
        set_lower(&mut page, 32);
        page[24..28].copy_from_slice(&ItemId::new(8160, ItemState::Normal, 32).0.to_le_bytes());
        page[28..32].copy_from_slice(&ItemId::new(8184, ItemState::Normal, 32).0.to_le_bytes());
        assert_eq!(item_count(&page), 2);
        let first = item(&page, 1).unwrap();
        assert_eq!(item_bytes(&page, first).map(<[u8]>::len), Some(32));
        assert_eq!(item_bytes(&page, item(&page, 2).unwrap()), None);
        assert_eq!(item(&page, 0), None);
        assert_eq!(item(&page, 3), None);
        set_lower(&mut page, u16::MAX);
        assert_eq!(usize::from(item_count(&page)), (BLCKSZ - 24) / 4);
    }
}
