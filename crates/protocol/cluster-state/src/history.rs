//! The cluster's state at every LSN since its import.
//!
//! **Invariant.** [`ClusterHistory`] is fed with [`StateChange`]s only, in LSN order, by the same method
//! whether they come from WAL or from the page store's metadata. So after a restart it answers as
//! before, up to the LSN that the store kept.

use std::collections::{BTreeMap, BTreeSet};

use pg_page::ParameterLimits;
use pg_types::{BlockNumber, FullXid, Lsn, Oid, PageKey, RelFork, Slru, TimelineId, Xid};

use crate::fork_hash::ForkMap;
use crate::fork_history::ForkHistory;
use crate::versions::Versions;
use crate::{Identity, SlruExtent, StateChange, StateDecodeError};

/// The life that a block is in at some LSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockOrigin {
    /// Changes at or below this LSN belong to an earlier life of the block.
    pub since: Lsn,
    /// What the block consisted of when this life began.
    pub base: BlockBase,
}

/// What a block consists of when its life begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockBase {
    /// Zeros.
    Zero,
    /// What another block consists of at an LSN: its database was created by copying files.
    CopyOf {
        /// The other block.
        key: PageKey,
        /// At this LSN.
        lsn: Lsn,
    },
}

/// Counters and limits that a checkpoint records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) next_xid: FullXid,
    pub(crate) next_oid: Oid,
    pub(crate) next_multi: (u32, u32),
    pub(crate) oldest_xid: (Xid, Oid),
    pub(crate) oldest_multi: (u32, Oid),
    pub(crate) commit_ts: (Xid, Xid),
}

/// A file that can cease to exist.
type FileVersions = Versions<Option<Box<[u8]>>>;

/// Everything of a data directory that is not a page, at every LSN.
#[derive(Debug, Clone, Default)]
pub struct ClusterHistory {
    identity: Option<(Lsn, Identity)>,
    control_file: Option<Box<[u8]>>,
    parameters: Versions<ParameterLimits>,
    timelines: Versions<TimelineId>,
    forks: ForkMap<ForkHistory>,
    databases: BTreeMap<(Oid, Oid), Versions<bool>>,
    tablespaces: BTreeMap<Oid, Versions<Option<String>>>,
    relation_maps: BTreeMap<(Oid, Oid), FileVersions>,
    two_phase: BTreeMap<FullXid, FileVersions>,
    slrus: BTreeMap<Slru, Versions<Option<SlruExtent>>>,
    next_xid: Versions<FullXid>,
    next_oid: Versions<Oid>,
    next_multi: Versions<(u32, u32)>,
    oldest_xid: Versions<(Xid, Oid)>,
    oldest_multi: Versions<(u32, Oid)>,
    commit_ts: Versions<(Xid, Xid)>,
    origins: BTreeMap<u16, Versions<Option<Lsn>>>,
}

