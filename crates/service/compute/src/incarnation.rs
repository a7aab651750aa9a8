//! One start: from a log and a storage node to a server whose commits reach a quorum.
//!
//! **Invariant.** The order is: fence, choose E, begin the timeline at E on a quorum, learn the
//! skeleton at E, make the checkpoint record durable on a quorum, only then build and launch; and the
//! server counts as ready only when a quorum of log stores streams from it. Learning the skeleton
//! before the begin would let the storage node take WAL up to an E that another start may still
//! overrule; launching before it would let a server write on a timeline that no store has, and its
//! history would fork.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::compute::ComputeConfig;
use api::log::{LogRequest, PrimaryAddress};
use cluster_state::Skeleton;
use pg_client::{PgClient, PgClientError};
use pg_page::{ControlFile, ControlFileError};
use pg_types::{BLCKSZ, Lsn, TimelineId};

use crate::access::{Access, REPLICATION_ROLE, write_access};
use crate::checkpoint::{StartCheckpoint, TimelineSwitch, history_text, start_checkpoint};
use crate::datadir::{BuiltDirectory, DataDirError, Incarnation, build, decode_hex};
use crate::fence::{FenceError, FencedLog, take_over};
use crate::layout::{ClusterDescription, Layout};
use crate::leftover::{LeftoverError, end_processes, remove_sockets, send_signal};
use crate::postgres::{Launch, Postgres, PostgresBinary, PostgresError};
use crate::recycle::Tidying;
use crate::settings::{ServerFacts, SettingsError, server_settings};
use crate::stores::{LogStoreClient, StorageClient, StoreError};

/// How long a call to a log store may take.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for log stores that do not answer yet.
const STORE_PATIENCE: Duration = Duration::from_secs(15);
/// How long the storage node may need to ingest up to the start.
const INGEST_PATIENCE: Duration = Duration::from_secs(600);
/// How long PostgreSQL and the streams may need to get ready.
const READY_PATIENCE: Duration = Duration::from_secs(120);
/// Pause between two looks at something that is about to happen.
const TICK: Duration = Duration::from_millis(3);

/// Why a start failed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The log could not be taken over.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// A store did not do what was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An earlier incarnation is still there.
    #[error(transparent)]
    Leftover(#[from] LeftoverError),
    /// The data directory could not be built.
    #[error("building the data directory: {0}")]
    DataDir(#[from] DataDirError),
    /// The template of the control file is damaged.
    #[error("the storage node's control file: {0}")]
    Control(#[from] ControlFileError),
    /// The storage node describes another place of the log than the stores chose.
    #[error(
        "the storage node's last record before {end} is at {storage}, the log stores' at {logs}: they do not hold the same log (hint: are the storage node and the log stores of the same cluster?)"
    )]
    LogMismatch {
        /// The start.
        end: Lsn,
        /// Last record according to the storage node.
        storage: Lsn,
        /// Last record according to the log stores.
        logs: Lsn,
    },
    /// The storage node belongs to another cluster.
    #[error(
        "the storage node belongs to cluster {found}, not to {expected} (hint: put the directory of this cluster's storage node back)"
    )]
    OtherCluster {
        /// Its system identifier.
        found: u64,
        /// The cluster's.
        expected: u64,
    },
    /// PostgreSQL cannot be run.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// A setting that cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A file of the configuration could not be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The server ended before it was ready.
    #[error("PostgreSQL ended before it was ready ({status}): {message}")]
    Ended {
        /// Its exit status.
        status: String,
        /// The last thing it logged.
        message: String,
    },
    /// The server refused the manager.
    #[error("preparing the server: {0}")]
    Client(#[from] PgClientError),
    /// It took too long.
    #[error("{what} within {} s", READY_PATIENCE.as_secs())]
    TooSlow {
        /// What did not happen.
        what: String,
    },
    /// The start was called off.
    #[error("the start was called off")]
    CalledOff,
}

/// A server that is ready.
#[derive(Debug)]
pub struct Running {
    /// The process.
    pub postgres: Postgres,
    /// Its data directory and map.
    pub built: BuiltDirectory,
    /// The timeline it writes.
    pub timeline: TimelineId,
    /// Where its timeline began, and where it reads pages.
    pub start_lsn: Lsn,
    /// Clearing up behind earlier incarnations.
    pub tidying: Option<Tidying>,
}

/// What a start needs to know.
#[derive(Debug)]
pub struct Starter<'a> {
    /// The manager's configuration.
    pub config: &'a ComputeConfig,
    /// The cluster.
    pub cluster: &'a ClusterDescription,
    /// The server's program.
    pub binary: &'a PostgresBinary,
    /// Name of the user that this process runs as.
    pub os_user: &'a str,
}

