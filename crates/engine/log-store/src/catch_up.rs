//! Fetching from other log stores what the primary cannot give.

use std::time::Duration;

use pg_client::{PgClient, StreamEvent};
use pg_types::{Lsn, TimelineId};
use wal_quorum::History;

use crate::error::StoreError;
use crate::receiver::{ReceiveError, identify};
use crate::segments::parse_history;
use crate::store::{Peer, Shared};

/// A peer that sends nothing for so long has sent what it has.
const DRAINED_AFTER: Duration = Duration::from_millis(200);

/// Bytes written at a time.
const BATCH: usize = 1 << 20;

/// Streams WAL of `timeline`'s history from the peers until this store is on `timeline` and a peer
/// has nothing more.
pub(crate) fn catch_up(
    shared: &Shared,
    epoch: u64,
    timeline: TimelineId,
    text: &str,
) -> Result<(), ReceiveError> {
    let target = parse_history(timeline, text)?;
    let before = shared.published().flushed;
    write(shared, epoch, &target, text, None, &[])?;
    let mut last = None;
    for peer in &shared.options.peers {
        match from_peer(shared, epoch, &target, text, peer) {
            Ok(()) => {
                let (flushed, reached) = {
                    let published = shared.published();
                    (published.flushed, published.history.timeline() == timeline)
                };
                if reached && flushed != before {
                    tracing::info!(peer = %peer.name, from = %before, to = %flushed, "caught up");
                    return Ok(());
                }
            }
            Err(ReceiveError::Store(
                error @ (StoreError::Stopped | StoreError::Poisoned { .. }),
            )) => {
                return Err(error.into());
            }
            Err(error) => last = Some(error),
        }
    }
    let from = shared.published().flushed;
    Err(last.unwrap_or(ReceiveError::NoSource { from, timeline }))
}

fn from_peer(
    shared: &Shared,
    epoch: u64,
    target: &History,
    text: &str,
    peer: &Peer,
) -> Result<(), ReceiveError> {
    let name = shared.options.name.as_str();
    let parameters = [("application_name", name)];
    let mut client = PgClient::connect(&peer.host, peer.port, name, "", &parameters, true)?;
    let found = identify(shared, &mut client)?;
    if !target.contains(found) {
        return Err(ReceiveError::OtherTimeline {
            address: client.address().to_string(),
            found,
            expected: target.timeline(),
        });
    }
    loop {
        let (at, timeline) = {
            let published = shared.published();
            (published.flushed, published.history.timeline())
        };
        // What the peer has on this timeline beyond that is not part of the target.
        let timeline_end = target.end_of(timeline).map_or(at, |(end, _)| end);
        let mut stream = client.start_replication(None, at, timeline)?;
        shared.receive.activate(epoch, stream.status_sender())?;
        let (mut from, mut batch) = (at, Vec::new());
        let ended = loop {
            let more = match stream.next(DRAINED_AFTER)? {
                StreamEvent::XLogData { start, data, .. } => {
                    let end = from.advance(batch.len() as u64);
                    if start > end {
                        return Err(ReceiveError::Gap { at: start });
                    }
                    let known = usize::try_from(end.since(start)).unwrap_or(usize::MAX);
                    let new = data.get(known..).unwrap_or_default();
                    let room = usize::try_from(timeline_end.since(end)).unwrap_or(usize::MAX);
                    batch.extend_from_slice(new.get(..room).unwrap_or(new));
                    None
                }
                StreamEvent::Keepalive { .. } => None,
                StreamEvent::EndOfTimeline { .. } => Some(true),
                StreamEvent::Idle => Some(false),
            };
            if batch.len() >= BATCH || more.is_some() {
                write(shared, epoch, target, text, Some(from), &batch)?;
                from = shared.published().flushed;
                batch.clear();
                stream.send_status(from, from, from)?;
            }
            if let Some(ended) = more {
                break ended;
            }
        };
        if !ended || shared.published().history.timeline() == timeline {
            return Ok(());
        }
        client = stream.into_client();
    }
}

/// Makes WAL of `target` durable, following its switches.
fn write(
    shared: &Shared,
    epoch: u64,
    target: &History,
    text: &str,
    at: Option<Lsn>,
    bytes: &[u8],
) -> Result<(), StoreError> {
    shared.with_writer(|writer| {
        if !shared.receive.is_current(epoch) {
            return Err(StoreError::Stopped);
        }
        writer.accept(target.timeline())?;
        let at = at.unwrap_or(writer.flushed);
        // Nothing given: only cut off what is not part of the history, however far that goes back.
        if bytes.is_empty() {
            writer.adopt(target)?;
            return writer.follow_switches(target, text);
        }
        writer.append_on(target, text, at, bytes)
    })
}
