//! Index tuples on a page, among them posting tuples: one key with many heap tuples.
//!
//! Layout: heap TID (6 bytes), `t_info` u16@6 (length in the low 13 bits, 0x2000 "alternative TID"),
//! key. In a posting tuple the TID's block is the offset of an array of TIDs behind the key, and its
//! offset number has 0x2000 and the array's length.

use crate::RedoFault;
use crate::page::{PageMut, align8};
use crate::reader::Reader;

/// Bytes of `IndexTupleData`.
pub(super) const HEADER_LEN: usize = 8;
/// Bytes of a heap TID.
pub(super) const TID_LEN: usize = 6;

const SIZE_MASK: u16 = 0x1FFF;
const ALT_TID: u16 = 0x2000;
const IS_POSTING: u16 = 0x2000;
const COUNT_MASK: u16 = 0x0FFF;

/// Takes the next tuple, padding included, off data where tuples follow one another.
pub(super) fn take_tuple<'a>(data: &mut Reader<'a>) -> Result<&'a [u8], RedoFault> {
    let info = Reader::new(data.rest(), "index tuple").array::<HEADER_LEN>()?;
    let [.., i0, i1] = info;
    let len = align8(usize::from(u16::from_le_bytes([i0, i1]) & SIZE_MASK));
    if len < HEADER_LEN {
        return Err(RedoFault::BadValue {
            what: "index tuple length",
        });
    }
    data.take(len)
}

/// The 8 bytes of a tuple without key that points to `block`: downlink of a half-dead page's high
/// key.
pub(super) const fn pivot_without_key(block: u32) -> [u8; HEADER_LEN] {
    let [h0, h1] = ((block >> 16) as u16).to_le_bytes();
    let [l0, l1] = (block as u16).to_le_bytes();
    let [i0, i1] = (HEADER_LEN as u16 | ALT_TID).to_le_bytes();
    [h0, h1, l0, l1, 0, 0, i0, i1]
}

/// An index tuple on a page, which holds all of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct TupleAt {
    /// Where it begins.
    pub(super) offset: usize,
    /// Bytes before its TIDs: the key part of a posting tuple, all of a plain one.
    pub(super) key_len: usize,
    /// Where its heap TIDs are.
    tids: usize,
    /// How many there are.
    pub(super) count: usize,
}

impl TupleAt {
    /// The tuple of line pointer `number`.
    pub(super) fn of(page: &PageMut<'_>, number: u16) -> Result<TupleAt, RedoFault> {
        let span = page.storage(number)?;
        let bad = |what| RedoFault::BadTuple { number, what };
        if span.len < HEADER_LEN {
            return Err(bad("shorter than an index tuple"));
        }
        let offset = span.offset;
        let info = page.u16_at(offset + 6)?;
        let tid_number = page.u16_at(offset + 4)?;
        let size = usize::from(info & SIZE_MASK);
        if size < HEADER_LEN || size > span.len {
            return Err(bad("its length disagrees with its line pointer"));
        }
        if info & ALT_TID == 0 || tid_number & IS_POSTING == 0 {
            return Ok(TupleAt {
                offset,
                key_len: size,
                tids: offset,
                count: 1,
            });
        }
        let key_len =
            (usize::from(page.u16_at(offset)?) << 16) + usize::from(page.u16_at(offset + 2)?);
        let count = usize::from(tid_number & COUNT_MASK);
        if count == 0 || key_len < HEADER_LEN || key_len + count * TID_LEN > size {
            return Err(bad("its list of heap tuples does not fit into it"));
        }
        Ok(TupleAt {
            offset,
            key_len,
            tids: offset + key_len,
            count,
        })
    }

    pub(super) const fn is_posting(&self) -> bool {
        self.tids != self.offset
    }

    /// Byte where TID `index` begins.
    pub(super) const fn tid_at(&self, index: usize) -> usize {
        self.tids + index * TID_LEN
    }

    /// The TIDs' bytes.
    pub(super) const fn tids(&self) -> std::ops::Range<usize> {
        self.tids..self.tids + self.count * TID_LEN
    }
}

/// Bytes of a tuple of `key_len` bytes of key with `count` heap TIDs.
pub(super) const fn formed_len(key_len: usize, count: usize) -> usize {
    if count > 1 {
        align8(key_len + count * TID_LEN)
    } else {
        key_len
    }
}

/// Sets length and TID field of the tuple at `offset`, whose key and list of `count` TIDs are in
/// place; of a single TID, `single` is the one.
pub(super) fn finish_formed(
    page: &mut PageMut<'_>,
    offset: usize,
    key_len: usize,
    count: usize,
    single: [u8; TID_LEN],
) -> Result<(), RedoFault> {
    let len = formed_len(key_len, count);
    let info = page.u16_at(offset + 6)? & !(SIZE_MASK | ALT_TID) | len as u16;
    if count > 1 {
        let tid = crate::heap_tuple::item_pointer(key_len as u32, count as u16 | IS_POSTING);
        page.put(offset, tid)?;
        page.put_u16(offset + 6, info | ALT_TID)?;
        page.zero(offset + key_len + count * TID_LEN, offset + len)
    } else {
        page.put(offset, single)?;
        page.put_u16(offset + 6, info)
    }
}

/// Puts the heap TID `inserted` into the posting tuple `posting` at `index` and returns the last TID,
/// for which there is no room any more; it becomes the new tuple's (`_bt_swap_posting`).
pub(super) fn swap_posting(
    page: &mut PageMut<'_>,
    posting: TupleAt,
    inserted: [u8; TID_LEN],
    index: u16,
) -> Result<[u8; TID_LEN], RedoFault> {
    let index = usize::from(index);
    if !posting.is_posting() || index == 0 || index >= posting.count {
        return Err(RedoFault::BadValue {
            what: "place in a posting list",
        });
    }
    let last = page.array(posting.tid_at(posting.count - 1))?;
    let at = posting.tid_at(index);
    page.shift(at, at + TID_LEN, (posting.count - 1 - index) * TID_LEN)?;
    page.put(at, inserted)?;
    Ok(last)
}
