//! Pages that were rebuilt by replay, kept in memory.
//!
//! An entry is (page, version): the page with every change up to and including `version`. It
//! answers a read at a later LSN when the page has no change between, and otherwise spares the
//! replay of everything up to it. Pages taken from an image layer unchanged are not kept: the
//! operating system caches those files already, and a cold scan would push out the pages that were
//! expensive to make.
//!
//! Entries never go stale, because the past does not change. The room is bounded; CLOCK decides who
//! leaves.

use std::collections::HashMap;

use parking_lot::Mutex;
use pg_types::{BLCKSZ, Lsn, PageKey};
use smallvec::SmallVec;

use crate::key_hash::{self, BuildPageKeyHasher};

const SHARDS: usize = 16;

/// The cache.
pub(crate) struct PageCache {
    shards: Vec<Mutex<Shard>>,
}

struct Shard {
    capacity: usize,
    index: HashMap<PageKey, SmallVec<[u32; 2]>, BuildPageKeyHasher>,
    slots: Vec<Slot>,
    hand: usize,
}

struct Slot {
    key: PageKey,
    version: Lsn,
    used: bool,
    page: Box<[u8; BLCKSZ]>,
}

impl PageCache {
    /// A cache of at most `bytes` of pages.
    pub(crate) fn new(bytes: u64) -> PageCache {
        let capacity = usize::try_from(bytes).unwrap_or(usize::MAX) / BLCKSZ / SHARDS;
        let shard = || Shard {
            capacity,
            index: HashMap::default(),
            slots: Vec::new(),
            hand: 0,
        };
        PageCache {
            shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(),
        }
    }

    /// Copies the newest kept version of `key` in `(above, upto]` to `page` and returns its LSN.
    pub(crate) fn find(
        &self,
        key: &PageKey,
        above: Lsn,
        upto: Lsn,
        page: &mut [u8; BLCKSZ],
    ) -> Option<Lsn> {
        let mut shard = self.shard(key)?.lock();
        let Shard { index, slots, .. } = &mut *shard;
        let newest = index
            .get(key)?
            .iter()
            .filter_map(|slot| Some((slots.get(*slot as usize)?.version, *slot)))
            .filter(|(version, _)| *version > above && *version <= upto)
            .max()?;
        let slot = slots.get_mut(newest.1 as usize)?;
        slot.used = true;
        page.copy_from_slice(slot.page.as_slice());
        Some(slot.version)
    }

    /// Keeps a page.
    pub(crate) fn keep(&self, key: &PageKey, version: Lsn, page: &[u8; BLCKSZ]) {
        if let Some(shard) = self.shard(key) {
            shard.lock().keep(key, version, page);
        }
    }

    fn shard(&self, key: &PageKey) -> Option<&Mutex<Shard>> {
        self.shards
            .get((key_hash::hash(key) >> 48) as usize % SHARDS)
    }
}

impl Shard {
    fn keep(&mut self, key: &PageKey, version: Lsn, page: &[u8; BLCKSZ]) {
        if self.capacity == 0 {
            return;
        }
        let known = self.index.get(key).is_some_and(|slots| {
            slots.iter().any(|slot| {
                self.slots
                    .get(*slot as usize)
                    .is_some_and(|slot| slot.version == version)
            })
        });
        if known {
            return;
        }
        let number = if self.slots.len() < self.capacity {
            self.slots.push(Slot {
                key: *key,
                version,
                used: true,
                page: Box::new(*page),
            });
            self.slots.len() - 1
        } else {
            let victim = self.evict();
            let Some(slot) = self.slots.get_mut(victim) else {
                return;
            };
            slot.key = *key;
            slot.version = version;
            slot.used = true;
            slot.page.copy_from_slice(page);
            victim
        };
        self.index.entry(*key).or_default().push(number as u32);
    }

    /// Takes a slot that was not used since the hand last passed out of the index.
    fn evict(&mut self) -> usize {
        loop {
            let number = self.hand % self.slots.len().max(1);
            self.hand = number + 1;
            let Some(slot) = self.slots.get_mut(number) else {
                return number;
            };
            if slot.used {
                slot.used = false;
                continue;
            }
            if let Some(slots) = self.index.get_mut(&slot.key) {
                slots.retain(|slot| *slot as usize != number);
                if slots.is_empty() {
                    self.index.remove(&slot.key);
                }
            }
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use pg_types::{ForkNumber, RelFileLocator};

    use super::*;

    fn key(block: u32) -> PageKey {
        PageKey::relation(
            RelFileLocator {
                spc: 1663,
                db: 5,
                rel: 16384,
            },
            ForkNumber::Main,
            block,
        )
    }

    #[test]
    fn finds_the_newest_version_in_range() {
        let cache = PageCache::new(1 << 24);
        for version in [10, 20, 30] {
            cache.keep(&key(1), Lsn(version), &[version as u8; BLCKSZ]);
        }
        let mut page = [0; BLCKSZ];
        assert_eq!(
            cache.find(&key(1), Lsn(0), Lsn(25), &mut page),
            Some(Lsn(20))
        );
        assert_eq!(page, [20; BLCKSZ]);
        assert_eq!(cache.find(&key(1), Lsn(20), Lsn(25), &mut page), None);
        assert_eq!(cache.find(&key(1), Lsn(0), Lsn(9), &mut page), None);
        assert_eq!(cache.find(&key(2), Lsn(0), Lsn(99), &mut page), None);
    }

    #[test]
    fn stays_within_its_bound_and_forgets_whole() {
        let cache = PageCache::new((SHARDS * BLCKSZ * 2) as u64);
        for block in 0..1000 {
            cache.keep(&key(block), Lsn(1), &[block as u8; BLCKSZ]);
        }
        let mut page = [0; BLCKSZ];
        let mut kept = 0;
        for block in 0..1000 {
            if cache.find(&key(block), Lsn(0), Lsn(1), &mut page).is_some() {
                kept += 1;
                assert_eq!(page, [block as u8; BLCKSZ]);
            }
        }
        assert!(kept > SHARDS && kept <= SHARDS * 2, "{kept}");
        let indexed: usize = cache
            .shards
            .iter()
            .map(|shard| shard.lock().index.len())
            .sum();
        assert_eq!(indexed, kept);
    }
}
