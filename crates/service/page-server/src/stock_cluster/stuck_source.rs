//! A log store that keeps the connection alive and serves nothing.
//!
//! Found by the kill test with three log stores: all services were killed at once, one store came back
//! after the next timeline had begun on the other two, and the storage node happened to stream from it.
//! The server that was to start waited for its skeleton for good, and only that server would have told
//! the store of the timeline.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use api::storage::{StorageRequest, StorageResponse, WalSource};
use pg_types::Lsn;

use super::live::{ask, config};
use super::{import, workload};
use crate::node::StorageNode;

/// Tag of CopyBothResponse: streaming begins.
const COPY_BOTH: u8 = b'W';

/// Serves on `dir`'s socket what `server` says, until streaming begins; from then on only keepalives.
fn stuck_in_front_of(server: PathBuf, dir: &Path) -> WalSource {
    let port = 5432;
    let listener = UnixListener::bind(dir.join(format!(".s.PGSQL.{port}"))).unwrap();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = UnixStream::connect(&server).unwrap();
            let (mut requests, mut to_server) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut requests, &mut to_server));
            thread::spawn(move || answer(server, client));
        }
    });
    WalSource {
        host: dir.display().to_string(),
        port,
    }
}

fn answer(mut server: UnixStream, mut client: UnixStream) -> io::Result<()> {
    loop {
        let mut head = [0; 5];
        server.read_exact(&mut head)?;
        let [tag, len @ ..] = head;
        let mut body = vec![0; u32::from_be_bytes(len) as usize - 4];
        server.read_exact(&mut body)?;
        client.write_all(&head)?;
        client.write_all(&body)?;
        if tag == COPY_BOTH {
            break;
        }
    }
    loop {
        thread::sleep(Duration::from_millis(50));
        // CopyData of a keepalive: end of WAL u64, time u64, reply requested u8.
        let mut keepalive = vec![b'd', 0, 0, 0, 22, b'k'];
        keepalive.extend_from_slice(&[0; 17]);
        client.write_all(&keepalive)?;
    }
}

#[test]
fn a_log_store_that_serves_nothing_does_not_hold_up_a_skeleton() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = workload::server(15, dir.path(), false);
    server.start().unwrap();
    server
        .psql(
            "postgres",
            "CREATE ROLE strandline_replication LOGIN REPLICATION",
        )
        .unwrap();
    server.stop().unwrap();
    let mut config = config(dir.path(), &server);
    import(&server, &config.dir);
    server.start().unwrap();
    let stuck = dir.path().join("stuck");
    std::fs::create_dir(&stuck).unwrap();
    let socket = server
        .socket_dir()
        .join(format!(".s.PGSQL.{}", server.port()));
    config
        .log_stores
        .insert(0, stuck_in_front_of(socket, &stuck));

    let node = StorageNode::start(&config).unwrap();
    server
        .psql("postgres", "CREATE TABLE t AS SELECT 1 AS i")
        .unwrap();
    let lsn: Lsn = server
        .psql("postgres", "SELECT pg_current_wal_flush_lsn()")
        .unwrap()
        .parse()
        .unwrap();
    let answer = ask(
        &config,
        &StorageRequest::Skeleton {
            lsn,
            wait_ms: 15_000,
        },
    );
    assert!(matches!(answer, StorageResponse::Skeleton(_)), "{answer:?}");
    node.stop().unwrap();
    server.stop().unwrap();
}
