//! Tests that run the whole product: real processes, real PostgreSQL, real kills.
//!
//! Every claim is checked against stock PostgreSQL, which applies the same statements beside it
//! ([`stock`]). Processes are found and killed by id ([`process`]), and a [`cluster::Cluster`] ends
//! what it started when it is dropped.

pub mod cluster;
pub mod kill_test;
pub mod process;
pub mod random;
pub mod sql;
pub mod workload;
