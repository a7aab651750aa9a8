//! Mini-records: a WAL record slimmed to what one page needs.
//!
//! **Invariant.** A mini-record holds everything redo of its page reads: the header, the main data,
//! *which* blocks the record refers to, and data and image of its own block. What it drops belongs
//! to other pages. Were more dropped, a page could not be rebuilt once the log is gone; were less,
//! a record with many images would be stored many times over.
//!
//! Layout: `target u8, flags u8, 0, 0`, then a record in WAL layout (so [`Record::decode`] reads
//! it) whose checksum field is zero. `target` is the block reference (0 to 32), or 0xFF for a page
//! that the record implies without a reference. See `docs/formats/wal.md`.

use pg_types::PgMajor;

use crate::record::{
    HAS_DATA, HAS_IMAGE, ID_ORIGIN, IMAGE_HAS_HOLE, MAX_BLOCK_ID, SAME_REL, WILL_INIT,
};
use crate::write::{finish_record, push_header, push_main_header};
use crate::{BlockImage, BlockRef, Compression, RECORD_HEADER_LEN, Record, RecordError};

const IMPLIED: u8 = 0xFF;
const INITIALIZES: u8 = 0x01;
const HINT_LSN: u8 = 0x02;

/// Bytes before the record.
const PREFIX_LEN: usize = 4;

/// Which page of the record a mini-record is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The page of this block reference.
    Block(u8),
    /// The page named by the key it is stored under: visibility-map bits, SLRU pages.
    Implied,
}

/// A decoded mini-record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MiniRecord<'a> {
    /// The page it is for.
    pub target: Target,
    /// Whether the page is rebuilt without looking at what it was: a chain may begin here.
    pub initializes: bool,
    /// Whether the cluster stamps LSNs for hint-like changes (data checksums or `wal_log_hints`).
    pub hint_lsn: bool,
    /// The slimmed record; [`Record::decode`] reads it, its checksum is zero.
    pub record: &'a [u8],
}

/// Why bytes are not a mini-record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MiniError {
    /// Fewer bytes than prefix and record header.
    #[error("mini-record is cut off at {have} bytes")]
    Truncated {
        /// Bytes given.
        have: usize,
    },
    /// A target that is neither a block reference nor "implied".
    #[error("mini-record names target {target:#04x}")]
    UnknownTarget {
        /// The byte.
        target: u8,
    },
    /// Flags of a later format.
    #[error(
        "mini-record has flags {flags:#04x} and padding {padding:#06x}, which no format defines"
    )]
    UnknownFlags {
        /// The flags byte.
        flags: u8,
        /// The two bytes that must be zero.
        padding: u16,
    },
    /// The record in it does not decode.
    #[error("record of a mini-record: {0}")]
    Record(#[from] RecordError),
}

impl<'a> MiniRecord<'a> {
    /// Appends to `out` the mini-record of `record` for `target`. Its own image is kept only with
    /// `keep_image`; images and data of other blocks are dropped.
    pub fn encode_from(
        record: &Record<'_>,
        target: Target,
        initializes: bool,
        hint_lsn: bool,
        keep_image: bool,
        out: &mut Vec<u8>,
    ) {
        let own = match target {
            Target::Block(id) => Some(id),
            Target::Implied => None,
        };
        let flags = if initializes { INITIALIZES } else { 0 } | if hint_lsn { HINT_LSN } else { 0 };
        out.extend_from_slice(&[own.unwrap_or(IMPLIED), flags, 0, 0]);
        let from = out.len();
        let header = &record.header;
        push_header(out, header.xid, header.prev, header.info, header.rmid);

        let mut own_image: &[u8] = &[];
        let mut own_data: &[u8] = &[];
        let mut previous = None;
        for block in &record.blocks {
            let mine = own == Some(block.id);
            let image = block.image.as_ref().filter(|_| mine && keep_image);
            let data = if mine { block.data } else { &[] };
            if mine {
                own_image = image.map_or(&[], |image| image.bytes);
                own_data = data;
            }
            push_block(
                out,
                block,
                image,
                data,
                previous == Some(block.rel),
                record.major,
            );
            previous = Some(block.rel);
        }
        if let Some(origin) = record.origin {
            out.push(ID_ORIGIN);
            out.extend_from_slice(&origin.to_le_bytes());
        }
        push_main_header(out, record.main.len());
        out.extend_from_slice(own_image);
        out.extend_from_slice(own_data);
        out.extend_from_slice(record.main);
        finish_record(out, from);
    }

