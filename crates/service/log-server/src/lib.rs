//! The log store process: a [`LogStore`], its control endpoint, its replication server, and the
//! threads that follow its peers.
//!
//! **Invariant.** The process exits as soon as the store has stopped acknowledging: a store that
//! looks alive but takes nothing would hold up every commit, while a dead one is restarted and either
//! recovers or says again what is wrong.

#![deny(clippy::indexing_slicing)]

mod control;
mod peers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use api::log::LogStoreConfig;
use log_store::{LogStore, LogStoreOptions, Peer, ReplicationServer};
use signal_hook::consts::{SIGINT, SIGTERM};

/// How often signals and the store's health are looked at.
const TICK: Duration = Duration::from_millis(20);

/// Runs a log store until SIGTERM or SIGINT.
///
/// # Errors
/// When the store cannot be opened (another process uses its directory, durable WAL is damaged),
/// when an endpoint is taken, or when the store had to stop because a write or sync failed. The
/// message is one line for a person.
pub fn run(config: LogStoreConfig) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("catching signals")?;
    }
    let running = Running::start(config)?;
    while !stop.load(Ordering::SeqCst) {
        if let Some(reason) = running.store.failure() {
            let name = running.store.name();
            return Err(anyhow!("log store {name} has stopped: {reason}"));
        }
        std::thread::sleep(TICK);
    }
    tracing::info!(name = running.store.name(), "log store stops");
    running.store.shutdown();
    Ok(())
}

/// The parts of a running process; dropping them ends it.
struct Running {
    store: LogStore,
    _control: rpc::Server,
    _replication: ReplicationServer,
}

impl Running {
    fn start(config: LogStoreConfig) -> Result<Running> {
        let peers = config.peers.iter().map(|peer| Peer {
            name: peer.name.clone(),
            host: peer.replication_host.clone(),
            port: peer.replication_port,
        });
        let (store, torn) = LogStore::open(LogStoreOptions {
            name: config.name.clone(),
            dir: config.dir.clone(),
            quorum: config.quorum,
            peers: peers.collect(),
        })?;
        if let Some(torn) = torn {
            tracing::warn!(end = %torn.end, bytes = torn.bytes,
                "cut off a torn tail that was never acknowledged");
        }
        let replication = ReplicationServer::start(
            &store,
            &config.replication_socket_dir,
            config.replication_port,
            config.replication_listen.as_deref(),
        )?;
        let listener = rpc::Listener::bind(&config.control)
            .with_context(|| format!("cannot listen on {}", config.control))?;
        let answering = store.clone();
        let control = rpc::serve(listener, move |request, attachment: Vec<u8>| {
            control::answer(&answering, request, &attachment)
        })?;
        for peer in config.peers {
            peers::follow(store.clone(), peer)?;
        }
        let status = store.status();
        tracing::info!(name = config.name, timeline = %status.timeline, flushed = %status.flushed,
            promised = %status.promised, "log store is open");
        Ok(Running {
            store,
            _control: control,
            _replication: replication,
        })
    }
}
