//! What stock PostgreSQL writes, read and written back.
//!
//! Needs PostgreSQL 15 (`STRANDLINE_PG15`, by default Debian's); 17 is checked too when
//! `STRANDLINE_PG17` is set.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pg_page::btree::{self, BtreeMeta, BtreeSpecial};
use pg_page::control::{CONTROL_FILE_PATH, ClusterState};
use pg_page::heap_tuple::{self, HeapTupleHeader};
use pg_page::replication_origin::REPLICATION_ORIGINS_PATH;
use pg_page::slru::{self, ClogPosition, CommitTsPosition, XidStatus};
use pg_page::slru::{MultiXactMemberPosition, MultiXactOffsetPosition};
use pg_page::two_phase::{self, TwoPhaseState};
use pg_page::visibility_map::{VM_ALL_VISIBLE, VM_BITS, VmPosition};
use pg_page::{ControlFile, OriginProgress, Page, PageHeader, RelationMap, ReplicationOrigins};
use pg_page::{checksum, item, page_header};
use pg_types::{BLCKSZ, FullXid, Lsn, PgMajor, RELSEG_BLOCKS, Slru, TimelineId};
use tempfile::TempDir;
use testkit::{PgBinaries, StockServer};

/// A server with its directory, which is removed when dropped.
struct Cluster {
    server: StockServer,
    _dir: TempDir,
}

impl Cluster {
    fn init(binaries: &PgBinaries, options: &[&str], settings: &[(&str, &str)]) -> Cluster {
        let dir = tempfile::Builder::new()
            .prefix("pg-page-")
            .tempdir()
            .unwrap();
        let server = StockServer::init(binaries.clone(), dir.path(), options, settings).unwrap();
        Cluster { server, _dir: dir }
    }

    fn data(&self) -> PathBuf {
        self.server.data_dir()
    }

    fn file(&self, path: &str) -> Vec<u8> {
        fs::read(self.data().join(path)).unwrap()
    }

