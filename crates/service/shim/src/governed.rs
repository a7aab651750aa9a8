//! Reads, writes and truncations of governed files.
//!
//! **Invariant.** A read returns, for every block below `base_blocks`, either the local file's bytes,
//! read while the block was PRESENT or WRITTEN throughout, or storage's page, fetched while it was not
//! WRITTEN. A write has made its blocks WRITTEN (or holds them) before the first byte changes, and a
//! truncation has made them local and waited for their last holder. The crate's documentation argues why.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec, ssize_t};
use shim_abi::map::{MapEntry, STATE_ABSENT, STATE_WRITTEN};

use crate::attach::{Attached, Segment};
use crate::blocks::{self, BLOCK_BYTES, Overwrite};
use crate::fds::Governed;
use crate::fetch;
use crate::fill::Demand;
use crate::readahead::LAST_WINDOW;
use crate::real;
use crate::session::{self, Session};
use crate::target::{BlockSet, MAX_CALL_BLOCKS, Target, block_at};

/// Hits collected before the shared counter is touched, so that it does not slow every read.
const HITS_BATCH: u64 = 32;

/// The caller's buffers, cut to what one call handles.
pub struct Buffers<'a> {
    single: [iovec; 1],
    vectors: &'a [iovec],
    /// Bytes.
    pub len: usize,
}

impl<'a> Buffers<'a> {
    /// One buffer.
    #[must_use]
    pub fn one(buf: *mut libc::c_void, len: usize) -> Buffers<'a> {
        let len = len.min((MAX_CALL_BLOCKS - 1) * BLOCK_BYTES);
        Buffers {
            single: [iovec {
                iov_base: buf,
                iov_len: len,
            }],
            vectors: &[],
            len,
        }
    }

    /// Several buffers; only the first when together they are more than one call handles.
    ///
    /// # Safety
    /// As `preadv`'s.
    #[must_use]
    pub unsafe fn several(iov: *const iovec, count: c_int) -> Buffers<'a> {
        let empty = Buffers::one(std::ptr::null_mut(), 0);
        let Ok(count) = usize::try_from(count) else {
            return empty;
        };
        if iov.is_null() || count == 0 {
            return empty;
        }
        // SAFETY: the caller's promise.
        let vectors = unsafe { std::slice::from_raw_parts(iov, count) };
        let len = vectors
            .iter()
            .fold(0usize, |sum, vector| sum.saturating_add(vector.iov_len));
        match vectors.iter().find(|vector| vector.iov_len > 0) {
            Some(first) if len > (MAX_CALL_BLOCKS - 1) * BLOCK_BYTES => {
                Buffers::one(first.iov_base, first.iov_len)
            }
            _ => Buffers {
                single: empty.single,
                vectors,
                len,
            },
        }
    }

    /// The buffers.
    #[must_use]
    pub fn vectors(&self) -> &[iovec] {
        if self.vectors.is_empty() {
            &self.single
        } else {
            self.vectors
        }
    }

    unsafe fn pread(&self, fd: c_int, at: i64) -> ssize_t {
        match self.vectors() {
            // SAFETY: the caller's promise.
            [one] => unsafe { real::pread(fd, one.iov_base, one.iov_len, at) },
            // SAFETY: the caller's promise.
            many => unsafe { real::preadv(fd, many.as_ptr(), many.len() as c_int, at) },
        }
    }

    unsafe fn pwrite(&self, fd: c_int, at: i64) -> ssize_t {
        match self.vectors() {
            // SAFETY: the caller's promise.
            [one] => unsafe { real::pwrite(fd, one.iov_base, one.iov_len, at) },
            // SAFETY: the caller's promise.
            many => unsafe { real::pwritev(fd, many.as_ptr(), many.len() as c_int, at) },
        }
    }
}

/// The entry's blocks that `len` bytes from `at` on touch; `None` for an empty or impossible range, or
/// one beyond the segment's end, which the kernel is to judge.
fn touched(segment: &Segment, at: i64, len: usize) -> Option<(u32, u32)> {
    let at = u64::try_from(at).ok()?;
    let last = at.checked_add(u64::try_from(len).ok()?)?.checked_sub(1)?;
    if len == 0 || last / BLOCK_BYTES as u64 >= u64::from(segment.blocks) {
        return None;
    }
    let block = |byte: u64| segment.first_block() + (byte / BLOCK_BYTES as u64) as u32;
    Some((block(at), block(last)))
}

