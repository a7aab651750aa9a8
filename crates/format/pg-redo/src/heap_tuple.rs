//! Changing heap tuple headers on a page.

use pg_page::heap_tuple::{
    COMBOCID, HEAP_TUPLE_HEADER_LEN, HOT_UPDATED, KEYS_UPDATED, MOVED, XMAX_COMMITTED,
    XMAX_EXCL_LOCK, XMAX_INVALID, XMAX_IS_MULTI, XMAX_KEYSHR_LOCK, XMAX_LOCK_ONLY,
};
use pg_types::{BlockNumber, Xid};

use crate::RedoFault;
use crate::page::{PageMut, TupleSpan};
use crate::reader::Reader;

/// `HEAP_XMAX_BITS`.
const XMAX_BITS: u16 = XMAX_COMMITTED
    | XMAX_INVALID
    | XMAX_IS_MULTI
    | XMAX_LOCK_ONLY
    | XMAX_EXCL_LOCK
    | XMAX_KEYSHR_LOCK;

/// An item pointer as bytes: block (high half first), offset number.
#[inline]
pub(crate) const fn item_pointer(block: BlockNumber, number: u16) -> [u8; 6] {
    let [h0, h1] = ((block >> 16) as u16).to_le_bytes();
    let [l0, l1] = (block as u16).to_le_bytes();
    let [n0, n1] = number.to_le_bytes();
    [h0, h1, l0, l1, n0, n1]
}

/// `t_ctid` of a tuple that moved to another partition.
pub(crate) const MOVED_PARTITIONS: [u8; 6] = item_pointer(BlockNumber::MAX, 0xFFFD);

/// A tuple header on a page; the page holds all of it.
pub(crate) struct TupleHeader<'p, 'a> {
    page: &'p mut PageMut<'a>,
    offset: usize,
}

impl<'p, 'a> TupleHeader<'p, 'a> {
    /// The header of the tuple under line pointer `number`, which must be in use.
    #[inline]
    pub(crate) fn of(
        page: &'p mut PageMut<'a>,
        number: u16,
    ) -> Result<(TupleHeader<'p, 'a>, TupleSpan), RedoFault> {
        let span = page.normal(number)?;
        if span.len < HEAP_TUPLE_HEADER_LEN {
            return Err(RedoFault::BadTuple {
                number,
                what: "shorter than a tuple header",
            });
        }
        Ok((
            TupleHeader {
                page,
                offset: span.offset,
            },
            span,
        ))
    }

    #[inline]
    pub(crate) fn set_xmin(&mut self, xid: Xid) -> Result<(), RedoFault> {
        self.page.put_u32(self.offset, xid)
    }

    #[inline]
    pub(crate) fn set_xmax(&mut self, xid: Xid) -> Result<(), RedoFault> {
        self.page.put_u32(self.offset + 4, xid)
    }

    #[inline]
    pub(crate) fn set_xvac(&mut self, xid: Xid) -> Result<(), RedoFault> {
        self.page.put_u32(self.offset + 8, xid)
    }

    #[inline]
    pub(crate) fn set_ctid(&mut self, ctid: [u8; 6]) -> Result<(), RedoFault> {
        self.page.put(self.offset + 12, ctid)
    }

    #[inline]
    pub(crate) fn infomask2(&self) -> Result<u16, RedoFault> {
        self.page.u16_at(self.offset + 18)
    }

    #[inline]
    pub(crate) fn set_infomask2(&mut self, bits: u16) -> Result<(), RedoFault> {
        self.page.put_u16(self.offset + 18, bits)
    }

    #[inline]
    pub(crate) fn infomask(&self) -> Result<u16, RedoFault> {
        self.page.u16_at(self.offset + 20)
    }

    #[inline]
    pub(crate) fn set_infomask(&mut self, bits: u16) -> Result<(), RedoFault> {
        self.page.put_u16(self.offset + 20, bits)
    }

    pub(crate) fn header_len(&self) -> Result<usize, RedoFault> {
        self.page.u8_at(self.offset + 22).map(usize::from)
    }

    /// Sets the lock bits to those of `infobits` (`XLHL_*`) and forgets what was known of xmax.
    #[inline]
    pub(crate) fn set_lock_bits(&mut self, infobits: u8) -> Result<(), RedoFault> {
        let mut infomask = self.infomask()? & !(XMAX_BITS | MOVED);
        let mut infomask2 = self.infomask2()? & !KEYS_UPDATED;
        for (bit, flag) in [
            (0x01, XMAX_IS_MULTI),
            (0x02, XMAX_LOCK_ONLY),
            (0x04, XMAX_EXCL_LOCK),
            (0x08, XMAX_KEYSHR_LOCK),
        ] {
            if infobits & bit != 0 {
                infomask |= flag;
            }
        }
        if infobits & 0x10 != 0 {
            infomask2 |= KEYS_UPDATED;
        }
        self.set_infomask(infomask)?;
        self.set_infomask2(infomask2)
    }

    #[inline]
    pub(crate) fn set_hot_updated(&mut self, hot: bool) -> Result<(), RedoFault> {
        let bits = self.infomask2()? & !HOT_UPDATED;
        self.set_infomask2(if hot { bits | HOT_UPDATED } else { bits })
    }

    /// Sets the deleting command to the first one; WAL does not carry command ids.
    #[inline]
    pub(crate) fn clear_command_id(&mut self) -> Result<(), RedoFault> {
        let infomask = self.infomask()?;
        self.set_infomask(infomask & !COMBOCID)?;
        self.page.put_u32(self.offset + 8, 0)
    }

    /// Whether xmax only locks the tuple (`HEAP_XMAX_IS_LOCKED_ONLY`).
    #[inline]
    pub(crate) fn is_locked_only(&self) -> Result<bool, RedoFault> {
        let infomask = self.infomask()?;
        Ok(infomask & XMAX_LOCK_ONLY != 0
            || infomask & (XMAX_IS_MULTI | XMAX_KEYSHR_LOCK | XMAX_EXCL_LOCK) == XMAX_EXCL_LOCK)
    }
}

/// The fields of a new tuple's header that its record carries (`xl_heap_header`, 5 bytes).
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewTuple {
    infomask2: u16,
    infomask: u16,
    pub(crate) header_len: u8,
}

impl NewTuple {
    #[inline]
    pub(crate) fn read(data: &mut Reader<'_>) -> Result<NewTuple, RedoFault> {
        Ok(NewTuple {
            infomask2: data.u16()?,
            infomask: data.u16()?,
            header_len: data.u8()?,
        })
    }

    /// The tuple header's 23 bytes.
    #[inline]
    pub(crate) fn header(self, xmin: Xid, xmax: Xid, ctid: [u8; 6]) -> [u8; HEAP_TUPLE_HEADER_LEN] {
        let [a0, a1, a2, a3] = xmin.to_le_bytes();
        let [b0, b1, b2, b3] = xmax.to_le_bytes();
        let [c0, c1, c2, c3, c4, c5] = ctid;
        let [d0, d1] = self.infomask2.to_le_bytes();
        let [e0, e1] = (self.infomask & !COMBOCID).to_le_bytes();
        let hoff = self.header_len;
        [
            a0, a1, a2, a3, b0, b1, b2, b3, 0, 0, 0, 0, c0, c1, c2, c3, c4, c5, d0, d1, e0, e1,
            hoff,
        ]
    }
}
