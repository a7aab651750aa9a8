//! Headers of WAL pages (`access/xlog_internal.h`).
//!
//! **Invariant.** A page is believed only when its header carries this major's magic and its own
//! address. Segment files are recycled, so yesterday's pages stand where today's are expected; only
//! the address tells them apart.

use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId, XLOG_BLCKSZ};

use crate::cursor::Cursor;

/// `XLP_FIRST_IS_CONTRECORD`: the page begins with the rest of a record.
pub const FIRST_IS_CONTRECORD: u16 = 0x0001;
/// `XLP_LONG_HEADER`: the first page of a segment, with a [`LongHeader`].
pub const LONG_HEADER: u16 = 0x0002;
/// `XLP_BKP_REMOVABLE`: block images in this page may be omitted by an archiver.
pub const BKP_REMOVABLE: u16 = 0x0004;
/// `XLP_FIRST_IS_OVERWRITE_CONTRECORD`: the record that the page before left unfinished is void.
pub const FIRST_IS_OVERWRITE_CONTRECORD: u16 = 0x0008;

/// All flags PostgreSQL 14 to 18 use (`XLP_ALL_FLAGS`).
const ALL_FLAGS: u16 = 0x000F;

/// Bytes of a header that is not long.
pub const SHORT_HEADER_LEN: usize = 24;
/// Bytes of a long header.
pub const LONG_HEADER_LEN: usize = 40;

/// The additional fields on the first page of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongHeader {
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// Bytes of a segment.
    pub segment_size: u32,
    /// Bytes of a WAL page.
    pub page_size: u32,
}

/// `XLogPageHeaderData`, with its long form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalPageHeader {
    /// Magic of the major that wrote it.
    pub magic: u16,
    /// Flag bits.
    pub info: u16,
    /// Timeline of the first record on the page.
    pub timeline: TimelineId,
    /// LSN of the page's first byte.
    pub page_addr: Lsn,
    /// Bytes still missing of the record continued here; zero without one.
    pub rem_len: u32,
    /// What only the first page of a segment has.
    pub long: Option<LongHeader>,
}

/// Why a page is not the one that belongs at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageHeaderError {
    /// Another major's magic, or none at all.
    #[error("page magic is {found:04X}, expected {expected:04X}")]
    Magic {
        /// What is there.
        found: u16,
        /// This major's magic.
        expected: u16,
    },
    /// Flag bits that no release sets.
    #[error("page flags {info:04X} are unknown")]
    Flags {
        /// The flags.
        info: u16,
    },
    /// The page belongs elsewhere: left over in a recycled file.
    #[error("page says it is at {found}")]
    Address {
        /// Address in the header.
        found: Lsn,
    },
    /// A segment begins without a long header.
    #[error("the first page of a segment has no long header")]
    NotLong,
    /// A long header of other geometry.
    #[error(
        "page is of segments of {segment_size} and pages of {page_size} bytes, expected {expected} and 8192"
    )]
    Geometry {
        /// Segment size in the header.
        segment_size: u32,
        /// Page size in the header.
        page_size: u32,
        /// Segment size of this WAL.
        expected: u64,
    },
    /// The timeline is older than that of a page before it.
    #[error("page is of timeline {found}, after one of timeline {before}")]
    TimelineFell {
        /// Timeline in the header.
        found: TimelineId,
        /// Timeline reached before.
        before: TimelineId,
    },
}

impl WalPageHeader {
    /// Reads the header at the start of `bytes`; `None` when they are too few (24, or 40 when the
    /// long flag is set). Nothing is checked: see [`WalPageHeader::validate`].
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<WalPageHeader> {
        let mut at = Cursor::new(bytes);
        let magic = at.u16()?;
        let info = at.u16()?;
        let timeline = TimelineId(at.u32()?);
        let page_addr = Lsn(at.u64()?);
        let rem_len = at.u32()?;
        at.take(4)?;
        let long = if info & LONG_HEADER != 0 {
            Some(LongHeader {
                system_identifier: at.u64()?,
                segment_size: at.u32()?,
                page_size: at.u32()?,
            })
        } else {
            None
        };
        Some(WalPageHeader {
            magic,
            info,
            timeline,
            page_addr,
            rem_len,
            long,
        })
    }

    /// The header of the page at `page_addr` as a server would write it, long where a segment
    /// begins. `rem_len` greater than zero says that the page continues a record.
    #[must_use]
    pub fn build(page_addr: Lsn, rem_len: u32, geometry: &WalGeometry) -> WalPageHeader {
        let mut info = if rem_len > 0 { FIRST_IS_CONTRECORD } else { 0 };
        let mut long = None;
        if geometry.segment_size.offset_of(page_addr) == 0 {
            info |= LONG_HEADER;
            long = Some(LongHeader {
                system_identifier: geometry.system_identifier,
                // A segment is at most 1 GiB.
                #[expect(clippy::cast_possible_truncation)]
                segment_size: geometry.segment_size.bytes() as u32,
                #[expect(clippy::cast_possible_truncation)]
                page_size: XLOG_BLCKSZ as u32,
            });
        }
        WalPageHeader {
            magic: geometry.major.wal_magic(),
            info,
            timeline: geometry.timeline,
            page_addr,
            rem_len,
            long,
        }
    }

