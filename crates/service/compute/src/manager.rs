//! Supervising the compute node: starting, watching, restarting, stopping.
//!
//! **Invariant.** A server that ends for any reason but a requested stop is replaced by a fresh
//! incarnation from storage, never restarted in its directory. A store that stops streaming is told
//! to stream again: until a quorum does, no commit is acknowledged.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use api::compute::{
    CacheStatus, ComputeConfig, ComputeRequest, ComputeResponse, ComputeState, ComputeStatus,
};
use api::log::LogRequest;
use parking_lot::Mutex;
use pg_page::{ClusterState, ControlFile};
use shim_abi::builder::MapReader;

use crate::incarnation::{
    Running, StartError, Starter, last_words, primary_address, save_auto_conf,
};
use crate::layout::{ClusterDescription, ClusterFileError, Layout};
use crate::leftover::{LeftoverError, end_processes};
use crate::postgres::{PostgresBinary, PostgresError};
use crate::stores::LogStoreClient;

/// How often the server's process is looked at.
const WATCH: Duration = Duration::from_millis(10);
/// How often streams and configuration are looked at.
const CARE: Duration = Duration::from_millis(100);
/// How long a fast shutdown may take.
const STOP_PATIENCE: Duration = Duration::from_secs(120);
/// How long log stores may need to have the shutdown checkpoint once the server has ended.
const CONFIRM_PATIENCE: Duration = Duration::from_secs(5);
/// Longest pause between two attempts to start.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Why a manager cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// Its configuration cannot be read.
    #[error("{}: {message}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The cluster's description cannot be read.
    #[error(transparent)]
    Cluster(#[from] ClusterFileError),
    /// PostgreSQL cannot be run.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// The control endpoint cannot be served.
    #[error("cannot listen on {endpoint}: {message}")]
    Control {
        /// The endpoint.
        endpoint: rpc::Endpoint,
        /// Why.
        message: String,
    },
    /// The user this process runs as has no name.
    #[error(
        "user id {0} has no name (hint: add the user to /etc/passwd; PostgreSQL needs one too)"
    )]
    NamelessUser(u32),
}

/// A request that changes what runs, and where its answer goes.
struct Command {
    request: ComputeRequest,
    reply: Sender<ComputeResponse>,
}

/// State that the control endpoint answers from.
struct Shared {
    status: Mutex<ComputeStatus>,
    map: Mutex<Option<MapReader>>,
    /// A stop or kill waits: a start that is under way must give up.
    call_off: AtomicBool,
}

struct Manager {
    config: ComputeConfig,
    cluster: ClusterDescription,
    binary: PostgresBinary,
    os_user: String,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    stop: Arc<AtomicBool>,
}

/// What ended the watch over a running server.
enum Watched {
    Ended(String),
    Asked(Command),
    Terminated,
}

/// Reads the configuration and manages the compute node until `stop` is set; then stops the server
/// cleanly and returns.
///
/// # Errors
/// [`ManagerError`] when it cannot begin; failures of the server are retried instead.
pub fn run(config_path: &std::path::Path, stop: Arc<AtomicBool>) -> Result<(), ManagerError> {
    let config_error = |message: String| ManagerError::Config {
        path: config_path.to_owned(),
        message,
    };
    let text = fs::read_to_string(config_path).map_err(|error| config_error(error.to_string()))?;
    let config: ComputeConfig =
        toml::from_str(&text).map_err(|error| config_error(error.message().to_owned()))?;
    let cluster = ClusterDescription::read(&Layout::new(config.data.clone()).cluster_file())?;
    let binary =
        PostgresBinary::find(&config.pg_bin, Some(cluster.major))?.require(cluster.major)?;
    let os_user = current_user()?;
    let shared = Arc::new(Shared {
        status: Mutex::new(initial_status(&config, &cluster, &binary)),
        map: Mutex::new(None),
        call_off: AtomicBool::new(false),
    });
    let (sender, commands) = channel();
    let _server = serve_control(&config, &shared, sender)?;
    let mut manager = Manager {
        config,
        cluster,
        binary,
        os_user,
        shared,
        commands,
        stop,
    };
    manager.run();
    Ok(())
}

