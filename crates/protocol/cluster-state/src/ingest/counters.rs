//! Counters, limits, settings and the extents of SLRUs.

use pg_page::ParameterLimits;
use pg_page::slru::{
    COMMIT_TS_XACTS_PER_PAGE, MULTIXACT_MEMBERS_PER_PAGE, MULTIXACT_OFFSETS_PER_PAGE,
};
use pg_types::{BlockNumber, CheckPoint, Lsn, Oid, Slru, Xid};
use pg_wal::Record;
use pg_wal::records::clog::ClogRecord;
use pg_wal::records::commit_ts::CommitTsRecord;
use pg_wal::records::replorigin::ReplOriginRecord;
use pg_wal::records::xlog::{Parameters, XlogRecord};

use super::body_error::BodyError;
use super::{ChangeSink, ClusterIngest};
use crate::{SlruExtent, StateChange};

impl ClusterIngest {
    pub(super) fn xlog(
        &mut self,
        record: &Record<'_>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) -> Result<(), BodyError> {
        match XlogRecord::decode(record)? {
            XlogRecord::CheckpointShutdown(checkpoint) => {
                self.shutdown_checkpoint(&checkpoint, end, sink);
            }
            XlogRecord::CheckpointOnline(checkpoint) => {
                self.online_checkpoint(&checkpoint, end, sink);
            }
            XlogRecord::NextOid(oid) => self.set_next_oid(oid, end, sink),
            XlogRecord::ParameterChange(parameters) => self.set_parameters(&parameters, end, sink),
            XlogRecord::EndOfRecovery { timeline, .. } => self.set_timeline(timeline, end, sink),
            // Pages, marks for backups and restores, and what concerns the log itself: none of it
            // is state of the cluster.
            XlogRecord::Noop
            | XlogRecord::Switch
            | XlogRecord::BackupEnd(_)
            | XlogRecord::RestorePoint { .. }
            | XlogRecord::FpwChange(_)
            | XlogRecord::FpiForHint
            | XlogRecord::Fpi
            | XlogRecord::OverwriteContrecord { .. }
            | XlogRecord::CheckpointRedo => {}
        }
        Ok(())
    }

    /// All of it is exact: nothing else was running.
    fn shutdown_checkpoint(&mut self, at: &CheckPoint, end: Lsn, sink: &mut impl ChangeSink) {
        self.set_timeline(at.timeline, end, sink);
        self.counters.next_xid = at.next_xid;
        if self.xid_bound != at.next_xid {
            self.xid_bound = at.next_xid;
            sink.state(end, StateChange::NextXid(at.next_xid));
        }
        self.set_next_oid(at.next_oid, end, sink);
        let next_multi = (at.next_multi, at.next_multi_offset);
        if self.counters.next_multi != next_multi {
            self.counters.next_multi = next_multi;
            let (multi, offset) = next_multi;
            sink.state(end, StateChange::NextMulti { multi, offset });
        }
        self.set_oldest_xid(at.oldest_xid, at.oldest_xid_db, end, sink);
        self.advance_oldest_multi(at.oldest_multi, at.oldest_multi_db, end, sink);
    }

    /// Taken while others were running: each counter is a lower bound. The OID counter is not used,
    /// since OIDs may have been logged between the checkpoint's begin and this record.
    fn online_checkpoint(&mut self, at: &CheckPoint, end: Lsn, sink: &mut impl ChangeSink) {
        self.set_timeline(at.timeline, end, sink);
        self.counters.next_xid = self.counters.next_xid.max(at.next_xid);
        self.advance_multi(at.next_multi, at.next_multi_offset, end, sink);
        if precedes(self.counters.oldest_xid.0, at.oldest_xid) {
            self.set_oldest_xid(at.oldest_xid, at.oldest_xid_db, end, sink);
        }
        self.advance_oldest_multi(at.oldest_multi, at.oldest_multi_db, end, sink);
    }

    fn set_timeline(
        &mut self,
        timeline: pg_types::TimelineId,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) {
        if self.timeline != timeline {
            self.timeline = timeline;
            sink.state(end, StateChange::Timeline(timeline));
        }
    }

    fn set_next_oid(&mut self, oid: Oid, end: Lsn, sink: &mut impl ChangeSink) {
        if self.counters.next_oid != oid {
            self.counters.next_oid = oid;
            sink.state(end, StateChange::NextOid(oid));
        }
    }

    pub(super) fn set_oldest_xid(
        &mut self,
        xid: Xid,
        db: Oid,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) {
        if self.counters.oldest_xid != (xid, db) {
            self.counters.oldest_xid = (xid, db);
            sink.state(end, StateChange::OldestXid { xid, db });
        }
    }

    fn advance_oldest_multi(&mut self, multi: u32, db: Oid, end: Lsn, sink: &mut impl ChangeSink) {
        if precedes(self.counters.oldest_multi.0, multi) {
            self.counters.oldest_multi = (multi, db);
            sink.state(end, StateChange::OldestMulti { multi, db });
        }
    }

    /// Both counters only go forward, each on its own circle.
    pub(super) fn advance_multi(
        &mut self,
        multi: u32,
        offset: u32,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) {
        let (mut next, mut next_offset) = self.counters.next_multi;
        if precedes(next, multi) {
            next = multi;
        }
        if precedes(next_offset, offset) {
            next_offset = offset;
        }
        if self.counters.next_multi != (next, next_offset) {
            self.counters.next_multi = (next, next_offset);
            sink.state(
                end,
                StateChange::NextMulti {
                    multi: next,
                    offset: next_offset,
                },
            );
        }
    }

