//! Restoring a page from the image a record carries.
//!
//! **Invariant.** A restored page is exactly the [`BLCKSZ`] bytes the server saved, with zeros in
//! the hole it left out; anything that does not decompress to exactly that many bytes is an error.
//! A shorter or longer result means a damaged record, and half a page must never be served.

use std::cell::RefCell;

use pg_types::BLCKSZ;

use crate::{BlockImage, Compression};

/// Why an image does not make a page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Bytes plus hole are not a page, or the hole reaches past the page's end.
    #[error("a page image of {len} bytes with a hole of {hole_length} at {hole_offset} is no page")]
    BadLength {
        /// Bytes of the image, after decompression where there is any.
        len: usize,
        /// Offset of the hole.
        hole_offset: u16,
        /// Length of the hole.
        hole_length: u16,
    },
    /// The compressed bytes are not valid for their method.
    #[error("a {method:?} page image does not decompress to {expected} bytes: {reason}")]
    Corrupt {
        /// How the image is compressed.
        method: Compression,
        /// Bytes it should give.
        expected: usize,
        /// What is wrong with it.
        reason: String,
    },
}

thread_local! {
    /// A Zstandard context is some hundred kilobytes; one a thread is kept for all images.
    static ZSTD: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

impl BlockImage<'_> {
    /// Writes the saved page over `page`, decompressing it if need be and zeroing its hole. The
    /// page's LSN is left as it was saved; whoever replays the record stamps it.
    ///
    /// # Errors
    /// [`ImageError`] when the image is damaged; `page` then holds unspecified bytes.
    pub fn restore(&self, page: &mut [u8; BLCKSZ]) -> Result<(), ImageError> {
        let hole_offset = usize::from(self.hole_offset);
        let hole_length = usize::from(self.hole_length);
        let bad_length = |len| ImageError::BadLength {
            len,
            hole_offset: self.hole_offset,
            hole_length: self.hole_length,
        };
        let hole_end = hole_offset + hole_length;
        if hole_end > BLCKSZ {
            return Err(bad_length(self.bytes.len()));
        }
        // Without its hole the page comes first into the front of `page`; then the part behind the
        // hole moves to its place.
        let saved_len = BLCKSZ - hole_length;
        let saved = page
            .get_mut(..saved_len)
            .ok_or_else(|| bad_length(saved_len))?;
        match self.compression {
            None if self.bytes.len() == saved_len => saved.copy_from_slice(self.bytes),
            None => return Err(bad_length(self.bytes.len())),
            Some(method) => decompress(method, self.bytes, saved)?,
        }
        page.copy_within(hole_offset..saved_len, hole_end);
        if let Some(hole) = page.get_mut(hole_offset..hole_end) {
            hole.fill(0);
        }
        Ok(())
    }
}

fn decompress(method: Compression, bytes: &[u8], out: &mut [u8]) -> Result<(), ImageError> {
    let expected = out.len();
    let corrupt = |reason: String| ImageError::Corrupt {
        method,
        expected,
        reason,
    };
    let written = match method {
        Compression::Pglz => decompress_pglz(bytes, out)
            .ok_or_else(|| corrupt("a match or literal leaves the input or the page".to_owned()))?,
        Compression::Lz4 => lz4_flex::block::decompress_into(bytes, out)
            .map_err(|error| corrupt(error.to_string()))?,
        Compression::Zstd => {
            decompress_zstd(bytes, out).map_err(|error| corrupt(error.to_string()))?
        }
    };
    if written == expected {
        Ok(())
    } else {
        Err(corrupt(format!("it gives only {written}")))
    }
}

fn decompress_zstd(bytes: &[u8], out: &mut [u8]) -> std::io::Result<usize> {
    ZSTD.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(decompressor) => decompressor,
            None => slot.insert(zstd::bulk::Decompressor::new()?),
        };
        decompressor.decompress_to_buffer(bytes, out)
    })
}

/// PostgreSQL's LZ (`common/pg_lzcompress.c`). A control byte says, least significant bit first,
/// what the next eight items are: 0 a literal byte, 1 a match of two or three bytes: length - 3 in
/// the low nibble of the first (18 or more: the third byte is added), the distance in its high
/// nibble and the second byte. Returns the bytes written, or `None` for damaged input, which
/// includes input left over once `out` is full.
fn decompress_pglz(bytes: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut input = bytes.iter().copied();
    let mut written = 0usize;
    while written < out.len() {
        let Some(mut control) = input.next() else {
            break;
        };
        for _ in 0..8 {
            if written == out.len() || input.len() == 0 {
                break;
            }
            if control & 1 == 0 {
                *out.get_mut(written)? = input.next()?;
                written += 1;
            } else {
                let first = input.next()?;
                let second = input.next()?;
                let mut len = usize::from(first & 0x0F) + 3;
                if len == 18 {
                    len += usize::from(input.next()?);
                }
                let distance = usize::from(first & 0xF0) << 4 | usize::from(second);
                if distance == 0 || distance > written {
                    return None;
                }
                // The last match may be longer than what is left, as in PostgreSQL.
                len = len.min(out.len() - written);
                copy_match(out, written, distance, len)?;
                written += len;
            }
            control >>= 1;
        }
    }
    (input.len() == 0).then_some(written)
}

/// Copies `len` bytes from `distance` before `at` to `at`; source and target may overlap, and then
/// the run repeats.
fn copy_match(out: &mut [u8], at: usize, distance: usize, len: usize) -> Option<()> {
    let from = at.checked_sub(distance)?;
    if distance >= len {
        if at + len > out.len() {
            return None;
        }
        out.copy_within(from..from + len, at);
        return Some(());
    }
    let window = out.get_mut(from..at + len)?;
    for index in distance..window.len() {
        let byte = *window.get(index - distance)?;
        *window.get_mut(index)? = byte;
    }
    Some(())
}
