//! Redo equals PostgreSQL: a stock server runs a broad load with `wal_consistency_checking=all`, so
//! that every block reference of its WAL carries the page as the server had it after the record.
//! The load's WAL is replayed natively, record by record and page by page through mini-records, from
//! a copy of the data directory made before; every page is compared with its after-image, and at the
//! end with the files of the stopped server, transaction status and multixacts among them.
//!
//! Needs PostgreSQL 15. With `STRANDLINE_PG17` set (a directory of PostgreSQL programs), that server
//! is tried as well; it has data checksums on, so that both settings are covered.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is a test; its helpers fail by panicking as it does"
)]

mod files;
mod masks;
mod model;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use pg_page::control::CONTROL_FILE_PATH;
use pg_page::slru::{MULTIXACT_OFFSETS_PER_PAGE, page_location};
use pg_page::{ControlFile, Page};
use pg_redo::Facts;
use pg_types::{BLCKSZ, ForkNumber, Lsn, PageKey, RelFileLocator, RelFork, Slru};
use pg_wal::{Record, StreamError, WalStream};
use testkit::{PgBinaries, StockServer};

use files::DataFiles;
use masks::Kind;
use model::Model;

const SETTINGS: &[(&str, &str)] = &[
    ("wal_consistency_checking", "all"),
    ("full_page_writes", "off"),
    ("wal_level", "replica"),
    ("wal_keep_size", "20GB"),
    ("max_wal_size", "20GB"),
    ("max_prepared_transactions", "10"),
    ("track_commit_timestamp", "on"),
    ("shared_buffers", "64MB"),
    ("autovacuum_naptime", "1"),
    ("checkpoint_timeout", "30"),
    ("synchronous_commit", "off"),
];

#[test]
fn redo_equals_postgresql_15() {
    check(PgBinaries::find(15).unwrap(), &[]);
}

#[test]
fn redo_equals_postgresql_17() {
    if PgBinaries::configured(17).is_none() {
        eprintln!("STRANDLINE_PG17 is not set: PostgreSQL 17 was not compared");
        return;
    }
    check(PgBinaries::find(17).unwrap(), &["-k"]);
}

fn check(binaries: PgBinaries, initdb_args: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    // The server runs as another user when root runs the tests.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let base_dir = dir.path().join("base");
    let mut server =
        StockServer::init(binaries, &dir.path().join("server"), initdb_args, SETTINGS).unwrap();
    // The first start turns commit timestamps on, which is not in the WAL.
    server.start().unwrap();
    server.stop().unwrap();
    copy_tree(&server.data_dir(), &base_dir);

    server.start().unwrap();
    run_load(&server);
    let relations = list_relations(&server);
    server.stop().unwrap();

    let theirs = DataFiles::new(&server.data_dir());
    let base = DataFiles::new(&base_dir);
    let mut model = replay(base, &theirs);
    let pages = compare_relations(&mut model, &theirs, &relations);
    let slru_pages = compare_slrus(&mut model, &theirs);
    report(&model, pages, slru_pages);

    assert!(
        model.counts.complaints.is_empty(),
        "{} disagreements",
        model.counts.complaints.len()
    );
    let compared: u64 = model.counts.compared.values().map(|(all, _)| all).sum();
    assert!(
        compared > 50_000,
        "the load was too small to mean anything: {compared} images"
    );
    assert!(
        pages > 500 && slru_pages >= 4,
        "{pages} pages, {slru_pages} SLRU pages"
    );
}

fn report(model: &Model, pages: u64, slru_pages: u64) {
    let counts = &model.counts;
    println!(
        "PostgreSQL {}: {} records, {} page changes",
        model.major(),
        counts.records,
        counts.changes
    );
    let mut total = (0, 0);
    for ((rmgr, info, id), (all, bad)) in &counts.compared {
        println!("  {rmgr:<12} {info:#04x} reference {id}: {all:>7} compared, {bad} differ");
        total = (total.0 + all, total.1 + bad);
    }
    println!("  {} after-images compared, {} differ", total.0, total.1);
    println!("  {pages} pages of relations and {slru_pages} SLRU pages compared with the files");
}

fn copy_tree(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .unwrap();
    assert!(status.success());
}

// --- the load ---------------------------------------------------------------------------------

