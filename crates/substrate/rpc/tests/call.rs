//! Calls over both kinds of socket, and what a caller learns when they fail.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rpc::{Client, Endpoint, Listener, RpcError, serve};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Ask {
    n: u64,
    sleep_ms: u64,
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Told {
    n: u64,
}

fn handler(ask: Ask, mut attachment: Vec<u8>) -> (Told, Vec<u8>) {
    std::thread::sleep(Duration::from_millis(ask.sleep_ms));
    attachment.reverse();
    (Told { n: ask.n + 1 }, attachment)
}

fn call(client: &mut Client, n: u64, sleep_ms: u64) -> Result<(Told, Vec<u8>), RpcError> {
    client.call(&Ask { n, sleep_ms }, &[1, 2, 3])
}

#[test]
fn answers_over_unix_and_tcp_then_stops() {
    let dir = tempfile::tempdir().unwrap();
    for endpoint in [
        Endpoint::Unix(dir.path().join("s")),
        "tcp:127.0.0.1:0".parse().unwrap(),
    ] {
        let mut server = serve(Listener::bind(&endpoint).unwrap(), handler).unwrap();
        let endpoint = server.endpoint().clone();
        let mut client = Client::connect(&endpoint, Duration::from_secs(5)).unwrap();
        for n in 0..10 {
            assert_eq!(
                call(&mut client, n, 0).unwrap(),
                (Told { n: n + 1 }, vec![3, 2, 1])
            );
        }
        server.shutdown();
        assert!(matches!(
            call(&mut client, 1, 0),
            Err(RpcError::Closed { .. })
        ));
        let error = call(&mut client, 1, 0).unwrap_err();
        assert!(matches!(error, RpcError::Connect { .. }));
        assert!(error.to_string().contains(&endpoint.to_string()), "{error}");
    }
}

#[test]
fn a_slow_answer_times_out_and_is_not_taken_for_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::Unix(dir.path().join("s"));
    let _server = serve(Listener::bind(&endpoint).unwrap(), handler).unwrap();
    let mut client = Client::connect(&endpoint, Duration::from_millis(50)).unwrap();
    assert!(matches!(
        call(&mut client, 1, 300),
        Err(RpcError::TimedOut { .. })
    ));
    client.set_timeout(Duration::from_secs(5));
    assert_eq!(call(&mut client, 5, 0).unwrap().0, Told { n: 6 });
}

#[test]
fn wrong_requests_and_strangers_get_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::Unix(dir.path().join("s"));
    let _server = serve(Listener::bind(&endpoint).unwrap(), handler).unwrap();
    let mut client = Client::connect(&endpoint, Duration::from_secs(5)).unwrap();
    let error = client.call::<_, Told>(&"nonsense", &[]).unwrap_err();
    assert!(matches!(error, RpcError::Remote { .. }), "{error}");

    let mut stranger = UnixStream::connect(dir.path().join("s")).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(
        std::io::Read::read(&mut stranger, &mut [0; 1]).unwrap_or(0),
        0
    );
    assert_eq!(call(&mut client, 5, 0).unwrap().0, Told { n: 6 });
}

#[test]
fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let endpoint = Endpoint::Unix(path.clone());
    let listener = Listener::bind(&endpoint).unwrap();
    let error = Listener::bind(&endpoint).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    drop(listener);
    assert!(!path.exists());
}
