//! A record that cannot be ingested, behind good ones in one portion of WAL.

use std::sync::Arc;

use pg_types::{ForkNumber, Lsn, PageKey, RelFileLocator};
use pg_wal::{RmgrId, WalGeometry, encode_record, place_record};

use super::{Opened, import, workload};
use crate::ingestor::{ApplyError, Ingestor};
use crate::status::NodeStatus;

const NEXT_OID: u8 = 0x30;
const REL: RelFileLocator = RelFileLocator {
    spc: 1663,
    db: 5,
    rel: 99_999,
};

/// A heap insertion into block 0 of [`REL`] without its main data: what it changes on the page is
/// known before it shows that it is malformed.
fn malformed_insert(prev: Lsn) -> Vec<u8> {
    let mut record = encode_record(RmgrId::HEAP, 0, 0, prev, &[]);
    record.extend_from_slice(&[0, 0, 0, 0]);
    for field in [REL.spc, REL.db, REL.rel, 0] {
        record.extend_from_slice(&field.to_le_bytes());
    }
    let len = record.len() as u32;
    record[..4].copy_from_slice(&len.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&record[24..]), &record[..20]);
    record[20..24].copy_from_slice(&crc.to_le_bytes());
    record
}

#[test]
fn what_precedes_a_record_that_cannot_be_ingested_is_applied() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = workload::server(15, dir.path(), false);
    server.start().unwrap();
    server.stop().unwrap();
    let imported = import(&server, &dir.path().join("storage"));
    let geometry = WalGeometry {
        major: imported.major,
        system_identifier: imported.system_identifier,
        segment_size: imported.segment_size,
        timeline: imported.timeline,
    };
    let next_oid =
        |oid: u32, prev| encode_record(RmgrId::XLOG, NEXT_OID, 0, prev, &oid.to_le_bytes());
    let good = place_record(
        imported.lsn,
        &next_oid(77_777, imported.last_record),
        &geometry,
    );
    let bad = place_record(good.end, &malformed_insert(good.start), &geometry);
    let behind = place_record(bad.end, &next_oid(88_888, bad.start), &geometry);
    let portion = [&good.bytes[..], &bad.bytes, &behind.bytes].concat();

    let opened = Opened::new(&dir.path().join("storage"));
    let mut ingestor = Ingestor::resume(
        Arc::clone(&opened.store),
        Arc::clone(&opened.history),
        Arc::new(NodeStatus::default()),
    )
    .unwrap();
    let refused = |ended: Result<(), ApplyError>| match ended {
        Err(ApplyError::Record(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let error = refused(ingestor.apply(imported.lsn, &portion));
    assert!(error.contains(&bad.start.to_string()), "{error}");
    let applied = opened.store.applied_watermark();
    assert_eq!((applied.lsn, applied.last_record), (good.end, good.start));
    assert_eq!(opened.store.stats().changes_ingested, 1);
    let key = PageKey::relation(REL, ForkNumber::Main, 0);
    let fork = key.as_relation().unwrap();
    assert_eq!(opened.history.read().size_at(fork, behind.end), None);

    // Nothing goes on behind it, whether it comes again or not.
    ingestor.restart().unwrap();
    assert_eq!(refused(ingestor.apply(behind.from, &behind.bytes)), error);
    assert_eq!(refused(ingestor.apply(imported.lsn, &portion)), error);
    assert_eq!(opened.store.applied(), good.end);
    assert_eq!(opened.store.flush().unwrap().lsn, good.end);
}
