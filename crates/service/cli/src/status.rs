//! `strandline status` and `strandline compute list`: asking the supervisor, and its answer as a table.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use api::compute::{ComputeState, ComputeStatus};
use api::log::LogStatus;
use api::storage::StorageStatus;
use api::supervisor::{ClusterStatus, Part, SupervisorRequest, SupervisorResponse};
use compute::layout::Layout;

use crate::error::{Failure, Outcome};

/// Asks the supervisor of the cluster in `data`.
///
/// # Errors
/// [`Failure`] when none runs there or it refuses.
pub fn ask_supervisor(
    data: &Path,
    request: &SupervisorRequest,
    patience: Duration,
) -> Outcome<SupervisorResponse> {
    let endpoint = Layout::new(data).supervisor_control();
    let mut client = rpc::Client::connect(&endpoint, patience).map_err(|error| match error {
        rpc::RpcError::Connect { source, .. }
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            Failure::new(format!("{}: {source}", data.display()))
                .hint("ask as root or as the user that runs `strandline up`")
        }
        _ => Failure::new(format!("no `strandline up` runs on {}", data.display())).hint(format!(
            "start it: strandline up --data {}, or name its directory with --data",
            data.display()
        )),
    })?;
    let (response, _) = client.call::<_, SupervisorResponse>(request, &[])?;
    match response {
        SupervisorResponse::Refused { message } => Err(Failure::from_text(&message)),
        response => Ok(response),
    }
}

/// The state of every part.
///
/// # Errors
/// As [`ask_supervisor`].
pub fn cluster_status(data: &Path) -> Outcome<ClusterStatus> {
    match ask_supervisor(data, &SupervisorRequest::Status, Duration::from_secs(15))? {
        SupervisorResponse::Status(status) => Ok(*status),
        _ => Err(Failure::new(
            "the supervisor gave an answer that does not belong to the question",
        )),
    }
}

/// The table of `status`.
#[must_use]
pub fn table(status: &ClusterStatus) -> String {
    let mut text = String::new();
    line(
        &mut text,
        format_args!(
            "cluster {}  PostgreSQL {}  {}  (pid {})",
            status.system_identifier,
            status.major,
            status.data.display(),
            status.pid
        ),
    );
    text.push('\n');
    let head = status
        .log_stores
        .iter()
        .filter_map(|part| part.status.as_ref())
        .map(|log| log.flushed)
        .max();
    for part in &status.log_stores {
        log_store(&mut text, part);
    }
    storage(&mut text, &status.storage, head);
    compute(&mut text, &status.compute);
    text
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{arguments}");
}

fn heading<T>(text: &mut String, part: &Part<T>, state: &str) {
    let pid = part
        .pid
        .map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    line(
        text,
        format_args!(
            "{:<18}{:<12}pid {:<9}restarts {}",
            part.name, state, pid, part.restarts
        ),
    );
    if let Some(how) = part
        .last_exit
        .as_ref()
        .filter(|_| !part.running || part.status.is_none())
    {
        field(text, "ended", how);
    }
}

fn field(text: &mut String, name: &str, value: impl std::fmt::Display) {
    line(text, format_args!("    {name:<18}{value}"));
}

const fn process_state<T>(part: &Part<T>) -> &'static str {
    match (part.running, part.status.is_some()) {
        (true, true) => "up",
        (true, false) => "silent",
        (false, _) => "down",
    }
}

fn log_store(text: &mut String, part: &Part<LogStatus>) {
    let state = match &part.status {
        Some(log) if log.error.is_some() => "stopped",
        Some(log) if log.receiving => "receiving",
        Some(_) => "idle",
        None => process_state(part),
    };
    heading(text, part, state);
    let Some(log) = &part.status else { return };
    field(
        text,
        "timeline",
        format_args!("{} (promised {})", log.timeline, log.promised),
    );
    field(
        text,
        "flushed",
        format_args!("{} (records to {})", log.flushed, log.record_end),
    );
    field(text, "quorum", log.quorum);
    field(text, "oldest", log.oldest);
    if let Some(error) = &log.error {
        field(text, "error", error);
    }
}

