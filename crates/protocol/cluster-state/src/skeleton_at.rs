//! Writing the skeleton of a data directory at an LSN.

use pg_page::replication_origin::{OriginProgress, ReplicationOrigins};
use pg_page::slru::entries_per_page;
use pg_page::{ControlFile, ControlFileError};
use pg_types::{ForkNumber, Lsn, RelFileLocator, RelFork, Slru};

use crate::history::Counters;
use crate::{
    ClusterHistory, DatabaseDir, RelationMap, RelationSize, Skeleton, SlruExtent, SlruRange,
    Tablespace, TwoPhaseFile,
};

/// Why there is no skeleton at an LSN.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SkeletonError {
    /// The LSN is before the cluster's import.
    #[error(
        "LSN {lsn} is before the cluster's import, which ended at {imported}; choose {imported} or later"
    )]
    BeforeImport {
        /// The LSN asked for.
        lsn: Lsn,
        /// The first LSN there is.
        imported: Lsn,
    },
    /// Something that every cluster has is not recorded.
    #[error(
        "the stored state of the cluster is incomplete at {lsn}: {missing} is missing; import the cluster again"
    )]
    Incomplete {
        /// The LSN asked for.
        lsn: Lsn,
        /// What is missing.
        missing: &'static str,
    },
    /// The imported control file does not decode any more.
    #[error("the stored control file is damaged: {0}")]
    ControlFile(#[from] ControlFileError),
}

impl ClusterHistory {
    /// Everything a compute node needs besides pages to start at `lsn`, the end of a whole record that
    /// begins at `last_record`.
    ///
    /// The transaction counter may be up to 1023 ids above the true one, never below (see
    /// `ClusterIngest`); the range of each SLRU includes the page that PostgreSQL reads first for the
    /// counter given.
    ///
    /// # Errors
    /// [`SkeletonError`] before the import, or when stored state is missing or damaged.
    pub fn skeleton_at(&self, lsn: Lsn, last_record: Lsn) -> Result<Skeleton, SkeletonError> {
        let missing = |missing| SkeletonError::Incomplete { lsn, missing };
        let (imported, identity) = self.identity().ok_or(missing("the cluster's identity"))?;
        if lsn < imported {
            return Err(SkeletonError::BeforeImport { lsn, imported });
        }
        let counters = self.counters_at(lsn).ok_or(missing("a counter"))?;
        let timeline = self.timeline_at(lsn).ok_or(missing("the timeline"))?;
        let control = self.control_at(lsn, &counters)?;
        let origins = ReplicationOrigins {
            origins: self
                .origins_at(lsn)
                .map(|(origin, remote_lsn)| OriginProgress { origin, remote_lsn })
                .collect(),
        };
        let mut relations: Vec<RelationSize> = self.logged_relations_at(lsn);
        relations.sort_unstable_by_key(|relation| relation.fork);
        Ok(Skeleton {
            lsn,
            last_record,
            timeline,
            major: identity.major,
            segment_size: identity.segment_size,
            control: hex(&control.encode()),
            relations,
            databases: self
                .databases_at(lsn)
                .into_iter()
                .map(|(spc, db)| DatabaseDir { spc, db })
                .collect(),
            tablespaces: self
                .tablespaces_at(lsn)
                .map(|(oid, location)| Tablespace {
                    oid,
                    location: location.to_owned(),
                })
                .collect(),
            relation_maps: self
                .relation_maps_at(lsn)
                .map(|((spc, db), bytes)| RelationMap {
                    spc,
                    db,
                    bytes: hex(bytes),
                })
                .collect(),
            two_phase: self
                .two_phase_at(lsn)
                .map(|(xid, file)| TwoPhaseFile {
                    name: pg_page::two_phase::file_name(xid, identity.major),
                    bytes: hex(file),
                })
                .collect(),
            slrus: self.slru_ranges_at(lsn, &counters),
            replication_origins: (!origins.origins.is_empty()).then(|| hex(&origins.encode())),
        })
    }

    /// Every fork, except what is empty after a restart anyway: the other forks of a relation that
    /// has an init fork, which is unlogged (trap 17).
    fn logged_relations_at(&self, lsn: Lsn) -> Vec<RelationSize> {
        let unlogged = |locator: RelFileLocator| {
            self.size_at(
                RelFork {
                    locator,
                    fork: ForkNumber::Init,
                },
                lsn,
            )
            .is_some()
        };
        self.forks_at(lsn)
            .filter(|(fork, _)| fork.fork == ForkNumber::Init || !unlogged(fork.locator))
            .map(|(fork, blocks)| RelationSize { fork, blocks })
            .collect()
    }

    fn control_at(&self, lsn: Lsn, counters: &Counters) -> Result<ControlFile, SkeletonError> {
        let missing = |missing| SkeletonError::Incomplete { lsn, missing };
        let template = self.control_file().ok_or(missing("the control file"))?;
        let parameters = self
            .parameters_at(lsn)
            .ok_or(missing("the parameter entry"))?;
        let mut control = ControlFile::decode(template)?;
        control.set_parameters(&parameters);
        let mut checkpoint = control.checkpoint();
        checkpoint.next_xid = counters.next_xid;
        checkpoint.next_oid = counters.next_oid;
        (checkpoint.next_multi, checkpoint.next_multi_offset) = counters.next_multi;
        (checkpoint.oldest_xid, checkpoint.oldest_xid_db) = counters.oldest_xid;
        (checkpoint.oldest_multi, checkpoint.oldest_multi_db) = counters.oldest_multi;
        let (oldest, newest) = counters.commit_ts;
        checkpoint.oldest_commit_ts_xid = oldest;
        // Every commit sets it; the newest that can have committed is the one before the counter.
        checkpoint.newest_commit_ts_xid = match oldest {
            0 => newest,
            _ => last_xid(counters),
        };
        checkpoint.oldest_active_xid = 0;
        control.set_checkpoint(&checkpoint);
        Ok(control)
    }

    fn slru_ranges_at(&self, lsn: Lsn, counters: &Counters) -> Vec<SlruRange> {
        let last_xid = last_xid(counters);
        let (next_multi, next_offset) = counters.next_multi;
        let mut ranges = Vec::new();
        for slru in Slru::ALL {
            // The page of the last id given out. The first id of a page needs no page yet: the server
            // makes it when it assigns that id (trap 14).
            let last_id = match slru {
                Slru::Clog | Slru::CommitTs => last_xid,
                Slru::MultiXactOffsets => next_multi.wrapping_sub(1),
                Slru::MultiXactMembers => next_offset.saturating_sub(1),
            };
            let current = last_id / entries_per_page(slru);
            let extent = match (self.slru_at(slru, lsn), slru) {
                (Some(extent), _) => extent.including(slru, current),
                (None, Slru::CommitTs) => continue,
                (None, _) => SlruExtent {
                    first: current,
                    last: current,
                },
            };
            ranges.extend(extent.ranges(slru));
        }
        ranges
    }
}

/// The id before the counter.
fn last_xid(counters: &Counters) -> pg_types::Xid {
    match counters.next_xid.xid() {
        0..=pg_types::FIRST_NORMAL_XID => u32::MAX,
        next => next - 1,
    }
}

/// Lowercase hexadecimal digits of `bytes`.
fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 0xF)])
        .collect()
}