    /// Reads the prefix; the record behind it is left to [`MiniRecord::decode_record`].
    ///
    /// # Errors
    /// [`MiniError`] when the prefix is not one that [`MiniRecord::encode_from`] writes.
    pub fn decode(bytes: &'a [u8]) -> Result<MiniRecord<'a>, MiniError> {
        let truncated = MiniError::Truncated { have: bytes.len() };
        let Some((&[target, flags, pad0, pad1], record)) = bytes.split_first_chunk::<PREFIX_LEN>()
        else {
            return Err(truncated);
        };
        if record.len() < RECORD_HEADER_LEN {
            return Err(truncated);
        }
        let target = match target {
            0..=MAX_BLOCK_ID => Target::Block(target),
            IMPLIED => Target::Implied,
            _ => return Err(MiniError::UnknownTarget { target }),
        };
        let padding = u16::from_le_bytes([pad0, pad1]);
        if flags & !(INITIALIZES | HINT_LSN) != 0 || padding != 0 {
            return Err(MiniError::UnknownFlags { flags, padding });
        }
        Ok(MiniRecord {
            target,
            initializes: flags & INITIALIZES != 0,
            hint_lsn: flags & HINT_LSN != 0,
            record,
        })
    }

    /// Decodes the record that this mini-record holds.
    ///
    /// # Errors
    /// [`RecordError`] when its bytes are not a record of `major`.
    pub fn decode_record(&self, major: PgMajor) -> Result<Record<'a>, RecordError> {
        Record::decode(self.record, major)
    }
}

fn push_block(
    out: &mut Vec<u8>,
    block: &BlockRef<'_>,
    image: Option<&BlockImage<'_>>,
    data: &[u8],
    same_rel: bool,
    major: PgMajor,
) {
    let mut flags = block.fork as u8;
    for (set, flag) in [
        (image.is_some(), HAS_IMAGE),
        (!data.is_empty(), HAS_DATA),
        (block.will_init, WILL_INIT),
        (same_rel, SAME_REL),
    ] {
        if set {
            flags |= flag;
        }
    }
    out.extend_from_slice(&[block.id, flags]);
    // Both lengths were u16 in the record this one comes from.
    out.extend_from_slice(&u16::try_from(data.len()).unwrap_or(u16::MAX).to_le_bytes());
    if let Some(image) = image {
        let len = u16::try_from(image.bytes.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&image.hole_offset.to_le_bytes());
        out.push(image_flags(image, major));
        if image.compression.is_some() && image.hole_length > 0 {
            out.extend_from_slice(&image.hole_length.to_le_bytes());
        }
    }
    if !same_rel {
        for field in [block.rel.spc, block.rel.db, block.rel.rel] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }
    out.extend_from_slice(&block.block.to_le_bytes());
}

/// `bimg_info` as `major` writes it: the bits moved in 15.
fn image_flags(image: &BlockImage<'_>, major: PgMajor) -> u8 {
    let hole = if image.hole_length > 0 {
        IMAGE_HAS_HOLE
    } else {
        0
    };
    let (apply, pglz) = match major {
        PgMajor::V14 => (0x04, 0x02),
        PgMajor::V15 | PgMajor::V16 | PgMajor::V17 | PgMajor::V18 => (0x02, 0x04),
    };
    let compression = match image.compression {
        None => 0,
        Some(Compression::Pglz) => pglz,
        Some(Compression::Lz4) => 0x08,
        Some(Compression::Zstd) => 0x10,
    };
    hole | compression | if image.apply { apply } else { 0 }
}
