//! The caller's buffers of one read, and the blocks of it that are still missing.
//!
//! **Invariant.** A page's bytes go to the places of the caller's buffers that its file offset says, cut
//! to the read's extent: never beyond what the caller gave.

use libc::iovec;

use crate::blocks::BLOCK_BYTES;

/// Most blocks that one governed call handles; longer calls are cut short, which POSIX allows and
/// PostgreSQL (at most 1 MiB a call) never sees.
pub const MAX_CALL_BLOCKS: usize = 256;

/// A set of blocks, by their distance from a call's first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockSet([u64; MAX_CALL_BLOCKS / 64]);

impl BlockSet {
    /// Adds a block.
    pub fn insert(&mut self, block: u32) {
        if let Some(word) = self.0.get_mut(block as usize / 64) {
            *word |= 1 << (block % 64);
        }
    }

    /// Removes a block.
    pub fn remove(&mut self, block: u32) {
        if let Some(word) = self.0.get_mut(block as usize / 64) {
            *word &= !(1 << (block % 64));
        }
    }

    /// Whether a block is in it.
    #[must_use]
    pub fn contains(&self, block: u32) -> bool {
        self.0
            .get(block as usize / 64)
            .is_some_and(|word| word & (1 << (block % 64)) != 0)
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Blocks in it.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The first block at or after `from`.
    #[must_use]
    pub fn next(&self, from: u32) -> Option<u32> {
        (from..MAX_CALL_BLOCKS as u32).find(|block| self.contains(*block))
    }
}

/// Where the bytes of a read go.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The caller's buffers.
    pub buffers: &'a [iovec],
    /// File offset of their first byte.
    pub at: i64,
    /// Bytes wanted: at most what the buffers hold.
    pub len: usize,
}

impl Target<'_> {
    /// Copies what overlaps of the page at file offset `page_at`.
    ///
    /// # Safety
    /// The buffers are valid for writes.
    pub unsafe fn put(&self, page_at: i64, page: &[u8]) {
        let skip = usize::try_from(self.at - page_at).unwrap_or(0);
        let Some(mut page) = page.get(skip..) else {
            return;
        };
        let mut from = usize::try_from(page_at - self.at).unwrap_or(0);
        let Some(room) = self.len.checked_sub(from) else {
            return;
        };
        page = page.get(..room).unwrap_or(page);
        for buffer in self.buffers {
            if from >= buffer.iov_len {
                from -= buffer.iov_len;
                continue;
            }
            let take = page.len().min(buffer.iov_len - from);
            let (now, later) = page.split_at(take);
            // SAFETY: `from + take` is within this buffer, which the caller vouches for; the source is
            // the shim's own memory, so they do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    now.as_ptr(),
                    buffer.iov_base.cast::<u8>().wrapping_add(from),
                    take,
                );
            }
            page = later;
            from = 0;
            if page.is_empty() {
                return;
            }
        }
    }
}

/// One block's place in its file.
#[must_use]
pub const fn block_at(block_in_segment: u32) -> i64 {
    block_in_segment as i64 * BLOCK_BYTES as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_land_where_their_offset_says() {
        let file: Vec<u8> = (0..4 * BLOCK_BYTES).map(|at| (at * 31 / 7) as u8).collect();
        for (at, sizes) in [
            (0usize, &[8192usize, 8192][..]),
            (8192, &[8192]),
            (100, &[50, 1, 9000, 3]),
            (8191, &[2]),
            (5000, &[0, 20000]),
        ] {
            let mut buffers: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0xEE; *size]).collect();
            let vectors: Vec<iovec> = buffers
                .iter_mut()
                .map(|buffer| iovec {
                    iov_base: buffer.as_mut_ptr().cast(),
                    iov_len: buffer.len(),
                })
                .collect();
            let len: usize = sizes.iter().sum();
            let target = Target {
                buffers: &vectors,
                at: at as i64,
                len,
            };
            for block in 0..4 {
                let page = &file[block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES];
                // SAFETY: the vectors describe `buffers`.
                unsafe { target.put(block_at(block as u32), page) };
            }
            assert_eq!(buffers.concat(), &file[at..at + len], "{at} {sizes:?}");
        }
    }

    #[test]
    fn block_sets_know_their_members() {
        let mut set = BlockSet::default();
        for block in [0, 63, 64, 255] {
            set.insert(block);
        }
        assert_eq!(
            (set.len(), set.next(1), set.next(65)),
            (4, Some(63), Some(255))
        );
        set.insert(256);
        assert_eq!(set.len(), 4, "beyond the set");
        for block in [0, 63, 64, 255] {
            set.remove(block);
        }
        assert!(set.is_empty());
    }
}
