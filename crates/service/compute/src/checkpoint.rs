//! The record that begins an incarnation: a genuine shutdown checkpoint on a new timeline.
//!
//! **Invariant.** The record stands at E, exactly where the chosen history ends, names the last
//! record before it as its predecessor, and says the same as the copy in `pg_control`. A stock
//! server then has nothing to replay, and a stock standby that followed the old timeline follows
//! onto the new one. If the record did not continue the log byte for byte, every reader of the log
//! would stop there.

use pg_page::ControlFile;
use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId};
use pg_wal::{PlacedRecord, RmgrId, WalGeometry, WalPageHeader, encode_record, place_record};

/// `XLOG_CHECKPOINT_SHUTDOWN`.
const CHECKPOINT_SHUTDOWN: u8 = 0x00;

/// Where and on which timeline an incarnation begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineSwitch {
    /// End of the parent's last whole record.
    pub at: Lsn,
    /// Start of that record.
    pub last_record: Lsn,
    /// The timeline that ends here.
    pub parent: TimelineId,
    /// The timeline that begins here.
    pub timeline: TimelineId,
}

/// The record in the log, and the control file that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartCheckpoint {
    /// The record with the page headers it needs.
    pub placed: PlacedRecord,
    /// `pg_control` of the new incarnation.
    pub control: ControlFile,
}

/// Builds the checkpoint record for `switch` from `control`, the skeleton's template, at `now_unix`
/// seconds since 1970.
///
/// The state is "in production": PostgreSQL takes it for a crash, finds nothing to redo, and resets
/// unlogged relations, as after any crash.
#[must_use]
pub fn start_checkpoint(
    control: &ControlFile,
    switch: &TimelineSwitch,
    now_unix: i64,
) -> StartCheckpoint {
    let major = control.major();
    let geometry = WalGeometry {
        major,
        system_identifier: control.system_identifier(),
        segment_size: control.segment_size(),
        timeline: switch.timeline,
    };
    let mut checkpoint = control.checkpoint();
    checkpoint.redo = record_start(switch.at, &geometry);
    checkpoint.timeline = switch.timeline;
    checkpoint.prev_timeline = switch.parent;
    checkpoint.full_page_writes = false;
    if major >= PgMajor::V17 {
        checkpoint.wal_level = control.parameters().wal_level;
    }
    checkpoint.time = now_unix;
    checkpoint.oldest_active_xid = 0;
    let record = encode_record(
        RmgrId::XLOG,
        CHECKPOINT_SHUTDOWN,
        0,
        switch.last_record,
        &checkpoint.encode(major),
    );
    let placed = place_record(switch.at, &record, &geometry);
    let mut control = control.clone();
    control.set_checkpoint(&checkpoint);
    control.set_checkpoint_lsn(placed.start);
    control.set_state(pg_page::ClusterState::InProduction);
    control.set_time(now_unix);
    control.set_min_recovery_point(Lsn::INVALID, TimelineId(0));
    control.clear_backup();
    StartCheckpoint { placed, control }
}

/// Where a record laid at `at` begins: behind the page header if `at` begins a page.
fn record_start(at: Lsn, geometry: &WalGeometry) -> Lsn {
    place_record(at, &[], geometry).start
}

/// Text of the new timeline's history file: the parent's, and the switch.
#[must_use]
pub fn history_text(parent_text: &str, switch: &TimelineSwitch) -> String {
    let mut text = parent_text.to_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&format!(
        "{}\t{}\tstrandline: new incarnation\n",
        switch.parent, switch.at
    ));
    text
}

/// The long header that begins the segment at `segment_start`.
#[must_use]
pub fn segment_header(
    segment_start: Lsn,
    major: PgMajor,
    system_identifier: u64,
    segment_size: SegmentSize,
    timeline: TimelineId,
) -> Vec<u8> {
    let geometry = WalGeometry {
        major,
        system_identifier,
        segment_size,
        timeline,
    };
    let mut bytes = Vec::with_capacity(geometry.header_len(segment_start));
    WalPageHeader::build(segment_start, 0, &geometry).encode(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_grows_by_one_line() {
        let switch = TimelineSwitch {
            at: Lsn(0x1_0000_0028),
            last_record: Lsn(0x1_0000_0000),
            parent: TimelineId(3),
            timeline: TimelineId(5),
        };
        assert_eq!(
            history_text("1\t0/3000000\tx", &switch),
            "1\t0/3000000\tx\n3\t1/28\tstrandline: new incarnation\n"
        );
        assert_eq!(
            history_text("", &switch),
            "3\t1/28\tstrandline: new incarnation\n"
        );
    }
}
