//! One change of the cluster's state, and its bytes in the page store's metadata.
//!
//! **Invariant.** The state is a function of its changes: a storage node that loads the changes it
//! stored knows exactly what the one that ingested the WAL knew. Hence everything that ingestion
//! learns goes through [`StateChange`], and there is no other way into [`crate::ClusterHistory`].
//!
//! Layout: `docs/formats/cluster-state.md`. Keys are big-endian, so that they sort by kind and then by
//! what they name; values are little-endian.

use pg_page::ParameterLimits;
use pg_types::{
    BlockNumber, ForkNumber, FullXid, Lsn, Oid, PgMajor, RelFileLocator, RelFork, SegmentSize,
    Slru, TimelineId, Xid,
};

use crate::{ForkChange, ForkState, SlruExtent};

/// Version of the layout, part of the identity entry.
pub const STATE_FORMAT_VERSION: u16 = 1;

/// What never changes about a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// System identifier.
    pub system_identifier: u64,
    /// Major.
    pub major: PgMajor,
    /// WAL segment size.
    pub segment_size: SegmentSize,
    /// Whether pages carry checksums.
    pub data_checksums: bool,
}

/// A change of the state, which holds from some LSN on. `None` in a field means that the thing
/// ceases to exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateChange {
    /// What never changes; written once, by the import.
    Identity(Identity),
    /// The control file as imported (8192 bytes), a template for later ones.
    ControlFile(Box<[u8]>),
    /// Settings in the control file.
    Parameters(ParameterLimits),
    /// A timeline begins.
    Timeline(TimelineId),
    /// A fork is created, grows, is cut, or is dropped.
    Fork {
        /// The fork.
        fork: RelFork,
        /// Its state from now on.
        state: Option<ForkState>,
    },
    /// A database's directory appears or goes.
    Database {
        /// Tablespace of the directory.
        spc: Oid,
        /// Database.
        db: Oid,
        /// Whether it exists from now on.
        exists: bool,
    },
    /// A tablespace is created or dropped.
    Tablespace {
        /// The tablespace.
        oid: Oid,
        /// Where its link points to.
        location: Option<String>,
    },
    /// A `pg_filenode.map` is written or goes.
    RelationMap {
        /// Tablespace of the directory it lies in.
        spc: Oid,
        /// Database, zero for the shared map.
        db: Oid,
        /// The file.
        bytes: Option<Box<[u8]>>,
    },
    /// A transaction is prepared or finished.
    TwoPhase {
        /// The transaction.
        xid: FullXid,
        /// Its state file with the CRC.
        file: Option<Box<[u8]>>,
    },
    /// The pages of an SLRU that exist; `None` when there are none any more.
    Slru {
        /// The SLRU.
        slru: Slru,
        /// Its pages.
        extent: Option<SlruExtent>,
    },
    /// Every transaction id at or above this one is unused; an upper bound of the counter.
    NextXid(FullXid),
    /// The next OID to assign.
    NextOid(Oid),
    /// The multixact counters.
    NextMulti {
        /// Next multixact id.
        multi: u32,
        /// Next position in the member space.
        offset: u32,
    },
    /// The oldest transaction that can occur in a table.
    OldestXid {
        /// Transaction.
        xid: Xid,
        /// A database that has it.
        db: Oid,
    },
    /// The oldest multixact that can occur in a table.
    OldestMulti {
        /// Multixact.
        multi: u32,
        /// A database that has it.
        db: Oid,
    },
    /// The transactions whose commit timestamps are kept; zeros when none are.
    CommitTimestamps {
        /// Oldest.
        oldest: Xid,
        /// Newest known when this was written; commits since then are newer.
        newest: Xid,
    },
    /// How far a replication origin has been replayed.
    ReplicationOrigin {
        /// The origin.
        id: u16,
        /// Position at the origin.
        remote: Option<Lsn>,
    },
}

