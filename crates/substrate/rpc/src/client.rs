//! The calling side.

use std::io;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::{FrameError, FrameKind, read_frame, write_frame};
use crate::{Connection, Endpoint};

/// A call that did not get its answer. Whether the request was carried out is unknown unless the
/// variant is `Connect`.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// Nobody answers at the endpoint.
    #[error("cannot connect to {endpoint}: {source}")]
    Connect {
        /// Where the connection was tried.
        endpoint: Endpoint,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The endpoint did not answer in time.
    #[error("{endpoint} did not answer within {timeout_ms} ms")]
    TimedOut {
        /// Who was asked.
        endpoint: Endpoint,
        /// How long it was waited for.
        timeout_ms: u128,
    },
    /// The endpoint closed the connection without an answer.
    #[error("{endpoint} closed the connection")]
    Closed {
        /// Who was asked.
        endpoint: Endpoint,
    },
    /// The connection failed, or what came is no frame.
    #[error("talking to {endpoint}: {source}")]
    Frame {
        /// Who was asked.
        endpoint: Endpoint,
        /// What went wrong.
        #[source]
        source: FrameError,
    },
    /// Request or answer are no JSON of the expected shape.
    #[error("{endpoint}: {what} is not understood: {source}")]
    Json {
        /// Who was asked.
        endpoint: Endpoint,
        /// `request` or `answer`.
        what: &'static str,
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
    /// The endpoint could not read the request.
    #[error("{endpoint} refused the request: {message}")]
    Remote {
        /// Who was asked.
        endpoint: Endpoint,
        /// What it says.
        message: String,
    },
    /// A server could not be started.
    #[error("cannot listen on {endpoint}: {source}")]
    Listen {
        /// Where it should have listened.
        endpoint: Endpoint,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// A connection to a service. After an error the next call connects anew.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    timeout: Duration,
    connection: Option<Connection>,
}

impl Client {
    /// Connects to `endpoint`. `timeout` bounds connecting and each wait for an answer.
    ///
    /// # Errors
    /// [`RpcError::Connect`].
    pub fn connect(endpoint: &Endpoint, timeout: Duration) -> Result<Client, RpcError> {
        let mut client = Client {
            endpoint: endpoint.clone(),
            timeout,
            connection: None,
        };
        client.connection = Some(client.open()?);
        Ok(client)
    }

    /// A client that connects at its first call.
    #[must_use]
    pub fn lazy(endpoint: &Endpoint, timeout: Duration) -> Client {
        Client {
            endpoint: endpoint.clone(),
            timeout,
            connection: None,
        }
    }

    /// Who this client talks to.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Changes how long later calls wait.
    pub const fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Sends `request` with `attachment` and waits for the answer and its attachment.
    ///
    /// # Errors
    /// [`RpcError`]; the connection is given up, the next call makes a new one.
    pub fn call<Req: Serialize, Resp: DeserializeOwned>(
        &mut self,
        request: &Req,
        attachment: &[u8],
    ) -> Result<(Resp, Vec<u8>), RpcError> {
        let json = serde_json::to_vec(request).map_err(|source| RpcError::Json {
            endpoint: self.endpoint.clone(),
            what: "request",
            source,
        })?;
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.open()?,
        };
        let (kind, json, attachment) = self.exchange(&mut connection, &json, attachment)?;
        let response = self.decode(kind, &json)?;
        self.connection = Some(connection);
        Ok((response, attachment))
    }

    fn open(&self) -> Result<Connection, RpcError> {
        Connection::connect(&self.endpoint, self.timeout).map_err(|source| RpcError::Connect {
            endpoint: self.endpoint.clone(),
            source,
        })
    }

    fn exchange(
        &self,
        connection: &mut Connection,
        json: &[u8],
        attachment: &[u8],
    ) -> Result<(FrameKind, Vec<u8>, Vec<u8>), RpcError> {
        connection
            .set_read_timeout(Some(self.timeout))
            .and_then(|()| connection.set_write_timeout(Some(self.timeout)))
            .map_err(|source| self.failed(source.into()))?;
        write_frame(connection, FrameKind::Request, json, attachment)
            .map_err(|source| self.failed(source))?;
        read_frame(connection)
            .map_err(|source| self.failed(source))?
            .ok_or_else(|| RpcError::Closed {
                endpoint: self.endpoint.clone(),
            })
    }

    fn decode<Resp: DeserializeOwned>(
        &self,
        kind: FrameKind,
        json: &[u8],
    ) -> Result<Resp, RpcError> {
        let endpoint = self.endpoint.clone();
        match kind {
            FrameKind::Response => serde_json::from_slice(json).map_err(|source| RpcError::Json {
                endpoint,
                what: "answer",
                source,
            }),
            FrameKind::Failure => Err(RpcError::Remote {
                endpoint,
                message: String::from_utf8_lossy(json).into_owned(),
            }),
            FrameKind::Request => Err(RpcError::Frame {
                endpoint,
                source: FrameError::BadKind { found: 1 },
            }),
        }
    }

    fn failed(&self, source: FrameError) -> RpcError {
        let endpoint = self.endpoint.clone();
        match &source {
            FrameError::Io(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => RpcError::TimedOut {
                    endpoint,
                    timeout_ms: self.timeout.as_millis(),
                },
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::ConnectionReset => RpcError::Closed { endpoint },
                _ => RpcError::Frame { endpoint, source },
            },
            _ => RpcError::Frame { endpoint, source },
        }
    }
}
