//! Main data put together field by field, and decoders tried on every cut of it.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(
    clippy::unwrap_used,
    reason = "what cannot be built or decoded fails the test"
)]

use pg_types::{Lsn, PgMajor, RelFileLocator};
use pg_wal::{Record, RmgrId, encode_record};

/// Main data put together field by field.
#[derive(Default, Clone)]
pub struct Data(pub Vec<u8>);

impl Data {
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub fn bytes(mut self, value: &[u8]) -> Self {
        self.0.extend(value);
        self
    }
    pub fn align8(mut self) -> Self {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self
    }
    /// Gives `check` the record; then the decoder must refuse every cut before `needed` bytes.
    pub fn check<E>(
        &self,
        rmgr: RmgrId,
        info: u8,
        major: PgMajor,
        needed: usize,
        check: impl Fn(&Record<'_>) -> Result<(), E>,
    ) where
        E: std::fmt::Debug,
    {
        let bytes = encode_record(rmgr, info, 900, Lsn(64), &self.0);
        check(&Record::decode(&bytes, major).unwrap()).unwrap();
        for cut in 0..needed {
            let bytes = encode_record(rmgr, info, 900, Lsn(64), &self.0[..cut]);
            let result = check(&Record::decode(&bytes, major).unwrap());
            assert!(result.is_err(), "{rmgr} {info:#x} accepts {cut} bytes");
        }
    }
}

/// A relation of one database.
pub fn rel(number: u32) -> RelFileLocator {
    RelFileLocator {
        spc: 1663,
        db: 5,
        rel: number,
    }
}
