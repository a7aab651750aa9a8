//! What `up` does once the cluster exists: runs every part, answers questions, stops in order.
//!
//! **Invariant.** Parts are stopped in the order in which they need each other: PostgreSQL first,
//! cleanly, so that the log stores get its last checkpoint; then the storage node; the log stores
//! last.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::compute::{
    ComputeConfig, ComputeRequest, ComputeResponse, ComputeState, ComputeStatus, LogStoreAddress,
};
use api::log::{LogPeer, LogRequest, LogResponse, LogStatus, LogStoreConfig};
use api::storage::{StorageNodeConfig, StorageRequest, StorageResponse, StorageStatus, WalSource};
use api::supervisor::{ClusterStatus, Part, SupervisorRequest, SupervisorResponse};
use compute::layout::{ClusterDescription, Layout, log_store_name};
use parking_lot::Mutex;
use rpc::Endpoint;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Failure, Outcome};
use crate::parts::{PartProcess, ProcessInfo};

/// How often processes are looked at.
const WATCH: Duration = Duration::from_millis(10);
/// How often parts are asked for errors.
const CARE: Duration = Duration::from_secs(1);
/// How long a part may take to answer a question.
const ANSWER: Duration = Duration::from_secs(3);
/// How long the first start may fail before `up` gives up.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// How long PostgreSQL may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(150);
/// How long another part may take to stop.
const PART_PATIENCE: Duration = Duration::from_secs(15);
/// How long a compute node may take to get ready on request.
const READY_PATIENCE: Duration = Duration::from_secs(150);

/// What `up` was asked to run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// `listen_addresses`.
    pub listen_host: String,
    /// Port.
    pub listen_port: u16,
    /// Directory of PostgreSQL's programs.
    pub pg_bin: PathBuf,
    /// Bytes of fetched pages to keep; zero for no limit.
    pub cache_bytes: u64,
    /// Milliseconds a read waits for the storage node; zero waits forever.
    pub read_timeout_ms: u64,
}

/// Addresses of every part.
#[derive(Debug, Clone)]
struct Addresses {
    logs: Vec<(String, Endpoint)>,
    storage: Endpoint,
    compute: Endpoint,
}

/// Asks one part one question on a new connection.
fn ask<Req: Serialize, Resp: DeserializeOwned>(
    endpoint: &Endpoint,
    request: &Req,
    patience: Duration,
) -> Result<Resp, rpc::RpcError> {
    let mut client = rpc::Client::connect(endpoint, patience)?;
    Ok(client.call(request, &[])?.0)
}

impl Addresses {
    fn log(&self, index: usize) -> Option<LogStatus> {
        let (_, endpoint) = self.logs.get(index)?;
        match ask(endpoint, &LogRequest::Status, ANSWER) {
            Ok(LogResponse::Status(status)) => Some(status),
            _ => None,
        }
    }

    fn storage(&self) -> Option<StorageStatus> {
        match ask(&self.storage, &StorageRequest::Status, ANSWER) {
            Ok(StorageResponse::Status(status)) => Some(status),
            _ => None,
        }
    }

    fn compute(&self) -> Option<ComputeStatus> {
        match ask(&self.compute, &ComputeRequest::Status, ANSWER) {
            Ok(ComputeResponse::Status(status)) => Some(*status),
            _ => None,
        }
    }
}

/// State that the control endpoint answers from.
struct Shared {
    layout: Layout,
    cluster: ClusterDescription,
    addresses: Addresses,
    logs: Vec<Arc<Mutex<ProcessInfo>>>,
    storage: Arc<Mutex<ProcessInfo>>,
    compute: Arc<Mutex<ProcessInfo>>,
}

/// Runs the cluster until `stop` is set.
///
/// # Errors
/// [`Failure`] when the parts cannot be configured or never get ready.
pub fn run(
    layout: &Layout,
    cluster: &ClusterDescription,
    options: &RunOptions,
    stop: &AtomicBool,
) -> Outcome<()> {
    let addresses = addresses(layout, cluster);
    let mut parts = configure(layout, cluster, options, &addresses)?;
    let infos: Vec<_> = parts.iter().map(PartProcess::info).collect();
    let (log_infos, rest) = infos.split_at(cluster.log_stores.min(infos.len()));
    let [storage, compute] = rest else {
        return Err(Failure::new("parts are missing"));
    };
    let shared = Arc::new(Shared {
        layout: layout.clone(),
        cluster: cluster.clone(),
        addresses: addresses.clone(),
        logs: log_infos.to_vec(),
        storage: Arc::clone(storage),
        compute: Arc::clone(compute),
    });
    let _server = serve_control(&shared)?;
    for part in &mut parts {
        part.start()
            .map_err(|error| Failure::new(format!("{}: {error}", part.name())))?;
    }
    let outcome = watch(&mut parts, &shared, stop);
    stop_in_order(&mut parts);
    outcome
}

