//! The header of a heap tuple (`HeapTupleHeaderData`, `access/htup_details.h`), read only.
//!
//! Layout: xmin u32@0, xmax u32@4, command id (or xvac) u32@8, ctid @12 (block as two u16, high
//! half first, then offset number), infomask2 u16@18, infomask u16@20, hoff u8@22, null bitmap @23.

use pg_types::{BlockNumber, Xid};

use crate::layout::{u16_at, u32_at};

/// Bytes before the null bitmap (`SizeofHeapTupleHeader`).
pub const HEAP_TUPLE_HEADER_LEN: usize = 23;

/// `HEAP_HASNULL`: there is a null bitmap.
pub const HAS_NULL: u16 = 0x0001;
/// `HEAP_XMAX_KEYSHR_LOCK`.
pub const XMAX_KEYSHR_LOCK: u16 = 0x0010;
/// `HEAP_COMBOCID`: the command id is a combined one.
pub const COMBOCID: u16 = 0x0020;
/// `HEAP_XMAX_EXCL_LOCK`.
pub const XMAX_EXCL_LOCK: u16 = 0x0040;
/// `HEAP_XMAX_LOCK_ONLY`.
pub const XMAX_LOCK_ONLY: u16 = 0x0080;
/// `HEAP_XMIN_COMMITTED`.
pub const XMIN_COMMITTED: u16 = 0x0100;
/// `HEAP_XMIN_INVALID`; together with committed it means frozen.
pub const XMIN_INVALID: u16 = 0x0200;
/// `HEAP_XMAX_COMMITTED`.
pub const XMAX_COMMITTED: u16 = 0x0400;
/// `HEAP_XMAX_INVALID`.
pub const XMAX_INVALID: u16 = 0x0800;
/// `HEAP_XMAX_IS_MULTI`.
pub const XMAX_IS_MULTI: u16 = 0x1000;
/// `HEAP_UPDATED`: a version made by an update.
pub const UPDATED: u16 = 0x2000;
/// `HEAP_MOVED`: moved by a VACUUM FULL before 9.0.
pub const MOVED: u16 = 0xC000;

/// `HEAP_NATTS_MASK` of infomask2.
pub const NATTS_MASK: u16 = 0x07FF;
/// `HEAP_KEYS_UPDATED` of infomask2.
pub const KEYS_UPDATED: u16 = 0x2000;
/// `HEAP_HOT_UPDATED` of infomask2.
pub const HOT_UPDATED: u16 = 0x4000;
/// `HEAP_ONLY_TUPLE` of infomask2.
pub const HEAP_ONLY: u16 = 0x8000;

/// A tuple header's fixed part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapTupleHeader {
    /// Inserting transaction.
    pub xmin: Xid,
    /// Deleting or locking transaction or multixact, or zero.
    pub xmax: Xid,
    /// Command id, or the transaction of an old VACUUM FULL.
    pub command_id: u32,
    /// Block of this or the next version.
    pub ctid_block: BlockNumber,
    /// Offset number of this or the next version.
    pub ctid_offset: u16,
    /// Attribute count and flags.
    pub infomask2: u16,
    /// Flags.
    pub infomask: u16,
    /// Where the tuple's data begins.
    pub header_len: u8,
}

impl HeapTupleHeader {
    /// Reads the header at the start of `tuple`; `None` when there are fewer than 23 bytes.
    #[must_use]
    pub fn read(tuple: &[u8]) -> Option<HeapTupleHeader> {
        let block_high = u32::from(u16_at(tuple, 12)?);
        let block_low = u32::from(u16_at(tuple, 14)?);
        Some(HeapTupleHeader {
            xmin: u32_at(tuple, 0)?,
            xmax: u32_at(tuple, 4)?,
            command_id: u32_at(tuple, 8)?,
            ctid_block: block_high << 16 | block_low,
            ctid_offset: u16_at(tuple, 16)?,
            infomask2: u16_at(tuple, 18)?,
            infomask: u16_at(tuple, 20)?,
            header_len: *tuple.get(22)?,
        })
    }

    /// Number of attributes the tuple stores.
    #[must_use]
    pub const fn attribute_count(&self) -> u16 {
        self.infomask2 & NATTS_MASK
    }

    /// Whether the tuple is visible to everyone for good (`HeapTupleHeaderXminFrozen`).
    #[must_use]
    pub const fn is_frozen(&self) -> bool {
        self.infomask & (XMIN_COMMITTED | XMIN_INVALID) == XMIN_COMMITTED | XMIN_INVALID
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_postgresql_has_them() {
        let tuple = [
            1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 1, 0, 4, 0, 5, 0, 0x02, 0x80, 0x01, 0x03, 24, 0xFF,
        ];
        let header = HeapTupleHeader::read(&tuple).unwrap();
        assert_eq!((header.xmin, header.xmax, header.command_id), (1, 2, 3));
        assert_eq!((header.ctid_block, header.ctid_offset), (0x1_0004, 5));
        assert_eq!(
            (header.attribute_count(), header.infomask2 & HEAP_ONLY),
            (2, HEAP_ONLY)
        );
        assert!(header.is_frozen());
        assert_eq!(header.infomask & HAS_NULL, HAS_NULL);
        assert_eq!(header.header_len, 24);
        assert_eq!(HeapTupleHeader::read(&tuple[..22]), None);
    }
}
