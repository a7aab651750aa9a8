//! The key under which a page is stored: a relation block or an SLRU page.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{BlockNumber, ForkNumber, RelFileLocator, RelFork};

/// The SLRUs whose pages are rebuilt from WAL. `pg_subtrans`, `pg_notify` and `pg_serial` are not:
/// PostgreSQL itself starts them empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Slru {
    /// `pg_xact`: two status bits a transaction.
    Clog = 1,
    /// `pg_multixact/offsets`.
    MultiXactOffsets = 2,
    /// `pg_multixact/members`.
    MultiXactMembers = 3,
    /// `pg_commit_ts`.
    CommitTs = 4,
}

impl Slru {
    /// Every SLRU.
    pub const ALL: [Slru; 4] = [
        Slru::Clog,
        Slru::MultiXactOffsets,
        Slru::MultiXactMembers,
        Slru::CommitTs,
    ];

    /// Directory below the data directory.
    #[must_use]
    pub const fn directory(self) -> &'static str {
        match self {
            Slru::Clog => "pg_xact",
            Slru::MultiXactOffsets => "pg_multixact/offsets",
            Slru::MultiXactMembers => "pg_multixact/members",
            Slru::CommitTs => "pg_commit_ts",
        }
    }

    /// Pages in one segment file (`SLRU_PAGES_PER_SEGMENT`).
    pub const PAGES_PER_SEGMENT: u32 = 32;
}

/// Key of a stored page.
///
/// Relation blocks have a tablespace other than zero; SLRU pages have tablespace and database zero
/// and the SLRU's number in `rel`. Keys order by (space, db, rel, fork, block), so the blocks of a
/// fork are neighbours in a layer file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey {
    /// Tablespace, or zero for an SLRU.
    pub space: u32,
    /// Database, or zero.
    pub db: u32,
    /// Relation file number, or the [`Slru`].
    pub rel: u32,
    /// Fork number; zero for an SLRU.
    pub fork: u8,
    /// Block in the fork, or page in the SLRU.
    pub block: BlockNumber,
}

impl PageKey {
    /// Bytes of [`PageKey::encode`].
    pub const ENCODED_LEN: usize = 17;

    /// Key of a relation's block.
    #[must_use]
    pub const fn relation(
        locator: RelFileLocator,
        fork: ForkNumber,
        block: BlockNumber,
    ) -> PageKey {
        PageKey {
            space: locator.spc,
            db: locator.db,
            rel: locator.rel,
            fork: fork as u8,
            block,
        }
    }

    /// Key of an SLRU's page.
    #[must_use]
    pub const fn slru(slru: Slru, page: BlockNumber) -> PageKey {
        PageKey {
            space: 0,
            db: 0,
            rel: slru as u32,
            fork: 0,
            block: page,
        }
    }

    /// The SLRU this key is a page of, if it is one.
    #[must_use]
    pub fn as_slru(&self) -> Option<Slru> {
        if self.space != 0 {
            return None;
        }
        Slru::ALL.into_iter().find(|slru| *slru as u32 == self.rel)
    }

    /// The relation fork this key is a block of, if it is one.
    #[must_use]
    pub fn as_relation(&self) -> Option<RelFork> {
        if self.space == 0 {
            return None;
        }
        let fork = ForkNumber::try_from(u32::from(self.fork)).ok()?;
        Some(RelFork {
            locator: RelFileLocator {
                spc: self.space,
                db: self.db,
                rel: self.rel,
            },
            fork,
        })
    }

    /// Big-endian bytes whose order is the keys' order: space, db, rel, fork, block.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::ENCODED_LEN] {
        let [s0, s1, s2, s3] = self.space.to_be_bytes();
        let [d0, d1, d2, d3] = self.db.to_be_bytes();
        let [r0, r1, r2, r3] = self.rel.to_be_bytes();
        let [b0, b1, b2, b3] = self.block.to_be_bytes();
        [
            s0, s1, s2, s3, d0, d1, d2, d3, r0, r1, r2, r3, self.fork, b0, b1, b2, b3,
        ]
    }

    /// The key that [`PageKey::encode`] wrote.
    #[must_use]
    pub const fn decode(bytes: [u8; Self::ENCODED_LEN]) -> PageKey {
        let [
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3,
            r0,
            r1,
            r2,
            r3,
            fork,
            b0,
            b1,
            b2,
            b3,
        ] = bytes;
        PageKey {
            space: u32::from_be_bytes([s0, s1, s2, s3]),
            db: u32::from_be_bytes([d0, d1, d2, d3]),
            rel: u32::from_be_bytes([r0, r1, r2, r3]),
            fork,
            block: u32::from_be_bytes([b0, b1, b2, b3]),
        }
    }
}

impl fmt::Display for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(slru) = self.as_slru() {
            return write!(f, "{} page {}", slru.directory(), self.block);
        }
        match self.as_relation() {
            Some(rel) => write!(f, "{rel} block {}", self.block),
            None => write!(
                f,
                "{}/{}/{} fork {} block {}",
                self.space, self.db, self.rel, self.fork, self.block
            ),
        }
    }
}

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_keeps_order_and_identity() {
        let mut keys = vec![
            PageKey::slru(Slru::CommitTs, 7),
            PageKey::relation(
                RelFileLocator {
                    spc: 1663,
                    db: 5,
                    rel: 1259,
                },
                ForkNumber::Main,
                256,
            ),
            PageKey::relation(
                RelFileLocator {
                    spc: 1663,
                    db: 5,
                    rel: 1259,
                },
                ForkNumber::Vm,
                0,
            ),
            PageKey::relation(
                RelFileLocator {
                    spc: 1663,
                    db: 5,
                    rel: 1259,
                },
                ForkNumber::Main,
                3,
            ),
            PageKey::relation(
                RelFileLocator {
                    spc: 1664,
                    db: 0,
                    rel: 1262,
                },
                ForkNumber::Main,
                0,
            ),
        ];
        let mut encoded: Vec<_> = keys.iter().map(PageKey::encode).collect();
        keys.sort();
        encoded.sort_unstable();
        let decoded: Vec<_> = encoded.into_iter().map(PageKey::decode).collect();
        assert_eq!(decoded, keys);
    }
}
