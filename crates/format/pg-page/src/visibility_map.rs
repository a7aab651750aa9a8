//! Where the visibility map keeps a heap block's two bits (`access/visibilitymap.c`).

use pg_types::{BLCKSZ, BlockNumber};

use crate::Page;
use crate::page_header::PAGE_HEADER_LEN;

/// Every tuple of the block is visible to everyone (`VISIBILITYMAP_ALL_VISIBLE`).
pub const VM_ALL_VISIBLE: u8 = 0x01;
/// Every tuple of the block is frozen (`VISIBILITYMAP_ALL_FROZEN`).
pub const VM_ALL_FROZEN: u8 = 0x02;
/// Both bits (`VISIBILITYMAP_VALID_BITS`).
pub const VM_BITS: u8 = 0x03;

/// Heap blocks that one map page covers: four in each byte behind the page header.
pub const HEAP_BLOCKS_PER_PAGE: u32 = ((BLCKSZ - PAGE_HEADER_LEN) * 4) as u32;

/// Where the bits of a heap block are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmPosition {
    /// Page of the map fork.
    pub page: BlockNumber,
    /// Byte in that page, its header counted.
    pub byte: u16,
    /// How far the two bits stand from the low end of the byte.
    pub shift: u8,
}

impl VmPosition {
    /// Position of the bits of `heap_block`.
    #[must_use]
    pub const fn of(heap_block: BlockNumber) -> VmPosition {
        let within = heap_block % HEAP_BLOCKS_PER_PAGE;
        VmPosition {
            page: heap_block / HEAP_BLOCKS_PER_PAGE,
            byte: PAGE_HEADER_LEN as u16 + (within / 4) as u16,
            shift: (within % 4 * 2) as u8,
        }
    }

    /// The bits in the map page `page`, which must be the one this position names.
    #[must_use]
    pub fn bits(self, page: &Page) -> u8 {
        page.get(usize::from(self.byte))
            .map_or(0, |byte| byte >> self.shift & VM_BITS)
    }

    /// Sets `bits` in the map page; returns whether that changed anything.
    pub fn set(self, page: &mut Page, bits: u8) -> bool {
        self.change(page, |byte| byte | (bits & VM_BITS) << self.shift)
    }

    /// Clears `bits` in the map page; returns whether that changed anything.
    pub fn clear(self, page: &mut Page, bits: u8) -> bool {
        self.change(page, |byte| byte & !((bits & VM_BITS) << self.shift))
    }

    fn change(self, page: &mut Page, to: impl FnOnce(u8) -> u8) -> bool {
        let Some(byte) = page.get_mut(usize::from(self.byte)) else {
            return false;
        };
        let before = *byte;
        *byte = to(before);
        *byte != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_at_the_borders_of_pages() {
        let at = VmPosition::of;
        assert_eq!(HEAP_BLOCKS_PER_PAGE, 32_672);
        assert_eq!(
            at(0),
            VmPosition {
                page: 0,
                byte: 24,
                shift: 0
            }
        );
        assert_eq!(
            at(7),
            VmPosition {
                page: 0,
                byte: 25,
                shift: 6
            }
        );
        assert_eq!(
            at(32_671),
            VmPosition {
                page: 0,
                byte: 8191,
                shift: 6
            }
        );
        assert_eq!(
            at(32_672),
            VmPosition {
                page: 1,
                byte: 24,
                shift: 0
            }
        );
        assert_eq!(at(u32::MAX).page, u32::MAX / 32_672);
    }

    #[test]
    fn neighbours_keep_their_bits() {
        let mut page = [0; BLCKSZ];
        assert!(VmPosition::of(5).set(&mut page, VM_BITS));
        assert!(!VmPosition::of(5).set(&mut page, VM_ALL_VISIBLE));
        assert!(VmPosition::of(6).set(&mut page, VM_ALL_VISIBLE));
        assert_eq!(VmPosition::of(4).bits(&page), 0);
        assert!(VmPosition::of(5).clear(&mut page, VM_ALL_FROZEN));
        assert!(!VmPosition::of(5).clear(&mut page, VM_ALL_FROZEN));
        assert_eq!(VmPosition::of(5).bits(&page), VM_ALL_VISIBLE);
        assert_eq!(VmPosition::of(6).bits(&page), VM_ALL_VISIBLE);
        assert_eq!(page[25], 0b0001_0100);
    }
}
