//! Which of this process's descriptors are governed segment files.
//!
//! **Invariant.** A descriptor's slot is set by the `open` that returned it and cleared by the `close`
//! that ends it, so a descriptor is never taken for a file it no longer is. Inherited by `fork` with the
//! descriptors themselves.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::attach::Segment;
use crate::path::{RELATION_SEGMENT_BLOCKS, SLRU_SEGMENT_PAGES};

/// Descriptors that can be governed; `open` of a governed file fails with `EMFILE` beyond.
const SLOTS: usize = 1 << 18;

/// One word a descriptor: entry + 1 in the low half, then 24 bits of segment, then the flags. All zero
/// means not governed, so that the table costs memory only where it is used.
static TABLE: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

const SLRU: u64 = 1 << 56;
const WRITABLE: u64 = 1 << 57;
const APPEND: u64 = 1 << 58;
const OWN: u64 = 1 << 59;

/// A governed descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Governed {
    /// The file.
    pub segment: Segment,
    /// Opened for writing.
    pub writable: bool,
    /// Opened with `O_APPEND`.
    pub append: bool,
}

fn slot(fd: c_int) -> Option<&'static AtomicU64> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// The governed file behind `fd`.
#[must_use]
pub fn governed(fd: c_int) -> Option<Governed> {
    let word = slot(fd)?.load(Ordering::Relaxed);
    let entry = (word as u32).checked_sub(1)?;
    let blocks = if word & SLRU != 0 {
        SLRU_SEGMENT_PAGES
    } else {
        RELATION_SEGMENT_BLOCKS
    };
    let number = (word >> 32) as u32 & 0xFF_FFFF;
    Some(Governed {
        segment: Segment {
            entry,
            number,
            blocks,
        },
        writable: word & WRITABLE != 0,
        append: word & APPEND != 0,
    })
}

/// Notes what an `open` returned; false when the table has no slot for it.
#[must_use]
pub fn opened(fd: c_int, segment: Option<Segment>, flags: c_int) -> bool {
    let Some(slot) = slot(fd) else {
        return segment.is_none();
    };
    let word = segment.map_or(0, |segment| {
        let mut word =
            (u64::from(segment.entry) + 1) | (u64::from(segment.number & 0xFF_FFFF) << 32);
        word |= if segment.is_slru() { SLRU } else { 0 };
        word |= if flags & libc::O_ACCMODE == libc::O_RDONLY {
            0
        } else {
            WRITABLE
        };
        word | if flags & libc::O_APPEND == 0 {
            0
        } else {
            APPEND
        }
    });
    slot.store(word, Ordering::Relaxed);
    true
}

/// Marks a descriptor that the shim itself opened.
pub fn mark_own(fd: c_int) {
    if let Some(slot) = slot(fd) {
        slot.store(OWN, Ordering::Relaxed);
    }
}

/// Clears a descriptor's slot; true when it was one of the shim's own.
pub fn closing(fd: c_int) -> bool {
    slot(fd).is_some_and(|slot| {
        let word = slot.load(Ordering::Relaxed);
        if word != 0 {
            slot.store(0, Ordering::Relaxed);
        }
        word & OWN != 0
    })
}
