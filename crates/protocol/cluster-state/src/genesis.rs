//! The state that an imported cluster's control file tells.

use pg_page::ControlFile;

use crate::{Identity, StateChange};

impl StateChange {
    /// What `control`, the control file of a cleanly stopped cluster, says: identity, settings,
    /// counters and limits. The rest (forks, databases, tablespaces, relation maps, prepared
    /// transactions, SLRUs, replication origins) is found in the data directory.
    #[must_use]
    pub fn of_control_file(control: &ControlFile) -> Vec<StateChange> {
        let checkpoint = control.checkpoint();
        vec![
            StateChange::Identity(Identity {
                system_identifier: control.system_identifier(),
                major: control.major(),
                segment_size: control.segment_size(),
                data_checksums: control.data_checksums(),
            }),
            StateChange::ControlFile(control.encode().as_slice().into()),
            StateChange::Parameters(control.parameters()),
            StateChange::Timeline(checkpoint.timeline),
            StateChange::NextXid(checkpoint.next_xid),
            StateChange::NextOid(checkpoint.next_oid),
            StateChange::NextMulti {
                multi: checkpoint.next_multi,
                offset: checkpoint.next_multi_offset,
            },
            StateChange::OldestXid {
                xid: checkpoint.oldest_xid,
                db: checkpoint.oldest_xid_db,
            },
            StateChange::OldestMulti {
                multi: checkpoint.oldest_multi,
                db: checkpoint.oldest_multi_db,
            },
            StateChange::CommitTimestamps {
                oldest: checkpoint.oldest_commit_ts_xid,
                newest: checkpoint.newest_commit_ts_xid,
            },
        ]
    }
}
