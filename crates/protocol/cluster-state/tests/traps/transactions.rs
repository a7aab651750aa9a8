//! Counters, prepared transactions, SLRU extents.

use cluster_state::{IngestError, SlruExtent, SlruRange, StateChange};
use pg_types::{CheckPoint, FullXid, Lsn, PgMajor, Slru, TimelineId};
use pg_wal::RmgrId;

use crate::cluster::{Cluster, IMPORTED, checkpoint, crc32c, unhex, words};

fn cluster_at(next_xid: FullXid) -> Cluster {
    let checkpoint = CheckPoint {
        next_xid,
        ..checkpoint()
    };
    Cluster::new(PgMajor::V15, &checkpoint, Vec::new())
}

fn commit(cluster: &mut Cluster, xid: u32, subxacts: &[u32]) -> Lsn {
    let mut main = vec![0; 8];
    if subxacts.is_empty() {
        return cluster.feed(RmgrId::XACT, 0x00, xid, &main);
    }
    main.extend(words(&[1 << 1, subxacts.len() as u32]));
    main.extend(words(subxacts));
    cluster.feed(RmgrId::XACT, 0x80, xid, &main)
}

fn ranges(cluster: &Cluster, slru: Slru, lsn: Lsn) -> Vec<(u32, u32)> {
    let all = cluster.skeleton(lsn).slrus.into_iter();
    all.filter(|range| range.slru == slru)
        .map(|SlruRange { first, last, .. }| (first, last))
        .collect()
}

#[test]
fn trap_11_the_transaction_counter_is_never_below_the_true_one() {
    for (epoch, near) in [(0, 1u32 << 31), (3, u32::MAX)] {
        let first = near - 700;
        let mut cluster = cluster_at(FullXid::new(epoch, first));
        let mut next = FullXid::new(epoch, first);
        for _ in 0..3000 {
            let lsn = commit(&mut cluster, next.xid(), &[]);
            next = next.advanced_past(next.xid());
            let given = cluster.checkpoint_at(lsn).next_xid;
            assert!(given >= next, "{given} is below {next}");
            assert!(given.0 < next.0 + 1024 + 3);
            assert!(given.xid() >= 3);
        }
        assert_eq!(
            next.epoch(),
            if near == u32::MAX { epoch + 1 } else { epoch }
        );
        let lsn = commit(&mut cluster, 0, &[]);
        assert!(cluster.checkpoint_at(lsn).next_xid.0 < next.0 + 1024);
        assert_eq!(
            cluster.reloaded().checkpoint_at(lsn),
            cluster.checkpoint_at(lsn)
        );
    }
}

#[test]
fn trap_11_a_shutdown_checkpoint_is_exact() {
    let mut cluster = cluster_at(FullXid::new(0, 800));
    commit(&mut cluster, 900, &[]);
    let at = CheckPoint {
        next_xid: FullXid::new(0, 905),
        next_oid: 17_000,
        ..checkpoint()
    };
    let lsn = cluster.feed(RmgrId::XLOG, 0x00, 0, &at.encode(PgMajor::V15));
    assert_eq!(cluster.checkpoint_at(lsn).next_xid, FullXid::new(0, 905));
    assert_eq!(cluster.checkpoint_at(lsn).next_oid, 17_000);
    // An online one is a lower bound, and its OID counter is older than the records before it.
    let oid = cluster.feed(RmgrId::XLOG, 0x30, 0, &words(&[25_192]));
    let online = CheckPoint {
        next_xid: FullXid::new(0, 850),
        next_oid: 17_000,
        ..at
    };
    let lsn = cluster.feed(RmgrId::XLOG, 0x10, 0, &online.encode(PgMajor::V15));
    assert_eq!(cluster.checkpoint_at(oid).next_oid, 25_192);
    assert_eq!(cluster.checkpoint_at(lsn).next_oid, 25_192);
    assert_eq!(cluster.checkpoint_at(lsn).next_xid, FullXid::new(0, 905));
}

