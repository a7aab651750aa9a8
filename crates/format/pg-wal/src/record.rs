//! One WAL record: header, block references with their images and data, main data.
//!
//! Layout (`access/xlogrecord.h`): a 24-byte header; then, until what remains is exactly the
//! payload announced so far, item headers (block references 0 to 32, 252 top-level xid, 253
//! replication origin, 254/255 main data, always last); then the payloads in the order of their
//! headers: for each block its image, then its data; finally the main data.
//!
//! [`Record::decode`] borrows everything from its input and allocates only for records with more
//! than two block references.

use pg_types::{BLCKSZ, BlockNumber, ForkNumber, Lsn, PgMajor, RelFileLocator, Xid};
use smallvec::SmallVec;

use crate::RmgrId;
use crate::cursor::Cursor;

/// Bytes of `XLogRecord`, the fixed header.
pub const RECORD_HEADER_LEN: usize = 24;

/// The highest block id a record can use (`XLR_MAX_BLOCK_ID`).
pub const MAX_BLOCK_ID: u8 = 32;

pub(crate) const ID_TOPLEVEL_XID: u8 = 252;
pub(crate) const ID_ORIGIN: u8 = 253;
pub(crate) const ID_DATA_LONG: u8 = 254;
pub(crate) const ID_DATA_SHORT: u8 = 255;

const FORK_MASK: u8 = 0x0F;
pub(crate) const HAS_IMAGE: u8 = 0x10;
pub(crate) const HAS_DATA: u8 = 0x20;
pub(crate) const WILL_INIT: u8 = 0x40;
pub(crate) const SAME_REL: u8 = 0x80;

pub(crate) const IMAGE_HAS_HOLE: u8 = 0x01;

/// `XLogRecord`, little-endian, at the start of every record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the whole record, this header included.
    pub tot_len: u32,
    /// Transaction that wrote it, or zero.
    pub xid: Xid,
    /// Start of the record before it.
    pub prev: Lsn,
    /// Flag bits: the low four are the WAL's, the high four the resource manager's.
    pub info: u8,
    /// Resource manager.
    pub rmid: RmgrId,
    /// CRC-32C over the bytes after the header, then the header's first 20.
    pub crc: u32,
}

impl RecordHeader {
    /// Reads the header at the start of `bytes`; `None` when there are fewer than 24.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<RecordHeader> {
        let mut at = Cursor::new(bytes);
        let tot_len = at.u32()?;
        let xid = at.u32()?;
        let prev = Lsn(at.u64()?);
        let info = at.u8()?;
        let rmid = RmgrId(at.u8()?);
        at.take(2)?;
        let crc = at.u32()?;
        Some(RecordHeader {
            tot_len,
            xid,
            prev,
            info,
            rmid,
            crc,
        })
    }

    /// The bits of `info` that belong to the resource manager.
    #[must_use]
    pub const fn rmgr_info(&self) -> u8 {
        self.info & 0xF0
    }
}

/// How a block image is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// PostgreSQL's own LZ.
    Pglz,
    /// A raw LZ4 block.
    Lz4,
    /// A Zstandard frame.
    Zstd,
}

/// A full image of a page, perhaps compressed, perhaps without its hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockImage<'a> {
    /// The image as stored in the record.
    pub bytes: &'a [u8],
    /// Where the removed run of zeros begins.
    pub hole_offset: u16,
    /// Bytes that were removed there.
    pub hole_length: u16,
    /// `None` when the bytes are plain.
    pub compression: Option<Compression>,
    /// Whether redo must restore it (`BKPIMAGE_APPLY`). An image without this flag is the page
    /// *after* the record, written by `wal_consistency_checking`.
    pub apply: bool,
}

/// A block that a record refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRef<'a> {
    /// Number of the reference in the record, 0 to 32; numbers may have gaps.
    pub id: u8,
    /// Relation.
    pub rel: RelFileLocator,
    /// Fork of the relation.
    pub fork: ForkNumber,
    /// Block of the fork.
    pub block: BlockNumber,
    /// Whether redo builds the page from nothing (`BKPBLOCK_WILL_INIT`).
    pub will_init: bool,
    /// The page image, if the record has one.
    pub image: Option<BlockImage<'a>>,
    /// The resource manager's data for this block.
    pub data: &'a [u8],
}