/// Stored metadata that is not a change of the state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateDecodeError {
    /// The key is of no kind this version knows.
    #[error(
        "state entry has key {key:02x?}, which no known kind has; a newer Strandline may have written it"
    )]
    UnknownKey {
        /// The key.
        key: Vec<u8>,
    },
    /// The value does not fit its kind.
    #[error("state entry {kind} has a value of {len} bytes that it cannot have")]
    BadValue {
        /// Kind of entry.
        kind: &'static str,
        /// Length of the value.
        len: usize,
    },
    /// The layout is of another version.
    #[error(
        "state entries are in layout {found}; this Strandline reads layout {STATE_FORMAT_VERSION}"
    )]
    UnknownVersion {
        /// The version found.
        found: u16,
    },
}

mod kind {
    pub(super) const IDENTITY: u8 = 0x01;
    pub(super) const CONTROL_FILE: u8 = 0x02;
    pub(super) const PARAMETERS: u8 = 0x03;
    pub(super) const TIMELINE: u8 = 0x04;
    pub(super) const FORK: u8 = 0x10;
    pub(super) const DATABASE: u8 = 0x11;
    pub(super) const TABLESPACE: u8 = 0x12;
    pub(super) const RELATION_MAP: u8 = 0x13;
    pub(super) const TWO_PHASE: u8 = 0x14;
    pub(super) const SLRU: u8 = 0x15;
    pub(super) const NEXT_XID: u8 = 0x20;
    pub(super) const NEXT_OID: u8 = 0x21;
    pub(super) const NEXT_MULTI: u8 = 0x22;
    pub(super) const OLDEST_XID: u8 = 0x23;
    pub(super) const OLDEST_MULTI: u8 = 0x24;
    pub(super) const COMMIT_TIMESTAMPS: u8 = 0x25;
    pub(super) const REPLICATION_ORIGIN: u8 = 0x26;
}

const FORK_GROWN: u8 = 0;
const FORK_CUT: u8 = 1;
const FORK_COPIED: u8 = 2;

/// Buffers that [`StateChange::encode`] fills; reused, so that growth of a relation costs no
/// allocation here.
#[derive(Debug, Default)]
pub struct EncodedChange {
    key: Vec<u8>,
    value: Vec<u8>,
    exists: bool,
}

impl EncodedChange {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value; `None` when the key ceases to exist.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        self.exists.then_some(self.value.as_slice())
    }

    fn begin(&mut self, kind: u8, names: &[u32]) {
        self.key.clear();
        self.value.clear();
        self.exists = true;
        self.key.push(kind);
        for name in names {
            self.key.extend_from_slice(&name.to_be_bytes());
        }
    }

    fn u32s(&mut self, fields: &[u32]) {
        for field in fields {
            self.value.extend_from_slice(&field.to_le_bytes());
        }
    }

    fn bytes(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.value.extend_from_slice(bytes),
            None => self.exists = false,
        }
    }
}

impl StateChange {
    /// Writes key and value into `out`.
    pub fn encode(&self, out: &mut EncodedChange) {
        match self {
            StateChange::Identity(identity) => {
                out.begin(kind::IDENTITY, &[]);
                out.value
                    .extend_from_slice(&STATE_FORMAT_VERSION.to_le_bytes());
                out.value
                    .extend_from_slice(&[u8::from(identity.data_checksums), 0]);
                out.u32s(&[identity.major.number()]);
                out.value
                    .extend_from_slice(&identity.system_identifier.to_le_bytes());
                out.value
                    .extend_from_slice(&identity.segment_size.bytes().to_le_bytes());
            }
            StateChange::ControlFile(bytes) => {
                out.begin(kind::CONTROL_FILE, &[]);
                out.bytes(Some(bytes));
            }
            StateChange::Parameters(p) => {
                out.begin(kind::PARAMETERS, &[]);
                for field in [
                    p.max_connections,
                    p.max_worker_processes,
                    p.max_wal_senders,
                    p.max_prepared_transactions,
                    p.max_locks_per_transaction,
                    p.wal_level,
                ] {
                    out.value.extend_from_slice(&field.to_le_bytes());
                }
                let flags = [
                    u8::from(p.wal_log_hints),
                    u8::from(p.track_commit_timestamp),
                ];
                out.value.extend_from_slice(&flags);
            }
            StateChange::Timeline(timeline) => {
                out.begin(kind::TIMELINE, &[]);
                out.u32s(&[timeline.0]);
            }
            StateChange::Fork { fork, state } => encode_fork(*fork, *state, out),
            StateChange::Database { spc, db, exists } => {
                out.begin(kind::DATABASE, &[*spc, *db]);
                out.exists = *exists;
            }
            StateChange::Tablespace { oid, location } => {
                out.begin(kind::TABLESPACE, &[*oid]);
                out.bytes(location.as_ref().map(String::as_bytes));
            }
            StateChange::RelationMap { spc, db, bytes } => {
                out.begin(kind::RELATION_MAP, &[*spc, *db]);
                out.bytes(bytes.as_deref());
            }
            StateChange::TwoPhase { xid, file } => {
                out.begin(kind::TWO_PHASE, &[xid.epoch(), xid.xid()]);
                out.bytes(file.as_deref());
            }
            _ => self.encode_counter(out),
        }
    }

