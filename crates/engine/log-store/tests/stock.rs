//! Against stock PostgreSQL: receive from it as a synchronous standby, serve `pg_receivewal` and a
//! stock standby.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use log_store::{LogStore, LogStoreOptions, Primary, ReplicationServer, SeedLog, seed};
use pg_client::PgClient;
use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId};
use testkit::{PgBinaries, StockServer};

const PORT: u16 = 6001;

fn primary_settings() -> Vec<(&'static str, &'static str)> {
    vec![
        ("synchronous_standby_names", "ANY 1 (store)"),
        ("max_wal_senders", "10"),
        ("wal_keep_size", "64MB"),
    ]
}

/// A stopped cluster's WAL as the seed of a store in `dir`.
fn seed_from(pgdata: &Path, controldata: Command, dir: &Path) {
    let end = shutdown_end(pgdata, controldata);
    seed(dir, &end).unwrap();
}

fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_once(':').unwrap().1.trim()
}

/// Where a cleanly stopped cluster's WAL ends: behind its shutdown checkpoint.
fn shutdown_end(pgdata: &Path, mut controldata: Command) -> SeedLog {
    let output = controldata.arg("-D").arg(pgdata).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let checkpoint: Lsn = field(&text, "Latest checkpoint location").parse().unwrap();
    let size = SegmentSize::DEFAULT;
    let timeline = TimelineId(
        field(&text, "Latest checkpoint's TimeLineID")
            .parse()
            .unwrap(),
    );
    let number = size.segment_of(checkpoint);
    let segment = pgdata.join("pg_wal").join(size.file_name(timeline, number));
    let bytes = std::fs::read(&segment).unwrap();
    let mut stream = pg_wal::WalStream::new(checkpoint, PgMajor::V15, size);
    stream
        .push(checkpoint, &bytes[size.offset_of(checkpoint) as usize..])
        .unwrap();
    let end = stream.next_record().unwrap().unwrap().end;
    SeedLog {
        system_identifier: field(&text, "Database system identifier").parse().unwrap(),
        major: PgMajor::V15,
        segment_size: size,
        timeline,
        history_text: String::new(),
        segments: vec![segment],
        end,
    }
}

struct Bench {
    primary: StockServer,
    store_dir: PathBuf,
    root: PathBuf,
    // Last: fields are dropped in order, and the server must end before its directory goes.
    _root: tempfile::TempDir,
}

