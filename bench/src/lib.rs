//! Benchmarks: always a ratio against stock PostgreSQL, interleaved in one run on one machine.
//!
//! Each bench is a module that returns a [`report::Report`]; writing it leaves `NAME.json` (every
//! measurement and the machine's description) and `NAME.svg` (drawn from that JSON) in a directory.

pub mod figure;
pub mod getpage;
pub mod ingest;
pub mod machine;
pub mod overhead;
pub mod pgbench;
pub mod processor_time;
pub mod redo;
pub mod report;
pub mod start;
pub mod wal_load;
pub mod wire;

/// How much work a bench does.
#[derive(Debug, Clone)]
pub struct Effort {
    /// Measurements of each thing.
    pub rounds: u32,
    /// Seconds of one pgbench run.
    pub seconds: u32,
    /// pgbench scale of the running benches.
    pub scale: u32,
    /// pgbench scale of the start bench; 340 makes 5 GB.
    pub start_scale: u32,
    /// TPC-B transactions of WAL for the redo and ingest benches.
    pub wal_transactions: u32,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort {
            rounds: 5,
            seconds: 8,
            scale: 20,
            start_scale: 340,
            wal_transactions: 200_000,
        }
    }
}