    /// Appends the header's bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.magic.to_le_bytes());
        out.extend_from_slice(&self.info.to_le_bytes());
        out.extend_from_slice(&self.timeline.0.to_le_bytes());
        out.extend_from_slice(&self.page_addr.0.to_le_bytes());
        out.extend_from_slice(&self.rem_len.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        if let Some(long) = &self.long {
            out.extend_from_slice(&long.system_identifier.to_le_bytes());
            out.extend_from_slice(&long.segment_size.to_le_bytes());
            out.extend_from_slice(&long.page_size.to_le_bytes());
        }
    }

    /// Bytes of the header: 40 when its flags say long, else 24.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        if self.info & LONG_HEADER != 0 {
            LONG_HEADER_LEN
        } else {
            SHORT_HEADER_LEN
        }
    }

    /// Whether all of `flag` is set.
    #[must_use]
    pub const fn has(&self, flag: u16) -> bool {
        self.info & flag == flag
    }

    /// Checks that this is the header of the page at `at` in WAL of `major` and `segment_size`.
    ///
    /// # Errors
    /// [`PageHeaderError`] naming the first field that does not fit.
    pub fn validate(
        &self,
        at: Lsn,
        major: PgMajor,
        segment_size: SegmentSize,
    ) -> Result<(), PageHeaderError> {
        if self.magic != major.wal_magic() {
            return Err(PageHeaderError::Magic {
                found: self.magic,
                expected: major.wal_magic(),
            });
        }
        if self.info & !ALL_FLAGS != 0 {
            return Err(PageHeaderError::Flags { info: self.info });
        }
        if self.page_addr != at {
            return Err(PageHeaderError::Address {
                found: self.page_addr,
            });
        }
        match &self.long {
            None if segment_size.offset_of(at) == 0 => Err(PageHeaderError::NotLong),
            Some(long)
                if u64::from(long.segment_size) != segment_size.bytes()
                    || u64::from(long.page_size) != XLOG_BLCKSZ =>
            {
                Err(PageHeaderError::Geometry {
                    segment_size: long.segment_size,
                    page_size: long.page_size,
                    expected: segment_size.bytes(),
                })
            }
            _ => Ok(()),
        }
    }
}

/// What page headers say about the WAL they are part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalGeometry {
    /// Major that reads it.
    pub major: PgMajor,
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// Bytes of a segment.
    pub segment_size: SegmentSize,
    /// Timeline of the records.
    pub timeline: TimelineId,
}

impl WalGeometry {
    /// Bytes of the header of the page that begins at `page_addr`.
    #[must_use]
    pub const fn header_len(&self, page_addr: Lsn) -> usize {
        header_len(self.segment_size, page_addr)
    }
}

/// Bytes of the header of the page that begins at `page_addr`.
#[must_use]
pub const fn header_len(segment_size: SegmentSize, page_addr: Lsn) -> usize {
    if segment_size.offset_of(page_addr) == 0 {
        LONG_HEADER_LEN
    } else {
        SHORT_HEADER_LEN
    }
}

/// LSN of the first byte of the page that `lsn` lies in.
#[must_use]
pub const fn page_start(lsn: Lsn) -> Lsn {
    Lsn(lsn.0 - lsn.0 % XLOG_BLCKSZ)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> WalGeometry {
        WalGeometry {
            major: PgMajor::V16,
            system_identifier: 7_000_000_000_000_000_007,
            segment_size: SegmentSize::DEFAULT,
            timeline: TimelineId(2),
        }
    }

    #[test]
    fn headers_round_trip_and_are_long_where_segments_begin() {
        for (at, rem_len, len, info) in [
            (0x100_0000, 0, 40, LONG_HEADER),
            (0x100_0000, 9, 40, LONG_HEADER | FIRST_IS_CONTRECORD),
            (0x100_2000, 9, 24, FIRST_IS_CONTRECORD),
        ] {
            let header = WalPageHeader::build(Lsn(at), rem_len, &geometry());
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            assert_eq!((bytes.len(), header.len(), header.info), (len, len, info));
            assert_eq!(geometry().header_len(Lsn(at)), len);
            assert_eq!(WalPageHeader::decode(&bytes), Some(header));
            assert_eq!(WalPageHeader::decode(&bytes[..len - 1]), None);
            let valid = header.validate(Lsn(at), PgMajor::V16, SegmentSize::DEFAULT);
            assert_eq!(valid, Ok(()));
        }
    }

    #[test]
    fn each_field_that_does_not_fit_is_named() {
        let at = Lsn(0x100_0000);
        let good = WalPageHeader::build(at, 0, &geometry());
        let validate = |header: WalPageHeader| {
            header
                .validate(at, PgMajor::V16, SegmentSize::DEFAULT)
                .unwrap_err()
        };
        let magic = PageHeaderError::Magic {
            found: 0xD118,
            expected: 0xD113,
        };
        assert_eq!(
            validate(WalPageHeader {
                magic: 0xD118,
                ..good
            }),
            magic
        );
        let flags = WalPageHeader {
            info: good.info | 0x10,
            ..good
        };
        assert_eq!(validate(flags), PageHeaderError::Flags { info: 0x12 });
        let address = WalPageHeader {
            page_addr: Lsn(8192),
            ..good
        };
        assert_eq!(
            validate(address),
            PageHeaderError::Address { found: Lsn(8192) }
        );
        let short = WalPageHeader {
            info: 0,
            long: None,
            ..good
        };
        assert_eq!(validate(short), PageHeaderError::NotLong);
        let long = good.long.map(|long| LongHeader {
            segment_size: 1 << 20,
            ..long
        });
        assert!(matches!(
            validate(WalPageHeader { long, ..good }),
            PageHeaderError::Geometry {
                segment_size: 0x10_0000,
                ..
            }
        ));
    }
}
