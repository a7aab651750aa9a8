//! A whole storage node against a stock server that stands in for the log stores: both speak stock
//! replication.

use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use api::storage::{StorageNodeConfig, StorageRequest, StorageResponse, StorageStatus, WalSource};
use pg_types::{BLCKSZ, Lsn};
use rpc::{Connection, Endpoint};
use shim_abi::wire::{
    FRAME_BYTES, GetPages, Hello, HelloReply, PageReply, STATUS_ERROR, STATUS_PAGE, STATUS_RETRY,
    STATUS_ZERO,
};
use testkit::StockServer;

use super::{import, workload};
use crate::node::StorageNode;

pub(super) fn config(dir: &Path, server: &StockServer) -> StorageNodeConfig {
    StorageNodeConfig {
        dir: dir.join("storage"),
        control: Endpoint::Unix(dir.join("control.sock")),
        pages: Endpoint::Unix(dir.join("pages.sock")),
        log_stores: vec![WalSource {
            host: server.socket_dir().display().to_string(),
            port: server.port(),
        }],
        freeze_bytes: 4 << 20,
        cache_bytes: 1 << 20,
    }
}

pub(super) fn ask(config: &StorageNodeConfig, request: &StorageRequest) -> StorageResponse {
    let mut client = rpc::Client::connect(&config.control, Duration::from_secs(30)).unwrap();
    client.call(request, &[]).unwrap().0
}

