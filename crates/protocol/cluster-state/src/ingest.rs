//! From WAL records to page changes and state changes.
//!
//! **Invariant.** Every record is either understood completely or refused by name: what it does to
//! pages comes out as mini-records, what it does to anything else as [`StateChange`]s. A record that
//! was skipped would be a change that no later read could know was missing (DESIGN invariant 11).
//!
//! [`ClusterIngest`] keeps the newest state only, in the form the hot path needs: a page change costs
//! one lookup of its fork's size. What it emits is all that [`crate::ClusterHistory`] needs to answer
//! for every LSN.

mod body_error;
mod counters;
mod files;
mod transactions;

use std::collections::{BTreeMap, BTreeSet};

use pg_page::ParameterLimits;
use pg_redo::{Facts, PageChange};
use pg_types::{
    BlockNumber, ForkNumber, FullXid, Lsn, Oid, PageKey, PgMajor, RelFork, Slru, TimelineId, Xid,
};
use pg_wal::{MiniRecord, Record, RecordError, RmgrId, StreamedRecord};

use crate::fork_hash::ForkMap;
use crate::history::Counters;
use crate::{ClusterHistory, ForkChange, ForkState, SlruExtent, StateChange};

/// Where the changes of a record go.
pub trait ChangeSink {
    /// `mini`, an encoded mini-record, changes page `key`; its record ends at `lsn`.
    fn page(&mut self, key: PageKey, lsn: Lsn, mini: &[u8]);
    /// `change` holds from `lsn` on, the end of the record that made it. A record makes at most one
    /// change of one thing.
    fn state(&mut self, lsn: Lsn, change: StateChange);
}

/// Why a record cannot be ingested. Ingestion has to stop before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IngestError {
    /// The record's frame does not decode.
    #[error(
        "the WAL record at {lsn} cannot be decoded: {source}; the WAL is damaged there, or written by another major than {major}"
    )]
    Decode {
        /// Start of the record.
        lsn: Lsn,
        /// The major it was read as.
        major: PgMajor,
        /// What is wrong.
        source: RecordError,
    },
    /// A record whose effect is not known.
    #[error("the WAL record at {lsn} ({rmgr}, info {info:#04x}) is not supported: {reason}")]
    Unsupported {
        /// Start of the record.
        lsn: Lsn,
        /// Resource manager.
        rmgr: RmgrId,
        /// Its info bits.
        info: u8,
        /// What is missing, and what to do.
        reason: String,
    },
    /// The record's own fields do not decode.
    #[error("the WAL record at {lsn} ({rmgr}, info {info:#04x}) has a malformed body: {reason}")]
    Malformed {
        /// Start of the record.
        lsn: Lsn,
        /// Resource manager.
        rmgr: RmgrId,
        /// Its info bits.
        info: u8,
        /// What is wrong.
        reason: String,
    },
}

/// Ingestion cannot begin at an LSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the stored state of the cluster is incomplete at {lsn}: {missing} is missing; import the cluster again"
)]
pub struct ResumeError {
    /// Where ingestion was to begin.
    pub lsn: Lsn,
    /// What is missing.
    pub missing: &'static str,
}

/// Transaction ids between two recorded upper bounds of the counter.
///
/// Recording every id would cost an entry per transaction. An upper bound is as good: no record up
/// to that LSN carries an id between the true counter and the bound, so nothing on any page does, and
/// a server that starts with the bound merely leaves those ids unused. (A lower bound would be fatal:
/// ids would be used twice.)
const XID_BOUND_STEP: u64 = 1024;

/// The newest state of a cluster, fed with its WAL.
#[derive(Debug)]
pub struct ClusterIngest {
    major: PgMajor,
    data_checksums: bool,
    facts: Facts,
    parameters: ParameterLimits,
    timeline: TimelineId,
    forks: ForkMap<BlockNumber>,
    databases: BTreeSet<(Oid, Oid)>,
    tablespaces: BTreeSet<Oid>,
    relation_maps: BTreeMap<(Oid, Oid), Box<[u8]>>,
    two_phase: BTreeSet<FullXid>,
    slrus: BTreeMap<Slru, SlruExtent>,
    origins: BTreeMap<u16, Lsn>,
    counters: Counters,
    /// What [`StateChange::NextXid`] said last.
    xid_bound: FullXid,
    /// Of the record in hand: forks and SLRUs that grew.
    grown: Vec<RelFork>,
    grown_slrus: Vec<Slru>,
    mini: Vec<u8>,
}

