//! Stores, primaries and a manager in one deterministic world, driven by a seed.
//!
//! Messages between primary and stores are delayed and lost, stores crash and lose what was not
//! synced, managers die half-way through beginning a timeline, and a primary that was replaced goes
//! on writing because nobody told it. The decisions under test are the crate's own: `Fence`,
//! `quorum_lsn`, `choose_history`, `missing`, `promises_needed`, `History`. After every step the
//! invariants in `invariants/` are checked.

mod invariants;
mod random;
mod world;

use world::{Settings, World};

/// Steps of one run.
const STEPS: usize = 600;

fn run(seed: u64, settings: Settings) -> World {
    let mut world = World::new(seed, settings);
    let mut invariants = invariants::Invariants::default();
    for _ in 0..STEPS {
        world.step();
        if let Err(violation) = invariants.check(&world) {
            let tail = world.trace.iter().rev().take(40).rev();
            let tail: Vec<&str> = tail.map(String::as_str).collect();
            panic!(
                "seed {seed}, {settings:?}: {violation}\n{}",
                tail.join("\n")
            );
        }
    }
    world
}

#[test]
fn one_store_never_loses_or_forks() {
    for seed in 0..1500 {
        run(
            seed,
            Settings {
                stores: 1,
                quorum: 1,
            },
        );
    }
}

#[test]
fn three_stores_never_lose_or_fork() {
    let (mut acknowledged, mut timelines, mut orphans) = (0, 0, 0);
    for seed in 0..4000 {
        let world = run(
            seed,
            Settings {
                stores: 3,
                quorum: 2,
            },
        );
        acknowledged += world.acknowledged();
        timelines += world.timelines_begun();
        orphans += world.partial_begins;
    }
    // The runs did what they are there for.
    assert!(
        acknowledged > 40_000,
        "{acknowledged} commits were acknowledged"
    );
    assert!(timelines > 8_000, "{timelines} timelines were begun");
    assert!(
        orphans > 500,
        "{orphans} timelines were begun by too few stores"
    );
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [1, 77, 901] {
        let settings = Settings {
            stores: 3,
            quorum: 2,
        };
        let (one, two) = (run(seed, settings).trace, run(seed, settings).trace);
        assert!(!one.is_empty());
        assert_eq!(one, two);
    }
}

/// The checks can fail: with a quorum that does not meet itself, they do.
#[test]
fn a_quorum_that_does_not_intersect_is_caught() {
    let caught = (0..400).any(|seed| {
        let mut world = World::new(
            seed,
            Settings {
                stores: 3,
                quorum: 2,
            },
        );
        world.promises_override = Some(1);
        let mut invariants = invariants::Invariants::default();
        (0..STEPS).any(|_| {
            world.step();
            invariants.check(&world).is_err()
        })
    });
    assert!(
        caught,
        "choosing a history from one of three stores must lose something"
    );
}
