//! `pg_logical/replorigin_checkpoint`: how far each replication origin was replayed
//! (`replication/logical/origin.c`).
//!
//! Layout: magic u32, then 16 bytes for each origin (number u16, padding, LSN u64), then a CRC-32C
//! of everything before it.

use pg_types::Lsn;
use thiserror::Error;

use crate::layout::{u16_at, u64_at};

/// Path below the data directory.
pub const REPLICATION_ORIGINS_PATH: &str = "pg_logical/replorigin_checkpoint";

const MAGIC: u32 = 0x1257_DADE;
const ENTRY_LEN: usize = 16;
const CRC_LEN: usize = 4;

/// How far an origin was replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginProgress {
    /// The origin's number (`roident`), not zero.
    pub origin: u16,
    /// The origin's LSN up to which its changes are here.
    pub remote_lsn: Lsn,
}

/// The progress of every origin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicationOrigins {
    /// One entry for each origin, in the order of the file.
    pub origins: Vec<OriginProgress>,
}

/// What is wrong with a `replorigin_checkpoint` file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReplicationOriginsError {
    /// Magic, whole entries and CRC do not make this length.
    #[error(
        "replorigin_checkpoint has {found} bytes, which are no whole entries; restore the file"
    )]
    Length {
        /// Size of the file.
        found: usize,
    },
    /// It does not begin like such a file.
    #[error("magic {found:#x} is not replorigin_checkpoint's (0x1257dade); restore the file")]
    Magic {
        /// The first four bytes.
        found: u32,
    },
    /// The checksum over the contents is wrong.
    #[error(
        "replorigin_checkpoint is damaged: it stores CRC {stored:#010x}, its contents have \
         {computed:#010x}; restore the file from a backup"
    )]
    Crc {
        /// The CRC in the file.
        stored: u32,
        /// The CRC of what is in the file.
        computed: u32,
    },
}

impl ReplicationOrigins {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// [`ReplicationOriginsError`]: length, magic or CRC is wrong.
    pub fn decode(bytes: &[u8]) -> Result<ReplicationOrigins, ReplicationOriginsError> {
        let length = || ReplicationOriginsError::Length { found: bytes.len() };
        let (covered, crc) = bytes.split_last_chunk::<CRC_LEN>().ok_or_else(length)?;
        let (magic, entries) = covered.split_first_chunk::<4>().ok_or_else(length)?;
        let magic = u32::from_le_bytes(*magic);
        if magic != MAGIC {
            return Err(ReplicationOriginsError::Magic { found: magic });
        }
        if !entries.len().is_multiple_of(ENTRY_LEN) {
            return Err(length());
        }
        let (stored, computed) = (u32::from_le_bytes(*crc), crc32c::crc32c(covered));
        if stored != computed {
            return Err(ReplicationOriginsError::Crc { stored, computed });
        }
        let entry = |bytes: &[u8]| {
            Some(OriginProgress {
                origin: u16_at(bytes, 0)?,
                remote_lsn: Lsn(u64_at(bytes, 8)?),
            })
        };
        Ok(ReplicationOrigins {
            origins: entries.chunks(ENTRY_LEN).filter_map(entry).collect(),
        })
    }

    /// The file, with zeroed padding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + self.origins.len() * ENTRY_LEN);
        bytes.extend(MAGIC.to_le_bytes());
        for progress in &self.origins {
            bytes.extend(progress.origin.to_le_bytes());
            bytes.extend([0; 6]);
            bytes.extend(progress.remote_lsn.0.to_le_bytes());
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_damage_has_its_own_refusal() {
        use ReplicationOriginsError as E;
        let origin = OriginProgress {
            origin: 1,
            remote_lsn: Lsn(0x1_0000_0010),
        };
        let good = ReplicationOrigins {
            origins: vec![origin],
        }
        .encode();
        assert_eq!(good.len(), 24);
        assert_eq!(good[..6], [0xDE, 0xDA, 0x57, 0x12, 1, 0]);
        for len in 0..8 {
            assert_eq!(
                ReplicationOrigins::decode(&good[..len]),
                Err(E::Length { found: len })
            );
        }
        assert_eq!(
            ReplicationOrigins::decode(&good[..23]),
            Err(E::Length { found: 23 })
        );
        let mut bytes = good.clone();
        bytes[1] = 0;
        assert!(matches!(
            ReplicationOrigins::decode(&bytes),
            Err(E::Magic { .. })
        ));
        let mut bytes = good;
        bytes[12] ^= 1;
        assert!(matches!(
            ReplicationOrigins::decode(&bytes),
            Err(E::Crc { .. })
        ));
    }

    proptest! {
        #[test]
        fn decoding_undoes_encoding(
            entries in prop::collection::vec((any::<u16>(), any::<u64>()), 0..20),
        ) {
            let origins = entries
                .into_iter()
                .map(|(origin, lsn)| OriginProgress { origin, remote_lsn: Lsn(lsn) })
                .collect();
            let origins = ReplicationOrigins { origins };
            prop_assert_eq!(ReplicationOrigins::decode(&origins.encode()), Ok(origins));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = ReplicationOrigins::decode(&bytes);
            let mut bytes = [&MAGIC.to_le_bytes(), &bytes[..]].concat();
            let crc = crc32c::crc32c(&bytes).to_le_bytes();
            bytes.extend(crc);
            let whole = (bytes.len() - 8).is_multiple_of(ENTRY_LEN);
            prop_assert_eq!(ReplicationOrigins::decode(&bytes).is_ok(), whole);
        }
    }
}