#[test]
fn trap_12_subtransactions_and_prepared_ids_advance_the_counter() {
    let extents = vec![StateChange::Slru {
        slru: Slru::Clog,
        extent: Some(SlruExtent { first: 0, last: 0 }),
    }];
    let at = CheckPoint {
        next_xid: FullXid::new(0, 32_700),
        ..checkpoint()
    };
    let mut cluster = Cluster::new(PgMajor::V15, &at, extents);
    let lsn = commit(&mut cluster, 32_760, &[32_761, 32_770, 40_000]);
    assert!(cluster.checkpoint_at(lsn).next_xid > FullXid::new(0, 40_000));
    // The page of the last id has to be there even though its own record has not come.
    assert_eq!(ranges(&cluster, Slru::Clog, lsn), [(0, 1)]);
}

#[test]
fn trap_13_multixact_counters_wrap_past_zero() {
    let checkpoint = CheckPoint {
        next_multi: u32::MAX,
        next_multi_offset: u32::MAX - 1,
        oldest_multi: u32::MAX - 10,
        ..checkpoint()
    };
    let extents = vec![StateChange::Slru {
        slru: Slru::MultiXactOffsets,
        extent: Some(SlruExtent {
            first: 2_097_140,
            last: 2_097_151,
        }),
    }];
    let mut cluster = Cluster::new(PgMajor::V17, &checkpoint, extents);
    let mut main = words(&[u32::MAX, u32::MAX - 1, 3]);
    main.extend(words(&[801, 4, 802, 4, 2000, 5]));
    let lsn = cluster.feed(RmgrId::MULTIXACT, 0x20, 0, &main);
    let at = cluster.checkpoint_at(lsn);
    assert_eq!((at.next_multi, at.next_multi_offset), (1, 1));
    assert!(
        at.next_xid > FullXid::new(0, 2000),
        "members are transactions too"
    );
    assert_eq!(cluster.checkpoint_at(IMPORTED).next_multi, u32::MAX);
    // Truncation moves the limit and the first pages.
    let truncated = cluster.feed(
        RmgrId::MULTIXACT,
        0x30,
        0,
        &words(&[5, u32::MAX - 10, u32::MAX, 0, 0]),
    );
    let at = cluster.checkpoint_at(truncated);
    assert_eq!((at.oldest_multi, at.oldest_multi_db), (u32::MAX, 5));
}

#[test]
fn trap_14_truncated_status_pages_are_gone_and_their_ids_too_old() {
    let extents = vec![StateChange::Slru {
        slru: Slru::Clog,
        extent: Some(SlruExtent { first: 0, last: 70 }),
    }];
    let at = CheckPoint {
        next_xid: FullXid::new(0, 70 * 32_768 + 9),
        ..checkpoint()
    };
    let mut cluster = Cluster::new(PgMajor::V15, &at, extents);
    assert_eq!(ranges(&cluster, Slru::Clog, IMPORTED), [(0, 70)]);
    let lsn = cluster.feed(RmgrId::CLOG, 0x10, 0, &words(&[40, 40 * 32_768 + 5, 7]));
    // Whole segments of 32 pages are removed.
    assert_eq!(ranges(&cluster, Slru::Clog, lsn), [(32, 70)]);
    let at = cluster.checkpoint_at(lsn);
    assert_eq!((at.oldest_xid, at.oldest_xid_db), (40 * 32_768 + 5, 7));
    assert_eq!(ranges(&cluster, Slru::Clog, IMPORTED), [(0, 70)]);
}

#[test]
fn trap_14_the_first_id_of_a_page_needs_no_page() {
    let extents = vec![StateChange::Slru {
        slru: Slru::Clog,
        extent: Some(SlruExtent { first: 0, last: 0 }),
    }];
    let at = CheckPoint {
        next_xid: FullXid::new(0, 32_768),
        ..checkpoint()
    };
    let cluster = Cluster::new(PgMajor::V15, &at, extents);
    assert_eq!(ranges(&cluster, Slru::Clog, IMPORTED), [(0, 0)]);
}

