//! Hashing of page keys.
//!
//! Ingestion hashes each key once for its shard and once in the shard's table, a million times a
//! second, so this is a multiply-and-rotate hash rather than the standard library's keyed one. Keys
//! come from the cluster's own log, not from an adversary.

use std::hash::{BuildHasherDefault, Hasher};

use pg_types::PageKey;

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hash of a page key; every bit depends on every field.
pub(crate) fn hash(key: &PageKey) -> u64 {
    let place = u64::from(key.space) << 32 | u64::from(key.db);
    let block = u64::from(key.rel) << 32 | u64::from(key.block);
    mix(mix(place ^ u64::from(key.fork) << 56) ^ block)
}

fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(MULTIPLIER);
    let word = (word ^ word >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word ^ word >> 32
}

/// The hasher of tables keyed by [`PageKey`].
#[derive(Debug, Default, Clone, Copy)]
pub struct PageKeyHasher(u64);

impl Hasher for PageKeyHasher {
    fn finish(&self) -> u64 {
        mix(self.0)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u8(*byte);
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u32(u32::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0.rotate_left(23) ^ u64::from(value)).wrapping_mul(MULTIPLIER);
    }
}

/// Builds [`PageKeyHasher`]s.
pub type BuildPageKeyHasher = BuildHasherDefault<PageKeyHasher>;