fn initial_status(
    config: &ComputeConfig,
    cluster: &ClusterDescription,
    binary: &PostgresBinary,
) -> ComputeStatus {
    ComputeStatus {
        state: ComputeState::Starting,
        pid: None,
        timeline: None,
        start_lsn: None,
        incarnations: 0,
        start_ms: None,
        connection: connection_string(config, &cluster.superuser),
        socket_dir: config.run.clone(),
        server_version: Some(binary.version.clone()),
        cache: None,
        error: None,
    }
}

/// `postgresql://postgres@127.0.0.1:5432/postgres`.
#[must_use]
pub fn connection_string(config: &ComputeConfig, superuser: &str) -> String {
    let host = match config.listen_host.as_str() {
        "*" | "0.0.0.0" | "::" => "127.0.0.1",
        host => host.split(',').next().unwrap_or(host).trim(),
    };
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let user: String = superuser
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect();
    format!("postgresql://{user}@{host}:{}/postgres", config.listen_port)
}

fn serve_control(
    config: &ComputeConfig,
    shared: &Arc<Shared>,
    commands: Sender<Command>,
) -> Result<rpc::Server, ManagerError> {
    let failed = |message: String| ManagerError::Control {
        endpoint: config.control.clone(),
        message,
    };
    let listener =
        rpc::Listener::bind(&config.control).map_err(|error| failed(error.to_string()))?;
    let shared = Arc::clone(shared);
    let commands = Mutex::new(commands);
    rpc::serve(listener, move |request: ComputeRequest, _attachment| {
        (answer(&shared, &commands, request), Vec::new())
    })
    .map_err(|error| failed(error.to_string()))
}

fn answer(
    shared: &Shared,
    commands: &Mutex<Sender<Command>>,
    request: ComputeRequest,
) -> ComputeResponse {
    match request {
        ComputeRequest::Status => return shared.report(),
        ComputeRequest::Stop | ComputeRequest::Kill { .. } => {
            shared.call_off.store(true, Ordering::SeqCst);
        }
        ComputeRequest::Start => {}
    }
    let (reply, answered) = channel();
    let sent = commands.lock().send(Command { request, reply });
    if sent.is_err() {
        return ComputeResponse::Refused {
            message: "the compute manager is ending".to_owned(),
        };
    }
    answered
        .recv()
        .unwrap_or_else(|_| ComputeResponse::Refused {
            message: "the compute manager is ending".to_owned(),
        })
}

impl Shared {
    fn report(&self) -> ComputeResponse {
        let mut status = self.status.lock().clone();
        status.cache = self.map.lock().as_ref().map(|map| {
            let seen = map.statistics();
            CacheStatus {
                present_blocks: seen.present,
                limit_blocks: seen.cache_limit_blocks,
                base_blocks: seen.blocks,
                fetched: seen.fetched,
                prefetched: seen.prefetched,
                evicted: seen.evicted,
                hits: seen.hits,
                errors: seen.errors,
                waiting: seen.waiting,
                reconnects: seen.reconnects,
            }
        });
        ComputeResponse::Status(Box::new(status))
    }
}

impl Manager {
    fn run(&mut self) {
        let mut wanted = true;
        let mut failures = 0u32;
        while !self.stop.load(Ordering::SeqCst) {
            if !wanted {
                if let Some(command) = self.next_command(Duration::from_millis(50)) {
                    wanted = self.while_stopped(command);
                }
                continue;
            }
            match self.start() {
                Ok(mut running) => {
                    let since = Instant::now();
                    wanted = self.supervise(&mut running);
                    failures = if since.elapsed() > Duration::from_secs(10) {
                        0
                    } else {
                        failures + 1
                    };
                    // One crash is answered at once, a loop of them more and more slowly.
                    if wanted && failures > 3 {
                        wanted = self.back_off(failures - 3);
                    }
                }
                Err(StartError::CalledOff) => wanted = self.after_call_off(),
                Err(error) => {
                    tracing::error!(%error, "start failed");
                    self.failed(error.to_string());
                    failures += 1;
                    wanted = self.back_off(failures);
                }
            }
        }
        self.set_state(ComputeState::Stopped);
    }

