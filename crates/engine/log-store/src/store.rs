//! The store that all threads share.
//!
//! Two locks: the writer's, held while WAL is being made durable, and the published state's, held
//! only to read or change a few words, so that readers and the control endpoint never wait for a
//! disk. The writer's is always taken first.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId};
use wal_quorum::{Fence, History, Position, TimelineStart, quorum_lsn};

use crate::error::{OpenError, StoreError};
use crate::receiver::{Primary, ReceiveControl};
use crate::record_ends::RecordEnds;
use crate::segments::{SegmentDir, parse_history};
use crate::writer::{TornTail, Writer};

/// Segments kept for a peer that is behind, beyond what the storage node needs.
const PEER_SEGMENTS: u64 = 64;

/// Bytes that one `read_wal` returns at most.
const MAX_READ: u32 = 16 << 20;

/// Another store of the cluster, as a source to catch up from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Host, or directory of the socket, of its replication server.
    pub host: String,
    /// Port of its replication server.
    pub port: u16,
}

/// How to open a store.
#[derive(Debug, Clone)]
pub struct LogStoreOptions {
    /// The store's name: its `application_name` at the primary.
    pub name: String,
    /// Its directory.
    pub dir: PathBuf,
    /// How many stores must have a byte durable before it counts, this one included.
    pub quorum: usize,
    /// The other stores.
    pub peers: Vec<Peer>,
}

/// Where a store stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// Major of the cluster.
    pub major: PgMajor,
    /// Highest timeline promised.
    pub promised: TimelineId,
    /// Last timeline written here.
    pub timeline: TimelineId,
    /// Every timeline of the history, oldest first.
    pub history: Vec<TimelineStart>,
    /// Text of the last timeline's history file.
    pub history_text: String,
    /// Oldest LSN kept.
    pub oldest: Lsn,
    /// End of durable WAL.
    pub flushed: Lsn,
    /// End of the last whole record.
    pub record_end: Lsn,
    /// Start of that record.
    pub last_record: Lsn,
    /// Last record end known to be durable on a quorum; what is served.
    pub quorum: Lsn,
    /// Whether a primary is streaming to this store.
    pub receiving: bool,
    /// Why the store has stopped, if it has.
    pub error: Option<String>,
}

/// What threads other than the writer see.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) history: Arc<History>,
    pub(crate) history_text: Arc<str>,
    pub(crate) promised: TimelineId,
    pub(crate) flushed: Lsn,
    pub(crate) record_end: Lsn,
    pub(crate) last_record: Lsn,
    pub(crate) oldest: Lsn,
    pub(crate) quorum: Lsn,
    pub(crate) receiving: bool,
    pub(crate) stopping: bool,
    poison: Option<String>,
    ends: RecordEnds,
    peers: BTreeMap<String, Position>,
    consumed: Option<Lsn>,
}

/// An open log store; clones are handles on the same one.
#[derive(Debug, Clone)]
pub struct LogStore {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: LogStoreOptions,
    pub(crate) system_identifier: u64,
    pub(crate) major: PgMajor,
    pub(crate) dir: SegmentDir,
    pub(crate) receive: ReceiveControl,
    writer: Mutex<Writer>,
    published: Mutex<Published>,
    advanced: Condvar,
    _lock: File,
}

impl LogStore {
    /// Opens the store in `options.dir`; what was torn off the end of its WAL, if anything, is
    /// reported beside it.
    ///
    /// # Errors
    /// [`OpenError`]: `InUse` when another process has it, `Corrupt` when durable WAL is damaged.
    pub fn open(options: LogStoreOptions) -> Result<(LogStore, Option<TornTail>), OpenError> {
        let dir = &options.dir;
        if !crate::state::State::exists(dir) {
            return Err(OpenError::NotAStore { dir: dir.clone() });
        }
        let path = dir.join("lock");
        let lock = File::create(&path).map_err(StoreError::io("opening", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { dir: dir.clone() }),
            Err(TryLockError::Error(error)) => {
                return Err(StoreError::io("locking", &path)(error).into());
            }
        }
        let (mut writer, torn) = Writer::open(dir)?;
        let published = Published {
            history: Arc::clone(&writer.history),
            history_text: Arc::clone(&writer.history_text),
            promised: writer.state.promised.promised(),
            flushed: writer.flushed,
            record_end: writer.record_end(),
            last_record: writer.last_record(),
            oldest: writer.oldest,
            quorum: Lsn::INVALID,
            receiving: false,
            stopping: false,
            poison: None,
            ends: std::mem::take(&mut writer.ends),
            peers: BTreeMap::new(),
            consumed: None,
        };
        let store = LogStore {
            shared: Arc::new(Shared {
                system_identifier: writer.state.system_identifier,
                major: writer.state.major,
                dir: writer.dir.clone(),
                receive: ReceiveControl::default(),
                writer: Mutex::new(writer),
                published: Mutex::new(published),
                advanced: Condvar::new(),
                _lock: lock,
                options,
            }),
        };
        store
            .shared
            .recompute_quorum(&mut store.shared.published.lock());
        Ok((store, torn))
    }

