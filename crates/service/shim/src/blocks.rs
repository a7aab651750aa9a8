//! Block states: who may touch a block's bytes in the local file, and when.
//!
//! **Invariant.** The bytes of a governed block change only by the process that moved its word from
//! ABSENT to FILLING, from PRESENT to EVICTING, or to WRITTEN, each by compare-and-swap, so exactly one
//! wins. Otherwise a slow fill would overwrite a newer page of PostgreSQL's, or an eviction punch it out.
//!
//! FILLING and EVICTING are held for local system calls only, never while waiting for the network or
//! for another block out of order, so whoever waits for one waits briefly.
//!
//! All operations are sequentially consistent. Two of the arguments in the crate's documentation need
//! it (claim against truncation, in both directions), and the words are not where the time goes.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use shim_abi::map::{
    MapEntry, STATE_ABSENT, STATE_EVICTING, STATE_FILLING, STATE_MASK, STATE_PRESENT,
    STATE_REFERENCED, STATE_SEQUENCE, STATE_WRITTEN,
};
use shim_abi::view::MapView;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 8192;

/// The state in a word.
#[must_use]
pub const fn state(word: u32) -> u32 {
    word & STATE_MASK
}

/// Whether the local file holds the block.
#[must_use]
pub const fn is_here(word: u32) -> bool {
    matches!(state(word), STATE_PRESENT | STATE_WRITTEN)
}

/// Whether a block that was here when `before` was loaded stayed here until `after` was.
#[must_use]
pub const fn stayed_here(before: u32, after: u32) -> bool {
    is_here(before) && is_here(after) && before / STATE_SEQUENCE == after / STATE_SEQUENCE
}

const fn with_state(word: u32, state: u32) -> u32 {
    (word & !STATE_MASK) | state
}

/// Another process held a block for far longer than any local system call takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stuck;

/// Waits until the word is neither FILLING nor EVICTING and returns it.
///
/// # Errors
/// [`Stuck`] after a minute: the holder was killed. PostgreSQL's postmaster is then taking the whole
/// incarnation down, and what it left is not used again.
pub fn settled(word: &AtomicU32) -> Result<u32, Stuck> {
    for round in 0..70_000u32 {
        let value = word.load(SeqCst);
        if !matches!(state(value), STATE_FILLING | STATE_EVICTING) {
            return Ok(value);
        }
        match round {
            0..100 => std::hint::spin_loop(),
            // SAFETY: sched_yield has no preconditions.
            100..10_000 => unsafe {
                libc::sched_yield();
            },
            _ => pause_ms(1),
        }
    }
    Err(Stuck)
}

/// Sleeps; a signal ends it early.
pub fn pause_ms(ms: i32) {
    // SAFETY: poll of no descriptors only sleeps.
    unsafe { libc::poll(std::ptr::null_mut(), 0, ms) };
}

/// Takes an absent block to fill it. The caller then checks `base_blocks` and calls [`release`].
#[must_use]
pub fn claim_absent(word: &AtomicU32) -> bool {
    let value = word.load(SeqCst);
    state(value) == STATE_ABSENT
        && word
            .compare_exchange(value, with_state(value, STATE_FILLING), SeqCst, SeqCst)
            .is_ok()
}

/// Ends FILLING or EVICTING. Readers may set REFERENCED meanwhile; it is kept.
pub fn release(word: &AtomicU32, to: u32) {
    let _ = word.fetch_update(SeqCst, SeqCst, |value| Some(with_state(value, to)));
}

/// Ends EVICTING of a block that is gone: absent, and one eviction older.
fn release_evicted(word: &AtomicU32) {
    let _ = word.fetch_update(SeqCst, SeqCst, |value| {
        Some(with_state(value, STATE_ABSENT).wrapping_add(STATE_SEQUENCE) & !STATE_REFERENCED)
    });
}

/// What a block that is about to be overwritten whole was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// Absent: it is FILLING now, by the caller.
    Claimed,
    /// Here: it is WRITTEN now.
    Written,
}

