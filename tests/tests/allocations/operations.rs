//! In steady state an operation allocates nothing on the heap.

use std::sync::atomic::{AtomicU64, Ordering};
use tests::ops::exclusive;

use estafette::{Engine, Variable};
use tests::counting::{self};
use tests::dice::Dice;
use tests::watchdog::Watchdog;

const OPERATIONS: usize = 20_000;

/// Counts runs of bodies; a body's captures are two words.
static RAN: AtomicU64 = AtomicU64::new(0);

/// Four accesses: as many as an operation holds inside itself.
fn random(engine: &Engine, variables: &[Variable], dice: &mut Dice) {
    let mut draw = || &variables[dice.roll(variables.len())];
    let (reads, writes) = ([draw(), draw(), draw()], [draw()]);
    let (one, two) = (1_u64, variables.len() as u64);
    let op = engine.op("random").reads_vars(&reads).writes_vars(&writes).run(move |[], []| {
        RAN.fetch_add(one + two, Ordering::Relaxed);
        Ok(())
    });
    op.unwrap();
}

/// Operations before the count begins, in each run: until a thread without workers runs what it submits.
const START: usize = 1_000;

/// Change of `count` by the second of two equal runs.
fn in_steady_state(workers: usize, count: fn() -> usize) -> usize {
    let engine = Engine::builder().workers(workers).in_flight_limit(512).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let variables: Vec<_> = (0..100).map(|_| engine.var()).collect();
    let before = RAN.load(Ordering::Relaxed);
    let run = || {
        let mut dice = Dice::new(7);
        (0..START).for_each(|_| random(&engine, &variables, &mut dice));
        let before = count();
        (0..OPERATIONS).for_each(|_| random(&engine, &variables, &mut dice));
        engine.wait_all(None).unwrap();
        count() - before
    };
    run();
    let allocations = run();
    assert_eq!(RAN.load(Ordering::Relaxed) - before, 2 * (START + OPERATIONS) as u64 * 101);
    assert!(watchdog.still_watches());
    allocations
}

#[test]
fn a_thread_that_runs_everything_itself_allocates_nothing() {
    let _alone = exclusive();
    assert_eq!(in_steady_state(0, counting::of_this_thread), 0);
}

/// Threads that wait for each other allocate a little: to fall asleep, or when a deque grows. The allocations
/// do not grow with the operations.
#[test]
fn with_workers_allocations_are_rarer_than_one_in_a_hundred_operations() {
    let _alone = exclusive();
    for workers in [1, 2] {
        let allocations = in_steady_state(workers, counting::allocations);
        assert!(allocations < OPERATIONS / 100, "{workers} workers: {allocations} allocations");
    }
}
