//! The connection under the protocol.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Where a server listens, by libpq's rule: a host that starts with `/` is the directory of the Unix
/// socket `.s.PGSQL.<port>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// Host name, or directory of the socket.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl ServerAddress {
    /// The Unix socket's path, unless the host is a host name.
    #[must_use]
    pub fn socket_path(&self) -> Option<PathBuf> {
        let directory = self
            .host
            .starts_with('/')
            .then(|| PathBuf::from(&self.host))?;
        Some(directory.join(format!(".s.PGSQL.{}", self.port)))
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.socket_path() {
            Some(path) => write!(f, "{}", path.display()),
            None => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    pub(crate) fn connect(address: &ServerAddress, timeout: Duration) -> io::Result<Socket> {
        if let Some(path) = address.socket_path() {
            return UnixStream::connect(path).map(Socket::Unix);
        }
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for resolved in (address.host.as_str(), address.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&resolved, timeout) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Socket::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub(crate) fn try_clone(&self) -> io::Result<Socket> {
        match self {
            Socket::Unix(stream) => stream.try_clone().map(Socket::Unix),
            Socket::Tcp(stream) => stream.try_clone().map(Socket::Tcp),
        }
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.set_read_timeout(timeout),
            Socket::Tcp(stream) => stream.set_read_timeout(timeout),
        }
    }

    pub(crate) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.set_write_timeout(timeout),
            Socket::Tcp(stream) => stream.set_write_timeout(timeout),
        }
    }

    pub(crate) fn shutdown(&self) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
        }
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.read(buffer),
            Socket::Tcp(stream) => stream.read(buffer),
        }
    }

    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.write_all(bytes),
            Socket::Tcp(stream) => stream.write_all(bytes),
        }
    }
}
