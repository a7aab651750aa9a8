//! A stock PostgreSQL server under the shim, on stubs, must answer as one on the whole files does:
//! with 1 MB of shared buffers (so that every page goes through the shim again and again) and a cache
//! far smaller than the data, before and after changing everything it can.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // It is a test; clippy only exempts test functions.

mod lazy_server;
mod page_server;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use lazy_server::{LazyOptions, LazyServer};
use testkit::{PgBinaries, StockServer};

const LOAD: &str = "
    CREATE TABLE t (id bigint PRIMARY KEY, grp int, word text, pad text);
    INSERT INTO t SELECT i, i % 97, md5(i::text), repeat('x', i::int % 150) FROM generate_series(1, 120000) i;
    CREATE INDEX t_word ON t (word);
    CREATE INDEX t_grp ON t USING hash (grp);
    CREATE INDEX t_brin ON t USING brin (id);
    CREATE TABLE docs (id serial, body tsvector, box point);
    INSERT INTO docs (body, box) SELECT to_tsvector('simple', md5(i::text) || ' ' || i % 50), point(i, i % 77)
        FROM generate_series(1, 8000) i;
    CREATE INDEX docs_gin ON docs USING gin (body);
    CREATE INDEX docs_gist ON docs USING gist (box);
    CREATE TABLE wide AS SELECT i, string_agg(md5((i * j)::text), '') AS v
        FROM generate_series(1, 60) i, generate_series(1, 400) j GROUP BY i;
    CREATE UNLOGGED TABLE fleeting AS SELECT i FROM generate_series(1, 1000) i;
    DELETE FROM t WHERE id % 11 = 0;
    UPDATE t SET pad = pad || 'y' WHERE id % 13 = 0;
    CREATE TABLE doomed AS SELECT * FROM t LIMIT 30000;
    CREATE TABLE shrinking AS SELECT * FROM t;
    CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int REFERENCES parent);
    INSERT INTO parent SELECT generate_series(1, 100);
    VACUUM ANALYZE;";

const QUERIES: &[&str] = &[
    "SELECT count(*), sum(hashtext(t::text)::bigint) FROM t",
    "SELECT count(*) FROM pg_class a JOIN pg_attribute b ON b.attrelid = a.oid",
    "SET enable_seqscan = off; SELECT count(*), min(id), max(word) FROM t WHERE word BETWEEN '4' AND '9'",
    "SET enable_seqscan = off; SELECT sum(id) FROM t WHERE grp = 13",
    "SET enable_seqscan = off; SELECT count(*) FROM t WHERE id BETWEEN 40000 AND 40500",
    "SET enable_seqscan = off; SET enable_indexscan = off; SELECT sum(length(pad)) FROM t WHERE word < '3'",
    "SET enable_seqscan = off; SELECT count(*), sum(id) FROM docs WHERE body @@ to_tsquery('simple', '17')",
    "SET enable_seqscan = off; SELECT count(*) FROM docs WHERE box <@ box '((100,0),(4000,30))'",
    "SELECT sum(hashtext(v)::bigint) FROM wide",
    "SELECT count(*) FROM fleeting",
    "SELECT count(*) FROM shrinking",
    "SELECT sum(hashtext(word)::bigint) FROM t TABLESAMPLE system (20) REPEATABLE (7)",
];

const CHANGES: &[&str] = &[
    "UPDATE t SET grp = grp + 1 WHERE id % 7 = 0",
    "DELETE FROM t WHERE id BETWEEN 1000 AND 30000",
    "VACUUM t",
    "INSERT INTO t SELECT i, 5, md5(i::text), 'new' FROM generate_series(200000, 230000) i",
    "DELETE FROM shrinking WHERE id > 20000; ",
    "VACUUM shrinking",
    "INSERT INTO shrinking SELECT * FROM t WHERE id > 100000",
    "DROP TABLE doomed",
    "CREATE INDEX t_pad ON t (pad, id)",
    "REINDEX INDEX t_word",
    "TRUNCATE docs; INSERT INTO docs (body) SELECT to_tsvector('simple', (i % 50)::text) FROM generate_series(1, 500) i",
    "CLUSTER t USING t_pkey",
    "INSERT INTO child SELECT id FROM parent; SELECT count(*) FROM (SELECT id FROM parent FOR SHARE) s",
    "CHECKPOINT",
    "VACUUM FULL wide",
    "CREATE DATABASE copied TEMPLATE postgres STRATEGY file_copy",
    "CREATE DATABASE logged TEMPLATE postgres STRATEGY wal_log",
];