fn fail(errno: c_int) -> ssize_t {
    real::set_errno(errno);
    -1
}

/// `pread`/`preadv` of a governed file.
///
/// # Safety
/// As theirs.
pub unsafe fn read(
    attached: &Attached,
    fd: c_int,
    file: &Governed,
    buffers: &Buffers<'_>,
    at: i64,
) -> ssize_t {
    let segment = file.segment;
    let (Some(entry), Some((first, last))) = (
        attached.entry(segment.entry),
        touched(&segment, at, buffers.len),
    ) else {
        // SAFETY: the caller's promise.
        return unsafe { buffers.pread(fd, at) };
    };
    let base = entry.base_blocks.load(Ordering::SeqCst);
    let count = last - first + 1;
    let governed = base.saturating_sub(first).min(count);
    if governed == 0 {
        // SAFETY: the caller's promise.
        return unsafe { buffers.pread(fd, at) };
    }
    let mut before = [0u32; MAX_CALL_BLOCKS];
    let mut here = 0;
    for (block, value) in (first..first + governed).zip(before.iter_mut()) {
        if let Some(word) = attached.map.word(entry, block) {
            *value = word.load(Ordering::SeqCst);
            if blocks::is_here(*value) {
                blocks::touch(word, *value);
                here += 1;
            }
        }
    }
    // A relation's file reaches to its base; only where nothing is to be had from it is it not read.
    let mut got = buffers.len as ssize_t;
    if here > 0 || governed < count || segment.is_slru() {
        // SAFETY: the caller's promise.
        got = unsafe { buffers.pread(fd, at) };
    }
    let Some((_, last_got)) = usize::try_from(got)
        .ok()
        .and_then(|got| touched(&segment, at, got))
    else {
        return got;
    };
    let mut missing = BlockSet::default();
    for (bit, value) in (0..governed.min(last_got - first + 1)).zip(before) {
        let word = attached.map.word(entry, first + bit);
        let after = word.map_or(STATE_ABSENT, |word| word.load(Ordering::SeqCst));
        if !blocks::stayed_here(value, after) {
            missing.insert(bit);
        }
    }
    let demand = Demand {
        segment,
        first,
        missing,
        target: Some(Target {
            buffers: buffers.vectors(),
            at,
            len: got as usize,
        }),
        fd,
        writable: file.writable,
        available: got as usize,
        local_error: 0,
    };
    // SAFETY: the caller's promise.
    unsafe { finish_read(attached, entry, demand, count) }
}