/// How stores reach the server on `timeline`.
#[must_use]
pub fn primary_address(
    config: &ComputeConfig,
    store: &str,
    timeline: TimelineId,
) -> PrimaryAddress {
    PrimaryAddress {
        host: config.run.display().to_string(),
        port: config.listen_port,
        user: REPLICATION_ROLE.to_owned(),
        slot: store.to_owned(),
        timeline,
    }
}

impl Starter<'_> {
    fn layout(&self) -> Layout {
        Layout::new(self.config.data.clone())
    }

    /// Starts a fresh incarnation. `called_off` is asked now and then.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub fn start(&self, called_off: &dyn Fn() -> bool) -> Result<Running, StartError> {
        let begun = Instant::now();
        let layout = self.layout();
        let compute = layout.compute();
        let ended = end_processes(&compute)?;
        tracing::debug!(?ended, after = ?begun.elapsed(), "earlier processes");
        remove_sockets(&self.config.run, self.config.listen_port).map_err(|source| {
            StartError::Io {
                path: self.config.run.clone(),
                source,
            }
        })?;
        save_auto_conf(&layout)?;

        let mut log = take_over(
            &self.config.log_stores,
            self.config.quorum,
            self.cluster.system_identifier,
            STORE_PATIENCE,
            STORE_TIMEOUT,
        )?;
        tracing::info!(timeline = %log.timeline, parent = %log.chosen.timeline, end = %log.end(), after = ?begun.elapsed(), "fenced");
        if called_off() {
            return Err(StartError::CalledOff);
        }
        let switch = TimelineSwitch {
            at: log.end(),
            last_record: log.chosen.last_record,
            parent: log.chosen.timeline,
            timeline: log.timeline,
        };
        let history = history_text(&log.chosen.history_text, &switch);
        // Empty at first: before it has begun nothing that was caught up counts, so the storage node
        // could not get to where it begins.
        log.begin(&history, &[])?;
        let skeleton = self.skeleton(&log)?;
        tracing::info!(relations = skeleton.relations.len(), after = ?begun.elapsed(), "skeleton");
        let template = ControlFile::decode(&decode_hex(&skeleton.control, "control file")?)?;
        if template.system_identifier() != self.cluster.system_identifier {
            return Err(StartError::OtherCluster {
                found: template.system_identifier(),
                expected: self.cluster.system_identifier,
            });
        }
        let checkpoint = start_checkpoint(&template, &switch, now_unix());
        let segment = skeleton.segment_size;
        let (wal_from, wal) = log.read_tail(segment.start_of(segment.segment_of(switch.at)))?;
        log.begin(&history, &checkpoint.placed.bytes)?;
        if called_off() {
            return Err(StartError::CalledOff);
        }
        let incarnation = Incarnation {
            skeleton: &skeleton,
            switch,
            checkpoint: &checkpoint,
            history: &history,
            wal_from,
            wal: &wal,
            pages: &self.config.storage_pages,
            cache_blocks: self.config.cache_bytes.div_ceil(BLCKSZ as u64),
            read_timeout_ms: self.config.read_timeout_ms,
        };
        let built = build(&compute, &incarnation, &ended)?;
        restore_auto_conf(&layout)?;
        tracing::info!(after = ?begun.elapsed(), "data directory built");
        let mut running = self.launch(built, &template, &switch)?;
        tracing::info!(after = ?begun.elapsed(), "launched");
        match self.make_ready(&mut running, &checkpoint, called_off) {
            Ok(()) => {
                tracing::info!(pid = running.postgres.pid(), after = ?begun.elapsed(), "ready");
                running.tidying = Some(Tidying::start(&compute));
                Ok(running)
            }
            Err(error) => {
                running.postgres.stop(Duration::ZERO, || true);
                Err(error)
            }
        }
    }

    fn skeleton(&self, log: &FencedLog) -> Result<Skeleton, StartError> {
        let mut storage = StorageClient::new(&self.config.storage_control, STORE_TIMEOUT);
        let begun = Instant::now();
        // First whose it is: the skeleton of another cluster would only look damaged.
        if let Ok(status) = storage.status()
            && status.system_identifier != self.cluster.system_identifier
        {
            return Err(StartError::OtherCluster {
                found: status.system_identifier,
                expected: self.cluster.system_identifier,
            });
        }
        let skeleton = loop {
            match storage.skeleton(log.end(), INGEST_PATIENCE) {
                Ok(skeleton) => break skeleton,
                // It may be starting still.
                Err(StoreError::Unreachable { .. }) if begun.elapsed() < STORE_PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error.into()),
            }
        };
        if skeleton.last_record != log.chosen.last_record {
            return Err(StartError::LogMismatch {
                end: log.end(),
                storage: skeleton.last_record,
                logs: log.chosen.last_record,
            });
        }
        Ok(skeleton)
    }

    fn launch(
        &self,
        built: BuiltDirectory,
        control: &ControlFile,
        switch: &TimelineSwitch,
    ) -> Result<Running, StartError> {
        let layout = self.layout();
        let config = layout.config();
        self.allow(None)?;
        let user = self.binary.user_settings(&config, &built.pgdata)?;
        let names: Vec<String> = self
            .config
            .log_stores
            .iter()
            .map(|store| store.name.clone())
            .collect();
        let settings = server_settings(
            &ServerFacts {
                major: self.cluster.major,
                pgdata: &built.pgdata,
                config: &config,
                run: &self.config.run,
                listen_host: &self.config.listen_host,
                listen_port: self.config.listen_port,
                log_stores: &names,
                quorum: self.config.quorum,
                wal_log_hints: control.parameters().wal_log_hints,
            },
            &user,
        )?;
        let log = layout.logs().join("postgres.log");
        let launch = Launch {
            built: &built,
            config: &config,
            settings: &settings,
            shim: &self.config.shim,
            log: &log,
        };
        let postgres = self.binary.launch(&launch)?;
        Ok(Running {
            postgres,
            built,
            timeline: switch.timeline,
            start_lsn: switch.at,
            tidying: None,
        })
    }

    /// Writes the managed lines of the access files.
    fn allow(&self, superuser: Option<&str>) -> Result<bool, StartError> {
        let config = self.layout().config();
        write_access(
            &config,
            &Access {
                os_user: self.os_user,
                superuser,
            },
        )
        .map_err(|source| StartError::Io {
            path: config,
            source,
        })
    }

    fn make_ready(
        &self,
        running: &mut Running,
        checkpoint: &StartCheckpoint,
        called_off: &dyn Fn() -> bool,
    ) -> Result<(), StartError> {
        let deadline = Instant::now() + READY_PATIENCE;
        let begun = Instant::now();
        let mut client = self.connect(running, deadline, called_off)?;
        tracing::info!(after = ?begun.elapsed(), "the server answers");
        for store in &self.config.log_stores {
            client.create_physical_slot(&store.name)?;
        }
        drop(client);
        tracing::info!(after = ?begun.elapsed(), "slots");
        let mut stores: Vec<LogStoreClient> = self
            .config
            .log_stores
            .iter()
            .map(|store| LogStoreClient::new(store, STORE_TIMEOUT))
            .collect();
        for store in &mut stores {
            let primary = primary_address(self.config, store.name(), running.timeline);
            if let Err(error) = store.status(&LogRequest::Receive { primary }, &[]) {
                tracing::warn!(store = store.name(), %error, "does not receive");
            }
        }
        loop {
            self.check_alive(running, called_off)?;
            let streaming = stores
                .iter_mut()
                .filter_map(|store| store.status(&LogRequest::Status, &[]).ok())
                .filter(|status| {
                    status.receiving
                        && status.timeline == running.timeline
                        && status.quorum >= checkpoint.placed.end
                })
                .count();
            if streaming >= self.config.quorum {
                return Ok(());
            }
            if Instant::now() > deadline {
                let what = format!(
                    "only {streaming} of {} log stores streamed from PostgreSQL",
                    self.config.quorum
                );
                return Err(StartError::TooSlow { what });
            }
            std::thread::sleep(TICK);
        }
    }

    /// A replication connection as soon as the server takes one; creates the role if need be.
    fn connect(
        &self,
        running: &mut Running,
        deadline: Instant,
        called_off: &dyn Fn() -> bool,
    ) -> Result<PgClient, StartError> {
        let host = self.config.run.display().to_string();
        let mut role_made = false;
        loop {
            self.check_alive(running, called_off)?;
            let params = [("application_name", "strandline")];
            let attempt = PgClient::connect(
                &host,
                self.config.listen_port,
                REPLICATION_ROLE,
                "",
                &params,
                true,
            );
            let error = match attempt {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            match error.sqlstate() {
                // Not up yet, or still starting.
                None | Some("57P03") => {}
                // The role does not exist, or is not yet what it must be.
                Some("28000" | "42501") if !role_made => {
                    self.make_role(running, &host, deadline, called_off)?;
                    role_made = true;
                    continue;
                }
                // The postmaster may not have read the access files again yet.
                Some("28000" | "42501") => {}
                Some(_) => return Err(error.into()),
            }
            if Instant::now() > deadline {
                return Err(error.into());
            }
            std::thread::sleep(TICK);
        }
    }

    /// Creates the replication role as the superuser, whom the access files admit meanwhile. The
    /// commit must not wait for log stores: they cannot stream before the role exists.
    fn make_role(
        &self,
        running: &mut Running,
        host: &str,
        deadline: Instant,
        called_off: &dyn Fn() -> bool,
    ) -> Result<(), StartError> {
        let superuser = self.cluster.superuser.as_str();
        self.allow(Some(superuser))?;
        send_signal(running.postgres.pid(), libc::SIGHUP);
        let params = [
            ("application_name", "strandline"),
            ("options", "-c synchronous_commit=local"),
        ];
        let made = loop {
            self.check_alive(running, called_off)?;
            let attempt = PgClient::connect(
                host,
                self.config.listen_port,
                superuser,
                "template1",
                &params,
                false,
            );
            match attempt {
                Ok(mut client) => break client.simple_query(&make_role_sql()).map(|_| ()),
                Err(error) if Instant::now() > deadline => break Err(error),
                Err(_) => std::thread::sleep(TICK),
            }
        };
        self.allow(None)?;
        send_signal(running.postgres.pid(), libc::SIGHUP);
        tracing::info!("created role {REPLICATION_ROLE}");
        Ok(made?)
    }

    fn check_alive(
        &self,
        running: &mut Running,
        called_off: &dyn Fn() -> bool,
    ) -> Result<(), StartError> {
        if called_off() {
            return Err(StartError::CalledOff);
        }
        match running.postgres.try_wait() {
            Ok(Some(status)) => Err(StartError::Ended {
                status: status.to_string(),
                message: last_words(&self.layout().logs().join("postgres.log")),
            }),
            _ => Ok(()),
        }
    }
}

