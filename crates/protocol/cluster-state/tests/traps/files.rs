//! Relations, databases, tablespaces.

use cluster_state::{BlockBase, BlockOrigin, DatabaseDir, SlruRange};
use pg_types::{ForkNumber, Lsn, PageKey, PgMajor, RelFileLocator, RelFork, Slru};
use pg_wal::RmgrId;

use crate::cluster::{Cluster, checkpoint, unhex, words};

const SPC: u32 = 1663;
const DB: u32 = 5;

fn fork(db: u32, rel: u32, fork: ForkNumber) -> RelFork {
    RelFork {
        locator: RelFileLocator { spc: SPC, db, rel },
        fork,
    }
}

fn main_fork(rel: u32) -> RelFork {
    fork(DB, rel, ForkNumber::Main)
}

fn key(fork: RelFork, block: u32) -> PageKey {
    PageKey::relation(fork.locator, fork.fork, block)
}

fn cluster() -> Cluster {
    Cluster::new(PgMajor::V15, &checkpoint(), Vec::new())
}

fn create(cluster: &mut Cluster, fork: RelFork) -> Lsn {
    let RelFileLocator { spc, db, rel } = fork.locator;
    cluster.feed(
        RmgrId::SMGR,
        0x10,
        800,
        &words(&[spc, db, rel, fork.fork as u32]),
    )
}

fn truncate(cluster: &mut Cluster, fork: RelFork, blocks: u32) -> Lsn {
    let RelFileLocator { spc, db, rel } = fork.locator;
    cluster.feed(RmgrId::SMGR, 0x20, 800, &words(&[blocks, spc, db, rel, 7]))
}

/// A commit (0x00) or abort (0x20) that drops `relations`.
fn end_transaction(cluster: &mut Cluster, info: u8, relations: &[RelFork]) -> Lsn {
    let mut main = vec![0; 8];
    main.extend(words(&[1 << 2, relations.len() as u32]));
    for fork in relations {
        let RelFileLocator { spc, db, rel } = fork.locator;
        main.extend(words(&[spc, db, rel]));
    }
    cluster.feed(RmgrId::XACT, info | 0x80, 801, &main)
}

#[test]
fn trap_05_truncating_forks_that_were_never_made_makes_none() {
    let mut cluster = cluster();
    let table = main_fork(16_384);
    create(&mut cluster, table);
    let lsn = truncate(&mut cluster, table, 0);
    assert_eq!(cluster.history.size_at(table, lsn), Some(0));
    for missing in [ForkNumber::Fsm, ForkNumber::Vm] {
        assert_eq!(
            cluster.history.size_at(fork(DB, 16_384, missing), lsn),
            None
        );
    }
    // Not even when the truncation falls into the middle of a map page.
    cluster.write(table, 0..10);
    let lsn = truncate(&mut cluster, table, 3);
    assert_eq!(cluster.history.size_at(table, lsn), Some(3));
    assert_eq!(
        cluster
            .history
            .size_at(fork(DB, 16_384, ForkNumber::Vm), lsn),
        None
    );
}

#[test]
fn trap_06_a_cut_relation_grows_again_from_zeros() {
    let mut cluster = cluster();
    let table = main_fork(16_384);
    create(&mut cluster, table);
    let full = cluster.write(table, 0..10);
    let map = fork(DB, 16_384, ForkNumber::Vm);
    cluster.write(map, 0..2);
    cluster.write(fork(DB, 16_384, ForkNumber::Fsm), 0..3);
    let cut = truncate(&mut cluster, table, 4);
    let grown = cluster.write(table, 4..9);
    assert_eq!(cluster.history.size_at(table, full), Some(10));
    assert_eq!(cluster.history.size_at(table, cut), Some(4));
    assert_eq!(cluster.history.size_at(table, grown), Some(9));
    assert_eq!(cluster.history.size_at(map, cut), Some(1));
    assert_eq!(
        cluster
            .history
            .size_at(fork(DB, 16_384, ForkNumber::Fsm), cut),
        None
    );
    let anew = BlockOrigin {
        since: cut,
        base: BlockBase::Zero,
    };
    assert_eq!(cluster.history.origin(&key(table, 4), grown), anew);
    assert!(cluster.history.origin(&key(table, 3), grown).since < full);
    assert!(cluster.history.origin(&key(table, 4), full).since < full);
    let reloaded = cluster.reloaded();
    assert_eq!(reloaded.skeleton(grown), cluster.skeleton(grown));
    assert_eq!(reloaded.history.origin(&key(table, 4), grown), anew);
}

