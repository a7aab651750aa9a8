//! Putting fetched pages where they belong: into the local file, and into the buffers of whoever waits.
//!
//! **Invariant.** A fetched page is given out only while its block is below `base_blocks` and not
//! WRITTEN, judged after the page arrived; it is written to the local file only while this process
//! holds the block FILLING. The local file is a cache: when it cannot be written, the block stays
//! absent and the page is still given out.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shim_abi::map::{MapEntry, STATE_ABSENT, STATE_PRESENT, STATE_WRITTEN};

use crate::attach::{Attached, Segment};
use crate::blocks::{self, BLOCK_BYTES, pause_ms};
use crate::local_file::LocalFiles;
use crate::target::{BlockSet, Target, block_at};
use crate::{evict, real};

/// Most pages written with one call.
pub const RUN_PAGES: usize = 64;

/// Adjacent pages of one segment that arrived one after the other.
pub struct Run {
    /// Where they belong.
    pub segment: Segment,
    /// The entry's block of the first.
    pub first: u32,
    /// Pages.
    pub count: usize,
    /// Their bytes.
    pub pages: [iovec; RUN_PAGES],
}

impl Run {
    /// An empty run.
    #[must_use]
    pub const fn new() -> Run {
        Run {
            segment: Segment {
                entry: 0,
                number: 0,
                blocks: 1,
            },
            first: 0,
            count: 0,
            pages: [iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }; RUN_PAGES],
        }
    }

    /// Whether a page may be appended.
    #[must_use]
    pub fn takes(&self, segment: Segment, block: u32) -> bool {
        self.count == 0
            || (self.count < RUN_PAGES
                && self.segment == segment
                && self.first as usize + self.count == block as usize)
    }

    /// Appends a page of [`BLOCK_BYTES`].
    pub fn push(&mut self, segment: Segment, block: u32, page: *const u8) {
        if self.count == 0 {
            (self.segment, self.first) = (segment, block);
        }
        if let Some(slot) = self.pages.get_mut(self.count) {
            *slot = iovec {
                iov_base: page.cast_mut().cast(),
                iov_len: BLOCK_BYTES,
            };
            self.count += 1;
        }
    }
}

impl Default for Run {
    fn default() -> Run {
        Run::new()
    }
}

/// What a caller waits for.
pub struct Demand<'a> {
    /// The file.
    pub segment: Segment,
    /// The entry's block that member 0 of `missing` stands for.
    pub first: u32,
    /// Blocks not had yet.
    pub missing: BlockSet,
    /// Where their bytes go; `None` when they need only be in the local file.
    pub target: Option<Target<'a>>,
    /// The caller's descriptor.
    pub fd: c_int,
    /// Whether `fd` may be written through.
    pub writable: bool,
    /// Bytes of the target that exist: lowered when the file turns out to end earlier.
    pub available: usize,
    /// Why the local file did not take a page, if it did not.
    pub local_error: c_int,
}

/// Writes a run's pages that are still absent into the local file and hands the demanded ones out.
///
/// # Safety
/// The run's pages and the demand's target are valid.
pub unsafe fn settle(
    attached: &Attached,
    files: &mut LocalFiles,
    run: &Run,
    mut demand: Option<&mut Demand<'_>>,
) {
    let Some(entry) = attached.entry(run.segment.entry) else {
        return;
    };
    let own = demand
        .as_ref()
        .filter(|demand| demand.writable && demand.segment == run.segment);
    let own = own.map(|demand| demand.fd);
    let fd = own.or_else(|| files.descriptor(attached, run.segment));
    let error = match fd {
        // SAFETY: the caller's promise.
        Some(fd) => unsafe { write_absent(attached, entry, run, fd) },
        None => real::errno(),
    };
    if error != 0
        && let Some(demand) = demand.as_mut()
    {
        demand.local_error = error;
    }
    if let Some(demand) = demand {
        // SAFETY: the caller's promise.
        unsafe { deliver(attached, entry, run, demand) };
    }
    let limit = attached.map.header.cache_limit_blocks;
    let present = attached.map.header.present.load(Ordering::Relaxed);
    if limit > 0 && present > limit {
        evict::make_room(attached, files, (present - limit).min(256));
    } else if matches!(error, libc::ENOSPC | libc::EDQUOT) {
        evict::make_room(attached, files, 64);
    }
}

/// Claims the run's absent blocks and writes them; the rest of the run is already local. Returns the
/// errno of a write that failed, or 0.
unsafe fn write_absent(attached: &Attached, entry: &MapEntry, run: &Run, fd: c_int) -> c_int {
    let mut claimed = BlockSet::default();
    for index in 0..run.count as u32 {
        let Some(word) = attached.map.word(entry, run.first + index) else {
            break;
        };
        if blocks::claim_absent(word) {
            claimed.insert(index);
        } else {
            attached
                .map
                .header
                .stat_dropped
                .fetch_add(1, Ordering::Relaxed);
        }
    }
    // Claimed first, base second: a truncation lowers the base first and looks at the words second.
    let base = entry.base_blocks.load(Ordering::SeqCst);
    let mut error = 0;
    let mut from = claimed.next(0);
    while let Some(start) = from {
        let end = (start..)
            .find(|index| !claimed.contains(*index))
            .unwrap_or(start + 1);
        let below = base.saturating_sub(run.first).clamp(start, end);
        // SAFETY: the caller's promise.
        let (written, errno) = unsafe { write_run(run, fd, start, below) };
        error = if errno == 0 { error } else { errno };
        attached
            .map
            .header
            .present
            .fetch_add(u64::from(written), Ordering::SeqCst);
        for index in start..end {
            let state = if index < start + written {
                STATE_PRESENT
            } else {
                STATE_ABSENT
            };
            if let Some(word) = attached.map.word(entry, run.first + index) {
                if state == STATE_PRESENT {
                    let value = word.load(Ordering::Relaxed);
                    blocks::touch(word, value);
                }
                blocks::release(word, state);
            }
        }
        from = claimed.next(end);
    }
    error
}

