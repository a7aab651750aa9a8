//! PostgreSQL's frontend/backend protocol, version 3, with streaming replication: the messages as
//! bytes, for both sides, without any I/O.
//!
//! **Invariant.** Arbitrary bytes decode to a message or to a typed error: no panic, no allocation
//! beyond the input's own size, no message longer than the limit the caller set. The peer is another
//! program, possibly not PostgreSQL at all; a codec that trusts its lengths hands that program our
//! memory.
//!
//! [`Inbox`] cuts the byte stream into messages; [`BackendMessage`] is what a server says,
//! [`FrontendMessage`] and [`StartupPacket`] what a client says, [`ReplicationMessage`] and
//! [`StandbyMessage`] what travels inside `CopyData` while WAL streams, [`ReplicationCommand`] the
//! text of a replication command.

#![deny(clippy::indexing_slicing)]

mod backend;
mod command;
mod error_fields;
mod frontend;
mod inbox;
mod replication;
mod startup;
mod wire;

pub use backend::{BackendMessage, FieldDescription, TransactionStatus};
pub use command::{CommandParseError, ReplicationCommand, SlotKind, quote_identifier};
pub use error_fields::{ErrorFields, Severity};
pub use frontend::FrontendMessage;
pub use inbox::{DEFAULT_MESSAGE_LIMIT, Inbox, RawMessage};
pub use replication::{ReplicationMessage, StandbyMessage, pg_timestamp};
pub use startup::{MAX_STARTUP_LEN, PROTOCOL_VERSION_3, StartupPacket};

/// Bytes that are not the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtoError {
    /// A message claims a length it cannot have.
    #[error("message {tag:?} claims a length of {len} bytes; between 4 and {limit} are possible")]
    BadLength {
        /// The message's type byte as a character; NUL for a start-up packet.
        tag: char,
        /// Its claimed length, the length word included.
        len: u32,
        /// The longest allowed.
        limit: u32,
    },
    /// A message ends before its last field.
    #[error("message {tag:?} ends before its {field}")]
    Truncated {
        /// The message's type byte.
        tag: char,
        /// The field that is missing or cut.
        field: &'static str,
    },
    /// A message goes on after its last field.
    #[error("message {tag:?} has {extra} bytes too many")]
    TrailingBytes {
        /// The message's type byte.
        tag: char,
        /// How many.
        extra: usize,
    },
    /// A field holds what it cannot.
    #[error("message {tag:?} has an impossible {field}: {value}")]
    BadField {
        /// The message's type byte.
        tag: char,
        /// The field.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// A text that is not UTF-8.
    #[error("message {tag:?} has a {field} that is not UTF-8")]
    NotText {
        /// The message's type byte.
        tag: char,
        /// The field.
        field: &'static str,
    },
    /// A message type that this side of the protocol does not have.
    #[error("unknown message type {tag:?}")]
    UnknownMessage {
        /// The message's type byte.
        tag: char,
    },
    /// A protocol version other than 3.
    #[error("protocol version {major}.{minor} is not supported")]
    BadVersion {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
}