/// Main data of a prepare record as 15 and later write it.
fn prepare_body(xid: u32, gid: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    let gid_len = gid.len() + 1;
    let total = 72 + gid_len.next_multiple_of(8) + 4;
    body.extend(words(&[0x57F9_4534, total as u32, xid, 5]));
    body.extend(7i64.to_le_bytes());
    body.extend(words(&[10, 0, 0, 0, 0, 0, 0]));
    body.extend([0, 0]);
    body.extend((gid_len as u16).to_le_bytes());
    body.extend([0; 16]);
    body.extend(gid);
    body.resize(72 + gid_len.next_multiple_of(8), 0);
    body
}

#[test]
fn trap_15_two_phase_files_carry_epoch_and_checksum() {
    for (major, name) in [
        (PgMajor::V15, "00000320"),
        (PgMajor::V17, "0000000200000320"),
    ] {
        let at = CheckPoint {
            next_xid: FullXid::new(2, 800),
            ..checkpoint()
        };
        let mut cluster = Cluster::new(major, &at, Vec::new());
        let body = prepare_body(800, b"gid");
        let prepared = cluster.feed(RmgrId::XACT, 0x10, 800, &body);
        let files = cluster.skeleton(prepared).two_phase;
        assert_eq!(files[0].name, name);
        let mut file = body.clone();
        file.extend(crc32c(&body).to_le_bytes());
        assert_eq!(unhex(&files[0].bytes), file);

        // COMMIT PREPARED is logged by another transaction; its own id is in the optional fields,
        // behind subtransactions, relations, statistics and invalidations.
        let mut reloaded = cluster.reloaded();
        let mut main = vec![0; 8];
        main.extend(words(&[
            1 << 0 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 8,
            5,
            1663,
        ]));
        main.extend(words(&[1, 801]));
        main.extend(words(&[1, 9, 9, 9]));
        main.extend(words(&[1, 1, 2, 3, 4]));
        main.extend(words(&[800]));
        let committed = reloaded.feed(RmgrId::XACT, 0x30 | 0x80, 0, &main);
        assert!(reloaded.skeleton(committed).two_phase.is_empty());
        assert_eq!(reloaded.skeleton(prepared).two_phase.len(), 1);
    }
}

#[test]
fn a_new_timeline_and_its_origins_are_known() {
    let mut cluster = cluster_at(FullXid::new(0, 800));
    let at = CheckPoint {
        timeline: TimelineId(2),
        next_xid: FullXid::new(0, 1824),
        ..checkpoint()
    };
    let lsn = cluster.feed(RmgrId::XLOG, 0x00, 0, &at.encode(PgMajor::V15));
    assert_eq!(cluster.skeleton(lsn).timeline, TimelineId(2));
    assert_eq!(cluster.skeleton(IMPORTED).timeline, TimelineId(1));

    let mut main = 77u64.to_le_bytes().to_vec();
    main.extend([3, 0, 0]);
    let set = cluster.feed(RmgrId::REPLORIGIN, 0x00, 0, &main);
    let file = unhex(&cluster.skeleton(set).replication_origins.expect("origins"));
    assert_eq!(file[4..6], [3, 0]);
    assert_eq!(file[12..20], 77u64.to_le_bytes());
    let dropped = cluster.feed(RmgrId::REPLORIGIN, 0x10, 0, &[3, 0]);
    assert_eq!(cluster.skeleton(dropped).replication_origins, None);
}

#[test]
fn what_is_not_known_stops_ingestion_by_name() {
    let mut cluster = cluster_at(FullXid::new(0, 800));
    let refused = cluster
        .feed_blocks(RmgrId::XLOG, 0xF0, 0, &[], &[0; 8])
        .unwrap_err();
    let text = refused.to_string();
    assert!(matches!(
        refused,
        IngestError::Malformed { .. } | IngestError::Unsupported { .. }
    ));
    assert!(
        text.contains("XLOG") && text.contains("0xf0") && text.contains("0/1000000"),
        "{text}"
    );
    let refused = cluster
        .feed_blocks(RmgrId(77), 0x10, 0, &[], &[0; 8])
        .unwrap_err();
    assert!(refused.to_string().contains("77"), "{refused}");
}
