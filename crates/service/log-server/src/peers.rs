//! Following the other stores of the cluster: how far their durable WAL goes decides the quorum LSN.

use std::time::Duration;

use anyhow::{Context, Result};
use api::log::{LogPeer, LogRequest, LogResponse};
use log_store::LogStore;
use pg_types::{Lsn, TimelineId};
use rpc::Client;
use wal_quorum::Fence;

/// How long a peer may keep a request waiting.
const WAIT_MS: u64 = 1000;

/// Longest wait for its answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Least time between two answers taken from one peer: off the commit path, a few milliseconds do
/// not matter, but asking after every commit would.
const PACE: Duration = Duration::from_millis(2);

/// Pause after a peer could not be reached.
const RETRY: Duration = Duration::from_millis(100);

/// Follows `peer` on a thread of its own for as long as the process runs.
pub(crate) fn follow(store: LogStore, peer: LogPeer) -> Result<()> {
    std::thread::Builder::new()
        .name(format!("peer {}", peer.name))
        .spawn(move || follow_loop(&store, &peer))
        .context("starting a thread")?;
    Ok(())
}

fn follow_loop(store: &LogStore, peer: &LogPeer) {
    let mut client = Client::lazy(&peer.control, TIMEOUT);
    let system_identifier = store.status().system_identifier;
    let (mut timeline, mut flushed) = (TimelineId(0), Lsn::INVALID);
    let mut reachable = true;
    while store.failure().is_none() {
        let request = LogRequest::Await {
            timeline,
            flushed,
            wait_ms: WAIT_MS,
        };
        match client.call::<_, LogResponse>(&request, &[]) {
            Ok((LogResponse::Status(status), _)) => {
                if status.system_identifier != system_identifier {
                    tracing::error!(
                        peer = peer.name,
                        theirs = status.system_identifier,
                        ours = system_identifier,
                        "the peer belongs to another cluster; not counted"
                    );
                    std::thread::sleep(TIMEOUT);
                    continue;
                }
                (timeline, flushed) = (status.timeline, status.flushed);
                // Under a promise whose timeline has not begun there, its WAL does not count.
                if Fence::new(status.promised).counts(status.timeline) {
                    store.note_peer(&peer.name, timeline, flushed);
                }
                reachable = true;
                std::thread::sleep(PACE);
            }
            Ok((other, _)) => {
                tracing::warn!(peer = peer.name, answer = ?other, "the peer does not say how far it is");
                std::thread::sleep(RETRY);
            }
            Err(error) => {
                if reachable {
                    tracing::info!(%error, "a peer cannot be reached; trying on");
                }
                reachable = false;
                (timeline, flushed) = (TimelineId(0), Lsn::INVALID);
                std::thread::sleep(RETRY);
            }
        }
    }
}
