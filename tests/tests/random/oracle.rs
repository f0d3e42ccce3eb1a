//! Random programs have the meaning that they would have one operation at a time.
//!
//! `ESTAFETTE_SEED` sets the first seed and `ESTAFETTE_SEEDS` how many follow; a failure names its own.

use tests::dice;
use tests::oracle::program::Shape;
use tests::oracle::replay::{Counts, replay};
use tests::oracle::world::World;

/// Operations per program.
const OPERATIONS: usize = 10_000;

/// Programs per test, unless `ESTAFETTE_SEEDS` says how many: the suite `property` runs many.
const SEEDS: u64 = 1;

/// Runs programs of drawn shapes, each changed by `edit`.
fn programs(salt: u64, edit: impl Fn(&mut Shape)) -> Counts {
    silence_planned_panics();
    let first = dice::from_environment("ESTAFETTE_SEED", 1);
    let mut sum = Counts::default();
    for seed in first..first + dice::from_environment("ESTAFETTE_SEEDS", SEEDS) {
        let mut shape = Shape::drawn(dice::mix(seed) ^ salt, OPERATIONS);
        edit(&mut shape);
        // Shown by the harness when the test fails.
        println!("ESTAFETTE_SEED={seed}: {shape:?}");
        let world = World::new(shape).expect("engines start");
        let began = std::time::Instant::now();
        world.run();
        let ran = began.elapsed();
        let counts = replay(&world);
        println!("  ran {ran:.1?}, all {:.1?}", began.elapsed());
        sum.well += counts.well;
        sum.failed += counts.failed;
        sum.skipped += counts.skipped;
        sum.cancelled += counts.cancelled;
    }
    println!("{sum:?}");
    sum
}

/// Bodies that panic on purpose would fill the log.
fn silence_planned_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let planned =
                panic.payload().downcast_ref::<String>().is_some_and(|text| text.starts_with("fate of"));
            if !planned {
                before(panic);
            }
        }));
    });
}

#[test]
fn one_submitter_sees_its_own_order() {
    let counts = programs(1, |shape| {
        shape.submitters = 1;
        shape.faults = true;
    });
    assert!(counts.well > 0 && counts.failed > 0 && counts.skipped > 0, "{counts:?}");
}

#[test]
fn several_submitters_see_one_order() {
    let counts = programs(2, |shape| {
        shape.submitters = shape.submitters.max(2);
        shape.faults = true;
    });
    assert!(counts.well > 0 && counts.failed > 0 && counts.skipped > 0, "{counts:?}");
}

#[test]
fn two_engines_share_their_tensors() {
    programs(3, |shape| {
        shape.engines = 2;
        shape.workers = shape.workers.max(1);
    });
}

#[test]
fn without_workers_the_threads_that_wait_run_everything() {
    programs(4, |shape| {
        shape.engines = 1;
        shape.workers = 0;
    });
    programs(8, |shape| {
        shape.engines = 1;
        shape.workers = 0;
        shape.faults = false;
    });
}

#[test]
fn long_queues_before_a_gate_keep_their_order_and_let_cancels_win() {
    let counts = programs(5, |shape| {
        shape.submitters = 1;
        shape.in_flight_limit = 1 << 16;
        shape.gated = true;
        shape.faults = true;
    });
    assert!(counts.cancelled > 0, "{counts:?}");
}

#[test]
fn few_cells_and_many_threads_fight_for_the_same_variables() {
    programs(6, |shape| {
        shape.tensors = 4;
        shape.variables = 2;
        shape.submitters = 4;
        shape.operations = OPERATIONS / 2;
    });
}