fn run_load(server: &StockServer) {
    run_sql(server, "postgres", include_str!("../workloads/heap.sql"));
    run_sql(server, "postgres", include_str!("../workloads/btree.sql"));
    run_sql(
        server,
        "postgres",
        include_str!("../workloads/transactions.sql"),
    );
    run_sql(server, "postgres", include_str!("../workloads/indexes.sql"));
    run_sql(server, "postgres", include_str!("../workloads/ddl.sql"));
    for database in ["by_log", "by_file"] {
        run_sql(server, database, include_str!("../workloads/after_ddl.sql"));
    }
    run_sql(
        server,
        "postgres",
        include_str!("../workloads/concurrent_setup.sql"),
    );
    pgbench(server, &["-i", "-q", "-s", "1"]);
    pgbench(server, &["-n", "-c", "4", "-t", "150"]);
    let script = server.socket_dir().join("concurrent.sql");
    fs::write(&script, include_str!("../workloads/concurrent.sql")).unwrap();
    pgbench(
        server,
        &[
            "-n",
            "-c",
            "8",
            "-j",
            "2",
            "-t",
            "200",
            "--max-tries=100",
            "-f",
            script.to_str().unwrap(),
        ],
    );
    run_sql(server, "postgres", "vacuum (freeze); vacuum; checkpoint;");
}

fn run_sql(server: &StockServer, database: &str, sql: &str) {
    let mut psql = server.client("psql").unwrap();
    psql.args([
        "-X",
        "-q",
        "-A",
        "-t",
        "-v",
        "ON_ERROR_STOP=1",
        "-o",
        "/dev/null",
        "-d",
        database,
    ]);
    let mut child = psql.stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(sql.as_bytes())
        .unwrap();
    assert!(
        child.wait().unwrap().success(),
        "the load failed; see above"
    );
}

