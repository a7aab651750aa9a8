//! Streaming WAL to a client: whole records up to the quorum LSN, by the history of timelines.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use pg_proto::{
    BackendMessage, FieldDescription, FrontendMessage, Inbox, ReplicationMessage, Severity,
    StandbyMessage, pg_timestamp,
};
use pg_types::{Lsn, TimelineId};
use wal_quorum::History;

use crate::serve::ClientSocket;
use crate::session::{Session, SessionError};
use crate::store::Shared;

/// Most WAL in one message, as in PostgreSQL.
const MAX_SEND: u64 = 128 << 10;

/// How often an idle client hears from us, and is asked to answer.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Longest wait before looking again whether the client has left.
const LOOK: Duration = Duration::from_millis(500);

/// Clients whose application name begins so are storage nodes: what they have made their own need not
/// be kept here.
const STORAGE_NODE: &str = "strandline_storage";

/// What the thread that listens to the client has heard.
#[derive(Debug, Default)]
struct Heard {
    /// The client ended its side of the stream.
    done: AtomicBool,
    /// The connection is gone.
    gone: AtomicBool,
    /// The client asked for a keepalive.
    wants_reply: AtomicBool,
}

impl Session {
    pub(crate) fn start_replication(
        &mut self,
        start: Lsn,
        timeline: Option<TimelineId>,
        _slot: Option<String>,
    ) -> Result<(), SessionError> {
        let (history, oldest) = {
            let published = self.shared.published();
            (Arc::clone(&published.history), published.oldest)
        };
        let (_, limit) = self.servable();
        let timeline = timeline.unwrap_or_else(|| history.timeline());
        let Some((end, next)) = history.end_of(timeline) else {
            let message = format!("requested timeline {timeline} is not in this server's history");
            self.refuse("22023", Severity::Error, message, None);
            return Ok(());
        };
        if start > end {
            let message = format!(
                "requested starting point {start} on timeline {timeline} is not in this server's \
                 history: it was left at {end}"
            );
            self.refuse("22023", Severity::Error, message, None);
            return Ok(());
        }
        if start < oldest {
            let size = self.shared.dir.size;
            let name = size.file_name(timeline, size.segment_of(start));
            let message = format!("requested WAL segment {name} has already been removed");
            let hint = format!("the oldest WAL kept here begins at {oldest}");
            self.refuse("58P01", Severity::Error, message, Some(&hint));
            return Ok(());
        }
        if let Some(next) = next
            && start == end
            && self.may_announce(end, limit)
        {
            self.end_of_timeline(next, end);
            return Ok(());
        }
        self.send(&BackendMessage::CopyBothResponse);
        self.flush()?;
        self.stream(start, timeline)
    }

    /// Says where the history goes on.
    fn end_of_timeline(&mut self, next: TimelineId, at: Lsn) {
        let columns = vec![
            FieldDescription::int8("next_tli"),
            FieldDescription::text("next_tli_startpos"),
        ];
        self.send(&BackendMessage::RowDescription(columns));
        let (next, at) = (next.to_string(), at.to_string());
        self.send(&BackendMessage::DataRow(vec![
            Some(next.as_bytes()),
            Some(at.as_bytes()),
        ]));
        self.send(&BackendMessage::CommandComplete("SELECT 1"));
        self.send(&BackendMessage::CommandComplete("START_STREAMING"));
    }

    fn stream(&mut self, start: Lsn, timeline: TimelineId) -> Result<(), SessionError> {
        let heard = Arc::new(Heard::default());
        let hearing = Arc::clone(&heard);
        let (shared, socket) = (Arc::clone(&self.shared), self.socket.try_clone()?);
        // What the client sent behind its command belongs to the stream.
        let inbox = std::mem::replace(&mut self.inbox, Inbox::new(1 << 20));
        let storage_node = self.application_name.starts_with(STORAGE_NODE);
        let listener = std::thread::Builder::new()
            .name("wal-status".to_owned())
            .spawn(move || listen(&shared, socket, inbox, &hearing, storage_node))?;
        let ended = self.send_wal(start, timeline, &heard);
        let outcome = match ended {
            Ok(Some((next, at))) => {
                self.send(&BackendMessage::CopyDone);
                self.flush()?;
                self.end_of_timeline(next, at);
                Ok(())
            }
            Ok(None) if heard.gone.load(Ordering::SeqCst) => {
                self.socket.shutdown();
                Ok(())
            }
            Ok(None) => {
                self.send(&BackendMessage::CopyDone);
                self.send(&BackendMessage::CommandComplete("START_STREAMING"));
                Ok(())
            }
            Err(error) => {
                self.socket.shutdown();
                Err(error)
            }
        };
        // It ends with the client's CopyDone, which answers ours, or with the connection.
        match listener.join() {
            Ok(inbox) => self.inbox = inbox,
            Err(_) => return Err(io::Error::other("the status listener panicked").into()),
        }
        outcome
    }

