//! A storage node as a process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use api::storage::{StorageNodeConfig, StorageRequest, StorageResponse};
use cluster_state::ClusterHistory;
use page_store::{PageStore, StoreOptions};
use rpc::Listener;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::block_history::SharedHistory;
use crate::control::Control;
use crate::ingestor::Ingestor;
use crate::page_server::{PageServer, PageSource};
use crate::receiver::Receiver;
use crate::status::NodeStatus;

/// How often signals and the store's health are looked at.
const HEALTH_CHECK: Duration = Duration::from_millis(50);
/// WAL that has been in memory only for so long is written out, so that the log stores can forget it…
const LONGEST_IN_MEMORY: Duration = Duration::from_secs(300);
/// …unless it is so little that a file of its own is not worth it.
const WORTH_A_LAYER: u64 = 4 << 20;
/// Longest wait for connections to end when the node stops.
const LONGEST_ENDING: Duration = Duration::from_secs(5);

/// A running storage node. Dropping it stops it without a flush, as a crash would.
pub struct StorageNode {
    store: Arc<PageStore>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    serving: Option<(rpc::Server, PageServer)>,
}

impl StorageNode {
    /// Opens the store, begins to serve, and streams WAL.
    ///
    /// # Errors
    /// When the store cannot be opened or an endpoint is taken; the message names it and the remedy.
    pub fn start(config: &StorageNodeConfig) -> anyhow::Result<StorageNode> {
        let options = StoreOptions {
            freeze_bytes: config.freeze_bytes,
            cache_bytes: config.cache_bytes,
            ..StoreOptions::default()
        };
        let (store, history) = open_store(&config.dir, options)?;
        let status = Arc::new(NodeStatus::default());
        let ingestor = Ingestor::resume(
            Arc::clone(&store),
            Arc::clone(&history),
            Arc::clone(&status),
        )?;

        let pages = bind(&config.pages, "pages")?;
        let control = bind(&config.control, "control requests")?;
        let source = PageSource {
            store: Arc::clone(&store),
            history: Arc::clone(&history),
            status: Arc::clone(&status),
        };
        let pages =
            PageServer::start(pages, Arc::new(source)).context("starting to serve pages")?;
        let answers = Control {
            store: Arc::clone(&store),
            history,
            status: Arc::clone(&status),
        };
        let control = rpc::serve(
            control,
            move |request: StorageRequest, _| -> (StorageResponse, Vec<u8>) {
                (answers.answer(&request), Vec::new())
            },
        )?;
        let stop = Arc::new(AtomicBool::new(false));
        let receiver = Receiver {
            sources: config.log_stores.clone(),
            store: Arc::clone(&store),
            status: Arc::clone(&status),
            ingestor,
            stop: Arc::clone(&stop),
        };
        let mut threads = vec![spawn("ingest", watched(move || receiver.run(), status))?];
        let (aging, stopping) = (Arc::clone(&store), Arc::clone(&stop));
        threads.push(spawn("age-flush", move || flush_by_age(&aging, &stopping))?);
        Ok(StorageNode {
            store,
            stop,
            threads,
            serving: Some((control, pages)),
        })
    }

    /// Stops receiving and writes everything ingested to layer files, so that the next start has
    /// nothing to stream again.
    ///
    /// # Errors
    /// When a layer cannot be written. Nothing is lost: the log stores still have the WAL.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.stop_threads();
        self.store
            .flush()
            .context("writing what is in memory to layer files")?;
        Ok(())
    }

    /// Ends every thread that uses the store, so that it can be opened again at once.
    fn stop_threads(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic there has been reported by `watched`.
            let _ = thread.join();
        }
        self.serving = None;
        // Connections have been shut down; their threads let go of the store as they notice.
        let deadline = Instant::now() + LONGEST_ENDING;
        while Arc::strong_count(&self.store) > 1 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for StorageNode {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

/// Runs a storage node until SIGTERM or SIGINT, then writes out what is in memory.
///
/// When the store can no longer write, the process ends: a new one resumes from what is on disk and
/// streams the rest again, so it serves everything again at once and goes on by itself when, for
/// example, there is space again.
///
/// # Errors
/// When it cannot start, when the store could not write, or the last flush fails.
pub fn run(config: &StorageNodeConfig) -> anyhow::Result<()> {
    // Before anything else: a signal during a slow start must not kill a half-open store silently.
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("handling signals")?;
    let node = StorageNode::start(config)?;
    tracing::info!(pages = %config.pages, control = %config.control, "storage node is up");
    loop {
        if let Some(signal) = signals.pending().next() {
            tracing::info!(signal, "stopping");
            return node.stop();
        }
        if let Some(error) = node.store.stats().error {
            return Err(anyhow::anyhow!("the storage node has stopped: {error}"));
        }
        std::thread::sleep(HEALTH_CHECK);
    }
}

/// Opens the store in `dir`, with the history that its metadata tells.
pub(crate) fn open_store(
    dir: &Path,
    options: StoreOptions,
) -> anyhow::Result<(Arc<PageStore>, Arc<SharedHistory>)> {
    let history = Arc::new(SharedHistory::default());
    let blocks: Arc<dyn page_store::BlockHistory> = Arc::<SharedHistory>::clone(&history);
    let store = Arc::new(PageStore::open(dir, options, blocks)?);
    history.replace(load_history(&store)?);
    Ok((store, history))
}

pub(crate) fn load_history(store: &PageStore) -> anyhow::Result<ClusterHistory> {
    let mut entries = Vec::new();
    store.for_each_meta(|key, lsn, value| {
        entries.push((Box::<[u8]>::from(key), lsn, value.map(Box::<[u8]>::from)));
    })?;
    Ok(ClusterHistory::load(entries)?)
}

fn bind(endpoint: &rpc::Endpoint, what: &str) -> anyhow::Result<Listener> {
    Listener::bind(endpoint).with_context(|| {
        format!(
            "cannot listen on {endpoint} for {what}; stop what uses it or configure another one"
        )
    })
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> anyhow::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .with_context(|| format!("starting thread {name}"))
}

/// Runs `body` so that a panic is a stop of ingestion that says so, not a silent end.
fn watched(body: impl FnOnce() + Send + 'static, status: Arc<NodeStatus>) -> impl FnOnce() + Send {
    move || {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
            status.set_receiving(false);
            status.set_stopped(
                "ingestion has stopped: its thread panicked, see the log; restart the storage node"
                    .to_owned(),
            );
        }
    }
}

fn flush_by_age(store: &PageStore, stop: &AtomicBool) {
    let mut since = Instant::now();
    let mut durable = store.disk_consistent().lsn;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(200));
        let now_durable = store.disk_consistent().lsn;
        if now_durable != durable {
            durable = now_durable;
            since = Instant::now();
        }
        if since.elapsed() < LONGEST_IN_MEMORY {
            continue;
        }
        since = Instant::now();
        if store.stats().open_layer_bytes < WORTH_A_LAYER {
            continue;
        }
        if let Err(error) = store.flush() {
            // The store is poisoned then and says so itself.
            tracing::error!("writing a layer: {error}");
        }
    }
}