impl ClusterIngest {
    /// The state of `history` at `lsn`, from where ingestion goes on.
    ///
    /// # Errors
    /// [`ResumeError`] when the history lacks what every cluster has.
    pub fn resume(history: &ClusterHistory, lsn: Lsn) -> Result<ClusterIngest, ResumeError> {
        let missing = |missing| ResumeError { lsn, missing };
        let (_, identity) = history
            .identity()
            .ok_or(missing("the cluster's identity"))?;
        let counters = history.counters_at(lsn).ok_or(missing("a counter"))?;
        let parameters = history
            .parameters_at(lsn)
            .ok_or(missing("the parameter entry"))?;
        let timeline = history.timeline_at(lsn).ok_or(missing("the timeline"))?;
        let slrus = Slru::ALL.into_iter();
        let mut ingest = ClusterIngest {
            major: identity.major,
            data_checksums: identity.data_checksums,
            facts: Facts {
                major: identity.major,
                hint_lsn: false,
                track_commit_timestamp: false,
            },
            parameters,
            timeline,
            forks: history.forks_at(lsn).collect(),
            databases: history.created_databases_at(lsn).collect(),
            tablespaces: history.tablespaces_at(lsn).map(|(oid, _)| oid).collect(),
            relation_maps: history
                .relation_maps_at(lsn)
                .map(|(directory, bytes)| (directory, bytes.into()))
                .collect(),
            two_phase: history.two_phase_at(lsn).map(|(xid, _)| xid).collect(),
            slrus: slrus
                .filter_map(|slru| Some((slru, history.slru_at(slru, lsn)?)))
                .collect(),
            origins: history.origins_at(lsn).collect(),
            counters,
            xid_bound: counters.next_xid,
            grown: Vec::new(),
            grown_slrus: Vec::new(),
            mini: Vec::new(),
        };
        ingest.set_facts();
        Ok(ingest)
    }

    /// The timeline of the last record.
    #[must_use]
    pub const fn timeline(&self) -> TimelineId {
        self.timeline
    }

    /// Blocks of `fork` now.
    #[must_use]
    pub fn size(&self, fork: RelFork) -> Option<BlockNumber> {
        self.forks.get(&fork).copied()
    }

    /// Takes one record and emits everything it changes.
    ///
    /// # Errors
    /// [`IngestError`] when it cannot be understood; some of its changes may have been emitted, so
    /// whatever was emitted since the record before must not be kept.
    pub fn ingest(
        &mut self,
        streamed: &StreamedRecord<'_>,
        sink: &mut impl ChangeSink,
    ) -> Result<(), IngestError> {
        let record =
            Record::decode(streamed.bytes, self.major).map_err(|source| IngestError::Decode {
                lsn: streamed.start,
                major: self.major,
                source,
            })?;
        self.note_xid(record.header.xid);
        self.apply_state(&record, streamed, sink)?;
        self.emit_pages(&record, streamed, sink)?;
        self.emit_growth(streamed.end, sink);
        if self.counters.next_xid > self.xid_bound {
            self.xid_bound = xid_bound(self.counters.next_xid);
            sink.state(streamed.end, StateChange::NextXid(self.xid_bound));
        }
        Ok(())
    }

    /// What the record does to anything but pages.
    fn apply_state(
        &mut self,
        record: &Record<'_>,
        streamed: &StreamedRecord<'_>,
        sink: &mut impl ChangeSink,
    ) -> Result<(), IngestError> {
        let end = streamed.end;
        let done = match record.header.rmid {
            RmgrId::XACT => self.transaction(record, end, sink),
            RmgrId::XLOG => self.xlog(record, end, sink),
            RmgrId::SMGR => self.storage(record, end, sink),
            RmgrId::MULTIXACT => self.multixact(record, end, sink),
            RmgrId::STANDBY => self.standby(record),
            RmgrId::CLOG => self.clog(record, end, sink),
            RmgrId::COMMIT_TS => self.commit_ts(record, end, sink),
            RmgrId::RELMAP => self.relation_map(record, end, sink),
            RmgrId::DBASE => self.database(record, end, sink),
            RmgrId::TBLSPC => self.tablespace(record, end, sink),
            RmgrId::REPLORIGIN => self.replication_origin(record, end, sink),
            _ => return Ok(()),
        };
        done.map_err(|error| IngestError::Malformed {
            lsn: streamed.start,
            rmgr: record.header.rmid,
            info: record.info(),
            reason: error.to_string(),
        })
    }