    fn start(&self) -> Result<Running, StartError> {
        let begun = Instant::now();
        {
            let mut status = self.shared.status.lock();
            status.state = ComputeState::Starting;
            status.pid = None;
        }
        *self.shared.map.lock() = None;
        let starter = Starter {
            config: &self.config,
            cluster: &self.cluster,
            binary: &self.binary,
            os_user: &self.os_user,
        };
        let called_off =
            || self.stop.load(Ordering::SeqCst) || self.shared.call_off.load(Ordering::SeqCst);
        let running = starter.start(&called_off)?;
        *self.shared.map.lock() = MapReader::open(&running.built.map).ok();
        let mut status = self.shared.status.lock();
        status.state = ComputeState::Ready;
        status.pid = Some(running.postgres.pid());
        status.timeline = Some(running.timeline);
        status.start_lsn = Some(running.start_lsn);
        status.incarnations += 1;
        status.start_ms = u64::try_from(begun.elapsed().as_millis()).ok();
        status.error = None;
        Ok(running)
    }

    /// Watches a server until it ends; says whether another incarnation is wanted.
    fn supervise(&self, running: &mut Running) -> bool {
        let carer = Carer::start(&self.config, running);
        let watched = self.watch(running);
        drop(carer);
        match watched {
            Watched::Ended(how) => {
                let log = Layout::new(self.config.data.clone())
                    .logs()
                    .join("postgres.log");
                tracing::warn!(
                    how,
                    "PostgreSQL ended unasked; starting a fresh incarnation"
                );
                self.failed(format!("PostgreSQL ended ({how}): {}", last_words(&log)));
                true
            }
            Watched::Terminated => {
                if let Err(error) = self.stop_server(running) {
                    self.failed(error);
                }
                false
            }
            Watched::Asked(command) => {
                self.shared.call_off.store(false, Ordering::SeqCst);
                let (wanted, error) = match command.request {
                    ComputeRequest::Kill { stay_down } => {
                        self.kill_server(running);
                        (!stay_down, None)
                    }
                    _ => (false, self.stop_server(running).err()),
                };
                self.settle(&command, wanted, error)
            }
        }
    }

    /// Shows what follows a command and answers it; says whether a server is wanted.
    fn settle(&self, command: &Command, wanted: bool, error: Option<String>) -> bool {
        {
            let mut status = self.shared.status.lock();
            status.pid = None;
            status.state = if wanted {
                ComputeState::Starting
            } else {
                ComputeState::Stopped
            };
            // What went wrong before is answered by what was asked now.
            status.error = error;
        }
        self.reply(command);
        wanted
    }

    fn watch(&self, running: &mut Running) -> Watched {
        loop {
            match running.postgres.try_wait() {
                Ok(Some(status)) => return Watched::Ended(status.to_string()),
                Ok(None) => {}
                Err(error) => return Watched::Ended(error.to_string()),
            }
            if self.stop.load(Ordering::SeqCst) {
                return Watched::Terminated;
            }
            match self.next_command(WATCH) {
                Some(command) if command.request == ComputeRequest::Start => self.reply(&command),
                Some(command) => return Watched::Asked(command),
                None => {}
            }
        }
    }

    /// Stops the server cleanly; says what is missing if the log stores do not have its last word.
    fn stop_server(&self, running: &mut Running) -> Result<(), String> {
        self.set_state(ComputeState::Stopping);
        let status = running.postgres.stop(STOP_PATIENCE, || false);
        tracing::info!(?status, "PostgreSQL stopped");
        if let Err(error) = save_auto_conf(&Layout::new(self.config.data.clone())) {
            tracing::warn!(%error, "could not keep postgresql.auto.conf");
        }
        let confirmed = self.confirm_stop(running);
        if let Err(error) = &confirmed {
            tracing::warn!(error);
        }
        self.end_all();
        confirmed
    }

