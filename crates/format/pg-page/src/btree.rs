//! The special area and the metapage of B-tree indexes (`access/nbtree.h`), read only.

use pg_types::BlockNumber;

use crate::Page;
use crate::layout::{u16_at, u32_at};
use crate::page_header::{PAGE_HEADER_LEN, special};

/// Bytes of the special area (`BTPageOpaqueData`).
pub const BTREE_SPECIAL_LEN: usize = 16;

/// `BTREE_MAGIC` of the metapage.
pub const BTREE_MAGIC: u32 = 0x0005_3162;

/// `BTP_LEAF`.
pub const LEAF: u16 = 0x0001;
/// `BTP_ROOT`.
pub const ROOT: u16 = 0x0002;
/// `BTP_DELETED`.
pub const DELETED: u16 = 0x0004;
/// `BTP_META`.
pub const META: u16 = 0x0008;
/// `BTP_HALF_DEAD`.
pub const HALF_DEAD: u16 = 0x0010;
/// `BTP_SPLIT_END`.
pub const SPLIT_END: u16 = 0x0020;
/// `BTP_HAS_GARBAGE`.
pub const HAS_GARBAGE: u16 = 0x0040;
/// `BTP_INCOMPLETE_SPLIT`.
pub const INCOMPLETE_SPLIT: u16 = 0x0080;
/// `BTP_HAS_FULLXID`.
pub const HAS_FULLXID: u16 = 0x0100;

/// The special area of a B-tree page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BtreeSpecial {
    /// Left sibling, zero when there is none.
    pub prev: BlockNumber,
    /// Right sibling, zero when there is none.
    pub next: BlockNumber,
    /// Level, zero for leaves.
    pub level: u32,
    /// Flag bits.
    pub flags: u16,
    /// Cycle id of the vacuum that saw the latest split.
    pub cycle_id: u16,
}

impl BtreeSpecial {
    /// Reads the special area; `None` unless it has exactly 16 bytes.
    #[must_use]
    pub fn read(page: &Page) -> Option<BtreeSpecial> {
        let area = page.get(usize::from(special(page))..)?;
        if area.len() != BTREE_SPECIAL_LEN {
            return None;
        }
        Some(BtreeSpecial {
            prev: u32_at(area, 0)?,
            next: u32_at(area, 4)?,
            level: u32_at(area, 8)?,
            flags: u16_at(area, 12)?,
            cycle_id: u16_at(area, 14)?,
        })
    }
}

/// The fields of a metapage that lead to the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BtreeMeta {
    /// Version of the index format.
    pub version: u32,
    /// Root block, zero when the index is empty.
    pub root: BlockNumber,
    /// Level of the root.
    pub level: u32,
    /// Lowest page that is alone on its level.
    pub fast_root: BlockNumber,
    /// Its level.
    pub fast_level: u32,
}

impl BtreeMeta {
    /// Reads the metapage; `None` when its magic is not a B-tree's.
    #[must_use]
    pub fn read(page: &Page) -> Option<BtreeMeta> {
        let meta = page.get(PAGE_HEADER_LEN..)?;
        if u32_at(meta, 0)? != BTREE_MAGIC {
            return None;
        }
        Some(BtreeMeta {
            version: u32_at(meta, 4)?,
            root: u32_at(meta, 8)?,
            level: u32_at(meta, 12)?,
            fast_root: u32_at(meta, 16)?,
            fast_level: u32_at(meta, 20)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_header::init;
    use pg_types::BLCKSZ;

    #[test]
    fn special_area_and_metapage_are_read() {
        let mut page = [0; BLCKSZ];
        assert_eq!(BtreeMeta::read(&page), None);
        init(&mut page, 16);
        page[8176..].copy_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0x41, 0, 9, 0]);
        let expected = BtreeSpecial {
            prev: 1,
            next: 2,
            level: 3,
            flags: LEAF | HAS_GARBAGE,
            cycle_id: 9,
        };
        assert_eq!(BtreeSpecial::read(&page), Some(expected));
        page[24..48].copy_from_slice(&[
            0x62, 0x31, 5, 0, 4, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
        ]);
        let meta = BtreeMeta {
            version: 4,
            root: 3,
            level: 1,
            fast_root: 2,
            fast_level: 0,
        };
        assert_eq!(BtreeMeta::read(&page), Some(meta));
        init(&mut page, 8);
        assert_eq!(BtreeSpecial::read(&page), None);
    }
}