unsafe fn finish_read(
    attached: &Attached,
    entry: &MapEntry,
    mut demand: Demand<'_>,
    count: u32,
) -> ssize_t {
    let (index, first) = (demand.segment.entry, demand.first);
    let hits = u64::from(count - demand.missing.len().min(count));
    session::with(|session| {
        let _keep = real::KeepErrno::new();
        note_hits(session, attached, hits);
        let ahead = if demand.segment.is_slru() {
            None
        } else {
            let base = entry.base_blocks.load(Ordering::Relaxed);
            session
                .readahead
                .note(index, first, count, base, window_limit(attached))
        };
        if demand.missing.is_empty() {
            if let Some(ahead) = ahead {
                fetch::prefetch(session, attached, index, ahead);
            }
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { fetch::fetch(session, attached, &mut demand, ahead) }
    })
    .map_or_else(fail, |()| demand.available as ssize_t)
}

/// Read-ahead must not evict what it fetched before it is read.
fn window_limit(attached: &Attached) -> u32 {
    match attached.map.header.cache_limit_blocks {
        0 => LAST_WINDOW,
        limit => (limit / 8).min(u64::from(LAST_WINDOW)) as u32,
    }
}

fn note_hits(session: &mut Session, attached: &Attached, hits: u64) {
    session.hits += hits;
    if session.hits >= HITS_BATCH {
        attached
            .map
            .header
            .stat_hits
            .fetch_add(session.hits, Ordering::Relaxed);
        session.hits = 0;
    }
}

/// `pwrite`/`pwritev` of a governed file.
///
/// # Safety
/// As theirs.
pub unsafe fn write(
    attached: &Attached,
    fd: c_int,
    file: &Governed,
    buffers: &Buffers<'_>,
    at: i64,
) -> ssize_t {
    let segment = file.segment;
    let (Some(entry), Some((first, last))) = (
        attached.entry(segment.entry),
        touched(&segment, at, buffers.len),
    ) else {
        // SAFETY: the caller's promise.
        return unsafe { buffers.pwrite(fd, at) };
    };
    if first >= entry.base_blocks.load(Ordering::SeqCst) {
        // SAFETY: the caller's promise.
        return unsafe { buffers.pwrite(fd, at) };
    }
    let end = at + buffers.len as i64;
    let block_of = |block: u32| block_at(block - segment.first_block());
    // Blocks that keep some of their bytes need the rest of them first.
    for (block, is_part) in [
        (first, block_of(first) < at),
        (last, block_of(last) + BLOCK_BYTES as i64 > end),
    ] {
        if is_part
            && let Err(errno) = session::with(|session| {
                fetch::own(
                    session,
                    attached,
                    segment,
                    fd,
                    file.writable,
                    block..block + 1,
                )
            })
        {
            return fail(errno);
        }
    }
    let mut held = BlockSet::default();
    for block in first..=last {
        if block >= entry.base_blocks.load(Ordering::SeqCst) {
            break;
        }
        let Some(word) = attached.map.word(entry, block) else {
            break;
        };
        match blocks::claim_overwrite(&attached.map, word) {
            Ok(Overwrite::Claimed) => held.insert(block - first),
            Ok(Overwrite::Written) => {}
            Err(blocks::Stuck) => {
                release_held(attached, entry, first, &held, first);
                return fail(libc::EIO);
            }
        }
    }
    // SAFETY: the caller's promise.
    let wrote = unsafe { buffers.pwrite(fd, at) };
    let covered = usize::try_from(wrote).unwrap_or(0) as i64 + at;
    let whole = segment.first_block() + (covered / BLOCK_BYTES as i64) as u32;
    release_held(attached, entry, first, &held, whole.max(first));
    wrote
}

/// Ends the holds of a write: blocks below `whole` were overwritten whole; the others are still only in
/// storage, whatever the local file has of them now.
fn release_held(attached: &Attached, entry: &MapEntry, first: u32, held: &BlockSet, whole: u32) {
    let mut next = held.next(0);
    while let Some(bit) = next {
        if let Some(word) = attached.map.word(entry, first + bit) {
            let state = if first + bit < whole {
                STATE_WRITTEN
            } else {
                STATE_ABSENT
            };
            blocks::release(word, state);
        }
        next = held.next(bit + 1);
    }
}

/// Makes what a segment holds beyond `len` bytes local, before it is cut off.
///
/// # Errors
/// An errno.
pub fn cut(attached: &Attached, segment: &Segment, fd: c_int, len: i64) -> Result<(), c_int> {
    let Some(entry) = attached.entry(segment.entry) else {
        return Err(libc::EIO);
    };
    let Ok(len) = u64::try_from(len) else {
        return Ok(());
    };
    let keep = len.div_ceil(BLOCK_BYTES as u64);
    if keep >= u64::from(segment.blocks) {
        return Ok(());
    }
    let from = segment.first_block() + keep as u32;
    if !len.is_multiple_of(BLOCK_BYTES as u64) {
        // The last block keeps a part of its bytes.
        session::with(|session| {
            fetch::own(session, attached, *segment, fd, false, from - 1..from)
        })?;
    }
    let done = if segment.is_slru() {
        blocks::disown(
            &attached.map,
            entry,
            from,
            segment.first_block() + segment.blocks,
        )
    } else {
        blocks::cut(&attached.map, entry, from)
    };
    done.map_err(|_| libc::EIO)
}

/// Makes the blocks that `len` bytes from `at` on touch local for good, with their content.
///
/// # Errors
/// An errno.
pub fn own_range(attached: &Attached, segment: &Segment, at: i64, len: i64) -> Result<(), c_int> {
    let Some((first, last)) = touched(segment, at, usize::try_from(len).unwrap_or(0)) else {
        return Ok(());
    };
    session::with(|session| fetch::own(session, attached, *segment, -1, false, first..last + 1))
}

/// `posix_fadvise(WILLNEED)` of a governed file.
pub fn advise(attached: &Attached, segment: &Segment, at: i64, len: i64) {
    let Some((first, last)) = touched(segment, at, usize::try_from(len).unwrap_or(0)) else {
        return;
    };
    if segment.is_slru() {
        return;
    }
    let last = last.min(first.saturating_add(LAST_WINDOW - 1));
    session::with(|session| {
        let _keep = real::KeepErrno::new();
        fetch::prefetch(session, attached, segment.entry, first..last + 1);
    });
}
