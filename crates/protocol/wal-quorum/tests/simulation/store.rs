//! A log store, as `log-store` drives the rules: durable state that a crash keeps, and the rest.

use pg_types::{Lsn, TimelineId};
use wal_quorum::{Fence, History, Position, quorum_lsn};

use crate::wal::{Byte, index, lsn, record_end};
use crate::weakness::Weakness;

/// What a store tells a manager.
#[derive(Debug, Clone)]
pub struct Status {
    pub promised: TimelineId,
    pub history: History,
    pub record_end: Lsn,
    /// The bytes up to there, for the invariants only.
    pub wal: Vec<Byte>,
}

/// A store's work for one primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    pub primary: usize,
    pub timeline: TimelineId,
}

/// A request that a store does not carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

#[derive(Debug, Clone)]
pub struct Store {
    pub up: bool,
    /// Durable WAL.
    pub wal: Vec<Byte>,
    pub history: History,
    pub fence: Fence,
    /// Received for the session, not durable.
    pub buffer: Vec<Byte>,
    /// Where that begins.
    pub buffer_at: usize,
    pub session: Option<Session>,
    pub peers: Vec<Option<Position>>,
    pub quorum: Lsn,
    /// The timeline on which it was computed.
    pub quorum_on: TimelineId,
    weakness: Option<Weakness>,
}

impl Store {
    pub fn new(wal: &[Byte], stores: usize, weakness: Option<Weakness>) -> Store {
        Store {
            up: true,
            wal: wal.to_vec(),
            history: History::root(TimelineId(1)),
            fence: Fence::new(TimelineId(1)),
            buffer: Vec::new(),
            buffer_at: 0,
            session: None,
            peers: vec![None; stores],
            quorum: Lsn::INVALID,
            quorum_on: TimelineId(1),
            weakness,
        }
    }

    pub fn timeline(&self) -> TimelineId {
        self.history.timeline()
    }

    pub fn flushed(&self) -> Lsn {
        lsn(self.wal.len())
    }

    pub fn status(&self) -> Status {
        Status {
            promised: self.fence.promised(),
            history: self.history.clone(),
            record_end: lsn(record_end(&self.wal)),
            wal: self
                .wal
                .get(..record_end(&self.wal))
                .unwrap_or(&[])
                .to_vec(),
        }
    }

    fn stop(&mut self) {
        self.session = None;
        self.buffer.clear();
    }

    pub fn promise(&mut self, timeline: TimelineId) -> Result<(), Refused> {
        let fence = if self.weakness == Some(Weakness::PromiseTwice) {
            self.fence.accept(timeline)
        } else {
            self.fence.promise(timeline)
        };
        self.fence = fence.map_err(|_| Refused)?;
        self.stop();
        Ok(())
    }

    /// Copied WAL of a history that a manager chose.
    pub fn write_wal(
        &mut self,
        promised: TimelineId,
        target: &History,
        at: Lsn,
        bytes: &[Byte],
    ) -> Result<(), Refused> {
        let admitted = self.fence.admit_catch_up(promised, self.timeline());
        admitted.map_err(|_| Refused)?;
        self.append_on(target, at, bytes)
    }

    /// Begins the last timeline of `target`, or adds its first record if it has begun.
    pub fn begin(&mut self, target: &History, bytes: &[Byte]) -> Result<(), Refused> {
        if self.fence.promised() != target.timeline() {
            return Err(Refused);
        }
        let at = target.begin();
        if self.timeline() != target.timeline() {
            self.adopt(target)?;
            self.follow_switches(target)?;
            if self.timeline() != target.timeline() {
                return Err(Refused);
            }
        } else if self.history != *target {
            return Err(Refused);
        }
        let known = self.wal.len() - index(at);
        self.wal.extend(bytes.iter().skip(known));
        Ok(())
    }

    pub fn receive(&mut self, primary: usize, timeline: TimelineId) -> Result<(), Refused> {
        self.fence.admit(timeline).map_err(|_| Refused)?;
        self.buffer.clear();
        self.session = Some(Session { primary, timeline });
        Ok(())
    }

    /// WAL of the history of a running server, from a peer or none yet.
    pub fn catch_up(&mut self, target: &History, bytes: &[Byte]) -> Result<(), Refused> {
        let fence = self.fence.accept(target.timeline()).map_err(|_| Refused)?;
        if self.weakness != Some(Weakness::AcceptWithoutPromise) {
            self.fence = fence;
        }
        self.append_on(target, self.flushed(), bytes)
    }

