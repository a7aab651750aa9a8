//! Simulation of log stores, managers and servers under crashes, delays, losses and rivals.
//!
//! Everything follows from one seed: `WAL_QUORUM_SEED=n` repeats a run and prints what happened,
//! `WAL_QUORUM_SEEDS=n` says how many runs to make. Stores call the same rules in the same order as
//! `log-store` does, managers as `compute` does; bytes are abstract. See `invariants/` for what must
//! hold, and `weakness.rs` for the rules without which something of that is known not to hold.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a simulation that goes wrong should stop"
)]

mod invariants;
mod manager;
mod prng;
mod store;
mod wal;
mod weakness;
mod world;

use weakness::Weakness;
use world::{Tally, World};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs seeds until one violates something.
fn search(
    seeds: u64,
    stores: usize,
    quorum: usize,
    weakness: Option<Weakness>,
) -> Result<Tally, (u64, String)> {
    let mut sum = Tally::default();
    for seed in 0..seeds {
        let mut world = World::new(seed, stores, quorum, weakness);
        world.run().map_err(|violation| (seed, violation))?;
        sum.timelines += world.tally.timelines;
        sum.acknowledged += world.tally.acknowledged;
        sum.ingested += world.tally.ingested;
        sum.crashes += world.tally.crashes;
        sum.rewinds += world.tally.rewinds;
    }
    Ok(sum)
}

fn traced(seed: u64, stores: usize, quorum: usize) -> (Result<(), String>, String) {
    let mut world = World::new(seed, stores, quorum, None).traced();
    let outcome = world.run();
    (outcome, world.take_trace())
}

fn holds(stores: usize, quorum: usize, default_seeds: u64) {
    if let Some(seed) = number("WAL_QUORUM_SEED") {
        let (outcome, trace) = traced(seed, stores, quorum);
        println!("{trace}");
        outcome.unwrap();
        return;
    }
    let seeds = number("WAL_QUORUM_SEEDS").unwrap_or(default_seeds);
    match search(seeds, stores, quorum, None) {
        Ok(sum) => {
            println!("{seeds} seeds: {sum:?}");
            let runs = seeds as usize;
            assert!(sum.timelines >= runs && sum.acknowledged >= runs && sum.ingested >= runs);
        }
        Err((seed, violation)) => {
            let (_, trace) = traced(seed, stores, quorum);
            let lines: Vec<&str> = trace.lines().collect();
            let tail = lines[lines.len().saturating_sub(400)..].join("\n");
            panic!("{tail}\nWAL_QUORUM_SEED={seed}: {violation}");
        }
    }
}

#[test]
fn one_store() {
    holds(1, 1, 6_000);
}

#[test]
fn three_stores() {
    holds(3, 2, 20_000);
}

#[test]
fn the_same_seed_twice_is_the_same_run() {
    for seed in [1, 2, 3, 77] {
        let (first, second) = (traced(seed, 3, 2), traced(seed, 3, 2));
        assert!(first.1.lines().count() > 50);
        assert_eq!(first, second);
    }
    assert_ne!(traced(1, 3, 2).1, traced(2, 3, 2).1);
}

/// Leaves one rule out and expects the simulation to notice; the run that does is one that all rules
/// together get through.
fn notices(weakness: Weakness, words: &[&str]) {
    match search(
        number("WAL_QUORUM_SEEDS").unwrap_or(60_000),
        3,
        2,
        Some(weakness),
    ) {
        Ok(sum) => panic!("{weakness:?} goes unnoticed: {sum:?}"),
        Err((seed, violation)) => {
            println!("{weakness:?}: seed {seed}: {violation}");
            assert!(
                words.iter().any(|word| violation.starts_with(word)),
                "{violation}"
            );
            World::new(seed, 3, 2, None).run().unwrap();
        }
    }
}

const SAFETY: [&str; 3] = ["acknowledged", "one history", "ingested"];

#[test]
fn notices_a_timeline_promised_to_two_managers() {
    notices(Weakness::PromiseTwice, &SAFETY);
}

#[test]
fn notices_a_store_that_accepts_without_promising() {
    notices(Weakness::AcceptWithoutPromise, &SAFETY);
}

#[test]
fn notices_that_copied_wal_counts() {
    notices(Weakness::CountCatchUp, &SAFETY);
}

#[test]
fn notices_a_timeline_announced_early() {
    notices(Weakness::AnnounceEarly, &["liveness"]);
}

#[test]
fn notices_the_longest_log_winning() {
    notices(Weakness::LongestLog, &SAFETY);
}