    fn encode_counter(&self, out: &mut EncodedChange) {
        match self {
            StateChange::Slru { slru, extent } => {
                out.begin(kind::SLRU, &[*slru as u32]);
                match extent {
                    Some(extent) => out.u32s(&[extent.first, extent.last]),
                    None => out.exists = false,
                }
            }
            StateChange::NextXid(xid) => {
                out.begin(kind::NEXT_XID, &[]);
                out.value.extend_from_slice(&xid.0.to_le_bytes());
            }
            StateChange::NextOid(oid) => {
                out.begin(kind::NEXT_OID, &[]);
                out.u32s(&[*oid]);
            }
            StateChange::NextMulti { multi, offset } => {
                out.begin(kind::NEXT_MULTI, &[]);
                out.u32s(&[*multi, *offset]);
            }
            StateChange::OldestXid { xid, db } => {
                out.begin(kind::OLDEST_XID, &[]);
                out.u32s(&[*xid, *db]);
            }
            StateChange::OldestMulti { multi, db } => {
                out.begin(kind::OLDEST_MULTI, &[]);
                out.u32s(&[*multi, *db]);
            }
            StateChange::CommitTimestamps { oldest, newest } => {
                out.begin(kind::COMMIT_TIMESTAMPS, &[]);
                out.u32s(&[*oldest, *newest]);
            }
            StateChange::ReplicationOrigin { id, remote } => {
                out.begin(kind::REPLICATION_ORIGIN, &[u32::from(*id)]);
                out.bytes(
                    remote
                        .map(|lsn| lsn.0.to_le_bytes())
                        .as_ref()
                        .map(<[u8; 8]>::as_slice),
                );
            }
            // The other arm of `encode` has them.
            _ => {}
        }
    }