fn status(config: &StorageNodeConfig) -> StorageStatus {
    match ask(config, &StorageRequest::Status) {
        StorageResponse::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

/// A page client, as the shim is one.
struct PageClient {
    connection: Connection,
}

impl PageClient {
    fn connect(
        config: &StorageNodeConfig,
        system_identifier: u64,
        lsn: Lsn,
    ) -> Result<PageClient, String> {
        let mut connection = Connection::connect(&config.pages, Duration::from_secs(5)).unwrap();
        let hello = Hello {
            system_identifier,
            lsn: lsn.0,
        };
        connection.write_all(&hello.encode()).unwrap();
        let mut frame = [0; FRAME_BYTES];
        connection.read_exact(&mut frame).unwrap();
        let reply = HelloReply::decode(&frame).unwrap();
        let mut message = vec![0; reply.payload as usize];
        connection.read_exact(&mut message).unwrap();
        match reply.status {
            STATUS_PAGE => Ok(PageClient { connection }),
            _ => Err(String::from_utf8(message).unwrap()),
        }
    }

    /// Sends every request before it reads the first reply.
    fn get(&mut self, requests: &[GetPages]) -> Vec<(PageReply, Vec<u8>)> {
        let frames: Vec<u8> = requests.iter().flat_map(GetPages::encode).collect();
        self.connection.write_all(&frames).unwrap();
        let replies: usize = requests
            .iter()
            .map(|request| usize::from(request.count))
            .sum();
        let mut got = Vec::new();
        for _ in 0..replies {
            let mut frame = [0; FRAME_BYTES];
            self.connection.read_exact(&mut frame).unwrap();
            let reply = PageReply::decode(&frame).unwrap();
            let mut payload = vec![0; reply.payload as usize];
            self.connection.read_exact(&mut payload).unwrap();
            got.push((reply, payload));
        }
        got
    }
}

fn wait_applied(config: &StorageNodeConfig, lsn: Lsn) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while status(config).applied < lsn {
        assert!(Instant::now() < deadline, "{:?}", status(config));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_node_follows_serves_and_survives_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = workload::server(15, dir.path(), true);
    server.start().unwrap();
    server
        .psql(
            "postgres",
            "CREATE ROLE strandline_replication LOGIN REPLICATION",
        )
        .unwrap();
    server
        .psql("postgres", "CREATE TABLE t (i int, filler text)")
        .unwrap();
    server.stop().unwrap();
    let config = config(dir.path(), &server);
    let imported = import(&server, &config.dir);
    server.start().unwrap();

    let node = StorageNode::start(&config).unwrap();
    let sql = "INSERT INTO t SELECT i, repeat('y', 500) FROM generate_series(1, 8000) i";
    server.psql("postgres", sql).unwrap();
    let lsn: Lsn = server
        .psql("postgres", "SELECT pg_current_wal_flush_lsn()")
        .unwrap()
        .parse()
        .unwrap();
    wait_applied(&config, lsn);
    let fork = server
        .psql(
            "postgres",
            "SELECT pg_relation_filenode('t'), oid FROM pg_database WHERE datname = 'postgres'",
        )
        .unwrap();
    let (rel, db) = fork.split_once('|').unwrap();
    let (rel, db): (u32, u32) = (rel.parse().unwrap(), db.parse().unwrap());

    // The skeleton at an LSN, and every block it says there is, pipelined.
    let at = status(&config).applied;
    let StorageResponse::Skeleton(skeleton) = ask(
        &config,
        &StorageRequest::Skeleton {
            lsn: at,
            wait_ms: 1000,
        },
    ) else {
        panic!("no skeleton");
    };
    let blocks = skeleton
        .relations
        .iter()
        .find(|relation| {
            relation.fork.locator.rel == rel && relation.fork.fork == pg_types::ForkNumber::Main
        })
        .unwrap()
        .blocks;
    assert!(blocks > 500);
    let request = |first_block: u32, count: u16, lsn: Lsn| GetPages {
        request_id: u64::from(first_block) + 7,
        space: 1663,
        db,
        rel,
        fork: 0,
        first_block,
        count,
        lsn: lsn.0,
    };
    let requests: Vec<GetPages> = (0..blocks / 100)
        .map(|nth| request(nth * 100, 100, at))
        .collect();
    let read = |config: &StorageNodeConfig| {
        let mut client = PageClient::connect(config, imported.system_identifier, at).unwrap();
        let mut pages = client.get(&requests);
        pages.sort_by_key(|(reply, _)| reply.block);
        pages
    };
    let pages = read(&config);
    assert_eq!(pages.len() as u32, blocks / 100 * 100);
    for (block, (reply, page)) in (0..).zip(&pages) {
        assert_eq!(
            (reply.block, reply.status, reply.lsn),
            (block, STATUS_PAGE, at.0)
        );
        assert_eq!(reply.request_id, u64::from(block / 100 * 100) + 7);
        let page = page.first_chunk::<BLCKSZ>().unwrap();
        assert!(pg_page::checksum_matches(page, block), "block {block}");
    }

    // What cannot be answered, says why.
    let mut client = PageClient::connect(&config, imported.system_identifier, at).unwrap();
    let beyond = client.get(&[request(blocks - 1, 2, at)]);
    assert!(beyond.iter().all(|(reply, _)| reply.status == STATUS_ERROR));
    assert!(
        String::from_utf8(beyond[0].1.clone())
            .unwrap()
            .contains(&format!("{blocks} blocks"))
    );
    let future = client.get(&[request(0, 1, Lsn(at.0 + (1 << 40)))]);
    assert_eq!(future[0].0.status, STATUS_RETRY);
    let empty = client.get(&[request(0, 1, imported.lsn)]);
    assert_eq!(
        empty[0].0.status, STATUS_ERROR,
        "the table had no block then"
    );
    let clog = client.get(&[GetPages {
        space: 0,
        db: 0,
        rel: 1,
        ..request(0, 1, at)
    }]);
    assert!(matches!(clog[0].0.status, STATUS_PAGE | STATUS_ZERO));
    let stranger = PageClient::connect(&config, 1, at).err().unwrap();
    assert!(stranger.contains("belongs to cluster 1"), "{stranger}");

    // A crash loses what was in memory; it is streamed again and gives the same.
    drop(node);
    let node = StorageNode::start(&config).unwrap();
    wait_applied(&config, at);
    assert!(read(&config) == pages);
    node.stop().unwrap();
    let node = StorageNode::start(&config).unwrap();
    assert!(
        status(&config).disk_consistent >= at,
        "a stop writes everything out"
    );
    assert!(read(&config) == pages);
    node.stop().unwrap();
}

#[test]
fn a_log_store_of_another_cluster_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, other) = (dir.path().join("mine"), dir.path().join("other"));
    for path in [&mine, &other] {
        std::fs::create_dir_all(path).unwrap();
    }
    testkit::OrdinaryUser::current()
        .unwrap()
        .own(dir.path())
        .unwrap();
    let mut server = workload::server(15, &mine, false);
    let mut stranger = workload::server(15, &other, false);
    server.start().unwrap();
    server.stop().unwrap();
    stranger.start().unwrap();
    stranger
        .psql(
            "postgres",
            "CREATE ROLE strandline_replication LOGIN REPLICATION",
        )
        .unwrap();
    let config = config(dir.path(), &stranger);
    import(&server, &config.dir);
    let node = StorageNode::start(&config).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let error = loop {
        match status(&config).error {
            Some(error) if error.contains("belongs to cluster") => break error,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(error.contains("log_stores"), "{error}");
    drop(node);
}
