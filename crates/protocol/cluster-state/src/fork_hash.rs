//! Hashing of fork names.
//!
//! Every page change asks for its fork's size, a million times a second. Relation numbers are assigned
//! by the cluster's own counter, not chosen by an adversary, so a multiplicative hash is enough.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use pg_types::RelFork;

/// A map from forks.
pub(crate) type ForkMap<V> = HashMap<RelFork, V, BuildHasherDefault<ForkHasher>>;

/// Rotate, exclusive-or, multiply, for each word.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ForkHasher(u64);

impl ForkHasher {
    fn add(&mut self, word: u64) {
        // 2^64 divided by the golden ratio: neighbouring numbers land far apart.
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Hasher for ForkHasher {
    fn finish(&self) -> u64 {
        // The table takes its bucket from the low bits, which a product mixes least.
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.add(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.add(u64::from(word));
    }

    fn write_isize(&mut self, word: isize) {
        self.add(word.cast_unsigned() as u64);
    }
}
