//! The kill test at a size for every change; `kill-test --rounds 200` is the long one.

use strandline_tests::kill_test::{self, KillOptions};
use testkit::PgBinaries;

fn survives(major: u32, log_stores: u32, seed: u64) {
    let rounds = std::env::var("STRANDLINE_KILL_ROUNDS").map_or(12, |rounds| {
        rounds.parse().expect("STRANDLINE_KILL_ROUNDS is a number")
    });
    let options = KillOptions {
        rounds,
        clients: 8,
        log_stores,
        seed,
        check_every: 6,
    };
    let report = kill_test::run(&options, &PgBinaries::find(major).expect("PostgreSQL"))
        .unwrap_or_else(|error| panic!("{error:#}"));
    println!("{report}");
    assert!(
        report.acknowledged > 100,
        "too few commits to prove anything: {report}"
    );
}

#[test]
fn nothing_acknowledged_is_lost_with_one_log_store() {
    survives(15, 1, 101);
}

#[test]
fn nothing_acknowledged_is_lost_with_three_log_stores() {
    survives(17, 3, 202);
}
