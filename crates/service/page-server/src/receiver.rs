//! Receiving WAL from the log stores, one at a time.
//!
//! **Invariant.** Only WAL that a log store serves is taken, and log stores serve only what a quorum
//! has made durable (DESIGN invariant 2). What is reported back as flushed is what layer files hold.
//!
//! A log store that missed the promise or the beginning of a timeline does not know how far the quorum
//! is: it keeps the connection alive and serves nothing, while a server that is to start waits for WAL
//! that the other stores would give. So while somebody waits and nothing comes, the next store is tried.

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
/// While somebody waits for WAL, a log store that gives none is left after so long…
const FIRST_PATIENCE: Duration = Duration::from_millis(300);
/// …and, if the others give none either, after up to so long.
const LONGEST_PATIENCE: Duration = Duration::from_secs(5);
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
    #[error(
        "the log store at {host}:{port} serves nothing beyond {applied}, but {wanted} is waited for"
    )]
    Behind {
        host: String,
        port: u16,
        applied: Lsn,
        wanted: Lsn,
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
        let mut patience = FIRST_PATIENCE;
        let sources = self.sources.clone();
        for source in sources.iter().cycle() {
            if self.stopping() {
                return;
            }
            let before = self.store.applied();
            let ended = self.receive(source, patience);
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
                patience = FIRST_PATIENCE;
            }
            if matches!(error, ReceiveError::Behind { .. }) {
                tracing::info!("{error}; trying the next log store");
                patience = (patience * 2).min(LONGEST_PATIENCE);
                continue;
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
    fn receive(&mut self, source: &WalSource, patience: Duration) -> Result<(), ReceiveError> {
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
            let Some((next, at)) = self.stream(&mut stream, source, patience)? else {
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
        patience: Duration,
    ) -> Result<Option<(pg_types::TimelineId, Lsn)>, ReceiveError> {
        let reports = stream.status_sender();
        let mut unmet: Option<Instant> = None;
        let mut reported = Instant::now();
        let mut heard = Instant::now();
        loop {
            if self.stopping() {
                return Ok(None);
            }
            let mut wanted = false;
            match stream.next(patience.min(REPORT_EVERY))? {
                StreamEvent::XLogData { start, end, data } => {
                    heard = Instant::now();
                    unmet = None;
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
            self.look_elsewhere(source, patience, &mut unmet)?;
            if wanted || reported.elapsed() >= REPORT_EVERY {
                reported = Instant::now();
                let durable = self.store.disk_consistent().lsn;
                reports.send_status(self.ingestor.received(), durable, self.store.applied())?;
            }
        }
    }

    /// Fails when somebody has waited since `unmet` for WAL that `source` does not serve. With one log
    /// store there is nowhere else to look.
    fn look_elsewhere(
        &self,
        source: &WalSource,
        patience: Duration,
        unmet: &mut Option<Instant>,
    ) -> Result<(), ReceiveError> {
        let (applied, wanted) = (self.store.applied(), self.status.wanted());
        if wanted <= applied || self.sources.len() < 2 {
            *unmet = None;
            return Ok(());
        }
        if unmet.get_or_insert_with(Instant::now).elapsed() < patience {
            return Ok(());
        }
        Err(ReceiveError::Behind {
            host: source.host.clone(),
            port: source.port,
            applied,
            wanted,
        })
    }
}
