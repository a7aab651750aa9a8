//! Listening for replication clients: on a Unix socket named as PostgreSQL names it, and on TCP if
//! asked to.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::session::Session;
use crate::store::{LogStore, Shared};

/// Most replication clients at a time.
const MAX_CLIENTS: usize = 64;

/// A replication server that cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve replication at {address}: {source}")]
pub struct ServeError {
    /// Where it should have listened.
    pub address: String,
    /// Why it cannot.
    #[source]
    pub source: io::Error,
}

/// A client's connection.
#[derive(Debug)]
pub(crate) enum ClientSocket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl ClientSocket {
    pub(crate) fn try_clone(&self) -> io::Result<ClientSocket> {
        match self {
            ClientSocket::Unix(stream) => stream.try_clone().map(ClientSocket::Unix),
            ClientSocket::Tcp(stream) => stream.try_clone().map(ClientSocket::Tcp),
        }
    }

    pub(crate) fn set_timeouts(
        &self,
        read: Option<Duration>,
        write: Option<Duration>,
    ) -> io::Result<()> {
        match self {
            ClientSocket::Unix(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
            ClientSocket::Tcp(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
        }
    }

    pub(crate) fn shutdown(&self) {
        // The client may have gone first.
        let _ = match self {
            ClientSocket::Unix(stream) => stream.shutdown(Shutdown::Both),
            ClientSocket::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for ClientSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            ClientSocket::Unix(stream) => stream.read(buffer),
            ClientSocket::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for ClientSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ClientSocket::Unix(stream) => stream.write(bytes),
            ClientSocket::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Listening {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listening {
    fn accept(&self) -> io::Result<ClientSocket> {
        match self {
            Listening::Unix(listener) => listener
                .accept()
                .map(|(stream, _)| ClientSocket::Unix(stream)),
            Listening::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(ClientSocket::Tcp(stream))
            }
        }
    }
}

#[derive(Debug, Default)]
struct Clients {
    stopping: AtomicBool,
    next_id: AtomicU64,
    open: Mutex<BTreeMap<u64, ClientSocket>>,
}

/// A running replication server; dropping it stops it.
#[derive(Debug)]
pub struct ReplicationServer {
    socket: PathBuf,
    tcp: Option<std::net::SocketAddr>,
    clients: Arc<Clients>,
}

impl ReplicationServer {
    /// Serves `store`'s WAL at `<directory>/.s.PGSQL.<port>`, and at the TCP address `listen` if
    /// there is one.
    ///
    /// # Errors
    /// [`ServeError`], also when another process answers on that socket.
    pub fn start(
        store: &LogStore,
        directory: &Path,
        port: u16,
        listen: Option<&str>,
    ) -> Result<ReplicationServer, ServeError> {
        let socket = directory.join(format!(".s.PGSQL.{port}"));
        let failed = |address: &dyn std::fmt::Display| {
            let address = address.to_string();
            move |source| ServeError { address, source }
        };
        let unix = bind_unix(&socket).map_err(failed(&socket.display()))?;
        let clients = Arc::new(Clients::default());
        let mut listeners = vec![Listening::Unix(unix)];
        let mut tcp = None;
        if let Some(address) = listen {
            let listener = TcpListener::bind(address).map_err(failed(&address))?;
            tcp = Some(listener.local_addr().map_err(failed(&address))?);
            listeners.push(Listening::Tcp(listener));
        }
        for listener in listeners {
            let (shared, clients) = (Arc::clone(&store.shared), Arc::clone(&clients));
            std::thread::Builder::new()
                .name("wal-accept".to_owned())
                .spawn(move || accept_loop(&listener, &shared, &clients))
                .map_err(failed(&socket.display()))?;
        }
        Ok(ReplicationServer {
            socket,
            tcp,
            clients,
        })
    }

    /// The TCP address served, with the port the system chose if it was asked to.
    #[must_use]
    pub const fn tcp_address(&self) -> Option<std::net::SocketAddr> {
        self.tcp
    }

    /// Stops accepting and ends every session.
    pub fn shutdown(&self) {
        if self.clients.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        for socket in self.clients.open.lock().values() {
            socket.shutdown();
        }
        // The accepting threads wait for connections: give each of them one.
        let _ = UnixStream::connect(&self.socket);
        if let Some(address) = self.tcp {
            let _ = TcpStream::connect(address);
        }
        let _ = fs::remove_file(&self.socket);
    }
}

impl Drop for ReplicationServer {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// A socket that a dead process left behind is replaced, a live one is not.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

fn accept_loop(listener: &Listening, shared: &Arc<Shared>, clients: &Arc<Clients>) {
    loop {
        let accepted = listener.accept();
        if clients.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(socket) = accepted else {
            // Out of descriptors, or the client left already: let others finish, then go on.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Ok(registered) = socket.try_clone() else {
            continue;
        };
        let id = clients.next_id.fetch_add(1, Ordering::Relaxed);
        {
            let mut open = clients.open.lock();
            if open.len() >= MAX_CLIENTS {
                continue;
            }
            open.insert(id, registered);
        }
        let (serving, leaving) = (Arc::clone(shared), Arc::clone(clients));
        let spawned = std::thread::Builder::new()
            .name("wal-serve".to_owned())
            .spawn(move || {
                if let Err(error) = Session::new(serving, socket).run() {
                    tracing::debug!(%error, "a replication client's session ended");
                }
                if let Some(socket) = leaving.open.lock().remove(&id) {
                    socket.shutdown();
                }
            });
        if spawned.is_err() {
            clients.open.lock().remove(&id);
        }
    }
}