fn addresses(layout: &Layout, cluster: &ClusterDescription) -> Addresses {
    let socket = |name: String| Endpoint::Unix(layout.run().join(name));
    Addresses {
        logs: (0..cluster.log_stores)
            .map(|index| (log_store_name(index), socket(format!("log-{index}.ctl"))))
            .collect(),
        storage: socket("storage.ctl".to_owned()),
        compute: socket("compute.ctl".to_owned()),
    }
}

/// Port in the name of every log store's replication socket; each has a directory of its own.
const REPLICATION_PORT: u16 = 5432;

fn replication_dir(layout: &Layout, index: usize) -> PathBuf {
    layout.run().join(format!("log-{index}"))
}

/// Writes every part's configuration; returns the parts in the order they are started.
fn configure(
    layout: &Layout,
    cluster: &ClusterDescription,
    options: &RunOptions,
    addresses: &Addresses,
) -> Outcome<Vec<PartProcess>> {
    let run = layout.run();
    let mut parts = Vec::new();
    let mut add = |name: &str, command: &[&str], file: &Path| {
        let config = file.display().to_string();
        let mut arguments = command.to_vec();
        arguments.extend(["run", "--config", config.as_str()]);
        parts.push(PartProcess::new(
            name,
            &arguments,
            layout.logs().join(format!("{name}.log")),
        ));
    };
    for index in 0..cluster.log_stores {
        let directory = replication_dir(layout, index);
        fs::create_dir_all(&directory)
            .map_err(|error| Failure::new(format!("{}: {error}", directory.display())))?;
        let file = run.join(format!("log-{index}.toml"));
        write_config(&file, &log_config(layout, cluster, addresses, index))?;
        add(&format!("log-{index}"), &["log-store"], &file);
    }
    let pages = Endpoint::Unix(run.join("pages.sock"));
    let storage = StorageNodeConfig {
        dir: layout.storage(),
        control: addresses.storage.clone(),
        pages: pages.clone(),
        log_stores: (0..cluster.log_stores)
            .map(|index| WalSource {
                host: replication_dir(layout, index).display().to_string(),
                port: REPLICATION_PORT,
            })
            .collect(),
        freeze_bytes: FREEZE_BYTES,
        cache_bytes: PAGE_CACHE_BYTES,
    };
    let file = run.join("storage.toml");
    write_config(&file, &storage)?;
    add("storage", &["storage-node"], &file);
    let compute = ComputeConfig {
        data: layout.data().to_owned(),
        run: run.clone(),
        control: addresses.compute.clone(),
        pg_bin: options.pg_bin.clone(),
        shim: layout.shim(),
        listen_host: options.listen_host.clone(),
        listen_port: options.listen_port,
        quorum: cluster.quorum(),
        log_stores: addresses
            .logs
            .iter()
            .map(|(name, control)| LogStoreAddress {
                name: name.clone(),
                control: control.clone(),
            })
            .collect(),
        storage_control: addresses.storage.clone(),
        storage_pages: pages,
        cache_bytes: options.cache_bytes,
        read_timeout_ms: options.read_timeout_ms,
    };
    let file = run.join("compute.toml");
    write_config(&file, &compute)?;
    add("compute", &["compute"], &file);
    Ok(parts)
}

/// Size at which the storage node freezes its open layer.
const FREEZE_BYTES: u64 = 128 << 20;
/// Size of the storage node's cache of materialised pages.
const PAGE_CACHE_BYTES: u64 = 256 << 20;