    /// The change that [`StateChange::encode`] wrote.
    ///
    /// # Errors
    /// [`StateDecodeError`] for bytes that this version does not write.
    pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<StateChange, StateDecodeError> {
        let unknown = || StateDecodeError::UnknownKey { key: key.to_vec() };
        let (kind, names) = key.split_first().ok_or_else(unknown)?;
        match (*kind, names) {
            (kind::FORK, [name @ .., fork]) => {
                let [spc, db, rel] = big_endian(name).ok_or_else(unknown)?;
                let fork = ForkNumber::try_from(u32::from(*fork)).map_err(|_| unknown())?;
                let fork = RelFork {
                    locator: RelFileLocator { spc, db, rel },
                    fork,
                };
                Ok(StateChange::Fork {
                    fork,
                    state: value.map(decode_fork).transpose()?,
                })
            }
            (kind::DATABASE, names) => {
                let [spc, db] = big_endian(names).ok_or_else(unknown)?;
                Ok(StateChange::Database {
                    spc,
                    db,
                    exists: value.is_some(),
                })
            }
            (kind::TABLESPACE, names) => {
                let [oid] = big_endian(names).ok_or_else(unknown)?;
                let text = |bytes: &[u8]| {
                    String::from_utf8(bytes.to_vec()).map_err(|_| bad("tablespace", bytes))
                };
                Ok(StateChange::Tablespace {
                    oid,
                    location: value.map(text).transpose()?,
                })
            }
            (kind::RELATION_MAP, names) => {
                let [spc, db] = big_endian(names).ok_or_else(unknown)?;
                Ok(StateChange::RelationMap {
                    spc,
                    db,
                    bytes: value.map(Into::into),
                })
            }
            (kind::TWO_PHASE, names) => {
                let [epoch, xid] = big_endian(names).ok_or_else(unknown)?;
                let xid = FullXid::new(epoch, xid);
                Ok(StateChange::TwoPhase {
                    xid,
                    file: value.map(Into::into),
                })
            }
            (kind::SLRU, names) => {
                let [number] = big_endian(names).ok_or_else(unknown)?;
                let slru = Slru::ALL.into_iter().find(|slru| *slru as u32 == number);
                let extent = |value| {
                    let [first, last] = little_endian("SLRU", value)?;
                    Ok(SlruExtent { first, last })
                };
                let slru = slru.ok_or_else(unknown)?;
                Ok(StateChange::Slru {
                    slru,
                    extent: value.map(extent).transpose()?,
                })
            }
            (kind::REPLICATION_ORIGIN, names) => {
                let [id] = big_endian(names).ok_or_else(unknown)?;
                let id = u16::try_from(id).map_err(|_| unknown())?;
                let remote = |value| Ok(Lsn(u64_of("replication origin", value)?));
                Ok(StateChange::ReplicationOrigin {
                    id,
                    remote: value.map(remote).transpose()?,
                })
            }
            (kind, []) => decode_single(kind, value.unwrap_or_default()).ok_or_else(unknown)?,
            _ => Err(unknown()),
        }
    }
}

/// Entries of which there is one; `None` for an unknown kind.
fn decode_single(kind: u8, value: &[u8]) -> Option<Result<StateChange, StateDecodeError>> {
    Some(match kind {
        kind::IDENTITY => decode_identity(value),
        kind::CONTROL_FILE => Ok(StateChange::ControlFile(value.into())),
        kind::PARAMETERS => decode_parameters(value),
        kind::TIMELINE => little_endian("timeline", value)
            .map(|[timeline]| StateChange::Timeline(TimelineId(timeline))),
        kind::NEXT_XID => u64_of("next xid", value).map(|xid| StateChange::NextXid(FullXid(xid))),
        kind::NEXT_OID => little_endian("next oid", value).map(|[oid]| StateChange::NextOid(oid)),
        kind::NEXT_MULTI => little_endian("next multixact", value)
            .map(|[multi, offset]| StateChange::NextMulti { multi, offset }),
        kind::OLDEST_XID => {
            little_endian("oldest xid", value).map(|[xid, db]| StateChange::OldestXid { xid, db })
        }
        kind::OLDEST_MULTI => little_endian("oldest multixact", value)
            .map(|[multi, db]| StateChange::OldestMulti { multi, db }),
        kind::COMMIT_TIMESTAMPS => little_endian("commit timestamps", value)
            .map(|[oldest, newest]| StateChange::CommitTimestamps { oldest, newest }),
        _ => return None,
    })
}

fn encode_fork(fork: RelFork, state: Option<ForkState>, out: &mut EncodedChange) {
    let RelFileLocator { spc, db, rel } = fork.locator;
    out.begin(kind::FORK, &[spc, db, rel]);
    out.key.push(fork.fork as u8);
    let Some(state) = state else {
        out.exists = false;
        return;
    };
    let tag = match state.change {
        ForkChange::Grown => FORK_GROWN,
        ForkChange::Cut => FORK_CUT,
        ForkChange::CopiedFrom { .. } => FORK_COPIED,
    };
    out.value.push(tag);
    out.u32s(&[state.blocks]);
    if let ForkChange::CopiedFrom { spc, db } = state.change {
        out.u32s(&[spc, db]);
    }
}

