//! The answering side: one thread a connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::RpcError;
use crate::frame::{FrameKind, read_frame, write_frame};
use crate::{Connection, Endpoint, Listener};

/// Longest time a client may take to accept an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Most connections served at a time; further ones are closed at once.
const MAX_CONNECTIONS: usize = 256;

/// A running server; dropping it shuts it down.
#[derive(Debug)]
pub struct Server {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    next_id: AtomicU64,
    open: Mutex<HashMap<u64, Connection>>,
}

impl Shared {
    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers every request that arrives at `listener` with `handler`, each connection on a thread of
/// its own. A request that does not decode is answered with a failure frame and the connection is
/// closed.
///
/// # Errors
/// [`RpcError::Listen`] when the accepting thread cannot be started.
pub fn serve<Req, Resp, H>(listener: Listener, handler: H) -> Result<Server, RpcError>
where
    Req: DeserializeOwned + 'static,
    Resp: Serialize + 'static,
    H: Fn(Req, Vec<u8>) -> (Resp, Vec<u8>) + Send + Sync + 'static,
{
    let endpoint = listener.endpoint().map_err(|source| RpcError::Listen {
        endpoint: Endpoint::Tcp("?:0".to_owned()),
        source,
    })?;
    let shared = Arc::new(Shared::default());
    let accepting = Arc::clone(&shared);
    let handler = Arc::new(handler);
    let acceptor = std::thread::Builder::new()
        .name("rpc-accept".to_owned())
        .spawn(move || accept_loop::<Req, Resp, H>(&listener, &accepting, &handler))
        .map_err(|source| RpcError::Listen {
            endpoint: endpoint.clone(),
            source,
        })?;
    Ok(Server {
        endpoint,
        shared,
        acceptor: Some(acceptor),
    })
}

impl Server {
    /// Where the server listens.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Stops accepting and ends every open connection; requests being handled finish, their answers
    /// are lost.
    pub fn shutdown(&mut self) {
        let Some(acceptor) = self.acceptor.take() else {
            return;
        };
        self.shared.stopping.store(true, Ordering::SeqCst);
        // The acceptor is blocked in accept: a connection of our own wakes it.
        let woken = Connection::connect(&self.endpoint, Duration::from_secs(1)).is_ok();
        for connection in self.shared.open().values() {
            // Already closed by the peer: nothing left to end.
            let _ = connection.shutdown();
        }
        if woken {
            // It ended by itself or by a panic of its own; either way it is gone.
            let _ = acceptor.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn accept_loop<Req, Resp, H>(listener: &Listener, shared: &Arc<Shared>, handler: &Arc<H>)
where
    Req: DeserializeOwned + 'static,
    Resp: Serialize + 'static,
    H: Fn(Req, Vec<u8>) -> (Resp, Vec<u8>) + Send + Sync + 'static,
{
    loop {
        let accepted = listener.accept();
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(connection) = accepted else {
            // Out of descriptors, or the peer left already: let others finish, then go on.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Ok(registered) = connection.try_clone() else {
            continue;
        };
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        {
            let mut open = shared.open();
            if open.len() >= MAX_CONNECTIONS {
                continue;
            }
            open.insert(id, registered);
        }
        let (ending, handler) = (Arc::clone(shared), Arc::clone(handler));
        let spawned = std::thread::Builder::new()
            .name("rpc".to_owned())
            .spawn(move || {
                let _closed = CloseOnDrop {
                    shared: &ending,
                    id,
                };
                answer::<Req, Resp, H>(connection, &handler);
            });
        if spawned.is_err() {
            shared.open().remove(&id);
        }
    }
}

/// Forgets a connection however its thread ends.
struct CloseOnDrop<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.shared.open().remove(&self.id) {
            // The peer may have closed first.
            let _ = connection.shutdown();
        }
    }
}

/// Answers requests until the peer leaves or something is wrong with the connection.
fn answer<Req, Resp, H>(mut connection: Connection, handler: &H)
where
    Req: DeserializeOwned,
    Resp: Serialize,
    H: Fn(Req, Vec<u8>) -> (Resp, Vec<u8>),
{
    if connection.set_write_timeout(Some(WRITE_TIMEOUT)).is_err() {
        return;
    }
    while let Ok(Some((kind, json, attachment))) = read_frame(&mut connection) {
        if kind != FrameKind::Request {
            return;
        }
        let request = match serde_json::from_slice::<Req>(&json) {
            Ok(request) => request,
            Err(error) => {
                let message = error.to_string();
                // The client sees a closed connection if this cannot be delivered either.
                let _ = write_frame(&mut connection, FrameKind::Failure, message.as_bytes(), &[]);
                return;
            }
        };
        let (response, attachment) = handler(request, attachment);
        let sent = match serde_json::to_vec(&response) {
            Ok(json) => write_frame(&mut connection, FrameKind::Response, &json, &attachment),
            Err(error) => {
                let message = error.to_string();
                write_frame(&mut connection, FrameKind::Failure, message.as_bytes(), &[])
            }
        };
        if sent.is_err() {
            return;
        }
    }
}