/// A decoded record, borrowing from the bytes it was decoded from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// The fixed header.
    pub header: RecordHeader,
    /// Block references in ascending order of id.
    pub blocks: SmallVec<[BlockRef<'a>; 2]>,
    /// The resource manager's data that belongs to no block.
    pub main: &'a [u8],
    /// Replication origin, if the record names one.
    pub origin: Option<u16>,
    /// Top-level transaction, if the record names one (14 and later, logical decoding).
    pub toplevel_xid: Option<Xid>,
    /// The major it was decoded as; layouts of main data and image flags depend on it.
    pub major: PgMajor,
}

/// Why bytes are not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Fewer bytes than the header, or than the header announces.
    #[error("record is cut off: {have} bytes of {need}")]
    Truncated {
        /// Bytes given.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// More bytes than the header announces.
    #[error("record has {have} bytes but its header says {announced}")]
    TrailingBytes {
        /// Bytes given.
        have: usize,
        /// Bytes announced.
        announced: usize,
    },
    /// The checksum does not match.
    #[error("record checksum is {stored:08X} but its bytes give {computed:08X}")]
    BadChecksum {
        /// CRC in the header.
        stored: u32,
        /// CRC of the bytes.
        computed: u32,
    },
    /// An item header ends before its fields do.
    #[error("an item header of the record is cut off ({item})")]
    TruncatedItem {
        /// Which item.
        item: &'static str,
    },
    /// An item id that no release uses.
    #[error("item id {id} is unknown")]
    UnknownItem {
        /// The id.
        id: u8,
    },
    /// Block references must ascend.
    #[error("block reference {id} follows block reference {previous}")]
    BlockOutOfOrder {
        /// The id found.
        id: u8,
        /// The id before it.
        previous: u8,
    },
    /// A fork number that PostgreSQL does not have.
    #[error("block reference {id} names fork {fork}, which does not exist")]
    UnknownFork {
        /// Block reference.
        id: u8,
        /// Fork number.
        fork: u8,
    },
    /// `BKPBLOCK_SAME_REL` in the first block reference.
    #[error("block reference {id} repeats the relation of a reference that is not there")]
    NoPreviousRelation {
        /// Block reference.
        id: u8,
    },
    /// The has-data flag contradicts the data length.
    #[error("block reference {id} has data flag {flag} but {len} bytes of data")]
    DataFlagMismatch {
        /// Block reference.
        id: u8,
        /// Whether the flag is set.
        flag: bool,
        /// Length of the data.
        len: u16,
    },
    /// Image lengths that cannot make a page.
    #[error(
        "block reference {id} has an impossible image: {length} bytes, hole of {hole_length} at {hole_offset}, flags {flags:#04x}"
    )]
    BadImage {
        /// Block reference.
        id: u8,
        /// Bytes of the image.
        length: u16,
        /// Offset of the hole.
        hole_offset: u16,
        /// Length of the hole.
        hole_length: u16,
        /// `bimg_info`.
        flags: u8,
    },
    /// What the item headers announce differs from what is there.
    #[error("record payload is {have} bytes but its items announce {announced}")]
    PayloadMismatch {
        /// Bytes left after the item headers.
        have: usize,
        /// Bytes announced.
        announced: usize,
    },
}

