//! Benchmarks: always a ratio against stock PostgreSQL, interleaved in one run on one machine.
//!
//! Each bench is a module that returns a [`report::Report`]; writing it leaves `NAME.json` (every
//! measurement and the machine's description) and `NAME.svg` (drawn from that JSON) in a directory.

pub mod figure;
pub mod machine;
pub mod report;
