//! A small filter that tells for most keys that a layer does not have them.
//!
//! A read looks for its key in every delta layer above its base. The filter spares most of those
//! binary searches: one word per query, about one false positive in a hundred.

use pg_types::PageKey;

use crate::key_hash;

/// Bits set per key.
const PROBES: u32 = 4;

/// A blocked Bloom filter with 64-bit blocks and 16 bits per key.
pub(crate) struct KeyFilter {
    words: Vec<u64>,
}

impl KeyFilter {
    /// A filter of these keys.
    pub(crate) fn new<'a>(keys: impl ExactSizeIterator<Item = &'a PageKey>) -> KeyFilter {
        let mut filter = KeyFilter {
            words: vec![0; keys.len() / 4 + 1],
        };
        for key in keys {
            let hash = key_hash::hash(key);
            let at = filter.word_of(hash);
            if let Some(word) = filter.words.get_mut(at) {
                *word |= pattern(hash);
            }
        }
        filter
    }

    /// Whether `key` may be one of them; `false` is certain.
    pub(crate) fn may_have(&self, key: &PageKey) -> bool {
        let hash = key_hash::hash(key);
        let pattern = pattern(hash);
        self.words
            .get(self.word_of(hash))
            .is_some_and(|word| word & pattern == pattern)
    }

    fn word_of(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.words.len() as u128) >> 64) as usize
    }
}

/// The bits of a key in its word, from the low half of its hash (the high half chose the word).
fn pattern(hash: u64) -> u64 {
    (0..PROBES).fold(0, |pattern, probe| {
        pattern | 1 << (hash >> (6 * probe) & 63)
    })
}

#[cfg(test)]
mod tests {
    use pg_types::{ForkNumber, RelFileLocator};

    use super::*;

    #[test]
    fn has_every_key_and_few_others() {
        let key = |block| {
            let rel = RelFileLocator {
                spc: 1663,
                db: 5,
                rel: 16384,
            };
            PageKey::relation(rel, ForkNumber::Main, block)
        };
        let keys: Vec<_> = (0..10_000).map(|block| key(block * 3)).collect();
        let filter = KeyFilter::new(keys.iter());
        assert!(keys.iter().all(|key| filter.may_have(key)));
        let wrong = (0..10_000)
            .filter(|block| filter.may_have(&key(block * 3 + 1)))
            .count();
        assert!(wrong < 400, "{wrong} false positives in 10,000");
        assert!(!KeyFilter::new([].iter()).may_have(&key(0)));
    }
}
