//! Abstract WAL: a byte is who wrote it, which record it belongs to, and whether it is its last.
//! LSN n is the end of the first n bytes.

use pg_types::Lsn;

/// One byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Byte {
    /// The incarnation that wrote it; no two share a number, whatever their timelines.
    pub writer: u16,
    /// Its record, counted by the writer.
    pub record: u16,
    /// Whether the record ends with it.
    pub last: bool,
}

/// The bytes of one record.
pub fn record(writer: u16, record: u16, len: usize) -> Vec<Byte> {
    let byte = |at| Byte {
        writer,
        record,
        last: at + 1 == len,
    };
    (0..len).map(byte).collect()
}

/// End of the last whole record in `wal`.
pub fn record_end(wal: &[Byte]) -> usize {
    wal.iter()
        .rposition(|byte| byte.last)
        .map_or(0, |at| at + 1)
}

pub const fn lsn(at: usize) -> Lsn {
    Lsn(at as u64)
}

pub fn index(lsn: Lsn) -> usize {
    usize::try_from(lsn.0).unwrap_or(usize::MAX)
}