#[test]
fn trap_06_a_gap_block_across_a_segment_file_counts_into_the_size() {
    let mut cluster = cluster();
    let table = main_fork(16_384);
    create(&mut cluster, table);
    let lsn = cluster.write(table, 131_073..131_074);
    assert_eq!(cluster.history.size_at(table, lsn), Some(131_074));
}

#[test]
fn trap_07_a_reused_relation_number_begins_empty() {
    let mut cluster = cluster();
    let table = main_fork(16_384);
    create(&mut cluster, table);
    let first = cluster.write(table, 0..5);
    cluster.write(fork(DB, 16_384, ForkNumber::Vm), 0..1);
    let dropped = end_transaction(&mut cluster, 0x00, &[table]);
    assert_eq!(cluster.history.size_at(table, first), Some(5));
    assert!(cluster.skeleton(dropped).relations.is_empty());
    let created = create(&mut cluster, table);
    let second = cluster.write(table, 0..2);
    assert_eq!(cluster.history.size_at(table, second), Some(2));
    assert_eq!(
        cluster.history.origin(&key(table, 0), second).since,
        created
    );
    // A relation made by a transaction that aborts goes too.
    let aborted = end_transaction(&mut cluster, 0x20, &[table]);
    assert_eq!(cluster.history.size_at(table, aborted), None);
}

#[test]
fn trap_16_a_file_copied_database_has_the_maps_and_pages_of_its_source() {
    let mut cluster = cluster();
    let table = fork(1, 1259, ForkNumber::Main);
    cluster.write(table, 0..3);
    // Both maps change before the copy and the source's again after it.
    let map = |byte: u8| {
        let mut main = words(&[1, SPC, 512]);
        main.extend([byte; 512]);
        main
    };
    cluster.feed(RmgrId::RELMAP, 0, 800, &map(7));
    let copied = cluster.feed(RmgrId::DBASE, 0x00, 0, &words(&[20_000, SPC, 1, SPC]));
    cluster.feed(RmgrId::RELMAP, 0, 800, &map(9));
    let later = cluster.write(table, 3..6);

    let copy = fork(20_000, 1259, ForkNumber::Main);
    assert_eq!(cluster.history.size_at(copy, later), Some(3));
    let origin = cluster.history.origin(&key(copy, 2), later);
    let base = BlockBase::CopyOf {
        key: key(table, 2),
        lsn: copied,
    };
    assert_eq!(
        origin,
        BlockOrigin {
            since: copied,
            base
        }
    );
    let skeleton = cluster.skeleton(later);
    let bytes_of = |db: u32| {
        let map = skeleton
            .relation_maps
            .iter()
            .find(|map| map.db == db)
            .expect("a map");
        unhex(&map.bytes)
    };
    assert_eq!(
        (bytes_of(20_000), bytes_of(1)),
        (vec![7; 512], vec![9; 512])
    );
    assert!(skeleton.databases.contains(&DatabaseDir {
        spc: SPC,
        db: 20_000
    }));
    // A new relation of the copy is its own from the start.
    let own = fork(20_000, 30_000, ForkNumber::Main);
    create(&mut cluster, own);
    let end = cluster.write(own, 0..1);
    assert_eq!(
        cluster.history.origin(&key(own, 0), end).base,
        BlockBase::Zero
    );
    assert_eq!(cluster.reloaded().skeleton(end), cluster.skeleton(end));

    let mut main = words(&[20_000, 1]);
    main.extend(words(&[SPC]));
    let dropped = cluster.feed(RmgrId::DBASE, 0x20, 0, &main);
    let left = cluster.skeleton(dropped);
    assert!(
        left.relations
            .iter()
            .all(|relation| relation.fork.locator.db == 1)
    );
    assert!(!left.databases.contains(&DatabaseDir {
        spc: SPC,
        db: 20_000
    }));
    assert!(left.relation_maps.iter().all(|map| map.db != 20_000));
}

