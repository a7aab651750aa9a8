//! What the end of a transaction means besides its status bits.

use pg_types::{Lsn, Xid};
use pg_wal::Record;
use pg_wal::records::multixact::MultiXactRecord;
use pg_wal::records::standby::StandbyRecord;
use pg_wal::records::xact::{Completion, Prepare, XactOrigin, XactRecord};

use super::body_error::BodyError;
use super::{ChangeSink, ClusterIngest, forks_of};
use crate::StateChange;

impl ClusterIngest {
    pub(super) fn transaction(
        &mut self,
        record: &Record<'_>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) -> Result<(), BodyError> {
        match XactRecord::decode(record)? {
            XactRecord::Commit(completion) | XactRecord::Abort(completion) => {
                self.complete(&completion, record.origin, end, sink);
            }
            XactRecord::Prepare(prepare) => self.prepare(&prepare, record.origin, end, sink),
            XactRecord::Assignment { subxacts, .. } => {
                for xid in subxacts.iter() {
                    self.note_xid(xid);
                }
            }
            XactRecord::Invalidations => {}
        }
        Ok(())
    }

    fn complete(
        &mut self,
        completion: &Completion<'_>,
        origin: Option<u16>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) {
        self.note_xid(completion.xid);
        for xid in completion.subxacts.iter() {
            self.note_xid(xid);
        }
        for locator in completion.dropped.iter() {
            for fork in forks_of(locator) {
                self.drop_fork(fork, end, sink);
            }
        }
        if completion.prepared {
            let xid = self.full_xid(completion.xid);
            if self.two_phase.remove(&xid) {
                sink.state(end, StateChange::TwoPhase { xid, file: None });
            }
        }
        if let (Some(id), Some(XactOrigin { lsn, .. })) = (origin, completion.origin) {
            self.advance_origin(id, lsn, false, end, sink);
        }
    }

    fn prepare(
        &mut self,
        prepare: &Prepare<'_>,
        origin: Option<u16>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) {
        self.note_xid(prepare.xid);
        for xid in prepare.subxacts.iter() {
            self.note_xid(xid);
        }
        let xid = self.full_xid(prepare.xid);
        self.two_phase.insert(xid);
        let file = Some(pg_page::two_phase::file_of_record(prepare.state).into());
        sink.state(end, StateChange::TwoPhase { xid, file });
        if let Some(id) = origin {
            self.advance_origin(id, prepare.origin.lsn, false, end, sink);
        }
    }

    /// `backward`: whether the position may go down.
    pub(super) fn advance_origin(
        &mut self,
        id: u16,
        remote: Lsn,
        backward: bool,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) {
        let known = self.origins.get(&id).copied();
        if known.is_some_and(|known| known == remote || known > remote && !backward) {
            return;
        }
        self.origins.insert(id, remote);
        sink.state(
            end,
            StateChange::ReplicationOrigin {
                id,
                remote: Some(remote),
            },
        );
    }

    pub(super) fn standby(&mut self, record: &Record<'_>) -> Result<(), BodyError> {
        if let StandbyRecord::RunningXacts(running) = StandbyRecord::decode(record)? {
            // It names the counter itself: the id before it is the newest one assigned.
            self.note_next_xid(running.next_xid);
        }
        Ok(())
    }

    /// `next` is the counter's value, so every id before it may have been assigned.
    fn note_next_xid(&mut self, next: Xid) {
        let mut last = next.wrapping_sub(1);
        if last < pg_types::FIRST_NORMAL_XID {
            last = Xid::MAX;
        }
        self.note_xid(last);
    }

    pub(super) fn multixact(
        &mut self,
        record: &Record<'_>,
        end: Lsn,
        sink: &mut impl ChangeSink,
    ) -> Result<(), BodyError> {
        match MultiXactRecord::decode(record)? {
            MultiXactRecord::Create {
                multi,
                offset,
                members,
            } => {
                for member in members.iter() {
                    self.note_xid(member.xid);
                }
                // Zero is no multixact: the counter goes from 2^32 - 1 to 1 (trap 13).
                let next = multi.wrapping_add(1).max(1);
                let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
                self.advance_multi(next, offset.wrapping_add(count), end, sink);
            }
            MultiXactRecord::Truncate {
                oldest_db,
                end_multi,
                end_member,
                ..
            } => {
                self.truncate_multixacts(oldest_db, end_multi, end_member, end, sink);
            }
            // Pages that begin come out of `page_changes`.
            MultiXactRecord::ZeroOffsetsPage { .. } | MultiXactRecord::ZeroMembersPage { .. } => {}
        }
        Ok(())
    }
}