impl<'a> Record<'a> {
    /// Decodes one whole record as a server of `major` wrote it; `bytes` must be exactly the record
    /// (`tot_len` bytes, page headers already removed). The checksum is *not* verified here, because
    /// mini-records reuse this layout without one: see [`Record::verify_checksum`].
    ///
    /// # Errors
    /// [`RecordError`] when the bytes are not a record of that major.
    pub fn decode(bytes: &'a [u8], major: PgMajor) -> Result<Record<'a>, RecordError> {
        let header = RecordHeader::decode(bytes).ok_or(RecordError::Truncated {
            have: bytes.len(),
            need: RECORD_HEADER_LEN,
        })?;
        let announced = header.tot_len as usize;
        if bytes.len() < announced.max(RECORD_HEADER_LEN) {
            return Err(RecordError::Truncated {
                have: bytes.len(),
                need: announced.max(RECORD_HEADER_LEN),
            });
        }
        if bytes.len() > announced {
            return Err(RecordError::TrailingBytes {
                have: bytes.len(),
                announced,
            });
        }
        let body = bytes.get(RECORD_HEADER_LEN..).unwrap_or_default();
        decode_body(header, body, major)
    }

    /// Checks the record's CRC-32C over `bytes`, which must be the whole record.
    ///
    /// # Errors
    /// [`RecordError::BadChecksum`], or [`RecordError::Truncated`] for less than a header.
    pub fn verify_checksum(bytes: &[u8]) -> Result<(), RecordError> {
        let truncated = RecordError::Truncated {
            have: bytes.len(),
            need: RECORD_HEADER_LEN,
        };
        let header = RecordHeader::decode(bytes).ok_or_else(|| truncated.clone())?;
        let (head, body) = bytes
            .split_at_checked(RECORD_HEADER_LEN)
            .ok_or_else(|| truncated.clone())?;
        let covered = head.get(..20).ok_or(truncated)?;
        let computed = crc32c::crc32c_append(crc32c::crc32c(body), covered);
        if computed == header.crc {
            Ok(())
        } else {
            Err(RecordError::BadChecksum {
                stored: header.crc,
                computed,
            })
        }
    }

    /// The block reference numbered `id`, if the record has it.
    #[must_use]
    pub fn block(&self, id: u8) -> Option<&BlockRef<'a>> {
        self.blocks.iter().find(|block| block.id == id)
    }

    /// The bits of `info` that belong to the resource manager.
    #[must_use]
    pub const fn info(&self) -> u8 {
        self.header.rmgr_info()
    }
}

fn decode_body<'a>(
    header: RecordHeader,
    body: &'a [u8],
    major: PgMajor,
) -> Result<Record<'a>, RecordError> {
    let mut at = Cursor::new(body);
    let mut record = Record {
        header,
        blocks: SmallVec::new(),
        main: &[],
        origin: None,
        toplevel_xid: None,
        major,
    };
    // Of each block's image and data, which come behind all headers.
    let mut lengths: SmallVec<[(u16, u16); 2]> = SmallVec::new();
    let mut announced = 0usize;
    let mut main_len = 0usize;
    let mut rel = None;

    while at.bytes.len() > announced {
        let cut = |item| RecordError::TruncatedItem { item };
        let id = at.u8().ok_or(cut("id"))?;
        match id {
            ID_DATA_SHORT => {
                main_len = at.u8().ok_or(cut("short main data"))? as usize;
                announced = announced.saturating_add(main_len);
                break;
            }
            ID_DATA_LONG => {
                main_len = at.u32().ok_or(cut("long main data"))? as usize;
                announced = announced.saturating_add(main_len);
                break;
            }
            ID_ORIGIN => record.origin = Some(at.u16().ok_or(cut("origin"))?),
            ID_TOPLEVEL_XID => {
                record.toplevel_xid = Some(at.u32().ok_or(cut("top-level xid"))?);
            }
            0..=MAX_BLOCK_ID => {
                if let Some(previous) = record.blocks.last().map(|last| last.id)
                    && id <= previous
                {
                    return Err(RecordError::BlockOutOfOrder { id, previous });
                }
                let block = decode_block(&mut at, id, &mut rel, major)?;
                let (image_len, data_len) = block.lengths;
                announced = announced
                    .saturating_add(usize::from(image_len))
                    .saturating_add(usize::from(data_len));
                record.blocks.push(block.reference);
                lengths.push(block.lengths);
            }
            _ => return Err(RecordError::UnknownItem { id }),
        }
    }
    let mismatch = RecordError::PayloadMismatch {
        have: at.bytes.len(),
        announced,
    };
    if at.bytes.len() != announced {
        return Err(mismatch);
    }
    for (block, (image_len, data_len)) in record.blocks.iter_mut().zip(lengths) {
        if let Some(image) = &mut block.image {
            image.bytes = at
                .take(usize::from(image_len))
                .ok_or_else(|| mismatch.clone())?;
        }
        block.data = at
            .take(usize::from(data_len))
            .ok_or_else(|| mismatch.clone())?;
    }
    record.main = at.take(main_len).ok_or(mismatch)?;
    Ok(record)
}

/// A block reference whose payload has not been located yet.
struct BlockHeader<'a> {
    reference: BlockRef<'a>,
    /// Bytes of its image and its data.
    lengths: (u16, u16),
}