    /// `pg_controldata`'s lines; times are in UTC.
    fn controldata(&self) -> BTreeMap<String, String> {
        let mut command = self.server.command("pg_controldata").unwrap();
        let text = output_of(command.arg(self.data()));
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect()
    }
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// PostgreSQL 15, and 17 when `STRANDLINE_PG17` says where it is.
fn servers() -> Vec<PgBinaries> {
    let mut servers = vec![PgBinaries::find(15).unwrap()];
    servers.extend(PgBinaries::configured(17).map(|_| PgBinaries::find(17).unwrap()));
    servers
}

fn major_of(binaries: &PgBinaries) -> PgMajor {
    PgMajor::try_from(binaries.major()).unwrap()
}

#[test]
fn the_control_file_says_what_pg_controldata_says() {
    let cluster = Cluster::init(&PgBinaries::find(15).unwrap(), &["-k"], &[]);
    let control = ControlFile::decode(&cluster.file(CONTROL_FILE_PATH)).unwrap();
    let reported = cluster.controldata();
    let checkpoint = control.checkpoint();
    let parameters = control.parameters();
    let on_off = |on: bool| if on { "on" } else { "off" };
    let yes_no = |yes: bool| if yes { "yes" } else { "no" };
    let wal_level =
        ["minimal", "replica", "logical"][usize::try_from(parameters.wal_level).unwrap()];
    let nonce: String = control
        .mock_authentication_nonce()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let redo_segment = control.segment_size().file_name(
        checkpoint.timeline,
        control.segment_size().segment_of(checkpoint.redo),
    );
    let ours = [
        (
            "pg_control version number",
            control.control_version().to_string(),
        ),
        (
            "Catalog version number",
            control.catalog_version().to_string(),
        ),
        (
            "Database system identifier",
            control.system_identifier().to_string(),
        ),
        ("Database cluster state", control.state().to_string()),
        ("pg_control last modified", date(control.time())),
        (
            "Latest checkpoint location",
            control.checkpoint_lsn().to_string(),
        ),
        (
            "Latest checkpoint's REDO location",
            checkpoint.redo.to_string(),
        ),
        ("Latest checkpoint's REDO WAL file", redo_segment),
        (
            "Latest checkpoint's TimeLineID",
            checkpoint.timeline.to_string(),
        ),
        (
            "Latest checkpoint's PrevTimeLineID",
            checkpoint.prev_timeline.to_string(),
        ),
        (
            "Latest checkpoint's full_page_writes",
            on_off(checkpoint.full_page_writes).into(),
        ),
        (
            "Latest checkpoint's NextXID",
            checkpoint.next_xid.to_string(),
        ),
        (
            "Latest checkpoint's NextOID",
            checkpoint.next_oid.to_string(),
        ),
        (
            "Latest checkpoint's NextMultiXactId",
            checkpoint.next_multi.to_string(),
        ),
        (
            "Latest checkpoint's NextMultiOffset",
            checkpoint.next_multi_offset.to_string(),
        ),
        (
            "Latest checkpoint's oldestXID",
            checkpoint.oldest_xid.to_string(),
        ),
        (
            "Latest checkpoint's oldestXID's DB",
            checkpoint.oldest_xid_db.to_string(),
        ),
        (
            "Latest checkpoint's oldestActiveXID",
            checkpoint.oldest_active_xid.to_string(),
        ),
        (
            "Latest checkpoint's oldestMultiXid",
            checkpoint.oldest_multi.to_string(),
        ),
        (
            "Latest checkpoint's oldestMulti's DB",
            checkpoint.oldest_multi_db.to_string(),
        ),
        (
            "Latest checkpoint's oldestCommitTsXid",
            checkpoint.oldest_commit_ts_xid.to_string(),
        ),
        (
            "Latest checkpoint's newestCommitTsXid",
            checkpoint.newest_commit_ts_xid.to_string(),
        ),
        ("Time of latest checkpoint", date(checkpoint.time)),
        (
            "Fake LSN counter for unlogged rels",
            control.unlogged_lsn().to_string(),
        ),
        (
            "Minimum recovery ending location",
            control.min_recovery_point().0.to_string(),
        ),
        (
            "Min recovery ending loc's timeline",
            control.min_recovery_point().1.to_string(),
        ),
        ("Backup start location", control.backup_start().to_string()),
        ("Backup end location", control.backup_end().to_string()),
        (
            "End-of-backup record required",
            yes_no(control.backup_end_required()).into(),
        ),
        ("wal_level setting", wal_level.into()),
        (
            "wal_log_hints setting",
            on_off(parameters.wal_log_hints).into(),
        ),
        (
            "max_connections setting",
            parameters.max_connections.to_string(),
        ),
        (
            "max_worker_processes setting",
            parameters.max_worker_processes.to_string(),
        ),
        (
            "max_wal_senders setting",
            parameters.max_wal_senders.to_string(),
        ),
        (
            "max_prepared_xacts setting",
            parameters.max_prepared_transactions.to_string(),
        ),
        (
            "max_locks_per_xact setting",
            parameters.max_locks_per_transaction.to_string(),
        ),
        (
            "track_commit_timestamp setting",
            on_off(parameters.track_commit_timestamp).into(),
        ),
        ("Maximum data alignment", "8".into()),
        ("Database block size", BLCKSZ.to_string()),
        (
            "Blocks per segment of large relation",
            RELSEG_BLOCKS.to_string(),
        ),
        ("WAL block size", pg_types::XLOG_BLCKSZ.to_string()),
        (
            "Bytes per WAL segment",
            control.segment_size().bytes().to_string(),
        ),
        ("Maximum length of identifiers", "64".into()),
        ("Maximum columns in an index", "32".into()),
        ("Maximum size of a TOAST chunk", "1996".into()),
        ("Size of a large-object chunk", "2048".into()),
        ("Date/time type storage", "64-bit integers".into()),
        ("Float8 argument passing", "by value".into()),
        (
            "Data page checksum version",
            u32::from(control.data_checksums()).to_string(),
        ),
        ("Mock authentication nonce", nonce),
    ];
    assert_eq!(control.major(), PgMajor::V15);
    assert_eq!(
        ours.len(),
        reported.len(),
        "pg_controldata's lines: {reported:#?}"
    );
    for (name, value) in ours {
        let key = if reported.contains_key(name) {
            name.to_owned()
        } else {
            format!("{name} ")
        };
        assert_eq!(reported.get(key.trim()), Some(&value), "{name}");
    }
}

/// Seconds since 1970 as `pg_controldata` prints them in the C locale and UTC.
fn date(seconds: i64) -> String {
    let mut date = Command::new("date");
    date.env("TZ", "UTC").env("LC_ALL", "C");
    output_of(date.args(["-u", "-d", &format!("@{seconds}"), "+%a %b %e %H:%M:%S %Y"]))
        .trim()
        .to_owned()
}

#[test]
fn control_files_of_every_server_are_written_back_unchanged() {
    for binaries in servers() {
        let major = major_of(&binaries);
        for options in [&["-k"][..], &["--wal-segsize=1"][..]] {
            let cluster = Cluster::init(&binaries, options, &[]);
            let bytes = cluster.file(CONTROL_FILE_PATH);
            let control = ControlFile::decode(&bytes).unwrap();
            assert_eq!(
                control.encode()[..],
                bytes[..],
                "PostgreSQL {major} {options:?}"
            );
            assert_eq!(control.major(), major);
            assert_eq!(control.state(), ClusterState::ShutDown);
            let checksums = options.contains(&"-k");
            assert_eq!(control.data_checksums(), checksums);
            let segment = if checksums { 16 << 20 } else { 1 << 20 };
            assert_eq!(control.segment_size().bytes(), segment);

            let mut altered = ControlFile::decode(&bytes).unwrap();
            altered.set_checkpoint(&control.checkpoint());
            altered.set_parameters(&control.parameters());
            altered.set_state(control.state());
            altered.set_time(control.time());
            altered.set_checkpoint_lsn(control.checkpoint_lsn());
            altered.set_unlogged_lsn(control.unlogged_lsn());
            let (lsn, timeline) = control.min_recovery_point();
            altered.set_min_recovery_point(lsn, timeline);
            assert_eq!(
                altered.encode()[..],
                bytes[..],
                "setting what is set changes nothing"
            );
        }
    }
}

/// The relation files of a cluster: their path and which segment of the fork they are.
fn relation_files(data: &Path) -> Vec<(PathBuf, u32)> {
    let mut directories = vec![data.join("global")];
    directories.extend(
        fs::read_dir(data.join("base"))
            .unwrap()
            .map(|entry| entry.unwrap().path()),
    );
    let mut files = Vec::new();
    for directory in directories {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if !name.starts_with(|first: char| first.is_ascii_digit()) {
                continue;
            }
            let segment = name
                .rsplit_once('.')
                .map_or(0, |(_, number)| number.parse().unwrap());
            files.push((path, segment));
        }
    }
    files
}