fn storage(text: &mut String, part: &Part<StorageStatus>, head: Option<pg_types::Lsn>) {
    let state = match &part.status {
        Some(storage) if storage.error.is_some() => "stopped",
        Some(storage) if storage.receiving => "receiving",
        Some(_) => "idle",
        None => process_state(part),
    };
    heading(text, part, state);
    let Some(storage) = &part.status else { return };
    let head = head.unwrap_or(storage.quorum).max(storage.quorum);
    field(
        text,
        "applied",
        format_args!(
            "{} (timeline {}, lag {})",
            storage.applied,
            storage.timeline,
            bytes(head.since(storage.applied))
        ),
    );
    field(
        text,
        "on disk",
        format_args!(
            "{} (open layer {})",
            storage.disk_consistent,
            bytes(storage.open_layer_bytes)
        ),
    );
    field(text, "readable from", storage.oldest);
    field(
        text,
        "layers",
        format_args!(
            "{} delta, {} image, {}",
            storage.delta_layers,
            storage.image_layers,
            bytes(storage.layer_bytes)
        ),
    );
    field(
        text,
        "ingested",
        format_args!("{} records, {}", storage.records, bytes(storage.wal_bytes)),
    );
    field(
        text,
        "pages served",
        format_args!(
            "{} (cache hits {})",
            storage.pages_served,
            percent(storage.cache_hits, storage.pages_served)
        ),
    );
    field(
        text,
        "longest chain",
        format_args!("{} records", storage.longest_chain),
    );
    if let Some(error) = &storage.error {
        field(text, "error", error);
    }
}

fn compute(text: &mut String, part: &Part<ComputeStatus>) {
    let state = part
        .status
        .as_ref()
        .map_or(process_state(part), |compute| state_name(compute.state));
    heading(text, part, state);
    let Some(compute) = &part.status else { return };
    if let Some(version) = &compute.server_version {
        let pid = compute
            .pid
            .map_or_else(|| "not running".to_owned(), |pid| format!("pid {pid}"));
        field(text, "PostgreSQL", format_args!("{version} ({pid})"));
    }
    field(text, "connection", &compute.connection);
    field(text, "socket", compute.socket_dir.display());
    if let (Some(timeline), Some(start)) = (compute.timeline, compute.start_lsn) {
        field(
            text,
            "started at",
            format_args!("{start} on timeline {timeline}"),
        );
    }
    let took = compute
        .start_ms
        .map_or_else(String::new, |ms| format!(", last started in {ms} ms"));
    field(
        text,
        "incarnations",
        format_args!("{}{took}", compute.incarnations),
    );
    if let Some(cache) = &compute.cache {
        let limit = match cache.limit_blocks {
            0 => "no limit".to_owned(),
            blocks => format!("limit {}", bytes(blocks * 8192)),
        };
        field(
            text,
            "local cache",
            format_args!(
                "{} of {} fetched, {limit}",
                bytes(cache.present_blocks * 8192),
                bytes(cache.base_blocks * 8192)
            ),
        );
        let ratio = cache
            .hit_ratio()
            .map_or_else(|| "-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0));
        field(
            text,
            "cache hits",
            format_args!(
                "{ratio} ({} read, {} ahead, {} evicted)",
                cache.fetched, cache.prefetched, cache.evicted
            ),
        );
        if cache.waiting > 0 || cache.errors > 0 {
            field(
                text,
                "reads",
                format_args!("{} waiting, {} failed", cache.waiting, cache.errors),
            );
        }
    }
    if let Some(error) = &compute.error {
        field(text, "error", error);
    }
}

/// The word for a compute node's state.
#[must_use]
pub const fn state_name(state: ComputeState) -> &'static str {
    match state {
        ComputeState::Starting => "starting",
        ComputeState::Ready => "ready",
        ComputeState::Stopping => "stopping",
        ComputeState::Stopped => "stopped",
        ComputeState::Failed => "failed",
    }
}

#[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.1} %", part as f64 * 100.0 / whole as f64)
}

/// A size for people.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "a size for people")]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = UNITS[0];
    for next in UNITS.into_iter().skip(1) {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" {
        format!("{count} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 kB");
        assert_eq!(bytes(5 << 30), "5.0 GB");
    }
}