#[inline]
fn decode_block<'a>(
    at: &mut Cursor<'a>,
    id: u8,
    rel: &mut Option<RelFileLocator>,
    major: PgMajor,
) -> Result<BlockHeader<'a>, RecordError> {
    let cut = RecordError::TruncatedItem {
        item: "block reference",
    };
    let flags = at.u8().ok_or_else(|| cut.clone())?;
    let data_len = at.u16().ok_or_else(|| cut.clone())?;
    let has_data = flags & HAS_DATA != 0;
    if has_data != (data_len > 0) {
        return Err(RecordError::DataFlagMismatch {
            id,
            flag: has_data,
            len: data_len,
        });
    }
    let fork = ForkNumber::try_from(u32::from(flags & FORK_MASK)).map_err(|_| {
        RecordError::UnknownFork {
            id,
            fork: flags & FORK_MASK,
        }
    })?;
    let mut image_len = 0;
    let image = if flags & HAS_IMAGE != 0 {
        let (image, length) = decode_image(at, id, major)?;
        image_len = length;
        Some(image)
    } else {
        None
    };
    if flags & SAME_REL == 0 {
        let spc = at.u32().ok_or_else(|| cut.clone())?;
        let db = at.u32().ok_or_else(|| cut.clone())?;
        let number = at.u32().ok_or_else(|| cut.clone())?;
        *rel = Some(RelFileLocator {
            spc,
            db,
            rel: number,
        });
    }
    let rel = rel.ok_or(RecordError::NoPreviousRelation { id })?;
    let block = at.u32().ok_or(cut)?;
    Ok(BlockHeader {
        reference: BlockRef {
            id,
            rel,
            fork,
            block,
            will_init: flags & WILL_INIT != 0,
            image,
            data: &[],
        },
        lengths: (image_len, data_len),
    })
}

/// Reads an image header; the image's bytes are located later. Flag bits moved in 15.
fn decode_image<'a>(
    at: &mut Cursor<'a>,
    id: u8,
    major: PgMajor,
) -> Result<(BlockImage<'a>, u16), RecordError> {
    let cut = RecordError::TruncatedItem {
        item: "block image",
    };
    let length = at.u16().ok_or_else(|| cut.clone())?;
    let hole_offset = at.u16().ok_or_else(|| cut.clone())?;
    let flags = at.u8().ok_or_else(|| cut.clone())?;
    let bad = |hole_length| RecordError::BadImage {
        id,
        length,
        hole_offset,
        hole_length,
        flags,
    };
    let has_hole = flags & IMAGE_HAS_HOLE != 0;
    let (apply, compression) = match major {
        PgMajor::V14 => match flags & !IMAGE_HAS_HOLE {
            0x00 => (false, None),
            0x02 => (false, Some(Compression::Pglz)),
            0x04 => (true, None),
            0x06 => (true, Some(Compression::Pglz)),
            _ => return Err(bad(0)),
        },
        PgMajor::V15 | PgMajor::V16 | PgMajor::V17 | PgMajor::V18 => {
            let compression = match flags & !(IMAGE_HAS_HOLE | 0x02) {
                0x00 => None,
                0x04 => Some(Compression::Pglz),
                0x08 => Some(Compression::Lz4),
                0x10 => Some(Compression::Zstd),
                _ => return Err(bad(0)),
            };
            (flags & 0x02 != 0, compression)
        }
    };
    let page = BLCKSZ as u16;
    let hole_length = match (compression, has_hole) {
        (Some(_), true) => at.u16().ok_or(cut)?,
        (Some(_), false) => 0,
        (None, _) => page.checked_sub(length).ok_or_else(|| bad(0))?,
    };
    let hole_fits = hole_offset
        .checked_add(hole_length)
        .is_some_and(|end| end <= page);
    let hole_agrees = if has_hole {
        hole_length > 0 && hole_offset > 0
    } else {
        hole_length == 0 && hole_offset == 0
    };
    let length_fits = compression.is_none() || length < page;
    if !hole_fits || !hole_agrees || !length_fits {
        return Err(bad(hole_length));
    }
    let image = BlockImage {
        bytes: &[],
        hole_offset,
        hole_length,
        compression,
        apply,
    };
    Ok((image, length))
}
