//! Runs the kill test: `cargo run --release --package strandline-tests --bin kill-test -- --rounds 200`.

use anyhow::Result;
use clap::Parser;
use strandline_tests::kill_test::{self, KillOptions};
use testkit::PgBinaries;

/// Kills processes of a cluster under load and checks that nothing acknowledged is lost.
#[derive(Debug, Parser)]
struct Arguments {
    /// Kills.
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// Clients writing all the time.
    #[arg(long, default_value_t = 8)]
    clients: u32,
    /// Log stores: 1 or 3.
    #[arg(long, default_value_t = 1)]
    log_stores: u32,
    /// Seed of victims and moments.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rounds between two full checks.
    #[arg(long, default_value_t = 20)]
    check_every: u32,
    /// PostgreSQL major.
    #[arg(long, default_value_t = 15)]
    major: u32,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let options = KillOptions {
        rounds: arguments.rounds,
        clients: arguments.clients,
        log_stores: arguments.log_stores,
        seed: arguments.seed,
        check_every: arguments.check_every,
    };
    let report = kill_test::run(&options, &PgBinaries::find(arguments.major)?)?;
    println!("{report}");
    Ok(())
}
