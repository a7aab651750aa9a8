//! Prepared transactions: files of `pg_twophase`, whose contents are the main data of a prepare
//! record followed by a CRC-32C (`access/transam/twophase.c`).
//!
//! Header (`xl_xact_prepare`): magic u32@0, length with CRC u32@4, xid u32@8, database u32@12, time
//! i64@16, owner u32@24, counts i32 from 28 (subtransactions, files to drop at commit, at abort;
//! from 15 on also statistics to drop at commit, at abort; invalidation messages), flag u8, GID
//! length u16, origin LSN u64, origin time i64: 64 bytes in 14, 72 from 15 on. What it counts
//! follows in that order, the GID first, each part padded to eight bytes; then records of the
//! resource managers that hold locks and the like, ending with an end record.

use pg_types::{FullXid, Lsn, Oid, PgMajor, RelFileLocator, Xid};
use thiserror::Error;

use crate::layout::{u16_at, u32_at, u64_at};

/// Directory below the data directory.
pub const TWO_PHASE_DIRECTORY: &str = "pg_twophase";

const MAGIC: u32 = 0x57F9_4534;
const CRC_LEN: usize = 4;
const REL_FILE_LOCATOR_LEN: usize = 12;
const INVALIDATION_LEN: usize = 16;

/// What a prepared transaction left behind, as far as it decides what is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TwoPhaseState {
    /// The transaction.
    pub xid: Xid,
    /// Its database.
    pub database: Oid,
    /// When it was prepared, microseconds since 2000.
    pub prepared_at: i64,
    /// The role that ran it.
    pub owner: Oid,
    /// Its global identifier, without the terminating zero.
    pub gid: Vec<u8>,
    /// Its subtransactions that would commit with it.
    pub subxacts: Vec<Xid>,
    /// Relations to drop when it commits.
    pub drop_at_commit: Vec<RelFileLocator>,
    /// Relations to drop when it is rolled back.
    pub drop_at_abort: Vec<RelFileLocator>,
    /// LSN of the transaction at its replication origin, or invalid.
    pub origin_lsn: Lsn,
    /// Time of the prepare at its replication origin, microseconds since 2000, or zero.
    pub origin_timestamp: i64,
}

/// What is wrong with a two-phase file or the body of a prepare record.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TwoPhaseError {
    /// The contents end inside of the header or of what it counts.
    #[error("two-phase state is cut off: it has {found} bytes and needs {needed}")]
    Truncated {
        /// Bytes there are.
        found: usize,
        /// Bytes the header and its counts ask for.
        needed: usize,
    },
    /// It does not begin like two-phase state.
    #[error("magic {found:#x} is not two-phase state's (0x57f94534)")]
    Magic {
        /// The first four bytes.
        found: u32,
    },
    /// The length in the header is another one.
    #[error("two-phase state says it has {stored} bytes with its CRC, it has {found}")]
    Length {
        /// The length in the header.
        stored: u32,
        /// Bytes there are, the CRC included.
        found: usize,
    },
    /// The GID is empty or not terminated.
    #[error("the global identifier of prepared transaction {xid} does not end with a zero byte")]
    Gid {
        /// The transaction.
        xid: Xid,
    },
    /// The checksum over the contents is wrong.
    #[error(
        "two-phase file is damaged: it stores CRC {stored:#010x}, its contents have \
         {computed:#010x}; restore it from a backup"
    )]
    Crc {
        /// The CRC in the file.
        stored: u32,
        /// The CRC of what is in the file.
        computed: u32,
    },
}

impl TwoPhaseState {
    /// Reads a file of `pg_twophase`.
    ///
    /// # Errors
    /// [`TwoPhaseError`]: magic, length, CRC or one of the counts is wrong.
    pub fn decode_file(bytes: &[u8], major: PgMajor) -> Result<TwoPhaseState, TwoPhaseError> {
        let (body, crc) = bytes
            .split_last_chunk::<CRC_LEN>()
            .ok_or(TwoPhaseError::Truncated {
                found: bytes.len(),
                needed: header_len(major) + CRC_LEN,
            })?;
        let state = Self::decode_record(body, major)?;
        let (stored, computed) = (u32::from_le_bytes(*crc), crc32c::crc32c(body));
        if stored != computed {
            return Err(TwoPhaseError::Crc { stored, computed });
        }
        Ok(state)
    }