    /// Where the store stands now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Why the store has stopped acknowledging, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.shared.published.lock().poison.clone()
    }

    /// The store's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// Bytes of a segment.
    #[must_use]
    pub fn segment_size(&self) -> SegmentSize {
        self.shared.dir.size
    }

    /// Durably promises to take nothing from a timeline below `timeline`, and stops receiving. WAL
    /// that was on its way is either durable and in the returned status, or lost.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] when this or a higher promise was given before: whoever lost the answer
    /// asks for a higher one.
    pub fn promise(&self, timeline: TimelineId) -> Result<Status, StoreError> {
        // Asked before anything is interrupted: a manager that was overtaken must not disturb the
        // server that overtook it. It is asked again with the writer locked.
        Fence::new(self.shared.published.lock().promised).promise(timeline)?;
        self.shared.receive.stop();
        self.shared.with_writer(|writer| writer.promise(timeline))?;
        Ok(self.status())
    }

    /// WAL from `from` on as it stands here on the history of the last timeline, at most `max_bytes`;
    /// fewer at its end.
    ///
    /// # Errors
    /// [`StoreError::Removed`] before the oldest LSN kept, [`StoreError::Gap`] beyond the end.
    pub fn read_wal(&self, from: Lsn, max_bytes: u32) -> Result<(TimelineId, Vec<u8>), StoreError> {
        let (history, oldest, flushed) = {
            let published = self.shared.published.lock();
            (
                Arc::clone(&published.history),
                published.oldest,
                published.flushed,
            )
        };
        if from < oldest {
            return Err(StoreError::Removed {
                wanted: from,
                oldest,
            });
        }
        if from > flushed {
            return Err(StoreError::Gap {
                have: flushed,
                wanted: from,
            });
        }
        let len = flushed.since(from).min(u64::from(max_bytes.min(MAX_READ))) as usize;
        let mut bytes = vec![0; len];
        self.shared.read_exact(&history, from, &mut bytes)?;
        Ok((history.timeline(), bytes))
    }

    /// Appends `bytes` at `at` on `timeline`, durably, under the promise of `promised`; `history` is
    /// the text of `timeline`'s history file. What this store has beside that history is cut off.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] unless `promised` is the last promise and that timeline has not begun
    /// here; [`StoreError::Gap`] when WAL before `at` is missing.
    pub fn write_wal(
        &self,
        promised: TimelineId,
        timeline: TimelineId,
        at: Lsn,
        history: &str,
        bytes: &[u8],
    ) -> Result<Status, StoreError> {
        let target = parse_history(timeline, history)?;
        self.shared.with_writer(|writer| {
            writer
                .state
                .promised
                .admit_catch_up(promised, writer.timeline())?;
            writer.append_on(&target, history, at, bytes)
        })?;
        Ok(self.status())
    }

    /// Durably begins `timeline`, which leaves `parent` at `switch_at`, with the WAL `bytes` from
    /// there on. Without bytes it begins empty, and the same call with bytes adds them. Doing it again
    /// changes nothing.
    ///
    /// # Errors
    /// [`StoreError`]: `Fenced` or `BadTimeline` unless `timeline` is the one promised, `Gap` when
    /// WAL up to `switch_at` is missing, `NotWal` when `bytes` hold no valid record.
    pub fn begin_timeline(
        &self,
        timeline: TimelineId,
        parent: TimelineId,
        switch_at: Lsn,
        history: &str,
        bytes: &[u8],
    ) -> Result<Status, StoreError> {
        self.shared.with_writer(|writer| {
            writer.begin_timeline(timeline, parent, switch_at, history, bytes)
        })?;
        Ok(self.status())
    }

    /// Streams from `primary` until told otherwise; returns at once.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] when a higher timeline than the primary's was promised.
    pub fn receive(&self, primary: Primary) -> Result<Status, StoreError> {
        Fence::new(self.status().promised).admit(primary.timeline)?;
        self.shared.check_poison()?;
        crate::receiver::start(&self.shared, primary)?;
        Ok(self.status())
    }

    /// Stops streaming.
    #[must_use]
    pub fn stop_receiving(&self) -> Status {
        self.shared.receive.stop();
        self.status()
    }

    /// Ends every thread that works for this store: receiver and replication sessions.
    pub fn shutdown(&self) {
        self.shared.receive.stop();
        self.shared.published.lock().stopping = true;
        self.shared.advanced.notify_all();
    }

    /// Notes how far a peer's durable WAL goes. Not to be told of a peer that has promised a timeline
    /// which has not begun there: its WAL does not [count](Fence::counts).
    pub fn note_peer(&self, name: &str, timeline: TimelineId, flushed: Lsn) {
        let mut published = self.shared.published.lock();
        published
            .peers
            .insert(name.to_owned(), Position { timeline, flushed });
        self.shared.recompute_quorum(&mut published);
    }

    /// Waits until durable WAL or its timeline differ from what is given, at most `timeout`.
    #[must_use]
    pub fn wait_changed(&self, timeline: TimelineId, flushed: Lsn, timeout: Duration) -> Status {
        let deadline = Instant::now() + timeout;
        let mut published = self.shared.published.lock();
        while published.history.timeline() == timeline
            && published.flushed == flushed
            && published.poison.is_none()
            && !published.stopping
        {
            if self
                .shared
                .advanced
                .wait_until(&mut published, deadline)
                .timed_out()
            {
                break;
            }
        }
        drop(published);
        self.status()
    }
}

