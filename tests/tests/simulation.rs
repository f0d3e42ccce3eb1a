//! Whole engines under a schedule, a clock and faults that a seed decides: `cargo xtask test --suite
//! simulation`. Only a build for shuttle has them, with an allocator that counts.
//!
//! `ESTAFETTE_SEED` sets the first seed and `ESTAFETTE_SEEDS` how many follow. A failure is shortened, and
//! names its seed and the operations that it needs; `ESTAFETTE_KEEP` runs these alone.
#![cfg(estafette_shuttle)]
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::sync::atomic::{AtomicU64, Ordering};

use tests::counting::{Counting, held_by_this_thread};
use tests::dice;
use tests::oracle::world::World;
use tests::simulation::{program, shorten, simulate};

/// Programs, unless `ESTAFETTE_SEEDS` says how many.
const SEEDS: u64 = 300;

/// Threads of the system that run executions, each its own.
const THREADS: u64 = 2;

#[global_allocator]
static COUNTING: Counting = Counting;

fn nothing_more(_: &World) {}

#[test]
fn thousands_of_programs_each_under_a_schedule_of_its_own() {
    let first = dice::from_environment("ESTAFETTE_SEED", 1);
    if let Ok(kept) = std::env::var("ESTAFETTE_KEEP") {
        let kept: Vec<usize> =
            kept.split(',').filter(|op| !op.is_empty()).map(|op| op.parse().unwrap()).collect();
        let outcome =
            simulate(first, Some(&kept), nothing_more).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{outcome:?}");
        return;
    }
    let (end, next) = (first + dice::from_environment("ESTAFETTE_SEEDS", SEEDS), AtomicU64::new(first));
    let (ended, faults) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    match simulate(seed, None, nothing_more) {
                        Ok(outcome) => {
                            let counts = outcome.counts;
                            ended.fetch_add(counts.well as u64, Ordering::Relaxed);
                            faults.fetch_add(
                                (counts.failed + counts.skipped + counts.cancelled) as u64,
                                Ordering::Relaxed,
                            );
                        }
                        Err(failure) => {
                            next.store(end, Ordering::Relaxed);
                            println!("seed {seed} fails, and is shortened: {}", failure.message);
                            panic!("{}", shorten(failure, nothing_more));
                        }
                    }
                }
            });
        }
    });
    println!(
        "{} bodies ended well, {} did not",
        ended.load(Ordering::Relaxed),
        faults.load(Ordering::Relaxed)
    );
    assert!(ended.into_inner() > 0 && faults.into_inner() > 0, "nothing was tested");
}

#[test]
fn the_same_seed_is_the_same_execution() {
    for seed in 1..=60 {
        let [first, second] = [(); 2].map(|()| simulate(seed, None, nothing_more).unwrap());
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn an_execution_leaves_no_memory_behind() {
    let run = || {
        for seed in 1..=100 {
            simulate(seed, None, nothing_more).unwrap();
        }
    };
    // State that the process keeps is made once.
    run();
    let before = held_by_this_thread();
    run();
    let each = (held_by_this_thread() - before) / 100;
    assert!(each < 4096, "{each} bytes are left of each execution");
}

#[test]
fn another_seed_is_another_execution() {
    let hashes: std::collections::HashSet<u64> =
        (1..=20).map(|seed| simulate(seed, None, nothing_more).unwrap().trace.hash).collect();
    assert_eq!(hashes.len(), 20);
}

#[test]
fn a_failure_is_found_again_and_shortened_to_what_it_needs() {
    // Wrong, for the sake of this test: that no two operations of the second submitter end.
    let wrong = |world: &World| {
        let ended = world.plans.iter().filter(|(submitter, _)| *submitter == 1).count();
        assert!(ended < 2, "{ended} operations of the second submitter have ended");
    };
    let seed =
        (1..).find(|seed| program(*seed).0.submitters > 1 && program(*seed).0.operations > 12).unwrap();
    let failure = simulate(seed, None, wrong).unwrap_err();
    let again = simulate(seed, Some(&failure.kept), wrong).unwrap_err();
    assert_eq!(failure.message, again.message);
    let shortest = shorten(failure, wrong);
    assert_eq!(shortest.kept.len(), 2, "{shortest}");
    assert!(shortest.to_string().contains(&format!("ESTAFETTE_SEED={seed} ESTAFETTE_KEEP=")), "{shortest}");
}