    /// Reads the main data of a prepare record.
    ///
    /// # Errors
    /// [`TwoPhaseError`]: magic, length or one of the counts is wrong.
    pub fn decode_record(body: &[u8], major: PgMajor) -> Result<TwoPhaseState, TwoPhaseError> {
        let found = body.len();
        let short = || TwoPhaseError::Truncated {
            found,
            needed: header_len(major),
        };
        let header = body.get(..header_len(major)).ok_or_else(short)?;
        let number = |at| u32_at(header, at).ok_or_else(short);
        let magic = number(0)?;
        if magic != MAGIC {
            return Err(TwoPhaseError::Magic { found: magic });
        }
        let stored = number(4)?;
        if usize::try_from(stored) != Ok(found + CRC_LEN) {
            return Err(TwoPhaseError::Length {
                stored,
                found: found + CRC_LEN,
            });
        }
        // 15 put the two counts of statistics before that of the invalidation messages.
        let stats = if major >= PgMajor::V15 {
            [number(40)?, number(44)?]
        } else {
            [0, 0]
        };
        let tail = if major >= PgMajor::V15 { 48 } else { 40 };
        let gid_len = u16_at(header, tail + 6).ok_or_else(short)?;
        let long = |at| u64_at(header, at).ok_or_else(short);

        let mut parts = Parts {
            body,
            at: header_len(major),
        };
        let xid = number(8)?;
        let gid = match parts.take(u32::from(gid_len), 1)?.split_last() {
            Some((0, gid)) => gid.to_vec(),
            _ => return Err(TwoPhaseError::Gid { xid }),
        };
        let subxacts = parts.take(number(28)?, 4)?;
        let drop_at_commit = parts.take(number(32)?, REL_FILE_LOCATOR_LEN)?;
        let drop_at_abort = parts.take(number(36)?, REL_FILE_LOCATOR_LEN)?;
        for count in stats {
            parts.take(count, stats_item_len(major))?;
        }
        parts.take(number(tail)?, INVALIDATION_LEN)?;
        Ok(TwoPhaseState {
            xid,
            database: number(12)?,
            prepared_at: long(16)?.cast_signed(),
            owner: number(24)?,
            gid,
            subxacts: subxacts
                .chunks(4)
                .filter_map(|xid| u32_at(xid, 0))
                .collect(),
            drop_at_commit: locators(drop_at_commit),
            drop_at_abort: locators(drop_at_abort),
            origin_lsn: Lsn(long(tail + 8)?),
            origin_timestamp: long(tail + 16)?.cast_signed(),
        })
    }
}

/// The file that a prepare record's main data becomes at the next checkpoint.
#[must_use]
pub fn file_of_record(body: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(body.len() + CRC_LEN);
    file.extend_from_slice(body);
    file.extend(crc32c::crc32c(body).to_le_bytes());
    file
}

/// Name of the file of prepared transaction `xid`: eight hexadecimal digits, or from 17 on sixteen
/// with the epoch before them.
#[must_use]
pub fn file_name(xid: FullXid, major: PgMajor) -> String {
    if major >= PgMajor::V17 {
        format!("{:016X}", xid.0)
    } else {
        format!("{:08X}", xid.xid())
    }
}

/// Epoch (from 17 on) and transaction of a file name; `None` when it is not such a name.
#[must_use]
pub fn parse_file_name(name: &str, major: PgMajor) -> Option<(Option<u32>, Xid)> {
    let number = FullXid(u64::from_str_radix(name, 16).ok()?);
    if file_name(number, major) != name {
        return None;
    }
    Some((
        (major >= PgMajor::V17).then_some(number.epoch()),
        number.xid(),
    ))
}

/// Bytes of the header.
const fn header_len(major: PgMajor) -> usize {
    match major {
        PgMajor::V14 => 64,
        PgMajor::V15 | PgMajor::V16 | PgMajor::V17 | PgMajor::V18 => 72,
    }
}

/// Bytes of a statistics item (`xl_xact_stats_item`), whose object id 18 widened to 64 bits.
const fn stats_item_len(major: PgMajor) -> usize {
    match major {
        PgMajor::V18 => 16,
        PgMajor::V14 | PgMajor::V15 | PgMajor::V16 | PgMajor::V17 => 12,
    }
}

fn locators(bytes: &[u8]) -> Vec<RelFileLocator> {
    let locator = |bytes: &[u8]| {
        let (spc, db) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?);
        Some(RelFileLocator {
            spc,
            db,
            rel: u32_at(bytes, 8)?,
        })
    };
    bytes
        .chunks(REL_FILE_LOCATOR_LEN)
        .filter_map(locator)
        .collect()
}