#[test]
fn every_page_carries_the_checksum_we_compute() {
    for binaries in servers() {
        let major = major_of(&binaries);
        let cluster = Cluster::init(&binaries, &["-k"], &[]);
        let (mut checked, mut new) = (0, 0);
        for (path, segment) in relation_files(&cluster.data()) {
            let bytes = fs::read(&path).unwrap();
            let (pages, rest) = bytes.as_chunks::<BLCKSZ>();
            assert!(rest.is_empty(), "{} is not whole pages", path.display());
            for (index, page) in pages.iter().enumerate() {
                let block = segment * RELSEG_BLOCKS + u32::try_from(index).unwrap();
                if page_header::is_new(page) {
                    new += 1;
                    continue;
                }
                let header = PageHeader::read(page);
                assert!(
                    header.is_sane(),
                    "{} block {block}: {header:?}",
                    path.display()
                );
                assert_eq!(
                    header.checksum,
                    checksum(page, block),
                    "{} {block}",
                    path.display()
                );
                assert!(
                    header.lsn < Lsn(1 << 32),
                    "{} block {block}",
                    path.display()
                );
                let mut copy: Page = *page;
                page_header::set_stored_checksum(&mut copy, 0);
                pg_page::set_checksum(&mut copy, block);
                assert_eq!(copy, *page);
                checked += 1;
            }
        }
        assert!(
            checked > 2000,
            "PostgreSQL {major}: only {checked} pages, {new} new"
        );
    }
}

/// A server that was used for what the tests below read, and stopped.
fn used_cluster(binaries: &PgBinaries) -> Cluster {
    let settings = [
        ("track_commit_timestamp", "on"),
        ("max_prepared_transactions", "5"),
    ];
    let mut cluster = Cluster::init(binaries, &["-k"], &settings);
    cluster.server.start().unwrap();
    let statements = [
        "CREATE TABLE t (a int PRIMARY KEY, b text); CREATE TABLE gone (a int)",
        "INSERT INTO t SELECT i, 'row' FROM generate_series(1, 1000) i",
        "VACUUM (FREEZE) t",
        "BEGIN; INSERT INTO t VALUES (2001, 'kept'); ROLLBACK",
        // Two lockers of one tuple in one session: the transaction and its subtransaction.
        "BEGIN; SELECT 1 FROM t WHERE a = 1000 FOR KEY SHARE; SAVEPOINT s; \
         UPDATE t SET b = 'changed' WHERE a = 1000; COMMIT",
        "BEGIN; DROP TABLE gone; SAVEPOINT s; INSERT INTO t VALUES (3000, 'two-phase'); \
         RELEASE s; PREPARE TRANSACTION 'the gid'",
        "SELECT pg_replication_origin_create('o1'); \
         SELECT pg_replication_origin_advance('o1', '1/23')",
        "VACUUM FULL pg_class",
    ];
    for statement in statements {
        cluster.server.psql("postgres", statement).unwrap();
    }
    cluster
}