fn decode_fork(value: &[u8]) -> Result<ForkState, StateDecodeError> {
    let bad = || bad("fork", value);
    let (tag, fields) = value.split_first().ok_or_else(bad)?;
    let (blocks, change): (BlockNumber, ForkChange) = match *tag {
        FORK_GROWN => {
            let [blocks] = little_endian("fork", fields)?;
            (blocks, ForkChange::Grown)
        }
        FORK_CUT => {
            let [blocks] = little_endian("fork", fields)?;
            (blocks, ForkChange::Cut)
        }
        FORK_COPIED => {
            let [blocks, spc, db] = little_endian("fork", fields)?;
            (blocks, ForkChange::CopiedFrom { spc, db })
        }
        _ => return Err(bad()),
    };
    Ok(ForkState { blocks, change })
}

fn decode_identity(value: &[u8]) -> Result<StateChange, StateDecodeError> {
    let bad = || bad("identity", value);
    let (version, rest) = value.split_first_chunk::<2>().ok_or_else(bad)?;
    let found = u16::from_le_bytes(*version);
    if found != STATE_FORMAT_VERSION {
        return Err(StateDecodeError::UnknownVersion { found });
    }
    let (flags, rest) = rest.split_first_chunk::<2>().ok_or_else(bad)?;
    let data_checksums = match flags {
        [0, 0] => false,
        [1, 0] => true,
        _ => return Err(bad()),
    };
    let (major, rest) = rest.split_first_chunk::<4>().ok_or_else(bad)?;
    let (system_identifier, rest) = rest.split_first_chunk::<8>().ok_or_else(bad)?;
    let segment_size = u64_of("identity", rest)?;
    Ok(StateChange::Identity(Identity {
        system_identifier: u64::from_le_bytes(*system_identifier),
        major: PgMajor::try_from(u32::from_le_bytes(*major)).map_err(|_| bad())?,
        segment_size: SegmentSize::new(segment_size).map_err(|_| bad())?,
        data_checksums,
    }))
}

fn decode_parameters(value: &[u8]) -> Result<StateChange, StateDecodeError> {
    let bad = || bad("parameters", value);
    let (numbers, flags) = value.split_at_checked(24).ok_or_else(bad)?;
    let numbers: [u32; 6] = little_endian("parameters", numbers)?;
    let flag = |byte: u8| match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(bad()),
    };
    let &[hints, timestamps] = flags else {
        return Err(bad());
    };
    let [connections, workers, senders, prepared, locks, wal_level] = numbers.map(u32::cast_signed);
    Ok(StateChange::Parameters(ParameterLimits {
        max_connections: connections,
        max_worker_processes: workers,
        max_wal_senders: senders,
        max_prepared_transactions: prepared,
        max_locks_per_transaction: locks,
        wal_level,
        wal_log_hints: flag(hints)?,
        track_commit_timestamp: flag(timestamps)?,
    }))
}

fn bad(kind: &'static str, value: &[u8]) -> StateDecodeError {
    StateDecodeError::BadValue {
        kind,
        len: value.len(),
    }
}

/// Exactly `N` big-endian numbers.
fn big_endian<const N: usize>(bytes: &[u8]) -> Option<[u32; N]> {
    let (words, rest) = bytes.as_chunks::<4>();
    let words: &[[u8; 4]; N] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(u32::from_be_bytes))
}

/// Exactly `N` little-endian numbers.
fn little_endian<const N: usize>(
    kind: &'static str,
    bytes: &[u8],
) -> Result<[u32; N], StateDecodeError> {
    let (words, rest) = bytes.as_chunks::<4>();
    match <&[[u8; 4]; N]>::try_from(words) {
        Ok(words) if rest.is_empty() => Ok(words.map(u32::from_le_bytes)),
        _ => Err(bad(kind, bytes)),
    }
}

