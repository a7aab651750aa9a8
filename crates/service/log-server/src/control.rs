//! Control requests, as `api::log` defines them.

use std::time::Duration;

use api::log::{LogRequest, LogResponse, LogStatus, TimelineStart};
use log_store::{LogStore, Primary, Status, StoreError};

/// Longest wait that one request may ask for.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Carries out one request; the bytes are the answer's attachment.
pub(crate) fn answer(
    store: &LogStore,
    request: LogRequest,
    attachment: &[u8],
) -> (LogResponse, Vec<u8>) {
    let outcome = match request {
        LogRequest::Status => Ok(store.status()),
        LogRequest::Promise { timeline } => store.promise(timeline),
        LogRequest::ReadWal { from, max_bytes } => {
            return match store.read_wal(from, max_bytes) {
                Ok((timeline, bytes)) => (LogResponse::Wal { timeline }, bytes),
                Err(error) => (refused(&error), Vec::new()),
            };
        }
        LogRequest::WriteWal {
            promised,
            timeline,
            at,
            history,
        } => store.write_wal(promised, timeline, at, &history, attachment),
        LogRequest::BeginTimeline {
            timeline,
            parent,
            switch_at,
            history,
        } => store.begin_timeline(timeline, parent, switch_at, &history, attachment),
        LogRequest::Receive { primary } => store.receive(Primary {
            host: primary.host,
            port: primary.port,
            user: primary.user,
            slot: primary.slot,
            timeline: primary.timeline,
        }),
        LogRequest::StopReceiving => Ok(store.stop_receiving()),
        LogRequest::Await {
            timeline,
            flushed,
            wait_ms,
        } => {
            let wait = Duration::from_millis(wait_ms).min(MAX_WAIT);
            Ok(store.wait_changed(timeline, flushed, wait))
        }
    };
    let response = match outcome {
        Ok(status) => LogResponse::Status(published(store.name(), status)),
        Err(error) => refused(&error),
    };
    (response, Vec::new())
}

fn refused(error: &StoreError) -> LogResponse {
    let fenced_by = match error {
        StoreError::Fenced(fenced) => Some(fenced.promised),
        _ => None,
    };
    LogResponse::Refused {
        message: error.to_string(),
        fenced_by,
    }
}

fn published(name: &str, status: Status) -> LogStatus {
    let start = |it: wal_quorum::TimelineStart| TimelineStart {
        timeline: it.timeline,
        begin: it.begin,
    };
    LogStatus {
        name: name.to_owned(),
        system_identifier: status.system_identifier,
        promised: status.promised,
        timeline: status.timeline,
        history: status.history.into_iter().map(start).collect(),
        history_text: status.history_text,
        oldest: status.oldest,
        flushed: status.flushed,
        record_end: status.record_end,
        last_record: status.last_record,
        quorum: status.quorum,
        receiving: status.receiving,
        error: status.error,
    }
}
