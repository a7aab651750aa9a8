//! What can go wrong while talking to a server.

use std::io;

use pg_proto::{ErrorFields, ProtoError};

use crate::ServerAddress;

/// A failure, always naming the server. After any variant but `Server` the connection is useless.
#[derive(Debug, thiserror::Error)]
pub enum PgClientError {
    /// Nobody answers there.
    #[error("cannot connect to PostgreSQL at {address}: {source}")]
    Connect {
        /// The server.
        address: ServerAddress,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The connection broke.
    #[error("connection to PostgreSQL at {address}: {source}")]
    Io {
        /// The server.
        address: ServerAddress,
        /// How.
        #[source]
        source: io::Error,
    },
    /// The server closed the connection.
    #[error("PostgreSQL at {address} closed the connection")]
    Closed {
        /// The server.
        address: ServerAddress,
    },
    /// No answer in the allowed time.
    #[error("PostgreSQL at {address} did not answer within {timeout_ms} ms")]
    TimedOut {
        /// The server.
        address: ServerAddress,
        /// The allowed time.
        timeout_ms: u128,
    },
    /// What came is not the protocol.
    #[error("PostgreSQL at {address} sent what is not its protocol: {source}")]
    Protocol {
        /// The server.
        address: ServerAddress,
        /// What is wrong with it.
        #[source]
        source: ProtoError,
    },
    /// The server reported an error; the connection can go on unless it is fatal.
    #[error("PostgreSQL at {address}: {error}")]
    Server {
        /// The server.
        address: ServerAddress,
        /// What it reported.
        error: Box<ErrorFields>,
    },
    /// The server wants a password or the like.
    #[error(
        "PostgreSQL at {address} asks for authentication method {method}; only trust and peer are supported here: allow the role in pg_hba.conf"
    )]
    Authentication {
        /// The server.
        address: ServerAddress,
        /// The method's number.
        method: i32,
    },
    /// A message that has no place here.
    #[error("PostgreSQL at {address} sent {message} {during}")]
    Unexpected {
        /// The server.
        address: ServerAddress,
        /// What was going on, such as "while starting replication".
        during: &'static str,
        /// The message, shortened.
        message: String,
    },
}

impl PgClientError {
    /// SQLSTATE of a server-reported error.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            PgClientError::Server { error, .. } => Some(&error.code),
            _ => None,
        }
    }
}