/// Page `page` of an SLRU.
fn slru_page(cluster: &Cluster, kind: Slru, page: u32) -> Page {
    let (file, offset) = slru::page_location(page);
    let bytes = cluster.file(&format!("{}/{file}", kind.directory()));
    *bytes[usize::try_from(offset).unwrap()..]
        .first_chunk()
        .unwrap()
}

fn page_of(bytes: &[u8], block: usize) -> &Page {
    &bytes.as_chunks::<BLCKSZ>().0[block]
}

#[test]
fn tuples_lead_to_the_status_time_and_members_that_the_server_kept() {
    for binaries in servers() {
        let mut cluster = used_cluster(&binaries);
        let server = &cluster.server;
        let path = server
            .psql("postgres", "SELECT pg_relation_filepath('t')")
            .unwrap();
        let updated = server
            .psql("postgres", "SELECT xmin FROM t WHERE a = 1000")
            .unwrap();
        let stamp = format!(
            "SELECT (extract(epoch FROM pg_xact_commit_timestamp('{updated}'::xid)) * 1000000 \
             - 946684800000000)::bigint"
        );
        let stamp: i64 = server.psql("postgres", &stamp).unwrap().parse().unwrap();
        let updated: u32 = updated.parse().unwrap();
        cluster.server.stop().unwrap();

        let heap = cluster.file(&path);
        let tuples: Vec<(u16, HeapTupleHeader)> = heap
            .as_chunks::<BLCKSZ>()
            .0
            .iter()
            .flat_map(|page| item::items(page).map(move |(number, id)| (page, number, id)))
            .filter_map(|(page, number, id)| Some((number, item::item_bytes(page, id)?)))
            .map(|(number, bytes)| (number, HeapTupleHeader::read(bytes).unwrap()))
            .collect();
        assert_eq!(
            tuples.len(),
            1003,
            "1000 rows, one rolled back, one updated, one prepared"
        );
        assert!(tuples.iter().all(|(_, tuple)| tuple.attribute_count() == 2));
        assert_eq!(
            tuples.iter().filter(|(_, tuple)| tuple.is_frozen()).count(),
            1000
        );

        let status = |xid| {
            let at = ClogPosition::of(xid);
            at.status(&slru_page(&cluster, Slru::Clog, at.page))
        };
        assert_eq!(status(updated), XidStatus::Committed);
        let statuses: Vec<XidStatus> = tuples
            .iter()
            .filter(|(_, tuple)| !tuple.is_frozen())
            .map(|(_, tuple)| status(tuple.xmin))
            .collect();
        let expected = [
            XidStatus::Aborted,
            XidStatus::Committed,
            XidStatus::InProgress,
        ];
        assert_eq!(statuses, expected);

        let at = CommitTsPosition::of(updated);
        let entry = at.entry(&slru_page(&cluster, Slru::CommitTs, at.page));
        assert_eq!(entry, (stamp, 0));

        let (_, old) = tuples
            .iter()
            .find(|(_, tuple)| tuple.infomask & heap_tuple::XMAX_IS_MULTI != 0)
            .expect("the row that was locked and updated has a multixact");
        let at = MultiXactOffsetPosition::of(old.xmax);
        let offset = at.offset(&slru_page(&cluster, Slru::MultiXactOffsets, at.page));
        let members = [0, 1].map(|member| {
            let at = MultiXactMemberPosition::of(offset + member);
            at.member(&slru_page(&cluster, Slru::MultiXactMembers, at.page))
        });
        // MultiXactStatusForKeyShare and MultiXactStatusNoKeyUpdate.
        assert_eq!(members, [(updated - 1, 0), (updated, 4)]);
    }
}