impl Shared {
    pub(crate) fn status(&self) -> Status {
        let published = self.published.lock();
        Status {
            system_identifier: self.system_identifier,
            major: self.major,
            promised: published.promised,
            timeline: published.history.timeline(),
            history: published.history.starts().to_vec(),
            history_text: published.history_text.to_string(),
            oldest: published.oldest,
            flushed: published.flushed,
            record_end: published.record_end,
            last_record: published.last_record,
            quorum: published.quorum,
            receiving: published.receiving,
            error: published.poison.clone(),
        }
    }

    /// Looks at the published state, and waits on it with [`Shared::wait`].
    pub(crate) fn published(&self) -> parking_lot::MutexGuard<'_, Published> {
        self.published.lock()
    }

    /// Waits until something was published, at most `timeout`.
    pub(crate) fn wait(
        &self,
        published: &mut parking_lot::MutexGuard<'_, Published>,
        timeout: Duration,
    ) {
        let _ = self.advanced.wait_for(published, timeout);
    }

    pub(crate) fn wake(&self) {
        self.advanced.notify_all();
    }

    pub(crate) fn check_poison(&self) -> Result<(), StoreError> {
        match &self.published.lock().poison {
            Some(reason) => Err(StoreError::Poisoned {
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Does something durable and publishes the outcome. A failed file operation, or WAL that turns
    /// out to be invalid after it was written, stops the store for good.
    pub(crate) fn with_writer<T>(
        &self,
        operation: impl FnOnce(&mut Writer) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut writer = self.writer.lock();
        self.check_poison()?;
        let result = operation(&mut writer);
        if let Err(error) = &result {
            self.poison_by(error);
        }
        self.publish(&mut writer);
        result
    }

    /// Writes received WAL and makes it durable; then, after `acknowledge` was told the flushed LSN,
    /// follows its records. `admitted` is asked with the writer locked: once a session was stopped,
    /// nothing of it is written any more.
    pub(crate) fn append_received(
        &self,
        timeline: TimelineId,
        at: Lsn,
        bytes: &[u8],
        admitted: impl FnOnce() -> bool,
        acknowledge: impl FnOnce(Lsn),
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock();
        self.check_poison()?;
        if !admitted() {
            return Err(StoreError::Stopped);
        }
        writer.state.promised.admit(timeline)?;
        if writer.timeline() != timeline {
            let reason = format!("this store's WAL is on timeline {}", writer.timeline());
            return Err(StoreError::BadTimeline { timeline, reason });
        }
        let appended = writer.append(at, bytes);
        if let Err(error) = &appended {
            self.poison_by(error);
            return appended;
        }
        acknowledge(writer.flushed);
        let followed = writer.digest(at, bytes);
        if let Err(error) = &followed {
            self.poison_by(error);
        }
        self.publish(&mut writer);
        followed
    }

    fn poison_by(&self, error: &StoreError) {
        let reason = match error {
            StoreError::Poisoned { reason } => reason.clone(),
            StoreError::Io { .. } => error.to_string(),
            StoreError::NotWal(_) if self.published.lock().receiving => error.to_string(),
            _ => return,
        };
        tracing::error!(%reason, "the log store stops acknowledging");
        self.published.lock().poison.get_or_insert(reason);
        self.advanced.notify_all();
    }

    fn publish(&self, writer: &mut Writer) {
        let mut published = self.published.lock();
        let changed = published.history.timeline() != writer.timeline();
        if changed || published.flushed > writer.flushed {
            published.ends.truncate(writer.flushed);
        }
        published.history = Arc::clone(&writer.history);
        published.history_text = Arc::clone(&writer.history_text);
        published.promised = writer.state.promised.promised();
        published.flushed = writer.flushed;
        published.record_end = writer.record_end();
        published.last_record = writer.last_record();
        published.oldest = writer.oldest;
        published.ends.append(&mut writer.ends);
        self.recompute_quorum(&mut published);
    }

    /// Raises the quorum LSN if a quorum has more by now. Under a promise whose timeline has not begun
    /// here it stays: what is here may have been copied by a start that another one will overrule.
    fn recompute_quorum(&self, published: &mut Published) {
        if !Fence::new(published.promised).counts(published.history.timeline()) {
            self.advanced.notify_all();
            return;
        }
        let peers: Vec<Position> = published.peers.values().copied().collect();
        let lsn = quorum_lsn(
            &published.history,
            published.flushed,
            peers,
            self.options.quorum,
        );
        if let Some(end) = published.ends.take_up_to(lsn.min(published.flushed)) {
            published.quorum = published.quorum.max(end);
        }
        self.advanced.notify_all();
    }

    pub(crate) fn read_exact(
        &self,
        history: &History,
        mut from: Lsn,
        mut buffer: &mut [u8],
    ) -> Result<(), StoreError> {
        while !buffer.is_empty() {
            let read = self.dir.read(history, from, buffer)?;
            if read == 0 {
                let oldest = self.published.lock().oldest;
                return Err(StoreError::Removed {
                    wanted: from,
                    oldest,
                });
            }
            from = from.advance(read as u64);
            buffer = buffer.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }

    /// The storage node has made everything up to `flushed` its own: older segments can go.
    pub(crate) fn note_consumed(&self, flushed: Lsn) {
        let size = self.dir.size;
        let needed = {
            let mut published = self.published.lock();
            let consumed = published.consumed.unwrap_or_default().max(flushed);
            published.consumed = Some(consumed);
            // Of a peer that was not heard of since this store was opened, nobody knows what it needs.
            let peers = self.options.peers.iter().map(|peer| {
                let known = published.peers.get(&peer.name);
                known.map_or(Lsn::INVALID, |peer| peer.flushed)
            });
            let peers = peers.min();
            let spared = size.start_of(
                size.segment_of(published.flushed)
                    .saturating_sub(PEER_SEGMENTS),
            );
            let needed = consumed.min(peers.map_or(Lsn::MAX, |peer| peer.max(spared)));
            if size.segment_of(published.oldest) + 1 >= size.segment_of(needed) {
                return;
            }
            needed
        };
        if let Err(error) = self.with_writer(|writer| writer.remove_before(needed)) {
            tracing::warn!(%error, "old WAL segments could not be removed");
        }
    }

    /// Whether a replication client of this name is another log store.
    pub(crate) fn is_peer(&self, application_name: &str) -> bool {
        self.options
            .peers
            .iter()
            .any(|peer| peer.name == application_name)
    }
}