/// The parts behind the header, each padded to eight bytes.
struct Parts<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Parts<'a> {
    /// The next part: `count` items of `item_len` bytes. Counts are signed; a negative one reads as
    /// more than any file holds.
    fn take(&mut self, count: u32, item_len: usize) -> Result<&'a [u8], TwoPhaseError> {
        let len = (count as usize).saturating_mul(item_len);
        let end = self.at.saturating_add(len);
        let part = self
            .body
            .get(self.at..end)
            .ok_or(TwoPhaseError::Truncated {
                found: self.body.len(),
                needed: end,
            })?;
        self.at = end.next_multiple_of(8);
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RELATION: RelFileLocator = RelFileLocator {
        spc: 1663,
        db: 5,
        rel: 16_384,
    };

    /// The main data of a prepare record with two subtransactions, one relation to drop at commit,
    /// two at abort, two statistics and one message.
    fn record(major: PgMajor) -> Vec<u8> {
        let mut body = Vec::new();
        let mut put = |bytes: &[u8]| body.extend_from_slice(bytes);
        let numbers = |values: &[u32]| {
            values
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect::<Vec<_>>()
        };
        put(&numbers(&[MAGIC, 0, 777, 5]));
        put(&(-7i64).to_le_bytes());
        put(&numbers(&[10, 2, 1, 2]));
        if major >= PgMajor::V15 {
            put(&numbers(&[1, 1]));
        }
        put(&numbers(&[1]));
        put(&[1, 0, 4, 0]);
        put(&0x1234u64.to_le_bytes());
        put(&99i64.to_le_bytes());
        put(b"gid\0\0\0\0\0");
        put(&numbers(&[778, 779]));
        put(&numbers(&[1663, 5, 16_384, 0]));
        put(&numbers(&[1663, 5, 16_384, 1663, 5, 16_385]));
        if major >= PgMajor::V15 {
            put(&[0; 32]);
        }
        put(&[0; 16]);
        put(&[0; 8]);
        let len = (body.len() + CRC_LEN) as u32;
        body[4..8].copy_from_slice(&len.to_le_bytes());
        body
    }

    #[test]
    fn every_major_is_read() {
        for major in PgMajor::ALL {
            let body = record(major);
            let state = TwoPhaseState::decode_file(&file_of_record(&body), major).unwrap();
            let other = RelFileLocator {
                rel: 16_385,
                ..RELATION
            };
            let expected = TwoPhaseState {
                xid: 777,
                database: 5,
                prepared_at: -7,
                owner: 10,
                gid: b"gid".to_vec(),
                subxacts: vec![778, 779],
                drop_at_commit: vec![RELATION],
                drop_at_abort: vec![RELATION, other],
                origin_lsn: Lsn(0x1234),
                origin_timestamp: 99,
            };
            assert_eq!(state, expected, "PostgreSQL {major}");
        }
    }

    #[test]
    fn each_damage_has_its_own_refusal() {
        use TwoPhaseError as E;
        let (major, body) = (PgMajor::V17, record(PgMajor::V17));
        let decode = |body: &[u8]| TwoPhaseState::decode_record(body, major).unwrap_err();
        let changed = |at: usize, value: u8| {
            let mut body = body.clone();
            body[at] = value;
            decode(&body)
        };
        assert!(matches!(
            decode(&body[..71]),
            E::Truncated {
                found: 71,
                needed: 72
            }
        ));
        assert!(matches!(decode(&body[..80]), E::Length { .. }));
        assert!(matches!(changed(0, 0), E::Magic { .. }));
        assert!(matches!(changed(75, b'x'), E::Gid { xid: 777 }));
        assert!(matches!(changed(31, 0x80), E::Truncated { .. }));
        let mut file = file_of_record(&body);
        file[16] ^= 1;
        assert!(matches!(
            TwoPhaseState::decode_file(&file, major),
            Err(E::Crc { .. })
        ));
        assert!(matches!(
            TwoPhaseState::decode_file(&[], major),
            Err(E::Truncated { .. })
        ));
    }

    #[test]
    fn names_are_those_of_the_major() {
        let xid = FullXid::new(2, 0xABC);
        assert_eq!(file_name(xid, PgMajor::V16), "00000ABC");
        assert_eq!(file_name(xid, PgMajor::V17), "0000000200000ABC");
        assert_eq!(
            parse_file_name("00000ABC", PgMajor::V16),
            Some((None, 0xABC))
        );
        assert_eq!(
            parse_file_name("0000000200000ABC", PgMajor::V17),
            Some((Some(2), 0xABC))
        );
        for bad in ["", "00000abc", "ABC", "00000ABC.tmp", "+0000ABC"] {
            assert_eq!(parse_file_name(bad, PgMajor::V16), None, "{bad}");
            assert_eq!(parse_file_name(bad, PgMajor::V17), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            noise in prop::collection::vec(any::<u8>(), 0..200),
            at in 8usize..200,
        ) {
            for major in PgMajor::ALL {
                let _ = TwoPhaseState::decode_file(&noise, major);
                let mut body = record(major);
                for (to, from) in body.iter_mut().skip(at).zip(&noise) {
                    *to = *from;
                }
                let _ = TwoPhaseState::decode_record(&body, major);
            }
        }
    }
}
