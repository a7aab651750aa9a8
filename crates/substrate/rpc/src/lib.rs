//! Length-delimited request and response frames over Unix sockets or TCP.

mod endpoint;

pub use endpoint::{Endpoint, EndpointParseError};
