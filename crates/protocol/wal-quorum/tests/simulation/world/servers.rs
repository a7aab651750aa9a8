//! What servers and the storage node do, and the care that managers take of streams.

use crate::invariants::Settled;
use crate::manager::Step;
use crate::wal::{index, lsn, record, record_end};
use crate::weakness::Weakness;

use super::{Envelope, Outcome, Primary, World};

impl World {
    pub(super) fn launch(&mut self, manager: usize) {
        let it = &mut self.managers[manager];
        let Some(history) = it.target() else { return };
        let mut wal = it.wal.clone();
        wal.extend(&it.record);
        it.primary = Some(self.primaries.len());
        note!(self, "server of timeline {} runs", history.timeline());
        self.primaries.push(Primary {
            timeline: history.timeline(),
            acknowledged: wal.len() - it.record.len(),
            history,
            wal,
            writer: it.id,
            records: 1,
            alive: true,
            flushed: vec![0; self.stores.len()],
        });
    }

    pub(super) fn emit(&mut self) {
        let len = 1 + self.chance.below(6);
        let at = self.chance.below(self.primaries.len());
        // Its clients wait for their commits sooner or later.
        if let Some(it) = self.primaries.get_mut(at)
            && it.alive
            && it.wal.len() < it.acknowledged + 60
        {
            it.wal.extend(record(it.writer, it.records, len));
            it.records += 1;
        }
    }

    pub(super) fn acknowledge(&mut self, primary: usize, store: usize, at: usize) -> Outcome {
        let it = &mut self.primaries[primary];
        if !it.alive {
            return Ok(());
        }
        it.flushed[store] = at.max(it.flushed[store]);
        let mut ends = it.flushed.clone();
        ends.sort_unstable();
        let counted = ends[ends.len() - self.quorum].min(it.wal.len());
        let end = record_end(&it.wal[..counted]);
        if end > it.acknowledged {
            it.acknowledged = end;
            self.tally.acknowledged += 1;
            let (timeline, wal) = (it.timeline, it.wal[..end].to_vec());
            note!(self, "server of timeline {timeline} acknowledges {end}");
            self.invariants.acknowledge(Settled { timeline, wal })?;
        }
        Ok(())
    }

    /// The storage node takes some of what a store serves, and follows its switches.
    pub(super) fn ingest(&mut self, store: usize) -> Outcome {
        let it = &self.stores[store];
        let have = self.storage.wal.len();
        let Some((end, next)) = it.history.end_of(self.storage.timeline).filter(|_| it.up) else {
            return Ok(());
        };
        if have > index(end) {
            return Ok(());
        }
        let limit = index(it.quorum.min(end));
        let upto = limit.min(have + self.chance.up_to(12));
        let upto = it.wal.get(..upto).map_or(0, record_end);
        if upto > have {
            self.storage.wal.extend(&it.wal[have..upto]);
            self.tally.ingested += 1;
            note!(self, "ingested {upto} on {}", self.storage.timeline);
            let (timeline, wal) = (it.quorum_on, self.storage.wal.clone());
            return self.invariants.ingest(Settled { timeline, wal });
        }
        let settled = it.quorum > end || self.weakness == Some(Weakness::AnnounceEarly);
        if let Some(next) = next
            && lsn(have) == end
            && settled
        {
            note!(self, "storage follows timeline {next} from {have}");
            self.storage.timeline = next;
        }
        Ok(())
    }

    /// Managers of running servers tell stores that do not receive from them to do so.
    pub(super) fn care(&mut self) {
        let store = self.chance.below(self.stores.len());
        let Some(manager) = self.any_manager(|it| it.step == Step::Running) else {
            return;
        };
        let Some(primary) = self.managers[manager].primary else {
            return;
        };
        let it = &self.stores[store];
        let streaming = it.session.filter(|session| {
            session.timeline == it.timeline() && self.primaries[session.primary].alive
        });
        let cares = match streaming {
            None => true,
            Some(_) => it.timeline() != self.primaries[primary].timeline,
        };
        let asked = |it: &Envelope| matches!(it, Envelope::Receive { store: to, primary: of } if (*to, *of) == (store, primary));
        if it.up && cares && !self.net.iter().any(asked) {
            self.net.push(Envelope::Receive { store, primary });
        }
    }
}