    /// Sends WAL until the timeline ends (returned: where it goes on) or the client does not want
    /// more.
    fn send_wal(
        &mut self,
        start: Lsn,
        timeline: TimelineId,
        heard: &Heard,
    ) -> Result<Option<(TimelineId, Lsn)>, SessionError> {
        let mut sent = start;
        let mut keepalive_due = Instant::now() + KEEPALIVE;
        let mut payload = Vec::new();
        let mut buffer = vec![0; MAX_SEND as usize];
        loop {
            if heard.done.load(Ordering::SeqCst) || heard.gone.load(Ordering::SeqCst) {
                return Ok(None);
            }
            let (history, served) = self.servable();
            let Some((end, next)) = history.end_of(timeline) else {
                // The timeline was cut off while it was being streamed to a peer.
                return Err(io::Error::other("the timeline is no longer part of history").into());
            };
            let limit = served.min(end);
            if sent < limit {
                let boundary = Lsn((sent.0 / MAX_SEND + 1) * MAX_SEND);
                let to = limit.min(boundary);
                let len = to.since(sent) as usize;
                let data = buffer.get_mut(..len).unwrap_or_default();
                self.shared.read_exact(&history, sent, data)?;
                let time = pg_timestamp(SystemTime::now());
                payload.clear();
                ReplicationMessage::XLogData {
                    start: sent,
                    end: limit,
                    time,
                    data,
                }
                .encode(&mut payload);
                self.send(&BackendMessage::CopyData(&payload));
                self.flush()?;
                sent = to;
                keepalive_due = Instant::now() + KEEPALIVE;
                continue;
            }
            if let Some(next) = next
                && sent == end
                && self.may_announce(end, served)
            {
                return Ok(Some((next, end)));
            }
            let asked = heard.wants_reply.swap(false, Ordering::SeqCst);
            if asked || Instant::now() >= keepalive_due {
                let time = pg_timestamp(SystemTime::now());
                payload.clear();
                ReplicationMessage::Keepalive {
                    end: limit,
                    time,
                    reply: !asked,
                }
                .encode(&mut payload);
                self.send(&BackendMessage::CopyData(&payload));
                self.flush()?;
                keepalive_due = Instant::now() + KEEPALIVE;
            }
            self.wait_for_more(sent, timeline, heard);
        }
    }

    /// History, and how far this client may read: other stores everything durable (it helps them
    /// towards the quorum), everybody else only what a quorum has.
    fn servable(&self) -> (Arc<History>, Lsn) {
        let published = self.shared.published();
        let limit = if self.shared.is_peer(&self.application_name) {
            published.flushed
        } else {
            published.quorum
        };
        (Arc::clone(&published.history), limit)
    }

    /// Whether this client may hear of the timeline that begins at `end`, when it may read up to
    /// `limit`. Until a quorum has something of that timeline another one may begin there instead, and
    /// a reader that has gone over to the first could not go back.
    fn may_announce(&self, end: Lsn, limit: Lsn) -> bool {
        limit > end || self.shared.is_peer(&self.application_name)
    }

    fn wait_for_more(&self, sent: Lsn, timeline: TimelineId, heard: &Heard) {
        let peer = self.shared.is_peer(&self.application_name);
        let mut published = self.shared.published();
        let limit = if peer {
            published.flushed
        } else {
            published.quorum
        };
        let switched = published.history.timeline() != timeline;
        let stopped = published.stopping || heard.done.load(Ordering::SeqCst);
        if limit <= sent && !switched && !stopped && !heard.wants_reply.load(Ordering::SeqCst) {
            self.shared.wait(&mut published, LOOK);
        } else if limit <= sent && switched {
            // A timeline whose end is known but not yet within the quorum.
            self.shared.wait(&mut published, Duration::from_millis(20));
        }
        if published.stopping {
            heard.gone.store(true, Ordering::SeqCst);
        }
    }
}

/// Reads the client's messages until it ends the stream; returns what came behind its end.
fn listen(
    shared: &Shared,
    mut socket: ClientSocket,
    mut inbox: Inbox,
    heard: &Heard,
    storage_node: bool,
) -> Inbox {
    let outcome = hear(shared, &mut socket, &mut inbox, heard, storage_node);
    if let Err(error) = outcome {
        tracing::debug!(%error, "a replication client is gone");
        heard.gone.store(true, Ordering::SeqCst);
    } else {
        heard.done.store(true, Ordering::SeqCst);
    }
    shared.wake();
    inbox
}

fn hear(
    shared: &Shared,
    socket: &mut ClientSocket,
    inbox: &mut Inbox,
    heard: &Heard,
    storage_node: bool,
) -> Result<(), SessionError> {
    loop {
        while let Some(raw) = inbox.next_message()? {
            match FrontendMessage::decode(raw)? {
                FrontendMessage::CopyData(payload) => match StandbyMessage::decode(payload)? {
                    StandbyMessage::Status { flush, reply, .. } => {
                        if storage_node && flush.is_valid() {
                            shared.note_consumed(flush);
                        }
                        if reply {
                            heard.wants_reply.store(true, Ordering::SeqCst);
                            shared.wake();
                        }
                    }
                    StandbyMessage::HotStandbyFeedback { .. } => {}
                },
                FrontendMessage::CopyDone => return Ok(()),
                FrontendMessage::Terminate | FrontendMessage::CopyFail(_) => {
                    return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
                }
                _ => {}
            }
        }
        match socket.read(inbox.space(8192)) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(len) => inbox.received(len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}