impl ClusterHistory {
    /// The history that stored metadata tells: keys, LSNs and values as [`StateChange::encode`] wrote
    /// them, in any order.
    ///
    /// # Errors
    /// [`StateDecodeError`] for an entry that this version does not write.
    pub fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        entries: impl IntoIterator<Item = (K, Lsn, Option<V>)>,
    ) -> Result<ClusterHistory, StateDecodeError> {
        let mut changes = Vec::new();
        for (key, lsn, value) in entries {
            let change = StateChange::decode(key.as_ref(), value.as_ref().map(AsRef::as_ref))?;
            changes.push((lsn, change));
        }
        changes.sort_by_key(|(lsn, _)| *lsn);
        let mut history = ClusterHistory::default();
        for (lsn, change) in changes {
            history.insert(lsn, change);
        }
        Ok(history)
    }

    /// Adds what holds from `lsn` on. Changes of one thing come in LSN order.
    pub fn insert(&mut self, lsn: Lsn, change: StateChange) {
        match change {
            StateChange::Identity(identity) => self.identity = Some((lsn, identity)),
            StateChange::ControlFile(bytes) => self.control_file = Some(bytes),
            StateChange::Parameters(parameters) => self.parameters.insert(lsn, parameters),
            StateChange::Timeline(timeline) => self.timelines.insert(lsn, timeline),
            StateChange::Fork { fork, state } => {
                self.forks.entry(fork).or_default().insert(lsn, state);
            }
            StateChange::Database { spc, db, exists } => {
                self.databases
                    .entry((spc, db))
                    .or_default()
                    .insert(lsn, exists);
            }
            StateChange::Tablespace { oid, location } => {
                self.tablespaces
                    .entry(oid)
                    .or_default()
                    .insert(lsn, location);
            }
            StateChange::RelationMap { spc, db, bytes } => {
                self.relation_maps
                    .entry((spc, db))
                    .or_default()
                    .insert(lsn, bytes);
            }
            StateChange::TwoPhase { xid, file } => {
                self.two_phase.entry(xid).or_default().insert(lsn, file);
            }
            StateChange::Slru { slru, extent } => {
                self.slrus.entry(slru).or_default().insert(lsn, extent);
            }
            StateChange::NextXid(xid) => self.next_xid.insert(lsn, xid),
            StateChange::NextOid(oid) => self.next_oid.insert(lsn, oid),
            StateChange::NextMulti { multi, offset } => {
                self.next_multi.insert(lsn, (multi, offset));
            }
            StateChange::OldestXid { xid, db } => self.oldest_xid.insert(lsn, (xid, db)),
            StateChange::OldestMulti { multi, db } => self.oldest_multi.insert(lsn, (multi, db)),
            StateChange::CommitTimestamps { oldest, newest } => {
                self.commit_ts.insert(lsn, (oldest, newest));
            }
            StateChange::ReplicationOrigin { id, remote } => {
                self.origins.entry(id).or_default().insert(lsn, remote);
            }
        }
    }

    /// What never changes about the cluster, and the LSN it was imported at; `None` before the
    /// import's entries have been inserted.
    #[must_use]
    pub fn identity(&self) -> Option<(Lsn, Identity)> {
        self.identity
    }

    /// Blocks of `fork` at `lsn`; `None` when it does not exist there.
    #[must_use]
    pub fn size_at(&self, fork: RelFork, lsn: Lsn) -> Option<BlockNumber> {
        self.forks.get(&fork)?.size_at(lsn)
    }

    /// The pages of `slru` that exist at `lsn`.
    #[must_use]
    pub fn slru_at(&self, slru: Slru, lsn: Lsn) -> Option<SlruExtent> {
        self.slrus
            .get(&slru)
            .and_then(|versions| versions.at(lsn))
            .and_then(|(_, extent)| *extent)
    }

    /// The life that block `key` is in at `lsn`.
    #[must_use]
    pub fn origin(&self, key: &PageKey, lsn: Lsn) -> BlockOrigin {
        let first = BlockOrigin {
            since: Lsn::INVALID,
            base: BlockBase::Zero,
        };
        let Some(fork) = key.as_relation() else {
            // Pages of an SLRU are initialised by records of their own, except commit-timestamp pages
            // that come back after the setting was off and on again: those begin anew where the
            // files were removed.
            return match key.as_slru() {
                Some(slru) => BlockOrigin {
                    since: self.slru_emptied(slru, lsn),
                    ..first
                },
                None => first,
            };
        };
        let Some(history) = self.forks.get(&fork) else {
            return first;
        };
        let life = history.life_at(key.block, lsn);
        let base = match life.copied_from {
            Some((spc, db)) => BlockBase::CopyOf {
                key: PageKey {
                    space: spc,
                    db,
                    ..*key
                },
                lsn: life.since,
            },
            None => BlockBase::Zero,
        };
        BlockOrigin {
            since: life.since,
            base,
        }
    }

    fn slru_emptied(&self, slru: Slru, lsn: Lsn) -> Lsn {
        let versions = self.slrus.get(&slru);
        versions
            .and_then(|versions| versions.last_where(lsn, Option::is_none))
            .unwrap_or(Lsn::INVALID)
    }

    /// Every fork that exists at `lsn`, with its size.
    pub(crate) fn forks_at(&self, lsn: Lsn) -> impl Iterator<Item = (RelFork, BlockNumber)> {
        self.forks
            .iter()
            .filter_map(move |(fork, history)| Some((*fork, history.size_at(lsn)?)))
    }

    /// Database directories at `lsn`, as (tablespace, database): those that were created, and those
    /// that a relation is in (moving a table to a tablespace makes its directory without a record).
    pub(crate) fn databases_at(&self, lsn: Lsn) -> BTreeSet<(Oid, Oid)> {
        let used = self
            .forks_at(lsn)
            .map(|(fork, _)| (fork.locator.spc, fork.locator.db))
            .filter(|(_, db)| *db != 0);
        self.created_databases_at(lsn).chain(used).collect()
    }

    /// Database directories at `lsn` that were created by a record of their own.
    pub(crate) fn created_databases_at(&self, lsn: Lsn) -> impl Iterator<Item = (Oid, Oid)> {
        self.databases
            .iter()
            .filter_map(move |(directory, versions)| {
                versions
                    .at(lsn)
                    .is_some_and(|(_, exists)| *exists)
                    .then_some(*directory)
            })
    }

    pub(crate) fn tablespaces_at(&self, lsn: Lsn) -> impl Iterator<Item = (Oid, &str)> {
        existing_at(&self.tablespaces, lsn).map(|(oid, location)| (oid, location.as_str()))
    }

    pub(crate) fn relation_maps_at(&self, lsn: Lsn) -> impl Iterator<Item = ((Oid, Oid), &[u8])> {
        existing_at(&self.relation_maps, lsn).map(|(directory, bytes)| (directory, bytes.as_ref()))
    }

    pub(crate) fn two_phase_at(&self, lsn: Lsn) -> impl Iterator<Item = (FullXid, &[u8])> {
        existing_at(&self.two_phase, lsn).map(|(xid, file)| (xid, file.as_ref()))
    }

    pub(crate) fn origins_at(&self, lsn: Lsn) -> impl Iterator<Item = (u16, Lsn)> {
        existing_at(&self.origins, lsn).map(|(id, remote)| (id, *remote))
    }

    pub(crate) fn parameters_at(&self, lsn: Lsn) -> Option<ParameterLimits> {
        self.parameters.at(lsn).map(|(_, parameters)| *parameters)
    }

    /// The timeline of the last record at or before `lsn`.
    #[must_use]
    pub fn timeline_at(&self, lsn: Lsn) -> Option<TimelineId> {
        self.timelines.at(lsn).map(|(_, timeline)| *timeline)
    }

    pub(crate) fn control_file(&self) -> Option<&[u8]> {
        self.control_file.as_deref()
    }

    pub(crate) fn counters_at(&self, lsn: Lsn) -> Option<Counters> {
        Some(Counters {
            next_xid: *self.next_xid.at(lsn)?.1,
            next_oid: *self.next_oid.at(lsn)?.1,
            next_multi: *self.next_multi.at(lsn)?.1,
            oldest_xid: *self.oldest_xid.at(lsn)?.1,
            oldest_multi: *self.oldest_multi.at(lsn)?.1,
            commit_ts: *self.commit_ts.at(lsn)?.1,
        })
    }
}

/// The things that exist at `lsn`, of things whose versions say whether they do.
fn existing_at<K: Copy, T>(
    things: &BTreeMap<K, Versions<Option<T>>>,
    lsn: Lsn,
) -> impl Iterator<Item = (K, &T)> {
    things.iter().filter_map(move |(name, versions)| {
        let (_, value) = versions.at(lsn)?;
        Some((*name, value.as_ref()?))
    })
}
