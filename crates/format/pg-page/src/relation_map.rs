//! `pg_filenode.map`: which file each mapped catalog is in (`utils/cache/relmapper.c`).
//!
//! Layout: magic u32, count u32, then pairs of catalog OID and file number (62 up to 15, 64 from
//! 16 on), then a CRC-32C of everything before it; up to 15 four bytes of padding follow. That
//! makes 512 and 524 bytes.

use pg_types::{Oid, PgMajor};
use thiserror::Error;

use crate::layout::u32_at;

/// Name of the file in `global` and in each database's directory.
pub const RELATION_MAP_FILE_NAME: &str = "pg_filenode.map";

const MAGIC: u32 = 0x0059_2717;
const HEADER_LEN: usize = 8;
const ENTRY_LEN: usize = 8;

/// A checked relation map. Its bytes are kept as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelationMap {
    bytes: Vec<u8>,
    mappings: Vec<(Oid, Oid)>,
}

/// What is wrong with a relation map.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RelationMapError {
    /// The file does not have the size of this major's maps.
    #[error(
        "a relation map of PostgreSQL {major} has {expected} bytes, this one has {found}; restore \
         pg_filenode.map from a backup"
    )]
    Length {
        /// The major asked for.
        major: u32,
        /// Size of that major's maps.
        expected: usize,
        /// Size of this one.
        found: usize,
    },
    /// It does not begin like a relation map.
    #[error("magic {found:#x} is not a relation map's (0x592717); restore pg_filenode.map")]
    Magic {
        /// The first four bytes.
        found: u32,
    },
    /// It counts more entries than it has room for.
    #[error("the relation map counts {found} entries, at most {most} fit; restore pg_filenode.map")]
    Count {
        /// The count.
        found: u32,
        /// How many fit.
        most: u32,
    },
    /// The checksum over the contents is wrong.
    #[error(
        "the relation map is damaged: it stores CRC {stored:#010x}, its contents have \
         {computed:#010x}; restore pg_filenode.map from a backup"
    )]
    Crc {
        /// The CRC in the file.
        stored: u32,
        /// The CRC of what is in the file.
        computed: u32,
    },
}

/// How many entries a map of `major` has room for (`MAX_MAPPINGS`).
const fn capacity(major: PgMajor) -> usize {
    match major {
        PgMajor::V14 | PgMajor::V15 => 62,
        PgMajor::V16 | PgMajor::V17 | PgMajor::V18 => 64,
    }
}

/// Where the CRC is: after the header and all entries.
const fn crc_offset(major: PgMajor) -> usize {
    HEADER_LEN + capacity(major) * ENTRY_LEN
}

impl RelationMap {
    /// Size of the file in `major`.
    #[must_use]
    pub const fn file_len(major: PgMajor) -> usize {
        match major {
            PgMajor::V14 | PgMajor::V15 => 512,
            PgMajor::V16 | PgMajor::V17 | PgMajor::V18 => 524,
        }
    }

    /// Reads and checks a map: a file, or the body of a relation-map record.
    ///
    /// # Errors
    /// [`RelationMapError`]: length, magic, entry count or CRC is wrong.
    pub fn decode(bytes: &[u8], major: PgMajor) -> Result<RelationMap, RelationMapError> {
        let expected = Self::file_len(major);
        let length = || RelationMapError::Length {
            major: major.number(),
            expected,
            found: bytes.len(),
        };
        if bytes.len() != expected {
            return Err(length());
        }
        let magic = u32_at(bytes, 0).ok_or_else(length)?;
        if magic != MAGIC {
            return Err(RelationMapError::Magic { found: magic });
        }
        let stored = u32_at(bytes, crc_offset(major)).ok_or_else(length)?;
        let computed = crc32c::crc32c(bytes.get(..crc_offset(major)).ok_or_else(length)?);
        if stored != computed {
            return Err(RelationMapError::Crc { stored, computed });
        }
        let count = u32_at(bytes, 4).ok_or_else(length)?;
        let most = capacity(major) as u32;
        if count > most {
            return Err(RelationMapError::Count { found: count, most });
        }
        let entries = bytes
            .get(HEADER_LEN..crc_offset(major))
            .ok_or_else(length)?;
        let mappings = entries
            .chunks_exact(ENTRY_LEN)
            .take(count as usize)
            .filter_map(|entry| Some((u32_at(entry, 0)?, u32_at(entry, 4)?)))
            .collect();
        Ok(RelationMap {
            bytes: bytes.to_vec(),
            mappings,
        })
    }