#[test]
fn trap_16_a_database_made_by_wal_gets_its_own_map() {
    let mut cluster = cluster();
    cluster.feed(RmgrId::DBASE, 0x10, 0, &words(&[20_000, SPC]));
    let mut main = words(&[20_000, SPC, 512]);
    main.extend([3; 512]);
    let lsn = cluster.feed(RmgrId::RELMAP, 0, 800, &main);
    let skeleton = cluster.skeleton(lsn);
    assert_eq!(
        skeleton.databases,
        [DatabaseDir {
            spc: SPC,
            db: 20_000
        }]
    );
    assert_eq!(unhex(&skeleton.relation_maps[0].bytes), vec![3; 512]);
}

#[test]
fn trap_17_of_an_unlogged_relation_only_the_init_fork_is_there() {
    let mut cluster = cluster();
    let init = fork(DB, 16_400, ForkNumber::Init);
    create(&mut cluster, init);
    let lsn = cluster.write(init, 0..1);
    let forks: Vec<RelFork> = cluster
        .skeleton(lsn)
        .relations
        .iter()
        .map(|relation| relation.fork)
        .collect();
    assert_eq!(forks, [init]);
    // A main fork that got in is not served: PostgreSQL makes it from the init fork.
    let lsn = cluster.write(main_fork(16_400), 0..4);
    assert_eq!(cluster.skeleton(lsn).relations.len(), 1);
    let lsn = end_transaction(&mut cluster, 0x00, &[init]);
    assert!(cluster.skeleton(lsn).relations.is_empty());
}

#[test]
fn trap_18_tablespaces_and_commit_timestamps_come_and_go() {
    let mut cluster = cluster();
    let mut main = words(&[16_500]);
    main.extend(b"/srv/fast\0");
    let made = cluster.feed(RmgrId::TBLSPC, 0x00, 0, &main);
    assert_eq!(cluster.skeleton(made).tablespaces[0].location, "/srv/fast");
    let gone = cluster.feed(RmgrId::TBLSPC, 0x10, 0, &words(&[16_500]));
    assert!(cluster.skeleton(gone).tablespaces.is_empty());

    let parameters = |on: u8| {
        let mut main = words(&[100, 8, 10, 0, 64, 1]);
        main.extend([0, on]);
        main
    };
    let pages = |skeleton: cluster_state::Skeleton| -> Vec<SlruRange> {
        skeleton
            .slrus
            .into_iter()
            .filter(|range| range.slru == Slru::CommitTs)
            .collect()
    };
    let on = cluster.feed(RmgrId::XLOG, 0x60, 0, &parameters(1));
    assert_eq!(
        pages(cluster.skeleton(on)),
        [SlruRange {
            slru: Slru::CommitTs,
            first: 0,
            last: 0
        }]
    );
    let checkpoint = cluster.checkpoint_at(on);
    assert_eq!(
        (
            checkpoint.oldest_commit_ts_xid,
            checkpoint.newest_commit_ts_xid
        ),
        (800, 799)
    );
    let off = cluster.feed(RmgrId::XLOG, 0x60, 0, &parameters(0));
    assert!(pages(cluster.skeleton(off)).is_empty());
    assert_eq!(cluster.checkpoint_at(off).oldest_commit_ts_xid, 0);
    let again = cluster.feed(RmgrId::XLOG, 0x60, 0, &parameters(1));
    let page = PageKey::slru(Slru::CommitTs, 0);
    assert_eq!(cluster.history.origin(&page, again).since, off);
    assert_eq!(cluster.reloaded().skeleton(again), cluster.skeleton(again));
}
