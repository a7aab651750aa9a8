//! Receiving from the primary as its synchronous standby.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pg_client::{PgClient, PgClientError, ReplicationStream, StatusSender, StreamEvent};
use pg_types::{Lsn, TimelineId};

use crate::batch::DoubleBuffer;
use crate::catch_up::catch_up;
use crate::error::StoreError;
use crate::store::Shared;

/// How often the primary hears from an idle store.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// First and longest pause between attempts to reach the primary.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// SQLSTATE of a walsender that no longer has the WAL asked for.
const UNDEFINED_FILE: &str = "58P01";

/// A primary to stream from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Primary {
    /// Host, or directory of the server's Unix socket.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Role with the REPLICATION attribute.
    pub user: String,
    /// Physical slot reserved for this store; none if empty.
    pub slot: String,
    /// The timeline the primary writes.
    pub timeline: TimelineId,
}

/// What the receiver thread is to do. Every change raises the epoch, and a session works only as
/// long as the epoch is its own.
#[derive(Debug, Default)]
pub(crate) struct ReceiveControl {
    state: Mutex<Control>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Control {
    epoch: u64,
    wanted: Option<Primary>,
    active: Option<StatusSender>,
    running: bool,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error(transparent)]
    Client(#[from] PgClientError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the server at {address} belongs to cluster {found}, this store to {expected}")]
    ForeignCluster {
        address: String,
        found: u64,
        expected: u64,
    },
    #[error("the server at {address} is on timeline {found}, not on {expected}")]
    OtherTimeline {
        address: String,
        found: TimelineId,
        expected: TimelineId,
    },
    #[error("timeline {timeline} ended at {at}")]
    TimelineEnded { timeline: TimelineId, at: Lsn },
    #[error("WAL sent from {at} does not follow what was received")]
    Gap { at: Lsn },
    #[error("no other log store has WAL from {from} on timeline {timeline}")]
    NoSource { from: Lsn, timeline: TimelineId },
}

impl ReceiveControl {
    /// Ends receiving; the session's connection is broken and nothing of it is written any more once
    /// the writer has been locked.
    pub(crate) fn stop(&self) {
        self.set(None);
    }

    /// Asked again for the primary that it is working on already, a session is not disturbed: one that
    /// catches up has not begun to receive, and would never get done. It only stops pausing.
    fn set(&self, wanted: Option<Primary>) {
        let mut state = self.state.lock();
        if wanted.is_some() && state.wanted == wanted {
            self.changed.notify_all();
            return;
        }
        state.epoch += 1;
        state.wanted = wanted;
        if let Some(sender) = state.active.take() {
            sender.close();
        }
        self.changed.notify_all();
    }

    pub(crate) fn is_current(&self, epoch: u64) -> bool {
        self.state.lock().epoch == epoch
    }

    /// Registers a session's connection to be broken by [`ReceiveControl::stop`].
    pub(crate) fn activate(&self, epoch: u64, sender: StatusSender) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        if state.epoch != epoch {
            return Err(StoreError::Stopped);
        }
        state.active = Some(sender);
        Ok(())
    }

    /// Waits `pause` unless something changes.
    fn pause(&self, epoch: u64, pause: Duration) {
        let mut state = self.state.lock();
        if state.epoch == epoch {
            let _ = self.changed.wait_for(&mut state, pause);
        }
    }

    /// What is wanted now; `None` ends the receiver thread.
    fn next(&self) -> Option<(u64, Primary)> {
        let mut state = self.state.lock();
        let wanted = state.wanted.clone().map(|primary| (state.epoch, primary));
        state.running = wanted.is_some();
        wanted
    }
}

/// Makes the receiver stream from `primary`, starting its thread if it is not running.
pub(crate) fn start(shared: &Arc<Shared>, primary: Primary) -> Result<(), StoreError> {
    shared.receive.set(Some(primary));
    {
        let mut state = shared.receive.state.lock();
        if state.running {
            return Ok(());
        }
        state.running = true;
    }
    let receiving = Arc::clone(shared);
    let spawned = std::thread::Builder::new()
        .name("wal-receive".to_owned())
        .spawn(move || receive_loop(&receiving));
    if let Err(source) = spawned {
        shared.receive.state.lock().running = false;
        return Err(StoreError::io("starting a thread for", &shared.dir.dir)(
            source,
        ));
    }
    Ok(())
}

fn receive_loop(shared: &Shared) {
    let mut pause = RETRY.0;
    while let Some((epoch, primary)) = shared.receive.next() {
        let outcome = session(shared, epoch, &primary, &mut pause);
        shared.published().receiving = false;
        if !shared.receive.is_current(epoch) {
            pause = RETRY.0;
            continue;
        }
        if shared.check_poison().is_err() {
            shared.receive.stop();
            continue;
        }
        if let Err(error) = outcome {
            tracing::info!(%error, "not receiving from the primary; trying again");
        }
        shared.receive.pause(epoch, pause);
        pause = (pause * 2).min(RETRY.1);
    }
}