    /// What the record does to pages.
    fn emit_pages(
        &mut self,
        record: &Record<'_>,
        streamed: &StreamedRecord<'_>,
        sink: &mut impl ChangeSink,
    ) -> Result<(), IngestError> {
        let ClusterIngest {
            forks,
            slrus,
            grown,
            grown_slrus,
            mini,
            facts,
            ..
        } = self;
        // A truncation clears the tail of the last visibility-map page that is left. It never makes
        // one: a table whose map does not exist has nothing to clear (trap 5).
        let may_grow = record.header.rmid != RmgrId::SMGR;
        let hint_lsn = facts.hint_lsn;
        let mut emit = |change: PageChange| {
            let PageChange {
                key,
                target,
                initializes,
                keep_image,
            } = change;
            if let Some(fork) = key.as_relation() {
                let blocks = key.block.saturating_add(1);
                let size = forks.get_mut(&fork);
                if size.as_ref().is_none_or(|size| **size < blocks) {
                    if !may_grow {
                        return;
                    }
                    match size {
                        Some(size) => *size = blocks,
                        None => {
                            forks.insert(fork, blocks);
                        }
                    }
                    if !grown.contains(&fork) {
                        grown.push(fork);
                    }
                }
            } else if let Some(slru) = key.as_slru() {
                let first = SlruExtent {
                    first: key.block,
                    last: key.block,
                };
                let extent = slrus.get(&slru).copied();
                let after = extent.map_or(first, |extent| extent.including(slru, key.block));
                if extent != Some(after) {
                    slrus.insert(slru, after);
                    if !grown_slrus.contains(&slru) {
                        grown_slrus.push(slru);
                    }
                }
            }
            mini.clear();
            MiniRecord::encode_from(record, target, initializes, hint_lsn, keep_image, mini);
            sink.page(key, streamed.end, mini);
        };
        pg_redo::page_changes(record, facts, &mut emit).map_err(|error| IngestError::Unsupported {
            lsn: streamed.start,
            rmgr: record.header.rmid,
            info: record.info(),
            reason: error.reason.to_string(),
        })
    }

    fn emit_growth(&mut self, lsn: Lsn, sink: &mut impl ChangeSink) {
        for fork in self.grown.drain(..) {
            let blocks = self.forks.get(&fork).copied().unwrap_or_default();
            let state = Some(ForkState {
                blocks,
                change: ForkChange::Grown,
            });
            sink.state(lsn, StateChange::Fork { fork, state });
        }
        for slru in self.grown_slrus.drain(..) {
            let extent = self.slrus.get(&slru).copied();
            sink.state(lsn, StateChange::Slru { slru, extent });
        }
    }

    /// Any id that a record shows has been assigned.
    fn note_xid(&mut self, xid: Xid) {
        self.counters.next_xid = self.counters.next_xid.advanced_past(xid);
    }

    /// The full id of `xid`, which has been assigned.
    fn full_xid(&self, xid: Xid) -> FullXid {
        let next = self.counters.next_xid;
        let epoch = if xid < next.xid() {
            next.epoch()
        } else {
            next.epoch().wrapping_sub(1)
        };
        FullXid::new(epoch, xid)
    }

    fn set_facts(&mut self) {
        self.facts.hint_lsn = self.data_checksums || self.parameters.wal_log_hints;
        self.facts.track_commit_timestamp = self.parameters.track_commit_timestamp;
    }

    /// Removes `fork`, if it exists.
    fn drop_fork(&mut self, fork: RelFork, lsn: Lsn, sink: &mut impl ChangeSink) {
        if self.forks.remove(&fork).is_some() {
            sink.state(lsn, StateChange::Fork { fork, state: None });
        }
    }

    /// Cuts `fork` to `blocks`, if it is longer.
    fn cut_fork(
        &mut self,
        fork: RelFork,
        blocks: BlockNumber,
        lsn: Lsn,
        sink: &mut impl ChangeSink,
    ) {
        if let Some(size) = self.forks.get_mut(&fork)
            && *size > blocks
        {
            *size = blocks;
            let state = Some(ForkState {
                blocks,
                change: ForkChange::Cut,
            });
            sink.state(lsn, StateChange::Fork { fork, state });
        }
    }
}

/// The upper bound that is recorded when the counter reaches `next`: some ids further on, never one of
/// the three that are not assigned.
const fn xid_bound(next: FullXid) -> FullXid {
    let bound = FullXid(next.0.saturating_add(XID_BOUND_STEP - 1));
    if bound.xid() < pg_types::FIRST_NORMAL_XID {
        FullXid::new(bound.epoch(), pg_types::FIRST_NORMAL_XID)
    } else {
        bound
    }
}

/// Every fork of the relation that `fork` is one of.
fn forks_of(locator: pg_types::RelFileLocator) -> impl Iterator<Item = RelFork> {
    ForkNumber::ALL
        .into_iter()
        .map(move |fork| RelFork { locator, fork })
}
