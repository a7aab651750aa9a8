//! What Strandline's services say to each other over their control endpoints.
//!
//! Control traffic is rare and small, so it is JSON in length-delimited frames ([`rpc`]); bulk bytes
//! ride as a frame's attachment. Pages and WAL have protocols of their own (`shim-abi`'s page wire
//! and PostgreSQL's streaming replication).

pub mod compute;
pub mod log;
pub mod storage;
pub mod supervisor;