fn stopped_original(binaries: &PgBinaries, directory: &Path, load: &str) -> StockServer {
    let mut server =
        StockServer::init(binaries.clone(), &directory.join("original"), &[], &[]).unwrap();
    server.start().unwrap();
    for statement in load
        .split(';')
        .filter(|statement| !statement.trim().is_empty())
    {
        server.psql("postgres", statement).unwrap();
    }
    server.psql("postgres", "CHECKPOINT").unwrap();
    server.stop().unwrap();
    server
}

/// A directory that the server's user can reach.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::Builder::new()
        .prefix("pg-shim-")
        .tempdir()
        .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), mode).unwrap();
    directory
}

fn answers_as_the_original_does(binaries: &PgBinaries) {
    let directory = directory();
    let mut original = stopped_original(binaries, directory.path(), LOAD);
    // The original serves the pages and must stay; a copy of it is changed for comparison.
    let served = directory.path().join("served");
    let copied = Command::new("cp")
        .arg("-a")
        .arg(original.data_dir())
        .arg(&served)
        .status()
        .unwrap();
    assert!(copied.success());
    let options = LazyOptions {
        cache_limit_blocks: 600,
        read_timeout_ms: 30_000,
        settings: vec![
            "shared_buffers=1MB",
            "autovacuum_naptime=1s",
            "max_parallel_workers_per_gather=2",
        ],
    };
    let mut lazy = LazyServer::start(
        binaries.clone(),
        &served,
        &directory.path().join("lazy"),
        &options,
    );
    original.start().unwrap();
    let compare = |lazy: &LazyServer, database: &str| {
        for query in QUERIES {
            let wanted = original.psql(database, query).unwrap();
            assert_eq!(lazy.psql(database, query), wanted, "{database}: {query}");
        }
    };
    compare(&lazy, "postgres");
    let before = lazy.statistics();
    assert!(
        before.evicted > 0 && before.fetched > 0 && before.prefetched > 0,
        "{before:?}"
    );
    amcheck(binaries, &lazy);
    for change in CHANGES {
        let wanted = original.psql("postgres", change).unwrap();
        assert_eq!(lazy.psql("postgres", change), wanted, "{change}");
    }
    for database in ["postgres", "copied", "logged"] {
        compare(&lazy, database);
    }
    lazy.psql("postgres", "DROP DATABASE copied");
    amcheck(binaries, &lazy);
    let statistics = lazy.statistics();
    println!("{}: {statistics:?}", binaries.major());
    assert_eq!((statistics.errors, statistics.refused), (0, 0));
    assert!(statistics.present <= 700, "{statistics:?}");
    lazy.stop("fast");
    let log = lazy.log();
    assert!(
        !log.contains("PANIC") && !log.contains("invalid page"),
        "{log}"
    );
}

/// Every heap and B-tree, where this PostgreSQL has the extension.
fn amcheck(binaries: &PgBinaries, lazy: &LazyServer) {
    let available = lazy.psql(
        "postgres",
        "SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'",
    );
    if available != "1" {
        println!("PostgreSQL {} was packed without amcheck", binaries.major());
        return;
    }
    let mut check = lazy.client("pg_amcheck");
    let output = check
        .args([
            "--install-missing",
            "--all",
            "--heapallindexed",
            "--on-error-stop",
        ])
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && report.trim().is_empty(),
        "{report}\n{}",
        lazy.log()
    );
}

#[test]
fn postgresql_15_answers_as_the_original_does() {
    answers_as_the_original_does(&PgBinaries::find(15).unwrap());
}

#[test]
fn postgresql_17_answers_as_the_original_does() {
    if PgBinaries::configured(17).is_none() {
        println!("STRANDLINE_PG17 names no PostgreSQL 17");
        return;
    }
    answers_as_the_original_does(&PgBinaries::find(17).unwrap());
}

const SMALL: &str = "
    CREATE TABLE a AS SELECT i, repeat('a', 200) FROM generate_series(1, 20000) i;
    CREATE TABLE b AS SELECT i, repeat('b', 200) FROM generate_series(1, 20000) i;
    VACUUM ANALYZE";

