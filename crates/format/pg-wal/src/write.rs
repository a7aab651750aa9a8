//! Writing WAL: a record, and the bytes it occupies at a place in the log.
//!
//! **Invariant.** What is written here reads back, by [`crate::WalStream`] and by a stock server,
//! as exactly the same record at exactly the place that [`PlacedRecord`] names. Strandline writes
//! one record itself, the checkpoint that begins an incarnation; a byte off, and the server finds
//! no valid checkpoint and does not start.

use pg_types::{Lsn, XLOG_BLCKSZ, Xid};

use crate::RmgrId;
use crate::page_header::{WalGeometry, WalPageHeader, page_start};
use crate::record::{ID_DATA_LONG, ID_DATA_SHORT, RECORD_HEADER_LEN};

/// A record without block references: header with checksum, and `main` as its main data.
///
/// `prev` is the start of the record before it. Main data beyond `u32::MAX` bytes cannot be
/// expressed and gives a record that no reader accepts.
#[must_use]
pub fn encode_record(rmid: RmgrId, info: u8, xid: Xid, prev: Lsn, main: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(RECORD_HEADER_LEN + 5 + main.len());
    push_header(&mut record, xid, prev, info, rmid);
    push_main_header(&mut record, main.len());
    record.extend_from_slice(main);
    finish_record(&mut record, 0);
    set_checksum(&mut record);
    record
}

/// Appends a record header whose length and checksum are still zero.
pub(crate) fn push_header(out: &mut Vec<u8>, xid: Xid, prev: Lsn, info: u8, rmid: RmgrId) {
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&xid.to_le_bytes());
    out.extend_from_slice(&prev.0.to_le_bytes());
    out.extend_from_slice(&[info, rmid.0, 0, 0, 0, 0, 0, 0]);
}

/// Appends the item header that announces `len` bytes of main data; none for zero.
pub(crate) fn push_main_header(out: &mut Vec<u8>, len: usize) {
    match u8::try_from(len) {
        Ok(0) => {}
        Ok(short) => out.extend_from_slice(&[ID_DATA_SHORT, short]),
        Err(_) => {
            out.push(ID_DATA_LONG);
            out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        }
    }
}

/// Sets the length of the record that begins at `from` in `out` and ends where `out` does.
pub(crate) fn finish_record(out: &mut [u8], from: usize) {
    let len = u32::try_from(out.len().saturating_sub(from)).unwrap_or(u32::MAX);
    if let Some(field) = out
        .get_mut(from..)
        .and_then(|record| record.first_chunk_mut::<4>())
    {
        *field = len.to_le_bytes();
    }
}

/// Sets the CRC-32C of a whole record: over what follows the header, then its first 20 bytes.
fn set_checksum(record: &mut [u8]) {
    let Some((header, body)) = record.split_first_chunk_mut::<RECORD_HEADER_LEN>() else {
        return;
    };
    if let Some((covered, crc)) = header.split_last_chunk_mut::<4>() {
        *crc = crc32c::crc32c_append(crc32c::crc32c(body), covered).to_le_bytes();
    }
}

/// A record at its place in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedRecord {
    /// First byte of the record's header: what others name the record by.
    pub start: Lsn,
    /// End of the record (`EndRecPtr`), a multiple of 8; a following page header is not skipped.
    pub end: Lsn,
    /// LSN of the first of `bytes`: the position asked for.
    pub from: Lsn,
    /// The log from `from` to `end`: page headers, the record, zeros up to the alignment.
    pub bytes: Vec<u8>,
}

/// Lays `record` into the log at `at`, the end of the record before it, with every page header
/// that falls between, as `geometry` says.
///
/// Where `at` is the start of a page, that page's header comes first; where it lies within the
/// header, the rest of the header does; where it is not a multiple of 8, zeros up to one.
#[must_use]
pub fn place_record(at: Lsn, record: &[u8], geometry: &WalGeometry) -> PlacedRecord {
    let pages = record.len() / (XLOG_BLCKSZ as usize - 64) + 2;
    let mut log = Log {
        next: at,
        bytes: Vec::with_capacity(record.len() + pages * 40),
        geometry,
    };
    log.pad();
    log.header_if_due(0);
    let start = log.next;
    let mut rest = record;
    loop {
        let space = page_start(log.next).advance(XLOG_BLCKSZ).since(log.next);
        let space = usize::try_from(space).unwrap_or(usize::MAX);
        let Some((now, later)) = rest.split_at_checked(space) else {
            break;
        };
        log.put(now);
        rest = later;
        if rest.is_empty() {
            break;
        }
        log.header_if_due(u32::try_from(rest.len()).unwrap_or(u32::MAX));
    }
    log.put(rest);
    log.pad();
    PlacedRecord {
        start,
        end: log.next,
        from: at,
        bytes: log.bytes,
    }
}

struct Log<'a> {
    next: Lsn,
    bytes: Vec<u8>,
    geometry: &'a WalGeometry,
}

impl Log<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.next = self.next.advance(bytes.len() as u64);
    }

    fn pad(&mut self) {
        let gap = self.next.align8().since(self.next);
        self.bytes
            .extend(std::iter::repeat_n(0, usize::try_from(gap).unwrap_or(0)));
        self.next = self.next.align8();
    }

    /// Writes what is missing of the current page's header, if the position is not behind it.
    fn header_if_due(&mut self, rem_len: u32) {
        let page = page_start(self.next);
        let mut header = Vec::with_capacity(self.geometry.header_len(page));
        WalPageHeader::build(page, rem_len, self.geometry).encode(&mut header);
        let inside = usize::try_from(self.next.since(page)).unwrap_or(usize::MAX);
        if let Some(missing) = header.get(inside..) {
            self.put(missing);
        }
    }
}
