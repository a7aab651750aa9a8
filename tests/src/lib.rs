//! Tests that run the whole product: real processes, real PostgreSQL, real kills.
//!
//! Every claim is checked against stock PostgreSQL, which applies the same statements beside it
//! ([`testkit::StockServer`]). Processes are found and killed by id ([`testkit::process`]), and a
//! [`testkit::cluster::Cluster`] ends what it started when it is dropped.

pub mod dump;
pub mod journal;
pub mod kill_test;
pub mod mounts;
pub mod program;
pub mod segment;
pub mod sql;
pub mod tiny_memory;
pub mod wait;
pub mod workload;