/// Connects to the primary and streams until something ends it.
fn session(
    shared: &Shared,
    epoch: u64,
    primary: &Primary,
    pause: &mut Duration,
) -> Result<(), ReceiveError> {
    let name = shared.options.name.as_str();
    let mut client = PgClient::connect(
        &primary.host,
        primary.port,
        &primary.user,
        "",
        &[("application_name", name)],
        true,
    )?;
    let timeline = identify(shared, &mut client)?;
    if timeline != primary.timeline {
        return Err(ReceiveError::OtherTimeline {
            address: client.address().to_string(),
            found: timeline,
            expected: primary.timeline,
        });
    }
    shared.with_writer(|writer| {
        if !shared.receive.is_current(epoch) {
            return Err(StoreError::Stopped);
        }
        writer.accept(timeline)
    })?;
    if shared.published().history.timeline() != timeline {
        let history = client.timeline_history(timeline)?.text;
        catch_up(shared, epoch, timeline, &history)?;
    }
    let at = shared.published().flushed;
    let slot = Some(primary.slot.as_str()).filter(|slot| !slot.is_empty());
    match client.start_replication(slot, at, timeline) {
        Ok(stream) => {
            *pause = RETRY.0;
            stream_from(shared, epoch, timeline, stream)
        }
        Err(error) if error.sqlstate() == Some(UNDEFINED_FILE) => {
            // The primary starts with the WAL of its own timeline; the peers have what is older.
            let text = shared.published().history_text.to_string();
            catch_up(shared, epoch, timeline, &text)
        }
        Err(error) => Err(error.into()),
    }
}

/// Checks that a server belongs to this cluster; returns its timeline.
pub(crate) fn identify(shared: &Shared, client: &mut PgClient) -> Result<TimelineId, ReceiveError> {
    let identity = client.identify_system()?;
    if identity.system_identifier != shared.system_identifier {
        return Err(ReceiveError::ForeignCluster {
            address: client.address().to_string(),
            found: identity.system_identifier,
            expected: shared.system_identifier,
        });
    }
    Ok(identity.timeline)
}

/// Receives into one buffer while another thread makes the previous one durable and reports it.
fn stream_from(
    shared: &Shared,
    epoch: u64,
    timeline: TimelineId,
    mut stream: ReplicationStream,
) -> Result<(), ReceiveError> {
    let sender = stream.status_sender();
    shared.receive.activate(epoch, sender.clone())?;
    let at = shared.published().flushed;
    sender.send_status(at, at, at)?;
    shared.published().receiving = true;
    let buffer = DoubleBuffer::new(at);
    std::thread::scope(|scope| {
        let flusher = std::thread::Builder::new()
            .name("wal-flush".to_owned())
            .spawn_scoped(scope, || {
                flush_batches(shared, epoch, timeline, &buffer, &sender)
            })
            .map_err(StoreError::io("starting a thread for", &shared.dir.dir))?;
        let received = receive_into(shared, timeline, &mut stream, &buffer);
        buffer.close();
        let flushed = flusher.join().unwrap_or(Err(StoreError::Stopped));
        flushed?;
        received
    })
}

fn receive_into(
    shared: &Shared,
    timeline: TimelineId,
    stream: &mut ReplicationStream,
    buffer: &DoubleBuffer,
) -> Result<(), ReceiveError> {
    loop {
        let report = match stream.next(STATUS_INTERVAL)? {
            StreamEvent::XLogData { start, data, .. } => {
                if !buffer.append(start, data) {
                    return Err(ReceiveError::Gap { at: start });
                }
                false
            }
            StreamEvent::Keepalive { reply, .. } => reply,
            StreamEvent::EndOfTimeline { at, .. } => {
                return Err(ReceiveError::TimelineEnded { timeline, at });
            }
            StreamEvent::Idle => true,
        };
        if report {
            let flushed = shared.published().flushed;
            stream.send_status(buffer.received(), flushed, flushed)?;
        }
    }
}

fn flush_batches(
    shared: &Shared,
    epoch: u64,
    timeline: TimelineId,
    buffer: &DoubleBuffer,
    sender: &StatusSender,
) -> Result<(), StoreError> {
    let mut empty = Vec::new();
    while let Some((at, batch)) = buffer.take(empty) {
        let admitted = || shared.receive.is_current(epoch);
        let acknowledge = |flushed: Lsn| {
            if let Err(error) = sender.send_status(buffer.received().max(flushed), flushed, flushed)
            {
                // The receiving thread meets the same broken connection.
                tracing::debug!(%error, "a flush position could not be sent");
            }
        };
        let appended = shared.append_received(timeline, at, &batch, admitted, acknowledge);
        if let Err(error) = appended {
            buffer.abandon();
            sender.close();
            return Err(error);
        }
        empty = batch;
    }
    Ok(())
}