/// Writes the pages `start..end` of a run. Returns whole pages written, and errno if not all were.
unsafe fn write_run(run: &Run, fd: c_int, start: u32, end: u32) -> (u32, c_int) {
    let Some(pages) = run.pages.get(start as usize..end as usize) else {
        return (0, 0);
    };
    if pages.is_empty() {
        return (0, 0);
    }
    let _keep = real::KeepErrno::new();
    let at = block_at(run.first + start - run.segment.first_block());
    for _ in 0..16 {
        // SAFETY: the run's pages are valid.
        let wrote = unsafe { real::pwritev(fd, pages.as_ptr(), pages.len() as c_int, at) };
        if wrote >= 0 {
            let whole = (wrote as usize / BLOCK_BYTES) as u32;
            let error = if whole == end - start {
                0
            } else {
                libc::ENOSPC
            };
            return (whole, error);
        }
        if real::errno() != libc::EINTR {
            break;
        }
    }
    (0, real::errno())
}

/// Hands out the pages of a run that a demand waits for and that are still storage's to give.
unsafe fn deliver(attached: &Attached, entry: &MapEntry, run: &Run, demand: &mut Demand<'_>) {
    if demand.segment != run.segment {
        return;
    }
    for (index, page) in run.pages.iter().take(run.count).enumerate() {
        let block = run.first + index as u32;
        let Some(bit) = block.checked_sub(demand.first) else {
            continue;
        };
        if !demand.missing.contains(bit) {
            continue;
        }
        let Some(word) = attached.map.word(entry, block) else {
            continue;
        };
        let value = word.load(Ordering::SeqCst);
        let is_storages = block < entry.base_blocks.load(Ordering::SeqCst)
            && blocks::state(value) != STATE_WRITTEN;
        match demand.target {
            // A block that became PostgreSQL's own is read from the local file instead.
            Some(_) if !is_storages => {}
            Some(target) => {
                // SAFETY: the page is valid, by the caller's promise, and this long.
                let bytes =
                    unsafe { std::slice::from_raw_parts(page.iov_base.cast::<u8>(), page.iov_len) };
                let at = block_at(block - run.segment.first_block());
                // SAFETY: the demand's target is valid, by the caller's promise.
                unsafe { target.put(at, bytes) };
                demand.missing.remove(bit);
            }
            None if blocks::is_here(value) => demand.missing.remove(bit),
            None => {}
        }
    }
}

/// Takes the demanded blocks that are local by now from the local file.
///
/// # Errors
/// The errno of a read that failed, or EIO when another process holds a block for good.
///
/// # Safety
/// The demand's target and descriptor are valid.
pub unsafe fn take_local(attached: &Attached, demand: &mut Demand<'_>) -> Result<(), c_int> {
    let Some(entry) = attached.entry(demand.segment.entry) else {
        return Err(libc::EIO);
    };
    let mut next = demand.missing.next(0);
    while let Some(bit) = next {
        let block = demand.first + bit;
        let is_local = block >= entry.base_blocks.load(Ordering::SeqCst);
        match (attached.map.word(entry, block), &demand.target) {
            (None, None) => demand.missing.remove(bit),
            (word, None) => {
                if is_local || word.is_some_and(|word| blocks::is_here(word.load(Ordering::SeqCst)))
                {
                    demand.missing.remove(bit);
                }
            }
            (word, Some(_)) => {
                let before = word.map(|word| word.load(Ordering::SeqCst));
                if is_local || before.is_none_or(blocks::is_here) {
                    // SAFETY: the caller's promise.
                    let seen = unsafe { reread(demand, block)? };
                    let after = word.map(|word| word.load(Ordering::SeqCst));
                    let stayed = match (before, after) {
                        (Some(before), Some(after)) => blocks::stayed_here(before, after),
                        _ => true,
                    };
                    if is_local || stayed {
                        demand.available = demand.available.min(seen);
                        demand.missing.remove(bit);
                    }
                }
            }
        }
        next = demand.missing.next(bit + 1);
    }
    Ok(())
}

/// Reads one block of the local file into a demand's target; returns how many bytes of the target exist
/// as far as this block tells.
unsafe fn reread(demand: &Demand<'_>, block: u32) -> Result<usize, c_int> {
    let Some(target) = demand.target else {
        return Ok(usize::MAX);
    };
    let _keep = real::KeepErrno::new();
    let mut page = [0u8; BLOCK_BYTES];
    let at = block_at(block - demand.segment.first_block());
    loop {
        // SAFETY: the buffer is this long.
        let got = unsafe { real::pread(demand.fd, page.as_mut_ptr().cast(), BLOCK_BYTES, at) };
        match (usize::try_from(got), real::errno()) {
            (Ok(got), _) => {
                // SAFETY: the caller's promise.
                unsafe { target.put(at, page.get(..got).unwrap_or_default()) };
                let whole = got == BLOCK_BYTES;
                let end = usize::try_from(at + got as i64 - target.at).unwrap_or(0);
                return Ok(if whole { usize::MAX } else { end });
            }
            (Err(_), libc::EINTR) => pause_ms(1),
            (Err(_), errno) => return Err(errno),
        }
    }
}
