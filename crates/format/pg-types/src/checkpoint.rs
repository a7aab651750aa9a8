//! The body of a checkpoint record, of which `pg_control` keeps a copy.
//!
//! **Invariant.** A decoded checkpoint encodes to the same 88 bytes for the same major, padding
//! being zero; otherwise the record a new timeline begins with and the copy in `pg_control` differ
//! and PostgreSQL starts from counters that nobody wrote.
//!
//! The layout (`CheckPoint`, `catalog/pg_control.h`) has the same offsets in 14 to 18; 17 puts
//! `wal_level` into what was padding.

use serde::{Deserialize, Serialize};

use crate::{FullXid, Lsn, Oid, PgMajor, TimelineId, Xid};

/// A checkpoint: where recovery begins and the cluster's counters and limits at that point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CheckPoint {
    /// Where redo begins; the checkpoint record's own start for a shutdown checkpoint.
    pub redo: Lsn,
    /// Timeline of the checkpoint.
    pub timeline: TimelineId,
    /// Timeline before it; the same one unless this checkpoint begins a timeline.
    pub prev_timeline: TimelineId,
    /// Whether `full_page_writes` was on.
    pub full_page_writes: bool,
    /// `wal_level` (0 minimal, 1 replica, 2 logical); kept from 17 on, zero before.
    pub wal_level: i32,
    /// Next transaction id to assign.
    pub next_xid: FullXid,
    /// Next OID to assign.
    pub next_oid: Oid,
    /// Next multixact id to assign.
    pub next_multi: u32,
    /// Next free position in the multixact member space.
    pub next_multi_offset: u32,
    /// Oldest `datfrozenxid` of any database.
    pub oldest_xid: Xid,
    /// The database that has it.
    pub oldest_xid_db: Oid,
    /// Oldest `datminmxid` of any database.
    pub oldest_multi: u32,
    /// The database that has it.
    pub oldest_multi_db: Oid,
    /// Seconds since 1970 (`pg_time_t`).
    pub time: i64,
    /// Oldest transaction whose commit timestamp is kept, or zero.
    pub oldest_commit_ts_xid: Xid,
    /// Newest transaction whose commit timestamp is kept, or zero.
    pub newest_commit_ts_xid: Xid,
    /// Oldest transaction still running; zero in shutdown checkpoints.
    pub oldest_active_xid: Xid,
}

impl CheckPoint {
    /// Bytes of the encoded form, trailing padding included.
    pub const ENCODED_LEN: usize = 88;

    /// Reads the checkpoint at the start of `bytes`; `None` when there are fewer than 88.
    #[must_use]
    pub fn decode(bytes: &[u8], major: PgMajor) -> Option<CheckPoint> {
        let bytes: &[u8; Self::ENCODED_LEN] = bytes.first_chunk()?;
        let u32_at = |offset: usize| Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?));
        let u64_at = |offset: usize| Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?));
        Some(CheckPoint {
            redo: Lsn(u64_at(0)?),
            timeline: TimelineId(u32_at(8)?),
            prev_timeline: TimelineId(u32_at(12)?),
            full_page_writes: *bytes.get(16)? != 0,
            wal_level: if major >= PgMajor::V17 {
                u32_at(20)?.cast_signed()
            } else {
                0
            },
            next_xid: FullXid(u64_at(24)?),
            next_oid: u32_at(32)?,
            next_multi: u32_at(36)?,
            next_multi_offset: u32_at(40)?,
            oldest_xid: u32_at(44)?,
            oldest_xid_db: u32_at(48)?,
            oldest_multi: u32_at(52)?,
            oldest_multi_db: u32_at(56)?,
            time: u64_at(64)?.cast_signed(),
            oldest_commit_ts_xid: u32_at(72)?,
            newest_commit_ts_xid: u32_at(76)?,
            oldest_active_xid: u32_at(80)?,
        })
    }

    /// The bytes PostgreSQL `major` keeps for this checkpoint, with zeroed padding.
    #[must_use]
    pub fn encode(&self, major: PgMajor) -> [u8; Self::ENCODED_LEN] {
        let wal_level = if major >= PgMajor::V17 {
            self.wal_level
        } else {
            0
        };
        let fields: [&[u8]; 18] = [
            &self.redo.0.to_le_bytes(),
            &self.timeline.0.to_le_bytes(),
            &self.prev_timeline.0.to_le_bytes(),
            &[u8::from(self.full_page_writes), 0, 0, 0],
            &wal_level.to_le_bytes(),
            &self.next_xid.0.to_le_bytes(),
            &self.next_oid.to_le_bytes(),
            &self.next_multi.to_le_bytes(),
            &self.next_multi_offset.to_le_bytes(),
            &self.oldest_xid.to_le_bytes(),
            &self.oldest_xid_db.to_le_bytes(),
            &self.oldest_multi.to_le_bytes(),
            &self.oldest_multi_db.to_le_bytes(),
            &[0; 4],
            &self.time.to_le_bytes(),
            &self.oldest_commit_ts_xid.to_le_bytes(),
            &self.newest_commit_ts_xid.to_le_bytes(),
            &self.oldest_active_xid.to_le_bytes(),
        ];
        let mut bytes = [0; Self::ENCODED_LEN];
        for (to, from) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> CheckPoint {
        CheckPoint {
            redo: Lsn(0x0102_0304_0506_0708),
            timeline: TimelineId(9),
            prev_timeline: TimelineId(8),
            full_page_writes: true,
            wal_level: 1,
            next_xid: FullXid::new(3, 777),
            next_oid: 16_400,
            next_multi: 5,
            next_multi_offset: 11,
            oldest_xid: 726,
            oldest_xid_db: 1,
            oldest_multi: 2,
            oldest_multi_db: 4,
            time: 1_700_000_000,
            oldest_commit_ts_xid: 730,
            newest_commit_ts_xid: 776,
            oldest_active_xid: 775,
        }
    }

    #[test]
    fn fields_are_where_postgresql_has_them() {
        let bytes = sample().encode(PgMajor::V17);
        assert_eq!(bytes[0..8], 0x0102_0304_0506_0708u64.to_le_bytes());
        assert_eq!((bytes[8], bytes[12], bytes[16], bytes[20]), (9, 8, 1, 1));
        assert_eq!(bytes[24..32], (3u64 << 32 | 777).to_le_bytes());
        assert_eq!(bytes[32..36], 16_400u32.to_le_bytes());
        assert_eq!(
            (bytes[36], bytes[40], bytes[48], bytes[52], bytes[56]),
            (5, 11, 1, 2, 4)
        );
        assert_eq!(bytes[64..72], 1_700_000_000i64.to_le_bytes());
        assert_eq!(
            bytes[72..84]
                .chunks(4)
                .map(|c| u32::from(c[0]) | u32::from(c[1]) << 8)
                .collect::<Vec<_>>(),
            [730, 776, 775]
        );
        assert_eq!(bytes[60..64], [0; 4]);
        assert_eq!(bytes[84..88], [0; 4]);
    }

    #[test]
    fn decoding_undoes_encoding_in_every_major() {
        for major in PgMajor::ALL {
            let expected = if major < PgMajor::V17 {
                CheckPoint {
                    wal_level: 0,
                    ..sample()
                }
            } else {
                sample()
            };
            let bytes = sample().encode(major);
            assert_eq!(CheckPoint::decode(&bytes, major), Some(expected));
            assert_eq!(CheckPoint::decode(&bytes[..87], major), None);
        }
    }
}
