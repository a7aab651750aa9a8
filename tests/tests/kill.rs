//! The kill test at a size for every change; `kill-test --rounds 200` is the long one.

use anyhow::{Context, Result, ensure};
use strandline_tests::kill_test::{self, KillOptions};
use testkit::PgBinaries;

fn survives(major: u32, log_stores: u32, seed: u64) -> Result<()> {
    let rounds = match std::env::var("STRANDLINE_KILL_ROUNDS") {
        Ok(rounds) => rounds
            .parse()
            .context("STRANDLINE_KILL_ROUNDS is a number")?,
        Err(_) => 12,
    };
    let options = KillOptions {
        rounds,
        clients: 8,
        log_stores,
        seed,
        check_every: 6,
    };
    let report = kill_test::run(&options, &PgBinaries::find(major)?)?;
    println!("{report}");
    ensure!(
        report.acknowledged > 100,
        "too few commits to prove anything: {report}"
    );
    Ok(())
}

#[test]
fn nothing_acknowledged_is_lost_with_one_log_store() -> Result<()> {
    survives(15, 1, 101)
}

#[test]
fn nothing_acknowledged_is_lost_with_three_log_stores() -> Result<()> {
    survives(17, 3, 202)
}