fn lazy_small(directory: &Path, read_timeout_ms: u64) -> LazyServer {
    let binaries = PgBinaries::find(15).unwrap();
    let original = stopped_original(&binaries, directory, SMALL);
    let options = LazyOptions {
        cache_limit_blocks: 0,
        read_timeout_ms,
        settings: vec!["autovacuum=off", "shared_buffers=1MB"],
    };
    let lazy = LazyServer::start(
        binaries,
        &original.data_dir(),
        &directory.join("lazy"),
        &options,
    );
    // What a session and a plan read themselves is here before the storage goes away.
    assert_eq!(
        lazy.psql("postgres", "SELECT max(i) FROM a LIMIT 1"),
        "20000"
    );
    lazy.psql("postgres", "EXPLAIN SELECT max(i) FROM b");
    lazy.psql("postgres", "SELECT pg_backend_pid(), pg_cancel_backend(0)");
    lazy
}

#[test]
fn reads_wait_for_storage_that_is_away() {
    let directory = directory();
    let mut lazy = lazy_small(directory.path(), 60_000);
    lazy.pages.pause();
    let began = Instant::now();
    thread::scope(|scope| {
        let reader = scope.spawn(|| lazy_query(directory.path(), "SELECT count(*) FROM b"));
        thread::sleep(Duration::from_secs(3));
        assert!(
            !reader.is_finished(),
            "the pages can have come from nowhere"
        );
        assert_eq!(lazy.statistics().waiting, 1);
        lazy.pages.resume();
        assert_eq!(reader.join().unwrap(), "20000");
    });
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(lazy.statistics().waiting, 0);
    assert!(lazy.log().contains("waiting for the storage node"));
}

fn lazy_query(directory: &Path, sql: &str) -> String {
    let binaries = PgBinaries::find(15).unwrap();
    let output = testkit::OrdinaryUser::current()
        .unwrap()
        .command(&binaries.program("psql").unwrap())
        .args([
            "-X", "-q", "-A", "-t", "-p", "5433", "-U", "postgres", "-d", "postgres", "-h",
        ])
        .arg(directory.join("lazy"))
        .args(["-c", sql])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    format!("{}{error}", String::from_utf8_lossy(&output.stdout))
        .trim()
        .to_owned()
}

#[test]
fn reads_fail_when_storage_stays_away_too_long() {
    let directory = directory();
    let mut lazy = lazy_small(directory.path(), 1500);
    lazy.pages.pause();
    let began = Instant::now();
    let error = lazy_query(directory.path(), "SELECT count(*) FROM b");
    let took = began.elapsed();
    assert!(error.contains("Input/output error"), "{error}");
    assert!(
        took > Duration::from_millis(1400) && took < Duration::from_secs(5),
        "{took:?}"
    );
    assert!(
        lazy.log().contains("the storage node does not answer"),
        "{}",
        lazy.log()
    );
    // Nothing is broken by that: the server lives, and the next read works.
    lazy.pages.resume();
    assert_eq!(lazy.psql("postgres", "SELECT count(*) FROM b"), "20000");
}

#[test]
fn a_cancelled_query_stops_waiting_for_storage() {
    let directory = directory();
    let lazy = lazy_small(directory.path(), 0);
    // Not gone, but silent: the connection stands and nothing comes.
    lazy.pages.faults.mute.store(true, Ordering::SeqCst);
    let began = Instant::now();
    let error = lazy_query(
        directory.path(),
        "SET statement_timeout = 700; SELECT count(*) FROM b",
    );
    let took = began.elapsed();
    assert!(error.contains("ERROR"), "{error}");
    assert!(took < Duration::from_secs(3), "{took:?}: {error}");
    lazy.pages.faults.mute.store(false, Ordering::SeqCst);
    assert_eq!(lazy.psql("postgres", "SELECT count(*) FROM b"), "20000");
}

#[test]
fn a_page_that_storage_refuses_is_an_error_and_says_why() {
    let directory = directory();
    let lazy = lazy_small(directory.path(), 0);
    lazy.pages.faults.refuse.store(true, Ordering::SeqCst);
    let error = lazy_query(directory.path(), "SELECT count(*) FROM b");
    assert!(error.contains("Input/output error"), "{error}");
    assert!(lazy.log().contains("told to refuse"));
    lazy.pages.faults.refuse.store(false, Ordering::SeqCst);
    assert_eq!(lazy.psql("postgres", "SELECT count(*) FROM b"), "20000");
}