/// A running primary whose WAL up to now is in a seeded store directory.
fn bench() -> Bench {
    let root = tempfile::tempdir().unwrap();
    std::fs::set_permissions(
        root.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let binaries = PgBinaries::find(15).unwrap();
    let path = root.path().to_owned();
    let mut primary =
        StockServer::init(binaries, &path.join("primary"), &[], &primary_settings()).unwrap();
    primary.start().unwrap();
    primary
        .psql(
            "postgres",
            "SET synchronous_commit = local; CREATE TABLE t (n int)",
        )
        .unwrap();
    primary.stop().unwrap();
    let store_dir = path.join("store");
    seed_from(
        &primary.data_dir(),
        primary.command("pg_controldata").unwrap(),
        &store_dir,
    );
    primary.start().unwrap();
    Bench {
        _root: root,
        primary,
        store_dir,
        root: path,
    }
}

impl Bench {
    fn options(&self) -> LogStoreOptions {
        LogStoreOptions {
            name: "store".to_owned(),
            dir: self.store_dir.clone(),
            quorum: 1,
            peers: Vec::new(),
        }
    }

    fn source(&self) -> Primary {
        Primary {
            host: self.primary.socket_dir().display().to_string(),
            port: self.primary.port(),
            user: "postgres".to_owned(),
            slot: String::new(),
            timeline: TimelineId(1),
        }
    }

    fn flush_lsn(&self) -> Lsn {
        self.primary
            .psql("postgres", "SELECT pg_current_wal_flush_lsn()")
            .unwrap()
            .parse()
            .unwrap()
    }
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "{what} did not happen within 30 s"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn commits_wait_for_the_store_and_every_client_reads_what_it_has() {
    let bench = bench();
    let (store, torn) = LogStore::open(bench.options()).unwrap();
    assert_eq!(torn, None);
    let server = ReplicationServer::start(&store, &bench.root, PORT, Some("127.0.0.1:0")).unwrap();
    store.receive(bench.source()).unwrap();

    // Synchronous commits: each returns only after the store has it.
    for n in 0..50 {
        bench
            .primary
            .psql("postgres", &format!("INSERT INTO t VALUES ({n})"))
            .unwrap();
    }
    bench
        .primary
        .psql(
            "postgres",
            "INSERT INTO t SELECT generate_series(50, 300000)",
        )
        .unwrap();
    bench
        .primary
        .psql("postgres", "SELECT pg_switch_wal()")
        .unwrap();
    bench
        .primary
        .psql("postgres", "INSERT INTO t VALUES (-1)")
        .unwrap();
    let end = bench.flush_lsn();
    eventually("receiving everything", || store.status().quorum >= end);

    // Our own client, over TCP.
    let address = server.tcp_address().unwrap();
    let mut client =
        PgClient::connect("127.0.0.1", address.port(), "anybody", "", &[], true).unwrap();
    let identity = client.identify_system().unwrap();
    assert_eq!(identity.timeline, TimelineId(1));
    assert!(identity.flushed >= end);
    assert_eq!(
        client
            .simple_query("SHOW wal_segment_size")
            .unwrap()
            .value(0),
        Some("16MB")
    );
    assert!(
        client.simple_query("SELECT 1").is_err(),
        "SQL is refused, the session goes on"
    );
    assert_eq!(
        client
            .simple_query("SHOW data_directory_mode")
            .unwrap()
            .value(0),
        Some("0700")
    );

    // pg_receivewal writes the same files that the primary has.
    let received = bench.root.join("received");
    std::fs::create_dir(&received).unwrap();
    let output = Command::new(
        PgBinaries::find(15)
            .unwrap()
            .program("pg_receivewal")
            .unwrap(),
    )
    .args([
        "-h",
        bench.root.to_str().unwrap(),
        "-p",
        &PORT.to_string(),
        "-U",
        "x",
        "-D",
    ])
    .arg(&received)
    .args(["-E", &end.to_string(), "--no-loop", "-S", "some_slot"])
    .output()
    .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut compared = 0;
    for entry in std::fs::read_dir(&received).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let theirs = bench
            .primary
            .data_dir()
            .join("pg_wal")
            .join(name.trim_end_matches(".partial"));
        let (received, primary) = (
            std::fs::read(received.join(&name)).unwrap(),
            std::fs::read(theirs).unwrap(),
        );
        let size = SegmentSize::DEFAULT;
        let (_, number) = size
            .parse_file_name(name.trim_end_matches(".partial"))
            .unwrap();
        let used = end.since(size.start_of(number)).min(size.bytes()) as usize;
        assert!(
            received[..used] == primary[..used],
            "{name} differs from the primary's"
        );
        compared += 1;
    }
    assert!(compared >= 2, "more than one segment was received");

    // pg_waldump reads the store's own files.
    let (oldest, last) = (store.status().oldest, store.status().last_record);
    let dump = Command::new(PgBinaries::find(15).unwrap().program("pg_waldump").unwrap())
        .arg("-p")
        .arg(&bench.store_dir)
        .args([
            "-s",
            &oldest.advance(0x28).to_string(),
            "-e",
            &last.to_string(),
            "-q",
        ])
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&dump.stderr);
    assert!(
        dump.status.success() || complaint.contains("contrecord"),
        "{complaint}"
    );
}

