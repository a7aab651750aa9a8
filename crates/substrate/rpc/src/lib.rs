//! Length-delimited request and response frames over Unix sockets or TCP.
//!
//! **Invariant.** One request is answered by exactly one response on the same connection, in order,
//! and every length is bounded before a byte of it is believed. A connection on which anything went
//! wrong is closed rather than resynchronised: otherwise a late answer would be taken for the answer
//! to the next question.
//!
//! A frame is a 16-byte header (magic, version, kind, length of the JSON, length of the attachment;
//! little-endian), the JSON text, and the attachment's raw bytes. See [`FrameHeader`].

#![deny(clippy::indexing_slicing)]

mod client;
mod endpoint;
mod frame;
mod server;
mod stream;

pub use client::{Client, RpcError};
pub use endpoint::{Endpoint, EndpointParseError};
pub use frame::{
    FRAME_HEADER_LEN, FRAME_VERSION, FrameError, FrameHeader, FrameKind, MAX_ATTACHMENT_LEN,
    MAX_JSON_LEN,
};
pub use server::{Server, serve};
pub use stream::{Connection, Listener};