fn make_role_sql() -> String {
    format!(
        "DO $$ BEGIN \
           IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = '{REPLICATION_ROLE}') \
           THEN CREATE ROLE {REPLICATION_ROLE} LOGIN REPLICATION; \
           ELSE ALTER ROLE {REPLICATION_ROLE} LOGIN REPLICATION; END IF; \
         END $$"
    )
}

/// The last message of at least level FATAL in PostgreSQL's log, or its last line. About a broken
/// configuration the FATAL message only says that there are errors; the message before it says which.
#[must_use]
pub fn last_words(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let tail = bytes
        .get(bytes.len().saturating_sub(16 << 10)..)
        .unwrap_or_default();
    let text = String::from_utf8_lossy(tail);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let fatal = lines
        .iter()
        .rposition(|line| line.contains("PANIC:") || line.contains("FATAL:"));
    let Some(last) = fatal.or(lines.len().checked_sub(1)) else {
        return "it logged nothing".to_owned();
    };
    let line = |at: usize| lines.get(at).copied().unwrap_or_default();
    if line(last).contains("configuration file") && last > 0 {
        let why = line(last - 1);
        let why = why.split_once("LOG:").map_or(why, |(_, why)| why.trim());
        return format!("{} (hint: correct it: {why})", line(last));
    }
    line(last).to_owned()
}

const AUTO_CONF: &str = "postgresql.auto.conf";

/// Copies what `ALTER SYSTEM` wrote out of the data directory, if it changed.
///
/// # Errors
/// [`StartError::Io`].
pub fn save_auto_conf(layout: &Layout) -> Result<(), StartError> {
    let local = layout.compute().join("pgdata").join(AUTO_CONF);
    let kept = layout.config().join(AUTO_CONF);
    let bytes = match fs::read(&local) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(StartError::Io {
                path: local,
                source,
            });
        }
    };
    if fs::read(&kept).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    crate::layout::replace_file(&kept, &bytes)
        .map_err(|source| StartError::Io { path: kept, source })
}

fn restore_auto_conf(layout: &Layout) -> Result<(), StartError> {
    let kept = layout.config().join(AUTO_CONF);
    let local = layout.compute().join("pgdata").join(AUTO_CONF);
    let bytes = match fs::read(&kept) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(StartError::Io { path: kept, source }),
    };
    // Nothing reads it yet, and it need not survive: no detour over a synchronised copy, which would
    // wait until the file system has written down the whole new directory.
    let write = || -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&local)?.write_all(&bytes)
    };
    write().map_err(|source| StartError::Io {
        path: local,
        source,
    })
}

fn now_unix() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
