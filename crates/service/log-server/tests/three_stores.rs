//! Three log store processes and a quorum of two, against a stock primary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use api::log::{LogPeer, LogRequest, LogResponse, LogStatus, LogStoreConfig, PrimaryAddress};
use log_store::{SeedLog, seed};
use pg_client::{PgClient, StreamEvent};
use pg_types::{Lsn, PgMajor, SegmentSize, TimelineId};
use pg_wal::{PlacedRecord, RmgrId, WalGeometry, WalStream, encode_record, place_record};
use rpc::{Client, Endpoint};
use testkit::{PgBinaries, StockServer};

const CHILD: &str = "STRANDLINE_TEST_LOG_STORE";

/// Not a test of its own: one log store process.
#[test]
fn child_runs_a_store() {
    let Some(config) = std::env::var_os(CHILD) else {
        return;
    };
    let config: LogStoreConfig = serde_json::from_str(config.to_str().unwrap()).unwrap();
    log_server::run(config).unwrap();
}

struct Store {
    config: LogStoreConfig,
    child: Option<Child>,
}

impl Store {
    fn start(&mut self) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["child_runs_a_store", "--exact", "--nocapture"])
            .env(CHILD, serde_json::to_string(&self.config).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        eventually("the store's answer", || {
            let mut client = Client::lazy(&self.config.control, Duration::from_secs(1));
            client
                .call::<_, LogResponse>(&LogRequest::Status, &[])
                .is_ok()
        });
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn call(&self, request: &LogRequest, bytes: &[u8]) -> (LogResponse, Vec<u8>) {
        let mut client = Client::connect(&self.config.control, Duration::from_secs(10)).unwrap();
        client.call(request, bytes).unwrap()
    }

    fn ask(&self, request: &LogRequest, bytes: &[u8]) -> LogStatus {
        match self.call(request, bytes) {
            (LogResponse::Status(status), _) => status,
            (other, _) => panic!("{request:?} was answered by {other:?}"),
        }
    }

    fn status(&self) -> LogStatus {
        self.ask(&LogRequest::Status, &[])
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.kill();
    }
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "{what} did not happen within 30 s"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn seed_log(primary: &StockServer) -> SeedLog {
    let mut control = primary.command("pg_controldata").unwrap();
    let output = control.arg("-D").arg(primary.data_dir()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_once(':').unwrap().1.trim().to_owned()
    };
    let checkpoint: Lsn = field("Latest checkpoint location").parse().unwrap();
    let size = SegmentSize::DEFAULT;
    let number = size.segment_of(checkpoint);
    let segment = primary
        .data_dir()
        .join("pg_wal")
        .join(size.file_name(TimelineId(1), number));
    let bytes = std::fs::read(&segment).unwrap();
    let mut stream = WalStream::new(checkpoint, PgMajor::V15, size);
    let offset = usize::try_from(size.offset_of(checkpoint)).unwrap();
    stream.push(checkpoint, &bytes[offset..]).unwrap();
    SeedLog {
        system_identifier: field("Database system identifier").parse().unwrap(),
        major: PgMajor::V15,
        segment_size: size,
        timeline: TimelineId(1),
        history_text: String::new(),
        segments: vec![segment],
        end: stream.next_record().unwrap().unwrap().end,
    }
}

fn control(root: &Path, index: usize) -> Endpoint {
    Endpoint::Unix(root.join(format!("{index}.ctl")))
}

fn stores(root: &Path, log: &SeedLog) -> Vec<Store> {
    (0..3)
        .map(|index| {
            let dir: PathBuf = root.join(format!("log-{index}"));
            seed(&dir, log).unwrap();
            let peers = (0..3).filter(|peer| *peer != index).map(|peer| LogPeer {
                name: format!("store_{peer}"),
                control: control(root, peer),
                replication_host: root.display().to_string(),
                replication_port: 7000 + u16::try_from(peer).unwrap(),
            });
            let config = LogStoreConfig {
                name: format!("store_{index}"),
                dir,
                control: control(root, index),
                replication_socket_dir: root.to_owned(),
                replication_port: 7000 + u16::try_from(index).unwrap(),
                replication_listen: None,
                quorum: 2,
                peers: peers.collect(),
            };
            let mut store = Store {
                config,
                child: None,
            };
            store.start();
            store
        })
        .collect()
}

fn receive(store: &Store, host: &Path, port: u16, timeline: u32) {
    let primary = PrimaryAddress {
        host: host.display().to_string(),
        port,
        user: "postgres".to_owned(),
        slot: String::new(),
        timeline: TimelineId(timeline),
    };
    store.ask(&LogRequest::Receive { primary }, &[]);
}

#[test]
fn a_quorum_of_two_survives_kills_and_a_laggard_catches_up_from_its_peers() {
    let root = tempfile::tempdir().unwrap();
    std::fs::set_permissions(
        root.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let settings = [(
        "synchronous_standby_names",
        "ANY 2 (store_0, store_1, store_2)",
    )];
    let mut primary = StockServer::init(
        PgBinaries::find(15).unwrap(),
        &root.path().join("primary"),
        &[],
        &settings,
    )
    .unwrap();
    primary.start().unwrap();
    let local = "SET synchronous_commit = local; CREATE TABLE t (n int)";
    primary.psql("postgres", local).unwrap();
    primary.stop().unwrap();
    let log = seed_log(&primary);
    let mut stores = stores(root.path(), &log);
    primary.start().unwrap();
    for store in &stores {
        receive(store, primary.socket_dir(), primary.port(), 1);
    }
    let commit = |rows: u32| {
        let sql = format!("INSERT INTO t SELECT generate_series(1, {rows})");
        primary.psql("postgres", &sql).unwrap();
    };
    let flushed = || -> Lsn {
        let text = primary
            .psql("postgres", "SELECT pg_current_wal_flush_lsn()")
            .unwrap();
        text.parse().unwrap()
    };
    commit(1000);
    let end = flushed();
    for store in &stores {
        eventually("every store's quorum LSN", || store.status().quorum >= end);
    }

    // Any one may die: commits go on, and it comes back to where the others are.
    for victim in [0, 1, 2] {
        stores[victim].kill();
        commit(500);
        stores[victim].start();
        receive(&stores[victim], primary.socket_dir(), primary.port(), 1);
        let end = flushed();
        eventually("the victim's return", || {
            stores[victim].status().quorum >= end
        });
    }

    // The third store sleeps through WAL and the switch to timeline 2.
    stores[2].kill();
    commit(200_000);
    let end = flushed();
    for store in &stores[..2] {
        eventually("both survivors' WAL", || store.status().flushed >= end);
    }
    primary.crash().unwrap();
    let history = begin_timeline_2(&stores[..2], &log);
    let ahead = stores[0].status();
    assert_eq!(
        (ahead.timeline, &ahead.history_text),
        (TimelineId(2), &history)
    );
    eventually("the new timeline's quorum LSN", || {
        stores[0].status().quorum == ahead.record_end
    });

    // A log store serves as any primary would: the laggard is told to follow it.
    stores[2].start();
    assert_eq!(stores[2].status().timeline, TimelineId(1));
    receive(&stores[2], root.path(), 7000, 2);
    eventually("the laggard's catching up", || {
        let status = stores[2].status();
        status.timeline == TimelineId(2) && status.record_end == ahead.record_end
    });
    let caught_up = stores[2].status();
    assert_eq!(caught_up.history, ahead.history);
    assert_eq!(caught_up.last_record, ahead.last_record);
    let from = log.end.0 / (16 << 20) * (16 << 20);
    let read = |store: &Store| {
        let (mut at, mut all) = (Lsn(from), Vec::new());
        while at < ahead.record_end {
            let request = LogRequest::ReadWal {
                from: at,
                max_bytes: 1 << 20,
            };
            let (response, bytes) = store.call(&request, &[]);
            assert!(matches!(response, LogResponse::Wal { .. }), "{response:?}");
            at = at.advance(bytes.len() as u64);
            all.extend(bytes);
        }
        all
    };
    assert!(
        read(&stores[0]) == read(&stores[2]),
        "both have the same WAL"
    );

    // SIGTERM ends it cleanly.
    let child = stores[0].child.take().unwrap();
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A cluster that was stopped, and its log in three stores.
fn stopped_cluster(root: &Path) -> (SeedLog, Vec<Store>) {
    let mut primary = StockServer::init(
        PgBinaries::find(15).unwrap(),
        &root.join("primary"),
        &[],
        &[],
    )
    .unwrap();
    primary.start().unwrap();
    primary.stop().unwrap();
    let log = seed_log(&primary);
    let stores = stores(root, &log);
    (log, stores)
}

/// A record of timeline `timeline` at `at`.
fn record(log: &SeedLog, timeline: u32, at: Lsn, prev: Lsn) -> PlacedRecord {
    let geometry = WalGeometry {
        major: log.major,
        system_identifier: log.system_identifier,
        segment_size: log.segment_size,
        timeline: TimelineId(timeline),
    };
    let payload = [u8::try_from(timeline).unwrap(); 88];
    place_record(
        at,
        &encode_record(RmgrId::XLOG, 0x20, 0, prev, &payload),
        &geometry,
    )
}

fn promise(stores: &[&Store], timeline: u32) {
    let timeline = TimelineId(timeline);
    for store in stores {
        store.ask(&LogRequest::Promise { timeline }, &[]);
    }
}

fn begin(timeline: u32, parent: u32, switch_at: Lsn, history: &str) -> LogRequest {
    LogRequest::BeginTimeline {
        timeline: TimelineId(timeline),
        parent: TimelineId(parent),
        switch_at,
        history: history.to_owned(),
    }
}

/// Starts that die half-way, and majorities that differ: what the second one copied to a quorum must
/// not count, because the third one, with another majority, chooses a history without it.
#[test]
fn what_a_dead_start_copied_does_not_count() {
    let root = tempfile::tempdir().unwrap();
    std::fs::set_permissions(
        root.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let (log, stores) = stopped_cluster(root.path());
    let [a, b, c] = [&stores[0], &stores[1], &stores[2]];
    for store in [a, b, c] {
        eventually("the seed's quorum", || store.status().quorum == log.end);
    }
    let last_record = a.status().last_record;

    // The first start begins timeline 2 on one store.
    promise(&[b, c], 2);
    let history_2 = format!("1\t{}\tbegun by a test\n", log.end);
    let orphan = record(&log, 2, log.end, last_record);
    c.ask(&begin(2, 1, log.end, &history_2), &orphan.bytes);

    // The second one does not see that store; the history that it chooses gets to a quorum.
    promise(&[a, b], 3);
    let tail = record(&log, 1, log.end, last_record);
    for store in [a, b] {
        let copy = LogRequest::WriteWal {
            promised: TimelineId(3),
            timeline: TimelineId(1),
            at: log.end,
            history: String::new(),
        };
        assert_eq!(store.ask(&copy, &tail.bytes).record_end, tail.end);
    }
    // Ample for stores that hear of each other within milliseconds.
    std::thread::sleep(Duration::from_millis(1500));
    for store in [a, b, c] {
        assert_eq!(store.status().quorum, log.end);
    }

    // The third one sees timeline 2, and continues it.
    promise(&[b, c], 4);
    let copy = LogRequest::WriteWal {
        promised: TimelineId(4),
        timeline: TimelineId(2),
        at: log.end,
        history: history_2.clone(),
    };
    assert_eq!(b.ask(&copy, &orphan.bytes).record_end, orphan.end);
    let history_4 = format!("{history_2}2\t{}\tbegun by a test\n", orphan.end);
    let begin_4 = begin(4, 2, orphan.end, &history_4);
    for store in [b, c] {
        store.ask(&begin_4, &[]);
    }
    for store in [b, c] {
        eventually("the begin's quorum", || store.status().quorum == orphan.end);
    }
    // A reader gets up to the begin, but hears of timeline 4 only when a quorum has a record of it.
    let host = root.path().to_str().unwrap();
    let parameters = [("application_name", "strandline_storage")];
    let reader = PgClient::connect(host, 7001, "reader", "", &parameters, true).unwrap();
    let mut stream = reader
        .start_replication(None, orphan.end, TimelineId(2))
        .unwrap();
    let event = stream.next(Duration::from_millis(500)).unwrap();
    assert!(matches!(event, StreamEvent::Idle), "{event:?}");
    let first = record(&log, 4, orphan.end, orphan.start);
    for store in [b, c] {
        let status = store.ask(&begin_4, &first.bytes);
        assert_eq!(status.record_end, first.end);
    }
    let event = stream.next(Duration::from_secs(10)).unwrap();
    assert!(
        matches!(event, StreamEvent::EndOfTimeline { next: TimelineId(4), at } if at == orphan.end),
        "{event:?}"
    );

    // The store that slept drops what the second start left there.
    receive(a, root.path(), 7001, 4);
    eventually("the sleeper's quorum", || a.status().quorum == first.end);
    let read = |store: &Store| {
        let request = LogRequest::ReadWal {
            from: log.end,
            max_bytes: 1 << 20,
        };
        store.call(&request, &[]).1
    };
    assert_eq!(read(a), read(b));
    assert_eq!(read(a), [orphan.bytes, first.bytes].concat());
}

/// What the compute manager does; returns the new timeline's history.
fn begin_timeline_2(survivors: &[Store], log: &SeedLog) -> String {
    let timeline = TimelineId(2);
    let promised: Vec<LogStatus> = survivors
        .iter()
        .map(|store| store.ask(&LogRequest::Promise { timeline }, &[]))
        .collect();
    let chosen = promised
        .iter()
        .max_by_key(|it| (it.timeline, it.record_end))
        .unwrap();
    let switch_at = chosen.record_end;
    let source = promised
        .iter()
        .position(|it| it.record_end == switch_at)
        .unwrap();
    for (store, status) in survivors.iter().zip(&promised) {
        if status.record_end == switch_at {
            continue;
        }
        let from = status.flushed.min(switch_at);
        let max_bytes = u32::try_from(switch_at.since(from)).unwrap();
        let (_, bytes) = survivors[source].call(&LogRequest::ReadWal { from, max_bytes }, &[]);
        let request = LogRequest::WriteWal {
            promised: timeline,
            timeline: TimelineId(1),
            at: from,
            history: String::new(),
        };
        store.ask(&request, &bytes);
    }
    let geometry = WalGeometry {
        major: log.major,
        system_identifier: log.system_identifier,
        segment_size: log.segment_size,
        timeline,
    };
    let record = encode_record(RmgrId::XLOG, 0x20, 0, chosen.last_record, &[7; 88]);
    let placed = place_record(switch_at, &record, &geometry);
    let history = format!("1\t{switch_at}\tbegun by a test\n");
    for store in survivors {
        let request = LogRequest::BeginTimeline {
            timeline,
            parent: TimelineId(1),
            switch_at,
            history: history.clone(),
        };
        let status = store.ask(&request, &placed.bytes);
        assert_eq!(status.record_end, placed.end);
        let late = LogRequest::Promise {
            timeline: TimelineId(1),
        };
        let (refused, _) = store.call(&late, &[]);
        let fenced =
            matches!(refused, LogResponse::Refused { fenced_by: Some(by), .. } if by == timeline);
        assert!(fenced, "{refused:?}");
    }
    history
}