/// Takes a block that the caller is going to overwrite whole.
///
/// # Errors
/// [`Stuck`] when another process holds it for good.
pub fn claim_overwrite(map: &MapView, word: &AtomicU32) -> Result<Overwrite, Stuck> {
    loop {
        let value = settled(word)?;
        match state(value) {
            STATE_WRITTEN => return Ok(Overwrite::Written),
            STATE_PRESENT => {
                if present_to_written(map, word, value) {
                    return Ok(Overwrite::Written);
                }
            }
            _ => {
                if claim_absent(word) {
                    return Ok(Overwrite::Claimed);
                }
            }
        }
    }
}

fn present_to_written(map: &MapView, word: &AtomicU32, value: u32) -> bool {
    let won = word
        .compare_exchange(value, with_state(value, STATE_WRITTEN), SeqCst, SeqCst)
        .is_ok();
    if won {
        map.header.present.fetch_sub(1, SeqCst);
    }
    won
}

/// Makes a block WRITTEN if its bytes are here; false when they must be fetched first.
///
/// # Errors
/// [`Stuck`] when another process holds it for good.
pub fn keep_if_here(map: &MapView, word: &AtomicU32) -> Result<bool, Stuck> {
    loop {
        let value = settled(word)?;
        match state(value) {
            STATE_WRITTEN => return Ok(true),
            STATE_ABSENT => return Ok(false),
            _ if present_to_written(map, word, value) => return Ok(true),
            _ => {}
        }
    }
}

/// Declares blocks from `from` on local for ever (truncate, drop), and returns when no process touches
/// their bytes any more.
///
/// # Errors
/// [`Stuck`] when another process holds one for good.
pub fn cut(map: &MapView, entry: &MapEntry, from: u32) -> Result<(), Stuck> {
    let old = entry.base_blocks.fetch_min(from, SeqCst);
    for block in from..old {
        let Some(word) = map.word(entry, block) else {
            break;
        };
        // Absent words stay: whoever claims one from now on sees the lowered base and backs off.
        keep_if_here(map, word)?;
    }
    Ok(())
}

/// Declares the blocks `from..to` local for ever, whatever they held. For SLRUs, whose segments go from
/// the front too, which `base_blocks` cannot express.
///
/// # Errors
/// [`Stuck`] when another process holds one for good.
pub fn disown(map: &MapView, entry: &MapEntry, from: u32, to: u32) -> Result<(), Stuck> {
    for block in from..to {
        let Some(word) = map.word(entry, block) else {
            break;
        };
        if claim_overwrite(map, word)? == Overwrite::Claimed {
            release(word, STATE_WRITTEN);
        }
    }
    Ok(())
}

/// What the evictor's clock found at a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// EVICTING now, by the caller.
    Claimed,
    /// Not one that may go now.
    Spared,
}

/// Passes the clock's hand over a word: a present block that was read since the last pass is spared,
/// another one is taken. A written block never goes (invariant 4).
pub fn claim_victim(word: &AtomicU32) -> Victim {
    let value = word.load(SeqCst);
    if state(value) != STATE_PRESENT {
        return Victim::Spared;
    }
    if value & STATE_REFERENCED != 0 {
        let _ = word.compare_exchange(value, value & !STATE_REFERENCED, SeqCst, SeqCst);
        return Victim::Spared;
    }
    match word.compare_exchange(value, with_state(value, STATE_EVICTING), SeqCst, SeqCst) {
        Ok(_) => Victim::Claimed,
        Err(_) => Victim::Spared,
    }
}

/// Ends the eviction of a run of blocks that were punched out.
pub fn evicted(map: &MapView, words: &[AtomicU32]) {
    for word in words {
        release_evicted(word);
    }
    map.header.present.fetch_sub(words.len() as u64, SeqCst);
    map.header
        .stat_evicted
        .fetch_add(words.len() as u64, SeqCst);
}

/// Notes that a present block was read.
pub fn touch(word: &AtomicU32, value: u32) {
    if value & STATE_REFERENCED == 0 {
        word.fetch_or(STATE_REFERENCED, SeqCst);
    }
}