    pub(super) fn truncate_multixacts(
        &mut self,
        oldest_db: Oid,
        end_multi: u32,
        end_member: u32,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) {
        if self.counters.oldest_multi != (end_multi, oldest_db) {
            self.counters.oldest_multi = (end_multi, oldest_db);
            sink.state(
                end,
                StateChange::OldestMulti {
                    multi: end_multi,
                    db: oldest_db,
                },
            );
        }
        self.cut_slru(
            Slru::MultiXactMembers,
            end_member / MULTIXACT_MEMBERS_PER_PAGE,
            end,
            sink,
        );
        // The offset of the last forgotten multixact is kept: it ends the one before the oldest.
        let last_forgotten = match end_multi.wrapping_sub(1) {
            0 => u32::MAX,
            multi => multi,
        };
        self.cut_slru(
            Slru::MultiXactOffsets,
            last_forgotten / MULTIXACT_OFFSETS_PER_PAGE,
            end,
            sink,
        );
    }

    pub(super) fn clog(
        &mut self,
        record: &Record<'_>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) -> Result<(), BodyError> {
        if let ClogRecord::Truncate {
            page,
            oldest_xid,
            oldest_db,
        } = ClogRecord::decode(record)?
        {
            self.cut_slru(Slru::Clog, slru_page(page)?, end, sink);
            // PostgreSQL itself remembers the limit only in checkpoints; but ids before it have no
            // status any more, so a server that starts here must not look for one.
            self.set_oldest_xid(oldest_xid, oldest_db, end, sink);
        }
        Ok(())
    }

    pub(super) fn commit_ts(
        &mut self,
        record: &Record<'_>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) -> Result<(), BodyError> {
        if let CommitTsRecord::Truncate { page, oldest_xid } = CommitTsRecord::decode(record)? {
            self.cut_slru(Slru::CommitTs, slru_page(page)?, end, sink);
            let (oldest, newest) = self.counters.commit_ts;
            if oldest != 0 && precedes(oldest, oldest_xid) {
                self.set_commit_timestamps(oldest_xid, newest, end, sink);
            }
        }
        Ok(())
    }

    fn cut_slru(&mut self, slru: Slru, page: BlockNumber, end: Lsn, sink: &mut impl ChangeSink) {
        if let Some(extent) = self.slrus.get_mut(&slru) {
            let cut = extent.truncated(slru, page);
            if cut != *extent {
                *extent = cut;
                sink.state(
                    end,
                    StateChange::Slru {
                        slru,
                        extent: Some(cut),
                    },
                );
            }
        }
    }

    fn set_commit_timestamps(
        &mut self,
        oldest: Xid,
        newest: Xid,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) {
        if self.counters.commit_ts != (oldest, newest) {
            self.counters.commit_ts = (oldest, newest);
            sink.state(end, StateChange::CommitTimestamps { oldest, newest });
        }
    }

    fn set_parameters(&mut self, to: &Parameters, end: Lsn, sink: &mut impl ChangeSink) {
        let before = self.parameters;
        self.parameters = ParameterLimits {
            wal_level: to.wal_level,
            wal_log_hints: to.wal_log_hints,
            max_connections: to.max_connections,
            max_worker_processes: to.max_worker_processes,
            max_wal_senders: to.max_wal_senders,
            max_prepared_transactions: to.max_prepared_transactions,
            max_locks_per_transaction: to.max_locks_per_transaction,
            track_commit_timestamp: to.track_commit_timestamp,
        };
        if self.parameters == before {
            return;
        }
        sink.state(end, StateChange::Parameters(self.parameters));
        self.set_facts();
        match (
            before.track_commit_timestamp,
            self.parameters.track_commit_timestamp,
        ) {
            (false, true) => {
                // Only transactions from here on have a timestamp; the server makes the page of the
                // next one without logging it.
                let next = self.counters.next_xid.xid();
                self.set_commit_timestamps(next, next, end, sink);
                let page = next / COMMIT_TS_XACTS_PER_PAGE;
                let extent = SlruExtent {
                    first: page,
                    last: page,
                };
                self.slrus.insert(Slru::CommitTs, extent);
                let change = StateChange::Slru {
                    slru: Slru::CommitTs,
                    extent: Some(extent),
                };
                sink.state(end, change);
            }
            (true, false) => {
                self.set_commit_timestamps(0, 0, end, sink);
                if self.slrus.remove(&Slru::CommitTs).is_some() {
                    sink.state(
                        end,
                        StateChange::Slru {
                            slru: Slru::CommitTs,
                            extent: None,
                        },
                    );
                }
            }
            _ => {}
        }
    }

    pub(super) fn replication_origin(
        &mut self,
        record: &Record<'_>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) -> Result<(), BodyError> {
        match ReplOriginRecord::decode(record)? {
            ReplOriginRecord::Set {
                origin,
                remote_lsn,
                force,
            } => {
                self.advance_origin(origin, remote_lsn, force, end, sink);
            }
            ReplOriginRecord::Drop { origin } => {
                if self.origins.remove(&origin).is_some() {
                    sink.state(
                        end,
                        StateChange::ReplicationOrigin {
                            id: origin,
                            remote: None,
                        },
                    );
                }
            }
        }
        Ok(())
    }
}

fn slru_page(page: u64) -> Result<BlockNumber, BodyError> {
    BlockNumber::try_from(page).map_err(|_| BodyError::SlruPage { page })
}

/// Whether `a` comes before `b` on the circle of 32-bit counters.
const fn precedes(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}