    /// A map with `mappings` of catalog OID and file number; `None` when they are too many.
    #[must_use]
    pub fn new(mappings: &[(Oid, Oid)], major: PgMajor) -> Option<RelationMap> {
        if mappings.len() > capacity(major) {
            return None;
        }
        let mut bytes = Vec::with_capacity(Self::file_len(major));
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend((mappings.len() as u32).to_le_bytes());
        for (oid, file) in mappings {
            bytes.extend(oid.to_le_bytes());
            bytes.extend(file.to_le_bytes());
        }
        bytes.resize(crc_offset(major), 0);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes.resize(Self::file_len(major), 0);
        Some(RelationMap {
            bytes,
            mappings: mappings.to_vec(),
        })
    }

    /// File number of the catalog `oid`, if it is mapped here.
    #[must_use]
    pub fn get(&self, oid: Oid) -> Option<Oid> {
        self.mappings
            .iter()
            .find(|(mapped, _)| *mapped == oid)
            .map(|(_, file)| *file)
    }

    /// Every mapping of catalog OID and file number, in the order of the file.
    #[must_use]
    pub fn mappings(&self) -> &[(Oid, Oid)] {
        &self.mappings
    }

    /// The file.
    #[must_use]
    pub fn encode(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn maps_of_every_major_are_read_back() {
        let mappings = [(1259, 1259), (1249, 16_502), (1247, 1247)];
        for major in PgMajor::ALL {
            let map = RelationMap::new(&mappings, major).unwrap();
            assert_eq!(map.encode().len(), RelationMap::file_len(major));
            let again = RelationMap::decode(map.encode(), major).unwrap();
            assert_eq!(again, map);
            assert_eq!((again.get(1249), again.get(1)), (Some(16_502), None));
            let full = vec![(1, 2); capacity(major)];
            let map = RelationMap::new(&full, major).unwrap();
            assert_eq!(
                RelationMap::decode(map.encode(), major).unwrap().mappings(),
                full
            );
            assert!(RelationMap::new(&vec![(1, 2); capacity(major) + 1], major).is_none());
        }
    }

    #[test]
    fn each_damage_has_its_own_refusal() {
        use RelationMapError as E;
        let good = RelationMap::new(&[(1259, 1259)], PgMajor::V17)
            .unwrap()
            .encode()
            .to_vec();
        let decode = |bytes: &[u8]| RelationMap::decode(bytes, PgMajor::V17).unwrap_err();
        assert!(matches!(
            decode(&good[..512]),
            E::Length {
                expected: 524,
                found: 512,
                ..
            }
        ));
        assert!(RelationMap::decode(&good, PgMajor::V15).is_err());
        let mut bytes = good.clone();
        bytes[0] ^= 1;
        assert_eq!(decode(&bytes), E::Magic { found: 0x59_2716 });
        let mut bytes = good.clone();
        bytes[8] ^= 1;
        assert!(matches!(decode(&bytes), E::Crc { .. }));
        let mut bytes = good;
        bytes[4] = 65;
        let crc = crc32c::crc32c(&bytes[..520]).to_le_bytes();
        bytes[520..].copy_from_slice(&crc);
        assert_eq!(
            decode(&bytes),
            E::Count {
                found: 65,
                most: 64
            }
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 512..=524),
            count in any::<u8>(),
        ) {
            for major in PgMajor::ALL {
                let _ = RelationMap::decode(&bytes, major);
            }
            bytes.resize(524, 0);
            bytes[..8].copy_from_slice(&[0x17, 0x27, 0x59, 0, count, 0, 0, 0]);
            let crc = crc32c::crc32c(&bytes[..520]).to_le_bytes();
            bytes[520..].copy_from_slice(&crc);
            let map = RelationMap::decode(&bytes, PgMajor::V18);
            prop_assert_eq!(map.is_ok(), count <= 64);
        }
    }
}
