//! Receiving WAL from the log stores, one at a time.
//!
//! **Invariant.** Only WAL that a log store serves is taken, and log stores serve only what a quorum
//! has made durable (DESIGN invariant 2). What is reported back as flushed is what layer files hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::storage::WalSource;
use page_store::PageStore;
use pg_client::{PgClient, PgClientError, ReplicationStream, StreamEvent};
use pg_types::Lsn;

use crate::ingestor::{ApplyError, Ingestor};
use crate::status::NodeStatus;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);
/// How often positions are reported, and how long `stop` may go unnoticed.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// A log store that has said nothing for so long may hang: try the next one.
const LONGEST_SILENCE: Duration = Duration::from_secs(20);
/// Name by which log stores know this client.
const APPLICATION_NAME: &str = "strandline_storage";
const REPLICATION_ROLE: &str = "strandline_replication";

/// Why streaming from one log store ended.
#[derive(Debug, thiserror::Error)]
enum ReceiveError {
    #[error(transparent)]
    Connection(#[from] PgClientError),
    #[error(
        "the log store at {host}:{port} belongs to cluster {found}, this storage node to cluster {expected}; correct log_stores in its configuration"
    )]
    OtherCluster {
        host: String,
        port: u16,
        found: u64,
        expected: u64,
    },
    #[error("WAL from {host}:{port}: {source}")]
    Apply {
        host: String,
        port: u16,
        source: ApplyError,
    },
    #[error("the log store at {host}:{port} has sent nothing for {seconds} s")]
    Silent {
        host: String,
        port: u16,
        seconds: u64,
    },
}

/// Receives until it is told to stop, or a record cannot be ingested.
pub(crate) struct Receiver {
    pub(crate) sources: Vec<WalSource>,
    pub(crate) store: Arc<PageStore>,
    pub(crate) status: Arc<NodeStatus>,
    pub(crate) ingestor: Ingestor,
    pub(crate) stop: Arc<AtomicBool>,
}

impl Receiver {
    pub(crate) fn run(mut self) {
        let mut backoff = FIRST_BACKOFF;
        let sources = self.sources.clone();
        for source in sources.iter().cycle() {
            if self.stopping() {
                return;
            }
            let before = self.store.applied();
            let ended = self.receive(source);
            self.status.set_receiving(false);
            let Err(error) = ended else {
                return;
            };
            if self.ends_ingestion(&error) {
                let message = format!("ingestion has stopped: {error}");
                tracing::error!(applied = %self.store.applied(), "{message}");
                self.status.set_stopped(message);
                return;
            }
            if self.store.applied() > before {
                backoff = FIRST_BACKOFF;
            }
            tracing::warn!(retry_in = ?backoff, "receiving WAL: {error}");
            self.status.set_unreachable(error.to_string());
            self.pause(backoff);
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
        }
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.stopping() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn ends_ingestion(&self, error: &ReceiveError) -> bool {
        matches!(
            error,
            ReceiveError::Apply {
                source: ApplyError::Record(_) | ApplyError::Store(_),
                ..
            }
        )
    }

    /// Streams from `source` until the connection ends (`Err`) or this node stops (`Ok`).
    fn receive(&mut self, source: &WalSource) -> Result<(), ReceiveError> {
        let mut client = PgClient::connect(
            &source.host,
            source.port,
            REPLICATION_ROLE,
            "",
            &[("application_name", APPLICATION_NAME)],
            true,
        )?;
        let identity = client.identify_system()?;
        let expected = self.store.identity().system_identifier;
        if identity.system_identifier != expected {
            return Err(ReceiveError::OtherCluster {
                host: source.host.clone(),
                port: source.port,
                found: identity.system_identifier,
                expected,
            });
        }
        self.status.note_quorum(identity.flushed);
        let apply = |source_error: ApplyError| ReceiveError::Apply {
            host: source.host.clone(),
            port: source.port,
            source: source_error,
        };
        self.ingestor
            .restart()
            .map_err(|error| apply(error.into()))?;
        loop {
            let (from, timeline) = self.ingestor.position();
            tracing::info!(%from, %timeline, host = %source.host, port = source.port, "streaming WAL");
            let mut stream = client.start_replication(None, from, timeline)?;
            self.status.set_receiving(true);
            let Some((next, at)) = self.stream(&mut stream, source)? else {
                return Ok(());
            };
            tracing::info!(timeline = %next, %at, "the WAL goes on with the next timeline");
            self.ingestor
                .switch_timeline(at, next)
                .map_err(|error| apply(error.into()))?;
            client = stream.into_client();
        }
    }

    /// Applies what comes until the timeline ends (`Some`) or this node stops (`None`).
    fn stream(
        &mut self,
        stream: &mut ReplicationStream,
        source: &WalSource,
    ) -> Result<Option<(pg_types::TimelineId, Lsn)>, ReceiveError> {
        let reports = stream.status_sender();
        let mut reported = Instant::now();
        let mut heard = Instant::now();
        loop {
            if self.stopping() {
                return Ok(None);
            }
            let mut wanted = false;
            match stream.next(REPORT_EVERY)? {
                StreamEvent::XLogData { start, end, data } => {
                    heard = Instant::now();
                    self.status.note_quorum(end);
                    self.ingestor
                        .apply(start, data)
                        .map_err(|error| ReceiveError::Apply {
                            host: source.host.clone(),
                            port: source.port,
                            source: error,
                        })?;
                }
                StreamEvent::Keepalive { end, reply } => {
                    heard = Instant::now();
                    self.status.note_quorum(end);
                    wanted = reply;
                }
                StreamEvent::EndOfTimeline { next, at } => return Ok(Some((next, at))),
                StreamEvent::Idle if heard.elapsed() > LONGEST_SILENCE => {
                    return Err(ReceiveError::Silent {
                        host: source.host.clone(),
                        port: source.port,
                        seconds: LONGEST_SILENCE.as_secs(),
                    });
                }
                StreamEvent::Idle => {}
            }
            if wanted || reported.elapsed() >= REPORT_EVERY {
                reported = Instant::now();
                let durable = self.store.disk_consistent().lsn;
                reports.send_status(self.ingestor.received(), durable, self.store.applied())?;
            }
        }
    }
}