    /// Makes what was received durable; the flush position to report.
    pub fn flush(&mut self, timeline: TimelineId) -> Result<Lsn, Refused> {
        self.fence.admit(timeline).map_err(|_| Refused)?;
        if self.timeline() != timeline {
            return Err(Refused);
        }
        self.write(self.buffer.len());
        Ok(self.flushed())
    }

    /// Takes from the server whatever follows what was received.
    pub fn take(&mut self, sent: &[Byte], len: usize) {
        if self.buffer.is_empty() {
            self.buffer_at = self.wal.len();
        }
        let received = self.buffer_at + self.buffer.len();
        self.buffer.extend(sent.iter().skip(received).take(len));
    }

    /// Writes `len` bytes of the batch; what the store has already is skipped.
    fn write(&mut self, len: usize) {
        if len == 0 || self.buffer_at > self.wal.len() {
            // A gap ends the session.
            return self.buffer.clear();
        }
        let batch: Vec<Byte> = self.buffer.drain(..len).collect();
        self.wal
            .extend(batch.iter().skip(self.wal.len() - self.buffer_at));
        self.buffer_at += len;
    }

    fn append_on(&mut self, target: &History, at: Lsn, bytes: &[Byte]) -> Result<(), Refused> {
        self.adopt(target)?;
        if at > self.flushed() {
            return Err(Refused);
        }
        let mut rest = bytes
            .get(index(self.flushed()) - index(at)..)
            .unwrap_or(&[]);
        loop {
            self.follow_switches(target)?;
            if rest.is_empty() {
                return Ok(());
            }
            let (end, _) = target.end_of(self.timeline()).ok_or(Refused)?;
            let room = index(end) - self.wal.len();
            let (piece, after) = rest.split_at(rest.len().min(room));
            self.wal.extend(piece);
            rest = after;
        }
    }

    /// Cuts off what is not part of `target`.
    fn adopt(&mut self, target: &History) -> Result<(), Refused> {
        let common = target.common_end(&self.history);
        let shared = self.history.starts().iter().zip(target.starts());
        let last = shared.take_while(|(mine, theirs)| mine == theirs).last();
        let last = last.ok_or(Refused)?.0.timeline;
        self.history = self.history.until(last).ok_or(Refused)?;
        self.wal.truncate(index(common));
        Ok(())
    }

    fn follow_switches(&mut self, target: &History) -> Result<(), Refused> {
        while let Some((end, Some(next))) = target.end_of(self.timeline())
            && self.flushed() == end
        {
            self.history = self.history.branch(next, end).map_err(|_| Refused)?;
        }
        Ok(())
    }

    /// Loses what is not durable: `kept` bytes of the batch that was being written survive, and
    /// `forgotten` bytes of a record that is not whole do not, since nothing vouches for them.
    pub fn crash(&mut self, kept: usize, forgotten: usize) {
        if let Some(session) = self.session
            && self.fence.admit(session.timeline).is_ok()
            && self.timeline() == session.timeline
        {
            self.write(self.buffer.len().min(kept));
        }
        let partial = self.wal.len() - record_end(&self.wal).max(index(self.history.begin()));
        self.wal.truncate(self.wal.len() - partial.min(forgotten));
        self.stop();
        self.up = false;
        self.peers.fill(None);
        self.quorum = Lsn::INVALID;
    }

    /// The new quorum LSN if it rose: an end of a record.
    pub fn recompute(&mut self, quorum: usize) -> Option<Lsn> {
        let peers = self.peers.iter().flatten().copied();
        let counted = if self.weakness == Some(Weakness::CountCatchUp) {
            let mine = |peer: Position| {
                let (end, _) = self.history.end_of(peer.timeline)?;
                Some(peer.flushed.min(end))
            };
            let mut ends: Vec<Lsn> = peers.filter_map(mine).collect();
            ends.push(self.flushed());
            ends.sort_unstable();
            ends.iter()
                .rev()
                .nth(quorum - 1)
                .copied()
                .unwrap_or_default()
        } else if self.fence.counts(self.timeline()) {
            quorum_lsn(&self.history, self.flushed(), peers, quorum)
        } else {
            return None;
        };
        let counted = index(counted.min(self.flushed()));
        let end = lsn(record_end(self.wal.get(..counted).unwrap_or(&[])));
        (end > self.quorum).then(|| {
            self.quorum = end;
            self.quorum_on = self.timeline();
            end
        })
    }
}