#[test]
fn maps_and_index_pages_are_what_the_server_made_of_them() {
    for binaries in servers() {
        let mut cluster = used_cluster(&binaries);
        let path = |name: &str| {
            let sql = format!("SELECT pg_relation_filepath('{name}')");
            cluster.server.psql("postgres", &sql).unwrap()
        };
        let (heap, index, pg_class) = (path("t"), path("t_pkey"), path("pg_class"));
        cluster.server.stop().unwrap();

        let vm = cluster.file(&format!("{heap}_vm"));
        let heap = cluster.file(&heap);
        let mut visible = 0;
        for (block, page) in (0..).zip(heap.as_chunks::<BLCKSZ>().0) {
            let bits = VmPosition::of(block).bits(page_of(&vm, 0));
            let all_visible = page_header::flags(page) & page_header::ALL_VISIBLE != 0;
            assert_eq!(bits & VM_ALL_VISIBLE != 0, all_visible, "block {block}");
            visible += u32::from(bits == VM_BITS);
        }
        assert!(
            visible > 2,
            "VACUUM FREEZE left {visible} all-frozen blocks"
        );

        let index = cluster.file(&index);
        let meta = BtreeMeta::read(page_of(&index, 0)).unwrap();
        let root = page_of(&index, usize::try_from(meta.root).unwrap());
        let root_special = BtreeSpecial::read(root).unwrap();
        assert_eq!(root_special.flags, btree::ROOT);
        assert_eq!(
            (root_special.level, meta.level, root_special.prev),
            (1, 1, 0)
        );
        let leaf = BtreeSpecial::read(page_of(&index, 1)).unwrap();
        assert_eq!((leaf.flags & btree::LEAF, leaf.prev), (btree::LEAF, 0));
        assert_ne!(leaf.next, 0);

        let (directory, file) = pg_class.rsplit_once('/').unwrap();
        let bytes = cluster.file(&format!("{directory}/pg_filenode.map"));
        let map = RelationMap::decode(&bytes, major_of(&binaries)).unwrap();
        assert_eq!(map.get(1259), file.parse().ok(), "the new file of pg_class");
        assert_ne!(map.get(1259), Some(1259));
        assert_eq!(map.encode(), bytes);
        let made = RelationMap::new(map.mappings(), major_of(&binaries)).unwrap();
        let again = RelationMap::decode(made.encode(), major_of(&binaries)).unwrap();
        assert_eq!(again.mappings(), map.mappings());
    }
}

#[test]
fn prepared_transactions_and_origins_are_read_from_a_stopped_server() {
    for binaries in servers() {
        let major = major_of(&binaries);
        let mut cluster = used_cluster(&binaries);
        let psql = |sql: &str| cluster.server.psql("postgres", sql).unwrap();
        let xid: u32 = psql("SELECT transaction FROM pg_prepared_xacts")
            .parse()
            .unwrap();
        let database: u32 = psql("SELECT oid FROM pg_database WHERE datname = 'postgres'")
            .parse()
            .unwrap();
        cluster.server.stop().unwrap();

        let name = two_phase::file_name(FullXid::new(0, xid), major);
        let file = cluster.file(&format!("pg_twophase/{name}"));
        let state = TwoPhaseState::decode_file(&file, major).unwrap();
        assert_eq!(
            (state.xid, state.database, state.owner),
            (xid, database, 10)
        );
        assert_eq!(state.gid, b"the gid");
        assert_eq!(state.subxacts, [xid + 1]);
        assert_eq!(state.drop_at_commit.len(), 1);
        assert_eq!(
            (state.drop_at_commit[0].spc, state.drop_at_commit[0].db),
            (1663, database)
        );
        assert!(state.drop_at_abort.is_empty());
        assert_eq!(two_phase::file_of_record(&file[..file.len() - 4]), file);
        assert_eq!(two_phase::parse_file_name(&name, major).unwrap().1, xid);

        let bytes = cluster.file(REPLICATION_ORIGINS_PATH);
        let origins = ReplicationOrigins::decode(&bytes).unwrap();
        assert_eq!(
            origins.origins,
            [OriginProgress {
                origin: 1,
                remote_lsn: Lsn(0x1_0000_0023)
            }]
        );
        assert_eq!(ReplicationOrigins::decode(&origins.encode()), Ok(origins));

        let control = ControlFile::decode(&cluster.file(CONTROL_FILE_PATH)).unwrap();
        assert_eq!(control.parameters().max_prepared_transactions, 5);
        assert!(control.parameters().track_commit_timestamp);
        assert_eq!(control.checkpoint().timeline, TimelineId(1));
        assert_eq!(control.checkpoint().redo, control.checkpoint_lsn());
        assert!(control.checkpoint().next_xid.xid() > xid);
    }
}