    /// Waits until a quorum of log stores has the shutdown checkpoint. Stock WAL senders wait for it
    /// before they end, unless their store is away.
    fn confirm_stop(&self, running: &Running) -> Result<(), String> {
        let path = running.built.pgdata.join("global/pg_control");
        let control = fs::read(&path)
            .map_err(|error| error.to_string())
            .and_then(|bytes| ControlFile::decode(&bytes).map_err(|error| error.to_string()))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        if control.state() != ClusterState::ShutDown {
            return Err("PostgreSQL ended without a shutdown checkpoint".to_owned());
        }
        let checkpoint = control.checkpoint_lsn();
        let mut stores: Vec<LogStoreClient> = self
            .config
            .log_stores
            .iter()
            .map(|store| LogStoreClient::new(store, CONFIRM_PATIENCE))
            .collect();
        let begun = Instant::now();
        loop {
            let having = stores
                .iter_mut()
                .filter_map(|store| store.status(&LogRequest::Status, &[]).ok())
                .filter(|status| {
                    status.timeline == running.timeline
                        && status.last_record >= checkpoint
                        && status.flushed >= status.record_end
                })
                .count();
            if having >= self.config.quorum {
                tracing::info!(%checkpoint, "a quorum has the shutdown checkpoint");
                return Ok(());
            }
            if begun.elapsed() > CONFIRM_PATIENCE {
                return Err(format!(
                    "{having} of {} log stores have the shutdown checkpoint at {checkpoint} (hint: nothing acknowledged is lost; `strandline status` shows which store is missing)",
                    stores.len()
                ));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn kill_server(&self, running: &mut Running) {
        self.end_all();
        // Reaps the postmaster; the rest is not ours to reap.
        running.postgres.stop(Duration::ZERO, || true);
    }

    fn end_all(&self) {
        let compute = Layout::new(self.config.data.clone()).compute();
        if let Err(LeftoverError { pid }) = end_processes(&compute) {
            tracing::error!(pid, "a process of PostgreSQL does not end");
        }
    }

    /// Takes a command while nothing runs; says whether a server is wanted now.
    fn while_stopped(&self, command: Command) -> bool {
        self.shared.call_off.store(false, Ordering::SeqCst);
        self.settle(&command, command.request == ComputeRequest::Start, None)
    }

    /// A start was called off by a stop, a kill or the manager's own end.
    fn after_call_off(&self) -> bool {
        self.end_all();
        self.shared.call_off.store(false, Ordering::SeqCst);
        let Some(command) = self.next_command(Duration::from_secs(1)) else {
            return true;
        };
        self.settle(&command, wants_server(&command.request), None)
    }

    /// Waits before the next attempt; a command ends the wait. Says whether a server is wanted.
    fn back_off(&self, failures: u32) -> bool {
        let pause = Duration::from_millis(100)
            .saturating_mul(1 << failures.min(10))
            .min(MAX_BACKOFF);
        let begun = Instant::now();
        while begun.elapsed() < pause && !self.stop.load(Ordering::SeqCst) {
            if let Some(command) = self.next_command(WATCH) {
                self.shared.call_off.store(false, Ordering::SeqCst);
                return self.settle(&command, wants_server(&command.request), None);
            }
        }
        true
    }

    fn next_command(&self, wait: Duration) -> Option<Command> {
        match self.commands.recv_timeout(wait) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(wait);
                None
            }
        }
    }

    fn reply(&self, command: &Command) {
        // The caller may have gone meanwhile.
        let _ = command.reply.send(self.shared.report());
    }

    fn set_state(&self, state: ComputeState) {
        let mut status = self.shared.status.lock();
        status.state = state;
        if state == ComputeState::Stopped {
            status.pid = None;
        }
    }

    fn failed(&self, error: String) {
        let mut status = self.shared.status.lock();
        status.state = ComputeState::Failed;
        status.pid = None;
        status.error = Some(error);
    }
}

/// Whether a server is to run after `request` when none does now.
const fn wants_server(request: &ComputeRequest) -> bool {
    matches!(
        request,
        ComputeRequest::Start | ComputeRequest::Kill { stay_down: false }
    )
}

/// A thread that keeps the streams and the configuration of one incarnation in order.
struct Carer {
    end: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Carer {
    fn start(config: &ComputeConfig, running: &Running) -> Carer {
        let end = Arc::new(AtomicBool::new(false));
        let (config, timeline, ending) = (config.clone(), running.timeline, Arc::clone(&end));
        let spawned = thread::Builder::new()
            .name("care".to_owned())
            .spawn(move || {
                let layout = Layout::new(config.data.clone());
                let mut stores: Vec<LogStoreClient> = config
                    .log_stores
                    .iter()
                    .map(|store| LogStoreClient::new(store, Duration::from_secs(5)))
                    .collect();
                while !ending.load(Ordering::SeqCst) {
                    for store in &mut stores {
                        let Ok(status) = store.status(&LogRequest::Status, &[]) else {
                            continue;
                        };
                        // One that still receives on another timeline obeys an earlier server.
                        let follows = status.receiving && status.timeline == timeline;
                        if !follows && status.error.is_none() {
                            let primary = primary_address(&config, store.name(), timeline);
                            if let Err(error) = store.status(&LogRequest::Receive { primary }, &[])
                            {
                                tracing::debug!(store = store.name(), %error, "does not receive");
                            }
                        }
                    }
                    if let Err(error) = save_auto_conf(&layout) {
                        tracing::warn!(%error, "could not keep postgresql.auto.conf");
                    }
                    thread::sleep(CARE);
                }
            });
        if let Err(error) = &spawned {
            tracing::error!(%error, "log stores that restart will not be told to stream again");
        }
        Carer {
            end,
            thread: spawned.ok(),
        }
    }
}

impl Drop for Carer {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // It ended by itself or by a panic of its own; either way it is gone.
            let _ = thread.join();
        }
    }
}

