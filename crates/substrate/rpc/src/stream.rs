//! A byte stream that is a Unix socket or a TCP connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use crate::Endpoint;

/// A connected stream.
#[derive(Debug)]
pub enum Connection {
    /// A Unix socket.
    Unix(UnixStream),
    /// A TCP connection, without Nagle's delay.
    Tcp(TcpStream),
}

impl Connection {
    /// Connects to `endpoint`; `timeout` bounds the attempt at each TCP address.
    ///
    /// # Errors
    /// The operating system's.
    pub fn connect(endpoint: &Endpoint, timeout: Duration) -> io::Result<Connection> {
        match endpoint {
            Endpoint::Unix(path) => UnixStream::connect(path).map(Connection::Unix),
            Endpoint::Tcp(address) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for address in address.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, timeout) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Connection::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Bounds each later read; `None` waits forever.
    ///
    /// # Errors
    /// The operating system's; a zero duration is refused.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Connection::Unix(stream) => stream.set_read_timeout(timeout),
            Connection::Tcp(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// Bounds each later write; `None` waits forever.
    ///
    /// # Errors
    /// The operating system's; a zero duration is refused.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Connection::Unix(stream) => stream.set_write_timeout(timeout),
            Connection::Tcp(stream) => stream.set_write_timeout(timeout),
        }
    }

    /// A second handle on the same stream.
    ///
    /// # Errors
    /// The operating system's.
    pub fn try_clone(&self) -> io::Result<Connection> {
        match self {
            Connection::Unix(stream) => stream.try_clone().map(Connection::Unix),
            Connection::Tcp(stream) => stream.try_clone().map(Connection::Tcp),
        }
    }

    /// Ends both directions; a thread blocked on the stream returns.
    ///
    /// # Errors
    /// The operating system's.
    pub fn shutdown(&self) -> io::Result<()> {
        match self {
            Connection::Unix(stream) => stream.shutdown(Shutdown::Both),
            Connection::Tcp(stream) => stream.shutdown(Shutdown::Both),
        }
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Unix(stream) => stream.read(buffer),
            Connection::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Connection::Unix(stream) => stream.write(bytes),
            Connection::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Connection::Unix(stream) => stream.flush(),
            Connection::Tcp(stream) => stream.flush(),
        }
    }
}

/// A bound, listening socket.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket and its path, which is removed when the listener is dropped.
    Unix(UnixListener, std::path::PathBuf),
    /// A TCP socket.
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at `endpoint`. A Unix socket that a dead process left behind is replaced; one that
    /// somebody answers on is not.
    ///
    /// # Errors
    /// `AddrInUse` when another process listens there, otherwise the operating system's.
    pub fn bind(endpoint: &Endpoint) -> io::Result<Listener> {
        match endpoint {
            Endpoint::Tcp(address) => TcpListener::bind(address.as_str()).map(Listener::Tcp),
            Endpoint::Unix(path) => match UnixListener::bind(path) {
                Ok(listener) => Ok(Listener::Unix(listener, path.clone())),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    if UnixStream::connect(path).is_ok() {
                        return Err(error);
                    }
                    std::fs::remove_file(path)?;
                    UnixListener::bind(path).map(|listener| Listener::Unix(listener, path.clone()))
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// The operating system's.
    pub fn accept(&self) -> io::Result<Connection> {
        match self {
            Listener::Unix(listener, _) => listener
                .accept()
                .map(|(stream, _)| Connection::Unix(stream)),
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Connection::Tcp(stream))
            }
        }
    }

    /// Where it really listens: the port chosen by the system when port 0 was asked for.
    ///
    /// # Errors
    /// The operating system's.
    pub fn endpoint(&self) -> io::Result<Endpoint> {
        match self {
            Listener::Unix(_, path) => Ok(Endpoint::Unix(path.clone())),
            Listener::Tcp(listener) => Ok(Endpoint::Tcp(listener.local_addr()?.to_string())),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            // A leftover socket is replaced by the next bind; nothing to report.
            let _ = std::fs::remove_file(path);
        }
    }
}