fn log_config(
    layout: &Layout,
    cluster: &ClusterDescription,
    addresses: &Addresses,
    index: usize,
) -> LogStoreConfig {
    let peer = |(other, (name, control)): (usize, &(String, Endpoint))| LogPeer {
        name: name.clone(),
        control: control.clone(),
        replication_host: replication_dir(layout, other).display().to_string(),
        replication_port: REPLICATION_PORT,
    };
    LogStoreConfig {
        name: log_store_name(index),
        dir: layout.log_store(index),
        control: Endpoint::Unix(layout.run().join(format!("log-{index}.ctl"))),
        replication_socket_dir: replication_dir(layout, index),
        replication_port: REPLICATION_PORT,
        replication_listen: None,
        quorum: cluster.quorum(),
        peers: addresses
            .logs
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
            .map(peer)
            .collect(),
    }
}

fn write_config<T: Serialize>(path: &Path, config: &T) -> Outcome<()> {
    let text = toml::to_string(config)
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    fs::write(path, text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Tends the parts until `stop`; before the first readiness, gives up on parts that never start.
fn watch(parts: &mut [PartProcess], shared: &Arc<Shared>, stop: &AtomicBool) -> Outcome<()> {
    let news = News::watch(shared);
    let mut ready = false;
    let mut failing_since: Option<Instant> = None;
    let result = loop {
        if stop.load(Ordering::SeqCst) {
            break Ok(());
        }
        for part in parts.iter_mut() {
            let Some(how) = part.tend() else { continue };
            eprintln!("strandline: {} ended: {how}", part.name());
            if !ready && part.failures() >= 6 {
                return Err(Failure::from_text(&how).during(part.name()));
            }
        }
        if !ready {
            match shared.addresses.compute() {
                Some(status) if status.state == ComputeState::Ready => {
                    ready = true;
                    announce(&status, &shared.cluster.superuser);
                }
                Some(ComputeStatus {
                    state: ComputeState::Failed,
                    error: Some(error),
                    ..
                }) => {
                    let since = *failing_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > START_PATIENCE {
                        break Err(Failure::from_text(&error));
                    }
                }
                _ => {}
            }
        }
        std::thread::sleep(WATCH);
    };
    drop(news);
    result
}

/// The connection string on stdout, for programs; how to use it on stderr, for people.
fn announce(status: &ComputeStatus, superuser: &str) {
    let took = status
        .start_ms
        .map_or_else(String::new, |ms| format!(" in {ms} ms"));
    let version = status.server_version.as_deref().unwrap_or("");
    eprintln!("PostgreSQL {version} is ready{took}. Connect with");
    eprintln!("  psql {}", status.connection);
    let port = port_of(&status.connection);
    eprintln!(
        "  psql -h {} -p {port} -U {superuser} postgres",
        status.socket_dir.display()
    );
    eprintln!("`strandline status` shows every part. Ctrl-C stops everything cleanly.");
    println!("{}", status.connection);
}

fn port_of(connection: &str) -> &str {
    let address = connection.rsplit_once(':').map_or("", |(_, rest)| rest);
    address.split('/').next().unwrap_or(address)
}

fn stop_in_order(parts: &mut [PartProcess]) {
    // Started in the order log stores, storage node, compute node.
    let patience = |name: &str| {
        if name == "compute" {
            STOP_PATIENCE
        } else {
            PART_PATIENCE
        }
    };
    for part in parts.iter_mut().rev() {
        part.end(patience(part.name()));
    }
}

/// Tells the user about errors that parts report of themselves, until it is dropped.
struct News {
    end: Arc<AtomicBool>,
}

impl News {
    fn watch(shared: &Arc<Shared>) -> News {
        let end = Arc::new(AtomicBool::new(false));
        let (shared, ending) = (Arc::clone(shared), Arc::clone(&end));
        let watching = std::thread::Builder::new()
            .name("news".to_owned())
            .spawn(move || {
                let parts = shared.cluster.log_stores + 2;
                let mut told: Vec<Option<String>> = vec![None; parts];
                let mut seen: Vec<Option<String>> = vec![None; parts];
                while !ending.load(Ordering::SeqCst) {
                    for (index, (name, error)) in errors(&shared).into_iter().enumerate() {
                        let (Some(told), Some(seen)) = (told.get_mut(index), seen.get_mut(index))
                        else {
                            continue;
                        };
                        // What has passed at the next look is part of starting and restarting.
                        if error == *seen && error != *told {
                            match &error {
                                Some(error) => {
                                    eprintln!("{}", Failure::from_text(error).during(&name))
                                }
                                None => eprintln!("strandline: {name}: recovered"),
                            }
                            told.clone_from(&error);
                        }
                        *seen = error;
                    }
                    std::thread::sleep(CARE);
                }
            });
        if let Err(error) = watching {
            eprintln!("strandline: errors of parts will not be shown here: {error}");
        }
        News { end }
    }
}

impl Drop for News {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
    }
}

/// What every part says is wrong with it, in a fixed order.
fn errors(shared: &Shared) -> Vec<(String, Option<String>)> {
    let mut errors = Vec::new();
    for index in 0..shared.cluster.log_stores {
        errors.push((
            format!("log-{index}"),
            shared.addresses.log(index).and_then(|log| log.error),
        ));
    }
    let storage = shared.addresses.storage().and_then(|storage| storage.error);
    errors.push(("storage".to_owned(), storage));
    let compute = shared.addresses.compute().and_then(|compute| compute.error);
    errors.push(("compute".to_owned(), compute));
    errors
}

fn serve_control(shared: &Arc<Shared>) -> Outcome<rpc::Server> {
    let endpoint = shared.layout.supervisor_control();
    let listener = rpc::Listener::bind(&endpoint)
        .map_err(|error| Failure::new(format!("cannot listen on {endpoint}: {error}")))?;
    let shared = Arc::clone(shared);
    Ok(rpc::serve(
        listener,
        move |request: SupervisorRequest, _attachment| (shared.answer(&request), Vec::new()),
    )?)
}

impl Shared {
    fn answer(&self, request: &SupervisorRequest) -> SupervisorResponse {
        let result = match request {
            SupervisorRequest::Status => {
                return SupervisorResponse::Status(Box::new(self.status()));
            }
            SupervisorRequest::ComputeStart => self
                .tell(&ComputeRequest::Start)
                .and_then(|_| self.wait_until_ready()),
            SupervisorRequest::ComputeStop => self.tell(&ComputeRequest::Stop),
            SupervisorRequest::ComputeKill { stay_down } => self.tell(&ComputeRequest::Kill {
                stay_down: *stay_down,
            }),
        };
        match result {
            Ok(status) => SupervisorResponse::Compute(Box::new(status)),
            Err(message) => SupervisorResponse::Refused { message },
        }
    }

    fn tell(&self, request: &ComputeRequest) -> Result<ComputeStatus, String> {
        match ask(&self.addresses.compute, request, STOP_PATIENCE) {
            Ok(ComputeResponse::Status(status)) => Ok(*status),
            Ok(ComputeResponse::Refused { message }) => Err(message),
            Err(error) => Err(error.to_string()),
        }
    }

    fn wait_until_ready(&self) -> Result<ComputeStatus, String> {
        let begun = Instant::now();
        loop {
            match self.addresses.compute() {
                Some(status) if status.state == ComputeState::Ready => return Ok(status),
                Some(status) if status.state == ComputeState::Stopped => {
                    return Err("the compute node was stopped meanwhile".to_owned());
                }
                Some(ComputeStatus {
                    state: ComputeState::Failed,
                    error: Some(error),
                    ..
                }) if begun.elapsed() > START_PATIENCE => {
                    return Err(error);
                }
                _ if begun.elapsed() > READY_PATIENCE => {
                    return Err(format!("not ready within {} s", READY_PATIENCE.as_secs()));
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    fn status(&self) -> ClusterStatus {
        ClusterStatus {
            data: self.layout.data().to_owned(),
            system_identifier: self.cluster.system_identifier,
            major: self.cluster.major,
            pid: std::process::id(),
            quorum: self.cluster.quorum(),
            log_stores: self
                .logs
                .iter()
                .enumerate()
                .map(|(index, info)| part(format!("log-{index}"), info, self.addresses.log(index)))
                .collect(),
            storage: part(
                "storage".to_owned(),
                &self.storage,
                self.addresses.storage(),
            ),
            compute: part(
                "compute".to_owned(),
                &self.compute,
                self.addresses.compute(),
            ),
        }
    }
}

fn part<T>(name: String, info: &Mutex<ProcessInfo>, status: Option<T>) -> Part<T> {
    let ProcessInfo {
        pid,
        restarts,
        last_exit,
    } = info.lock().clone();
    Part {
        name,
        running: pid.is_some(),
        pid,
        restarts,
        last_exit,
        status,
    }
}