fn u64_of(kind: &'static str, bytes: &[u8]) -> Result<u64, StateDecodeError> {
    let [low, high] = little_endian(kind, bytes)?;
    Ok(u64::from(high) << 32 | u64::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn every_kind() -> Vec<StateChange> {
        let fork = RelFork {
            locator: RelFileLocator {
                spc: 1663,
                db: 5,
                rel: 16_384,
            },
            fork: ForkNumber::Vm,
        };
        let copied = ForkChange::CopiedFrom { spc: 1663, db: 1 };
        vec![
            StateChange::Identity(Identity {
                system_identifier: u64::MAX - 7,
                major: PgMajor::V17,
                segment_size: SegmentSize::DEFAULT,
                data_checksums: true,
            }),
            StateChange::ControlFile(vec![7; 8192].into()),
            StateChange::Parameters(ParameterLimits {
                max_connections: 100,
                max_worker_processes: 8,
                max_wal_senders: 10,
                max_prepared_transactions: 2,
                max_locks_per_transaction: 64,
                wal_level: -1,
                wal_log_hints: false,
                track_commit_timestamp: true,
            }),
            StateChange::Timeline(TimelineId(3)),
            StateChange::Fork {
                fork,
                state: Some(ForkState {
                    blocks: 9,
                    change: ForkChange::Grown,
                }),
            },
            StateChange::Fork {
                fork,
                state: Some(ForkState {
                    blocks: 0,
                    change: ForkChange::Cut,
                }),
            },
            StateChange::Fork {
                fork,
                state: Some(ForkState {
                    blocks: 4,
                    change: copied,
                }),
            },
            StateChange::Fork { fork, state: None },
            StateChange::Database {
                spc: 1663,
                db: 5,
                exists: true,
            },
            StateChange::Database {
                spc: 1663,
                db: 5,
                exists: false,
            },
            StateChange::Tablespace {
                oid: 16_390,
                location: Some("/mnt/fast".into()),
            },
            StateChange::Tablespace {
                oid: 16_390,
                location: Some(String::new()),
            },
            StateChange::Tablespace {
                oid: 16_390,
                location: None,
            },
            StateChange::RelationMap {
                spc: 1664,
                db: 0,
                bytes: Some(vec![1; 512].into()),
            },
            StateChange::RelationMap {
                spc: 1664,
                db: 0,
                bytes: None,
            },
            StateChange::TwoPhase {
                xid: FullXid::new(1, 900),
                file: Some(vec![2; 99].into()),
            },
            StateChange::TwoPhase {
                xid: FullXid::new(1, 900),
                file: None,
            },
            StateChange::Slru {
                slru: Slru::MultiXactMembers,
                extent: Some(SlruExtent { first: 7, last: 2 }),
            },
            StateChange::Slru {
                slru: Slru::CommitTs,
                extent: None,
            },
            StateChange::NextXid(FullXid::new(2, 3)),
            StateChange::NextOid(24_576),
            StateChange::NextMulti {
                multi: 8,
                offset: 17,
            },
            StateChange::OldestXid { xid: 717, db: 1 },
            StateChange::OldestMulti { multi: 1, db: 4 },
            StateChange::CommitTimestamps {
                oldest: 720,
                newest: 790,
            },
            StateChange::ReplicationOrigin {
                id: 3,
                remote: Some(Lsn(1 << 40)),
            },
            StateChange::ReplicationOrigin {
                id: 3,
                remote: None,
            },
        ]
    }

    #[test]
    fn every_kind_round_trips() {
        let mut encoded = EncodedChange::default();
        for change in every_kind() {
            change.encode(&mut encoded);
            let decoded = StateChange::decode(encoded.key(), encoded.value());
            assert_eq!(decoded, Ok(change));
            assert!(encoded.key().len() <= 64);
        }
    }

    #[test]
    fn a_later_layout_is_refused_by_its_number() {
        let mut encoded = EncodedChange::default();
        every_kind()[0].encode(&mut encoded);
        let mut value = encoded.value().unwrap().to_vec();
        value[0] = 2;
        let refused = StateChange::decode(encoded.key(), Some(&value));
        assert_eq!(refused, Err(StateDecodeError::UnknownVersion { found: 2 }));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_change_or_an_error(
            key in prop::collection::vec(any::<u8>(), 0..20),
            kind in 0u8..0x30,
            value in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
        ) {
            let key: Vec<u8> = std::iter::once(kind).chain(key).collect();
            if let Ok(change) = StateChange::decode(&key, value.as_deref()) {
                let mut encoded = EncodedChange::default();
                change.encode(&mut encoded);
                prop_assert_eq!(encoded.key(), key.as_slice());
            }
        }
    }
}