/// Name of the user this process runs as.
///
/// # Errors
/// [`ManagerError::NamelessUser`].
#[allow(unsafe_code, reason = "the user database has no wrapper in std")]
pub fn current_user() -> Result<String, ManagerError> {
    // SAFETY: geteuid has no preconditions.
    let uid = unsafe { libc::geteuid() };
    user_name(uid).map_err(|_| ManagerError::NamelessUser(uid))
}

#[allow(unsafe_code, reason = "the user database has no wrapper in std")]
fn user_name(uid: u32) -> io::Result<String> {
    let mut buffer = vec![0; 16 << 10];
    let mut found = std::ptr::null_mut();
    // SAFETY: an all-zero passwd is a valid value for getpwuid_r to fill in.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: every pointer is valid for the call and `buffer` has the length that is given.
    let result = unsafe {
        libc::getpwuid_r(
            uid,
            &raw mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &raw mut found,
        )
    };
    if result != 0 || found.is_null() {
        return Err(io::Error::from_raw_os_error(if result == 0 {
            libc::ENOENT
        } else {
            result
        }));
    }
    // SAFETY: getpwuid_r succeeded, so pw_name points to a NUL-terminated string inside `buffer`.
    let name = unsafe { std::ffi::CStr::from_ptr(entry.pw_name) };
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_strings_name_a_host_one_can_connect_to() {
        let mut config = ComputeConfig {
            data: PathBuf::from("/d"),
            run: PathBuf::from("/d/run"),
            control: rpc::Endpoint::Unix(PathBuf::from("/d/run/compute.ctl")),
            pg_bin: PathBuf::from("/b"),
            shim: PathBuf::from("/s"),
            listen_host: "*".to_owned(),
            listen_port: 5433,
            quorum: 1,
            log_stores: Vec::new(),
            storage_control: rpc::Endpoint::Unix(PathBuf::from("/d/run/storage.ctl")),
            storage_pages: rpc::Endpoint::Unix(PathBuf::from("/d/run/pages")),
            cache_bytes: 0,
            read_timeout_ms: 0,
        };
        assert_eq!(
            connection_string(&config, "postgres"),
            "postgresql://postgres@127.0.0.1:5433/postgres"
        );
        config.listen_host = "::1".to_owned();
        assert_eq!(
            connection_string(&config, "a b"),
            "postgresql://a%20b@[::1]:5433/postgres"
        );
    }
}
