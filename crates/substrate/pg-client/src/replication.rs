//! A running stream of WAL.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use pg_proto::{BackendMessage, FrontendMessage, ReplicationMessage, StandbyMessage, pg_timestamp};
use pg_types::{Lsn, TimelineId};

use crate::client::{PgClient, Reply, shorten};
use crate::error::PgClientError;
use crate::socket::{ServerAddress, Socket};

pub(crate) const ENDING: &str = "at the end of a timeline";
const STARTING: &str = "while starting replication";
const STREAMING: &str = "while streaming";

/// Longest time a status may take to be sent; a sender that does not read for so long is gone.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// What the sender sent.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamEvent<'a> {
    /// WAL.
    XLogData {
        /// LSN of the first byte.
        start: Lsn,
        /// End of WAL at the sender.
        end: Lsn,
        /// The bytes.
        data: &'a [u8],
    },
    /// Nothing new.
    Keepalive {
        /// End of WAL at the sender.
        end: Lsn,
        /// The sender wants a status now.
        reply: bool,
    },
    /// The timeline asked for ended; nothing follows. Take the connection back with
    /// [`ReplicationStream::into_client`] and start again on the next timeline.
    EndOfTimeline {
        /// The timeline that continues it.
        next: TimelineId,
        /// Where it does.
        at: Lsn,
    },
    /// The time given to [`ReplicationStream::next`] passed.
    Idle,
}

/// Reports positions on a stream, from any thread.
#[derive(Debug, Clone)]
pub struct StatusSender {
    address: ServerAddress,
    socket: Arc<Mutex<Socket>>,
}

impl StatusSender {
    /// Reports how far the receiver has got: `write` received, `flush` durable, `apply` applied.
    ///
    /// # Errors
    /// [`PgClientError`] when the connection is broken.
    pub fn send_status(&self, write: Lsn, flush: Lsn, apply: Lsn) -> Result<(), PgClientError> {
        let time = pg_timestamp(SystemTime::now());
        let mut payload = Vec::with_capacity(34);
        StandbyMessage::Status {
            write,
            flush,
            apply,
            time,
            reply: false,
        }
        .encode(&mut payload);
        let mut out = Vec::with_capacity(payload.len() + 5);
        FrontendMessage::CopyData(&payload).encode(&mut out);
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.write_all(&out).map_err(|source| PgClientError::Io {
            address: self.address.clone(),
            source,
        })
    }

    /// Breaks the connection: a thread that waits in [`ReplicationStream::next`] returns an error.
    pub fn close(&self) {
        // Already broken: that is what was wanted.
        let _ = self
            .socket
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .shutdown();
    }
}

/// WAL as it arrives.
#[derive(Debug)]
pub struct ReplicationStream {
    client: PgClient,
    sender: StatusSender,
    ended: Option<(TimelineId, Lsn)>,
}

impl ReplicationStream {
    /// Reads the answer to `START_REPLICATION`.
    pub(crate) fn begin(mut client: PgClient) -> Result<ReplicationStream, PgClientError> {
        let socket = client
            .socket
            .try_clone()
            .and_then(|socket| {
                socket
                    .set_write_timeout(Some(SEND_TIMEOUT))
                    .map(|()| socket)
            })
            .map_err(|source| PgClientError::Io {
                address: client.address.clone(),
                source,
            })?;
        let sender = StatusSender {
            address: client.address.clone(),
            socket: Arc::new(Mutex::new(socket)),
        };
        let mut end_row = None;
        loop {
            match client.reply(STARTING)? {
                Reply::CopyBoth => {
                    return Ok(ReplicationStream {
                        client,
                        sender,
                        ended: None,
                    });
                }
                // The timeline ended where we wanted to start: the end comes without a stream.
                Reply::Row(row) => end_row = Some(row),
                Reply::Columns(_) | Reply::Complete(_) | Reply::Parameter(..) => {}
                Reply::Ready => {
                    let ended = end_row.as_deref().and_then(timeline_end);
                    let Some(ended) = ended else {
                        return Err(client.unexpected(STARTING, format!("{end_row:?}")));
                    };
                    return Ok(ReplicationStream {
                        client,
                        sender,
                        ended: Some(ended),
                    });
                }
                Reply::Error(error) => {
                    return Err(PgClientError::Server {
                        address: client.address.clone(),
                        error,
                    });
                }
                Reply::CopyDone => {
                    return Err(client.unexpected(STARTING, "CopyDone".to_owned()));
                }
                Reply::Other(message) => return Err(client.unexpected(STARTING, message)),
            }
        }
    }