#[test]
fn a_stock_standby_follows_the_store() {
    let bench = bench();
    let (store, _) = LogStore::open(bench.options()).unwrap();
    let server = ReplicationServer::start(&store, &bench.root, PORT, Some("127.0.0.1:0")).unwrap();
    store.receive(bench.source()).unwrap();
    bench
        .primary
        .psql("postgres", "INSERT INTO t SELECT generate_series(1, 1000)")
        .unwrap();

    // Within the server's directory, where its user may write; the socket goes there too.
    let data = bench.primary.socket_dir().join("standby");
    let standby_dir = data.clone();
    let mut backup = bench.primary.client("pg_basebackup").unwrap();
    let output = backup
        .arg("-D")
        .arg(&data)
        .args(["-c", "fast", "-X", "none"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let conninfo = format!(
        "host=127.0.0.1 port={} user=x",
        server.tcp_address().unwrap().port()
    );
    let settings = format!(
        "primary_conninfo = '{conninfo}'\nprimary_slot_name = 'standby'\n\
         unix_socket_directories = '{}'\nsynchronous_standby_names = ''\n",
        standby_dir.display()
    );
    let conf = data.join("postgresql.conf");
    let text = std::fs::read_to_string(&conf).unwrap();
    std::fs::write(&conf, text + &settings).unwrap();
    std::fs::write(data.join("standby.signal"), "").unwrap();
    let log = std::fs::File::create(bench.root.join("standby.log")).unwrap();
    let mut standby = bench.primary.command("postgres").unwrap();
    let standby = standby
        .arg("-D")
        .arg(&data)
        .args(["-p", "5432"])
        .stderr(log)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let _standby = KilledOnDrop(standby);
    for n in 0..20 {
        bench
            .primary
            .psql("postgres", &format!("INSERT INTO t VALUES (-{n})"))
            .unwrap();
    }
    let expected = bench
        .primary
        .psql("postgres", "SELECT count(*), sum(n) FROM t")
        .unwrap();
    let ask = |sql: &str| -> Option<String> {
        let host = standby_dir.to_str().unwrap();
        let mut client = PgClient::connect(host, 5432, "postgres", "postgres", &[], false).ok()?;
        let result = client.simple_query(sql).ok()?;
        Some(format!("{}|{}", result.value(0)?, result.value(1)?))
    };
    let log = bench.root.join("standby.log");
    eventually("the standby's catching up", || {
        let seen = ask("SELECT count(*), sum(n) FROM t");
        if seen.as_deref() != Some(expected.as_str()) && std::env::var_os("VERBOSE").is_some() {
            let log = std::fs::read_to_string(&log).unwrap();
            let lines = log.lines().filter(|line| !line.contains("starting up"));
            eprintln!("{seen:?} {}", lines.collect::<Vec<_>>().join("\n"));
        }
        seen.as_deref() == Some(expected.as_str())
    });
}

const CHILD: &str = "STRANDLINE_TEST_RECEIVE";

/// Not a test of its own: the log store process that is killed.
#[test]
fn child_receives() {
    let Some(config) = std::env::var_os(CHILD) else {
        return;
    };
    let config = config.into_string().unwrap();
    let (dir, host) = config.split_once('|').unwrap();
    let options = LogStoreOptions {
        name: "store".to_owned(),
        dir: PathBuf::from(dir),
        quorum: 1,
        peers: Vec::new(),
    };
    let (store, _) = LogStore::open(options).unwrap();
    let primary = Primary {
        host: host.to_owned(),
        port: 5432,
        user: "postgres".to_owned(),
        slot: String::new(),
        timeline: TimelineId(1),
    };
    store.receive(primary).unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn commits_that_returned_are_in_a_store_that_was_killed() {
    let bench = bench();
    bench
        .primary
        .psql(
            "postgres",
            "SET synchronous_commit = local; CREATE TABLE load (n int)",
        )
        .unwrap();
    let host = bench.primary.socket_dir().display().to_string();
    let config = format!("{}|{host}", bench.store_dir.display());
    let stop = std::sync::atomic::AtomicBool::new(false);
    let stopped = || stop.load(std::sync::atomic::Ordering::SeqCst);
    let acknowledged = std::sync::Mutex::new((Lsn(0), 0u64));
    std::thread::scope(|scope| {
        // Bulk beside the small commits, so that kills hit batches of every size.
        scope.spawn(|| {
            let mut client =
                PgClient::connect(&host, 5432, "postgres", "postgres", &[], false).unwrap();
            while !stopped() {
                client
                    .simple_query("INSERT INTO load SELECT generate_series(1, 3000)")
                    .unwrap();
            }
        });
        scope.spawn(|| {
            let mut client =
                PgClient::connect(&host, 5432, "postgres", "postgres", &[], false).unwrap();
            while !stopped() {
                let before = client
                    .simple_query("SELECT pg_current_wal_insert_lsn()")
                    .unwrap();
                client.simple_query("INSERT INTO t VALUES (1)").unwrap();
                // The commit record lies behind this position.
                let mut seen = acknowledged.lock().unwrap();
                *seen = (before.value(0).unwrap().parse().unwrap(), seen.1 + 1);
            }
        });
        for round in 0..10u64 {
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["child_receives", "--exact"])
                .env(CHILD, &config)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let child = KilledOnDrop(child);
            let before = acknowledged.lock().unwrap().1;
            eventually("commits", || acknowledged.lock().unwrap().1 > before + 5);
            std::thread::sleep(Duration::from_millis(13 * round));
            drop(child);
            // Read after the kill: whatever returned until now was acknowledged by the dead process.
            let returned = acknowledged.lock().unwrap().0;
            let (store, _) = LogStore::open(bench.options()).unwrap();
            let status = store.status();
            assert!(
                status.flushed > returned,
                "{} but {returned} returned",
                status.flushed
            );
            assert!(
                status.record_end > returned,
                "{} but {returned}",
                status.record_end
            );
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        // Both clients may be waiting for their commit: let it through.
        let (store, _) = LogStore::open(bench.options()).unwrap();
        store.receive(bench.source()).unwrap();
        let end = bench.flush_lsn();
        eventually("receiving the rest", || store.status().flushed >= end);
        std::thread::sleep(Duration::from_millis(300));
        let status = store.status();
        compare_with_primary(&bench, &store, status.oldest, end);
        store.shutdown();
        bench
            .primary
            .psql(
                "postgres",
                "ALTER SYSTEM SET synchronous_standby_names = ''",
            )
            .unwrap();
        bench
            .primary
            .psql("postgres", "SELECT pg_reload_conf()")
            .unwrap();
    });
}

fn compare_with_primary(bench: &Bench, store: &LogStore, from: Lsn, end: Lsn) {
    let size = SegmentSize::DEFAULT;
    let mut at = from;
    while at < end {
        let (timeline, bytes) = store.read_wal(at, 1 << 20).unwrap();
        let number = size.segment_of(at);
        let within = (size.bytes() - size.offset_of(at)).min(bytes.len() as u64);
        let len = within.min(end.since(at)) as usize;
        let path = bench
            .primary
            .data_dir()
            .join("pg_wal")
            .join(size.file_name(timeline, number));
        let theirs = std::fs::read(&path).unwrap();
        let offset = size.offset_of(at) as usize;
        assert!(
            theirs[offset..offset + len] == bytes[..len],
            "WAL differs behind {at}"
        );
        at = at.advance(len as u64);
    }
}

#[test]
fn a_foreign_primary_is_not_received_from() {
    let bench = bench();
    let other = tempfile::tempdir().unwrap();
    let dir = other.path().join("store");
    let mut log = shutdown_end_of_running(&bench);
    log.system_identifier += 1;
    // The WAL's own page headers are not asked: the identity in the state file is.
    seed(&dir, &log).unwrap();
    let (store, _) = LogStore::open(LogStoreOptions {
        dir,
        ..bench.options()
    })
    .unwrap();
    let before = store.status().flushed;
    store.receive(bench.source()).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(!store.status().receiving);
    assert_eq!(store.status().flushed, before);
}

fn shutdown_end_of_running(bench: &Bench) -> SeedLog {
    let (store, _) = LogStore::open(bench.options()).unwrap();
    let status = store.status();
    let size = SegmentSize::DEFAULT;
    let number = size.segment_of(Lsn(status.flushed.0 - 1));
    SeedLog {
        system_identifier: status.system_identifier,
        major: PgMajor::V15,
        segment_size: size,
        timeline: status.timeline,
        history_text: String::new(),
        segments: vec![
            bench
                .store_dir
                .join(size.file_name(status.timeline, number)),
        ],
        end: status.flushed,
    }
}
