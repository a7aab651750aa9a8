//! Sequential reads: what to ask for before it is read.
//!
//! **Invariant.** Advice only. A wrong guess costs a fetched page; the block states alone decide what a
//! read returns.

use std::ops::Range;

const TRACKED: usize = 64;
/// Ascending reads before the guess is trusted.
const TRUST_AFTER: u32 = 2;
/// First window, in blocks.
const FIRST_WINDOW: u32 = 16;
/// Largest window, in blocks: a request's worth, of which two may be in flight.
pub const LAST_WINDOW: u32 = 128;

#[derive(Clone, Copy)]
struct Stream {
    entry: u32,
    next: u32,
    ascending: u32,
    window: u32,
    asked: u32,
}

/// The streams a process reads, by entry.
pub struct ReadAhead {
    streams: [Stream; TRACKED],
}

impl ReadAhead {
    /// No streams.
    #[must_use]
    pub const fn new() -> ReadAhead {
        let none = Stream {
            entry: u32::MAX,
            next: 0,
            ascending: 0,
            window: 0,
            asked: 0,
        };
        ReadAhead {
            streams: [none; TRACKED],
        }
    }

    /// Notes a read of `count` blocks from `first` on and returns the blocks to ask for now, none at or
    /// beyond `end`. `limit` bounds the window; zero turns read-ahead off.
    pub fn note(
        &mut self,
        entry: u32,
        first: u32,
        count: u32,
        end: u32,
        limit: u32,
    ) -> Option<Range<u32>> {
        let after = first.saturating_add(count);
        let stream = self.streams.get_mut(entry as usize % TRACKED)?;
        if stream.entry != entry || stream.next != first {
            // PostgreSQL may read the block it just read again; that ends no stream.
            if stream.entry == entry && after == stream.next {
                return None;
            }
            *stream = Stream {
                entry,
                next: after,
                ascending: 0,
                window: FIRST_WINDOW,
                asked: after,
            };
            return None;
        }
        stream.next = after;
        stream.ascending = stream.ascending.saturating_add(1);
        if stream.ascending < TRUST_AFTER || limit == 0 {
            return None;
        }
        // The next window is asked for while half of the last is still ahead of the reader.
        let window = stream.window.min(limit);
        let from = stream.asked.max(after);
        if from - after > window / 2 || from >= end {
            return None;
        }
        stream.window = (stream.window * 2).min(LAST_WINDOW);
        let to = from.saturating_add(window).min(end);
        stream.asked = to;
        Some(from..to)
    }
}

impl Default for ReadAhead {
    fn default() -> ReadAhead {
        ReadAhead::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_asked_for_once_and_ahead_of_the_reader() {
        let mut readahead = ReadAhead::new();
        let mut asked = Vec::new();
        let mut largest = 0;
        for block in 0..1000 {
            if let Some(range) = readahead.note(7, block, 1, 1000, LAST_WINDOW) {
                assert!(range.start > block, "asked for what was just read");
                largest = largest.max(range.len());
                asked.extend(range);
            }
            if block > 10 && block < 999 {
                assert!(
                    asked.contains(&(block + 1)),
                    "block {block} not asked for in time"
                );
            }
        }
        assert_eq!(largest, LAST_WINDOW as usize);
        let once = asked.len();
        asked.dedup();
        assert_eq!((asked.len(), asked.last()), (once, Some(&999)));
    }

    #[test]
    fn random_reads_are_not_read_ahead() {
        let mut readahead = ReadAhead::new();
        let mut block = 1u32;
        for _ in 0..1000 {
            block = block.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            assert_eq!(
                readahead.note(7, block % 100_000, 1, 100_000, LAST_WINDOW),
                None
            );
        }
    }

    #[test]
    fn a_limit_bounds_the_window_and_zero_turns_it_off() {
        for limit in [0, 8] {
            let mut readahead = ReadAhead::new();
            for block in 0..500 {
                if let Some(range) = readahead.note(7, block, 1, 500, limit) {
                    assert!(range.len() <= limit as usize);
                }
            }
        }
    }
}
