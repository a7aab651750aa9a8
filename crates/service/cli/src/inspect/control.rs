//! `strandline inspect control`: a `pg_control` file.

use pg_page::{ControlFile, ControlFileError};
use serde_json::{Value, json};

use super::{Inspection, labelled, on_off};

/// Decodes `bytes` as a control file.
///
/// # Errors
/// [`ControlFileError`]: the bytes are not a control file of a supported server.
pub fn control(bytes: &[u8]) -> Result<Inspection, ControlFileError> {
    let control = ControlFile::decode(bytes)?;
    Ok(Inspection {
        text: text(&control),
        json: as_json(&control),
    })
}

fn text(control: &ControlFile) -> String {
    let checkpoint = control.checkpoint();
    let parameters = control.parameters();
    let segment = control.segment_size();
    let (min_recovery, min_recovery_timeline) = control.min_recovery_point();
    let limits = [
        ("max_connections", parameters.max_connections),
        ("max_worker_processes", parameters.max_worker_processes),
        ("max_wal_senders", parameters.max_wal_senders),
        (
            "max_prepared_transactions",
            parameters.max_prepared_transactions,
        ),
        (
            "max_locks_per_transaction",
            parameters.max_locks_per_transaction,
        ),
    ];
    let mut rows = vec![
        ("PostgreSQL", control.major().to_string()),
        ("system identifier", control.system_identifier().to_string()),
        ("control version", control.control_version().to_string()),
        ("catalog version", control.catalog_version().to_string()),
        ("state", control.state().to_string()),
        ("written at (unix)", control.time().to_string()),
        ("checkpoint", control.checkpoint_lsn().to_string()),
        ("  redo", checkpoint.redo.to_string()),
        (
            "  redo segment",
            segment.file_name(checkpoint.timeline, segment.segment_of(checkpoint.redo)),
        ),
        (
            "  timeline",
            format!(
                "{} (from {})",
                checkpoint.timeline, checkpoint.prev_timeline
            ),
        ),
        ("  time (unix)", checkpoint.time.to_string()),
        (
            "  full_page_writes",
            on_off(checkpoint.full_page_writes).to_owned(),
        ),
        ("  next xid", checkpoint.next_xid.to_string()),
        ("  next oid", checkpoint.next_oid.to_string()),
        ("  next multixact", checkpoint.next_multi.to_string()),
        ("  next member", checkpoint.next_multi_offset.to_string()),
        (
            "  oldest xid",
            of_database(checkpoint.oldest_xid, checkpoint.oldest_xid_db),
        ),
        (
            "  oldest multixact",
            of_database(checkpoint.oldest_multi, checkpoint.oldest_multi_db),
        ),
        (
            "  commit timestamps",
            format!(
                "{} to {}",
                checkpoint.oldest_commit_ts_xid, checkpoint.newest_commit_ts_xid
            ),
        ),
        (
            "  oldest running xid",
            checkpoint.oldest_active_xid.to_string(),
        ),
        (
            "minimum recovery point",
            format!("{min_recovery} on timeline {min_recovery_timeline}"),
        ),
        ("unlogged LSN", control.unlogged_lsn().to_string()),
        (
            "backup",
            format!("{} to {}", control.backup_start(), control.backup_end()),
        ),
        ("wal_level", wal_level(parameters.wal_level).to_owned()),
        ("wal_log_hints", on_off(parameters.wal_log_hints).to_owned()),
        (
            "track_commit_timestamp",
            on_off(parameters.track_commit_timestamp).to_owned(),
        ),
    ];
    rows.extend(limits.map(|(name, value)| (name, value.to_string())));
    rows.extend([
        ("WAL segment size", segment.bytes().to_string()),
        (
            "data checksums",
            on_off(control.data_checksums()).to_owned(),
        ),
        ("CRC", format!("{:#010x}", control.crc())),
    ]);
    labelled(&rows)
}

fn as_json(control: &ControlFile) -> Value {
    let parameters = control.parameters();
    let (min_recovery, min_recovery_timeline) = control.min_recovery_point();
    json!({
        "major": control.major(),
        // A JSON number loses digits beyond 2^53 in many readers.
        "system_identifier": control.system_identifier().to_string(),
        "control_version": control.control_version(),
        "catalog_version": control.catalog_version(),
        "state": control.state().to_string(),
        "time": control.time(),
        "checkpoint_lsn": control.checkpoint_lsn(),
        "checkpoint": control.checkpoint(),
        "min_recovery_lsn": min_recovery,
        "min_recovery_timeline": min_recovery_timeline,
        "unlogged_lsn": control.unlogged_lsn(),
        "backup_start": control.backup_start(),
        "backup_end": control.backup_end(),
        "backup_end_required": control.backup_end_required(),
        "wal_level": wal_level(parameters.wal_level),
        "wal_log_hints": parameters.wal_log_hints,
        "track_commit_timestamp": parameters.track_commit_timestamp,
        "max_connections": parameters.max_connections,
        "max_worker_processes": parameters.max_worker_processes,
        "max_wal_senders": parameters.max_wal_senders,
        "max_prepared_transactions": parameters.max_prepared_transactions,
        "max_locks_per_transaction": parameters.max_locks_per_transaction,
        "segment_size": control.segment_size(),
        "data_checksums": control.data_checksums(),
        "default_char_signed": control.default_char_signed(),
        "crc": control.crc(),
    })
}

fn of_database(oldest: u32, database: u32) -> String {
    format!("{oldest} (database {database})")
}

const fn wal_level(level: i32) -> &'static str {
    match level {
        0 => "minimal",
        1 => "replica",
        2 => "logical",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_control_file_is_refused_by_name() {
        let error = control(&[0; 100]).unwrap_err();
        assert_eq!(error, ControlFileError::Length { found: 100 });
        let error = control(&[0; 8192]).unwrap_err();
        assert_eq!(error, ControlFileError::ControlVersion { found: 0 });
    }

    #[test]
    fn levels_have_postgresql_s_names() {
        assert_eq!(
            [0, 1, 2, 3].map(wal_level),
            ["minimal", "replica", "logical", "unknown"]
        );
    }
}