fn pgbench(server: &StockServer, args: &[&str]) {
    let mut pgbench = server.client("pgbench").unwrap();
    let output = pgbench.args(args).arg("postgres").output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A relation with files that survive: locator and what its pages are.
struct Relation {
    locator: RelFileLocator,
    kind: Kind,
    is_logged: bool,
}

fn list_relations(server: &StockServer) -> Vec<Relation> {
    let mut relations = Vec::new();
    for database in ["postgres", "template1", "by_log", "by_file"] {
        let rows = server
            .psql(
                database,
                "select case when relisshared then 1664 else 1663 end,
                        case when relisshared then 0 else (select oid from pg_database where datname = current_database()) end,
                        pg_relation_filenode(c.oid), relkind, coalesce(amname, ''), relpersistence
                 from pg_class c left join pg_am a on a.oid = relam
                 where pg_relation_filenode(c.oid) is not null",
            )
            .unwrap();
        for row in rows.lines() {
            let fields: Vec<&str> = row.split('|').collect();
            let number = |at: usize| fields[at].parse().unwrap();
            let kind = match (fields[3], fields[4]) {
                ("S", _) => Kind::Sequence,
                (_, "btree") => Kind::Btree,
                (_, "hash") => Kind::Hash,
                (_, "gin") => Kind::Gin,
                (_, "gist") => Kind::Gist,
                (_, "spgist") => Kind::Spgist,
                (_, "brin") => Kind::Brin,
                (_, "bloom") => Kind::Bloom,
                ("r" | "t" | "m", _) => Kind::Heap,
                (relkind, am) => panic!("unexpected relation: kind {relkind}, access method {am}"),
            };
            let locator = RelFileLocator {
                spc: number(0),
                db: number(1),
                rel: number(2),
            };
            relations.push(Relation {
                locator,
                kind,
                is_logged: fields[5] == "p",
            });
        }
    }
    relations
}

// --- replay and comparison --------------------------------------------------------------------

fn control_file(files: &DataFiles) -> ControlFile {
    ControlFile::decode(&fs::read(files.root().join(CONTROL_FILE_PATH)).unwrap()).unwrap()
}

/// Replays the WAL in `theirs` from the checkpoint at which `base` was stopped.
fn replay(base: DataFiles, theirs: &DataFiles) -> Model {
    let control = control_file(&base);
    let facts = Facts {
        major: control.major(),
        hint_lsn: control.data_checksums() || control.parameters().wal_log_hints,
        track_commit_timestamp: control.parameters().track_commit_timestamp,
    };
    let start = control.checkpoint_lsn();
    let size = control.segment_size();
    let mut model = Model::new(base, facts);
    let mut stream = WalStream::new(start, facts.major, size);
    let mut segment = size.segment_of(start);
    let mut end = Lsn::INVALID;
    loop {
        let name = size.file_name(control.checkpoint().timeline, segment);
        let Ok(bytes) = fs::read(theirs.root().join("pg_wal").join(name)) else {
            break;
        };
        // The stream begins in the midst of the first segment.
        let from = stream.fed().max(size.start_of(segment));
        stream
            .push(from, &bytes[size.offset_of(from) as usize..])
            .unwrap();
        segment += 1;
        loop {
            match stream.next_record() {
                Ok(Some(record)) => {
                    end = record.end;
                    let decoded = Record::decode(record.bytes, facts.major).unwrap();
                    model.apply(&decoded, record.start, record.end);
                }
                Ok(None) => break,
                Err(StreamError::EndOfWal { .. }) => {
                    assert_eq!(
                        end,
                        end_of_wal(theirs),
                        "the WAL ended before its checkpoint"
                    );
                    return model;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(
        end,
        end_of_wal(theirs),
        "the WAL ended before its checkpoint"
    );
    model
}

/// End of the shutdown checkpoint, the last record of a stopped server.
fn end_of_wal(files: &DataFiles) -> Lsn {
    let control = control_file(files);
    let at = control.checkpoint_lsn();
    let size = control.segment_size();
    let name = size.file_name(control.checkpoint().timeline, size.segment_of(at));
    let bytes = fs::read(files.root().join("pg_wal").join(name)).unwrap();
    let mut stream = WalStream::new(at, control.major(), size);
    stream
        .push(at, &bytes[size.offset_of(at) as usize..])
        .unwrap();
    stream
        .next_record()
        .unwrap()
        .expect("shutdown checkpoint")
        .end
}

fn compare_relations(model: &mut Model, theirs: &DataFiles, relations: &[Relation]) -> u64 {
    let mut pages = 0;
    for relation in relations {
        let forks: &[(ForkNumber, Kind)] = if relation.is_logged {
            &[
                (ForkNumber::Main, relation.kind),
                (ForkNumber::Vm, Kind::VisibilityMap),
            ]
        } else {
            &[(ForkNumber::Init, relation.kind)]
        };
        for &(fork, kind) in forks {
            let blocks = theirs.blocks(RelFork {
                locator: relation.locator,
                fork,
            });
            for block in 0..blocks {
                let key = PageKey::relation(relation.locator, fork, block);
                let expected = theirs.page(key).unwrap();
                let mine = model.page(key);
                if let Some(difference) = model.difference(key, &mine, &expected, kind) {
                    model
                        .counts
                        .complain(format!("{key} at the end: {difference}"));
                }
                pages += 1;
            }
        }
    }
    pages
}

fn compare_slrus(model: &mut Model, theirs: &DataFiles) -> u64 {
    let next_multi = control_file(theirs).checkpoint().next_multi;
    let mut pages = 0;
    for slru in Slru::ALL {
        let mut page_number = 0;
        while let Some(mut expected) = theirs.page(PageKey::slru(slru, page_number)) {
            let key = PageKey::slru(slru, page_number);
            let mut mine = model.page(key);
            if slru == Slru::MultiXactOffsets {
                forgive_next_multi(&mut mine, &mut expected, page_number, next_multi);
            }
            if mine != expected {
                let at = (0..BLCKSZ).find(|at| mine[*at] != expected[*at]).unwrap();
                let (mine, expected) = (mine[at], expected[at]);
                model.counts.complain(format!(
                    "{key}: byte {at} is {mine:02x}, not {expected:02x}"
                ));
            }
            pages += 1;
            page_number += 1;
        }
        let (first, _) = page_location(0);
        assert!(page_number > 0, "{} has no file {first}", slru.directory());
    }
    pages
}

/// Servers before 14.21, 15.16, 16.12, 17.8 and 18.2 do not write where the members of the next
/// multixact will begin; ours is then the only one.
fn forgive_next_multi(mine: &mut Page, theirs: &mut Page, page: u32, next: u32) {
    if next / MULTIXACT_OFFSETS_PER_PAGE == page {
        let at = (next % MULTIXACT_OFFSETS_PER_PAGE * 4) as usize;
        if theirs[at..at + 4] == [0; 4] {
            mine[at..at + 4].fill(0);
        }
    }
}