    /// The sender's address.
    #[must_use]
    pub const fn address(&self) -> &ServerAddress {
        &self.client.address
    }

    /// A handle that reports positions while another thread receives.
    #[must_use]
    pub fn status_sender(&self) -> StatusSender {
        self.sender.clone()
    }

    /// Reports positions; see [`StatusSender::send_status`].
    ///
    /// # Errors
    /// [`PgClientError`] when the connection is broken.
    pub fn send_status(&self, write: Lsn, flush: Lsn, apply: Lsn) -> Result<(), PgClientError> {
        self.sender.send_status(write, flush, apply)
    }

    /// Whether [`ReplicationStream::next`] would return at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ended.is_some() || self.client.inbox.has_message().unwrap_or(true)
    }

    /// The next event; [`StreamEvent::Idle`] after `timeout`.
    ///
    /// # Errors
    /// [`PgClientError`]; `Closed` when the sender shut down.
    pub fn next(&mut self, timeout: Duration) -> Result<StreamEvent<'_>, PgClientError> {
        if let Some((next, at)) = self.ended {
            return Ok(StreamEvent::EndOfTimeline { next, at });
        }
        match self.client.wait_for_message(Some(Instant::now() + timeout)) {
            Ok(()) => {}
            Err(PgClientError::TimedOut { .. }) => return Ok(StreamEvent::Idle),
            Err(error) => return Err(error),
        }
        let address = self.client.address.clone();
        // Peeked first: a decoded message borrows the client, and the end of a timeline needs it.
        if self.client.inbox.next_tag() == Some(b'c') {
            let (next, at) = self.finish()?;
            return Ok(StreamEvent::EndOfTimeline { next, at });
        }
        match self.client.decode()? {
            BackendMessage::CopyData(payload) => {
                let message = ReplicationMessage::decode(payload)
                    .map_err(|source| PgClientError::Protocol { address, source })?;
                Ok(match message {
                    ReplicationMessage::XLogData {
                        start, end, data, ..
                    } => StreamEvent::XLogData { start, end, data },
                    ReplicationMessage::Keepalive { end, reply, .. } => {
                        StreamEvent::Keepalive { end, reply }
                    }
                })
            }
            BackendMessage::NoticeResponse(_)
            | BackendMessage::ParameterStatus { .. }
            | BackendMessage::Notification => Ok(StreamEvent::Idle),
            // A walsender that shuts down says goodbye with a bare command tag.
            BackendMessage::CommandComplete(_) => Err(PgClientError::Closed { address }),
            BackendMessage::ErrorResponse(error) => Err(PgClientError::Server {
                address,
                error: Box::new(error),
            }),
            other => Err(PgClientError::Unexpected {
                address,
                during: STREAMING,
                message: shorten(&other),
            }),
        }
    }

    /// The connection, to be used for further commands. Only after `EndOfTimeline`; before it the
    /// connection is in the middle of a stream and every command fails.
    #[must_use]
    pub fn into_client(self) -> PgClient {
        self.client
    }

    /// Answers the sender's `CopyDone` and reads where the history goes on.
    fn finish(&mut self) -> Result<(TimelineId, Lsn), PgClientError> {
        let mut out = Vec::new();
        FrontendMessage::CopyDone.encode(&mut out);
        self.sender
            .socket
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(&out)
            .map_err(|source: io::Error| PgClientError::Io {
                address: self.client.address.clone(),
                source,
            })?;
        let results = self.client.collect_results(ENDING)?;
        let row = results.iter().find_map(|result| result.rows.first());
        let ended = row.and_then(|row| timeline_end(row));
        let Some(ended) = ended else {
            return Err(self.client.unexpected(ENDING, format!("{results:?}")));
        };
        self.ended = Some(ended);
        Ok(ended)
    }
}

fn timeline_end(row: &[Option<String>]) -> Option<(TimelineId, Lsn)> {
    let next = row.first()?.as_deref()?.parse().ok()?;
    let at = row.get(1)?.as_deref()?.parse().ok()?;
    Some((TimelineId(next), at))
}
