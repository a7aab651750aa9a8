//! Making room: fetched blocks that were not read lately leave the local files.
//!
//! **Invariant.** Only a block that this process moved from PRESENT to EVICTING, and that is below
//! `base_blocks` after that, is punched out: never one that PostgreSQL wrote (invariant 4), never one of
//! a truncated or dropped range, whose file may already be another's.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use shim_abi::map::{MapEntry, STATE_PRESENT};

use crate::attach::Attached;
use crate::blocks::{self, BLOCK_BYTES, Victim};
use crate::local_file::LocalFiles;
use crate::target::block_at;
use crate::{real, report};

/// State words a process takes from the shared clock at a time, hence the longest punched run.
const STRIDE: u64 = 32;
/// Most words looked at in one call, so that no read waits long for room.
const MOST_WORDS: u64 = 16_384;

static UNSUPPORTED: AtomicBool = AtomicBool::new(false);

/// Evicts about `want` blocks, within bounds.
pub fn make_room(attached: &Attached, files: &mut LocalFiles, want: u64) {
    let map = &attached.map;
    let count = map.states.len() as u64;
    if count == 0 || UNSUPPORTED.load(Ordering::Relaxed) {
        return;
    }
    let (mut freed, mut looked) = (0, 0);
    while freed < want && looked < MOST_WORDS.min(count * 3) {
        let hand = map.header.clock_hand.fetch_add(STRIDE, Ordering::Relaxed) % count;
        let end = (hand + STRIDE).min(count);
        freed += sweep(attached, files, hand, end);
        looked += end - hand;
    }
}

/// Passes the clock's hand over the words `from..to`.
fn sweep(attached: &Attached, files: &mut LocalFiles, from: u64, to: u64) -> u64 {
    let map = &attached.map;
    let mut freed = 0;
    let mut word = from;
    while word < to {
        // Nearly all words are absent or written: skip them before looking anything up.
        let is_candidate = map
            .states
            .get(word as usize)
            .is_some_and(|state| blocks::state(state.load(Ordering::Relaxed)) == STATE_PRESENT);
        let owner = if is_candidate { map.owner(word) } else { None };
        let Some((index, entry)) = owner.and_then(|index| Some((index, attached.entry(index)?)))
        else {
            word += 1;
            continue;
        };
        let first = (word - entry.states_start) as u32;
        let Some(segment) = attached.segment_of(index, first) else {
            return freed;
        };
        let entry_end = u64::from(entry.initial_blocks);
        let segment_end = u64::from(segment.first_block()) + u64::from(segment.blocks);
        let run_end = to.min(entry.states_start + entry_end.min(segment_end));
        let Some(words) = map.states.get(word as usize..run_end as usize) else {
            return freed;
        };
        // The descriptor first: opening a file is no work to do while holding blocks.
        let Some(fd) = files.descriptor(attached, segment) else {
            word = run_end;
            continue;
        };
        let (looked, evicted) = evict_run(attached, entry, first, words, fd, segment.first_block());
        word += looked.max(1);
        freed += evicted;
    }
    freed
}

/// Takes the run of victims at the front of `words`; returns words passed and blocks evicted.
fn evict_run(
    attached: &Attached,
    entry: &MapEntry,
    first: u32,
    words: &[AtomicU32],
    fd: libc::c_int,
    segment_first: u32,
) -> (u64, u64) {
    let taken = words
        .iter()
        .take_while(|word| blocks::claim_victim(word) == Victim::Claimed)
        .count();
    let Some(claimed) = words.get(..taken) else {
        return (1, 0);
    };
    // Claimed first, base second: a truncation lowers the base first and looks at the words second.
    let below = entry
        .base_blocks
        .load(Ordering::SeqCst)
        .saturating_sub(first) as usize;
    let (go, stay) = claimed.split_at(below.min(taken));
    for word in stay {
        blocks::release(word, STATE_PRESENT);
    }
    if go.is_empty() {
        return (taken as u64 + 1, 0);
    }
    let _keep = real::KeepErrno::new();
    let at = block_at(first - segment_first);
    let bytes = (go.len() * BLOCK_BYTES) as i64;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the shim's own descriptor of this segment.
    let failed = unsafe { real::fallocate(fd, mode, at, bytes) } != 0;
    let errno = real::errno();
    if failed && matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) {
        for word in go {
            blocks::release(word, STATE_PRESENT);
        }
        if !UNSUPPORTED.swap(true, Ordering::Relaxed) {
            report::line(format_args!(
                "the cache limit cannot be kept: this file system punches no holes (errno {errno})"
            ));
        }
        return (taken as u64 + 1, 0);
    }
    // Any other failure may have punched a part. Absent is right either way: storage has these blocks.
    blocks::evicted(&attached.map, go);
    (taken as u64 + 1, go.len() as u64)
}
