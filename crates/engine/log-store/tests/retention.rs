//! Which WAL is removed: what the storage node has made its own, less a segment, and nothing that
//! anybody may still need.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod tape;

use std::path::Path;
use std::time::Duration;

use log_store::{LogStore, LogStoreOptions, Peer, ReplicationServer};
use pg_client::{PgClient, StreamEvent};
use pg_types::{Lsn, TimelineId};

use tape::{SIZE, begin, seeded, size, write};

const PORT: u16 = 6001;

struct Bench {
    store: LogStore,
    /// Where timeline 1 ends.
    switch: Lsn,
    end: Lsn,
    dir: tempfile::TempDir,
    _server: ReplicationServer,
}

/// A store with seven segments of WAL, all of which counts, and a replication server.
fn bench(peers: &[&str]) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let mut tape = seeded(dir.path());
    let (store, _) = LogStore::open(LogStoreOptions {
        name: "store".to_owned(),
        dir: dir.path().join("store"),
        quorum: 1,
        peers: peers
            .iter()
            .map(|name| Peer {
                name: (*name).to_owned(),
                host: "/nowhere".to_owned(),
                port: 1,
            })
            .collect(),
    })
    .unwrap();
    while tape.at < Lsn(7 * SIZE + 5000) {
        write(&store, &mut tape, 200_000).unwrap();
    }
    let switch = tape.at;
    tape.timeline = store.status().promised;
    let first = tape.record(88);
    begin(&store, switch, &first);
    let server = ReplicationServer::start(&store, dir.path(), PORT, None).unwrap();
    Bench {
        store,
        switch,
        end: tape.at,
        dir,
        _server: server,
    }
}

impl Bench {
    /// Connects as `name`, reports `flush` and has it heard.
    fn report(&self, name: &str, flush: Lsn) {
        let host = self.dir.path().to_str().unwrap();
        let parameters = [("application_name", name)];
        let client = PgClient::connect(host, PORT, "anyone", "", &parameters, true).unwrap();
        let mut stream = client
            .start_replication(None, Lsn(self.switch.0 - 1), TimelineId(1))
            .unwrap();
        stream.send_status(flush, flush, flush).unwrap();
        // The store completes the command only after it has heard everything before our CopyDone.
        while !matches!(
            stream.next(Duration::from_secs(10)).unwrap(),
            StreamEvent::EndOfTimeline { .. }
        ) {}
    }

    fn oldest(&self) -> u64 {
        size().segment_of(self.store.status().oldest)
    }

    /// Numbers of the segments that there are files of.
    fn segments(&self) -> Vec<u64> {
        let mut found: Vec<u64> = files(&self.dir.path().join("store"))
            .iter()
            .filter(|name| name.len() == 24)
            .map(|name| u64::from_str_radix(&name[16..], 16).unwrap())
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn files(dir: &Path) -> Vec<String> {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn nothing_goes_before_the_storage_node_has_reported() {
    let bench = bench(&[]);
    bench.report("pg_receivewal", bench.end);
    assert_eq!(bench.oldest(), 1);
    bench.report("strandline_storage", Lsn(0));
    assert_eq!(bench.oldest(), 1, "a report of nothing is none");
    assert_eq!(bench.segments().first(), Some(&1));
}

#[test]
fn what_the_storage_node_has_goes_but_for_one_segment() {
    let bench = bench(&[]);
    bench.report("strandline_storage", Lsn(5 * SIZE + 100));
    assert_eq!(bench.oldest(), 4);
    assert_eq!(bench.segments().first(), Some(&4));
    let refused = bench.store.read_wal(Lsn(4 * SIZE - 1), 10).unwrap_err();
    assert!(
        matches!(refused, log_store::StoreError::Removed { oldest, .. } if oldest == Lsn(4 * SIZE)),
        "{refused}"
    );
    assert_eq!(bench.store.read_wal(Lsn(4 * SIZE), 10).unwrap().1.len(), 10);

    // A later report that is lower changes nothing, one beyond the end keeps the end.
    bench.report("strandline_storage", Lsn(2 * SIZE));
    assert_eq!(bench.oldest(), 4);
    bench.report("strandline_storage", Lsn(900 * SIZE));
    assert_eq!(bench.oldest(), size().segment_of(bench.end) - 1);
    let (store, end) = (bench.store.status(), bench.end);
    assert_eq!((store.flushed, store.error), (end, None));
}

#[test]
fn a_peer_that_is_behind_keeps_what_it_needs() {
    let bench = bench(&["other"]);
    bench.report("strandline_storage", bench.end);
    assert_eq!(bench.oldest(), 1, "nobody knows yet what the peer needs");

    let timeline = bench.store.status().timeline;
    bench
        .store
        .note_peer("other", timeline, Lsn(3 * SIZE + 100));
    bench.report("strandline_storage", bench.end);
    assert_eq!(bench.oldest(), 2);

    bench.store.note_peer("other", timeline, bench.end);
    bench.report("strandline_storage", bench.end);
    assert_eq!(bench.oldest(), size().segment_of(bench.end) - 1);
}
