//! After each random step, exactly the operations that may run have begun.
//!
//! `ESTAFETTE_SEED` sets the first seed and `ESTAFETTE_SEEDS` how many follow; a failure names its own, with
//! its steps.

use tests::dice::{self, Dice};
use tests::watchdog::Watchdog;
use tests::who_may_run::step::Step;
use tests::who_may_run::world::{Shape, World};

/// Steps of a run.
const STEPS: usize = 300;

/// Runs per test, unless `ESTAFETTE_SEEDS` says how many: the suite `property` runs many.
const SEEDS: u64 = 1;

/// Takes the steps of several seeds, in shapes that `edit` changes.
fn runs(salt: u64, edit: impl Fn(&mut Shape)) {
    let first = dice::from_environment("ESTAFETTE_SEED", 1);
    for seed in first..first + dice::from_environment("ESTAFETTE_SEEDS", SEEDS) {
        let mut shape = Shape::drawn(dice::mix(seed) ^ salt, STEPS);
        edit(&mut shape);
        // Shown by the harness when the test fails.
        println!("ESTAFETTE_SEED={seed}: {shape:?}");
        let watchdog = Watchdog::alone();
        let mut dice = Dice::new(dice::mix(shape.seed ^ (1 << 40)));
        let mut world = World::new(shape).unwrap();
        for _ in 0..STEPS {
            let Some(step) = Step::draw(&world, &mut dice) else { break };
            step.take(&mut world);
            world.settle();
        }
        world.finish();
        assert!(watchdog.still_watches());
    }
}

#[test]
fn in_one_engine() {
    runs(1, |shape| shape.workers = vec![1 + shape.workers[0] % 2]);
}

#[test]
fn in_an_engine_without_workers() {
    runs(2, |shape| shape.workers = vec![0]);
}

#[test]
fn in_several_engines_that_share_their_tensors() {
    runs(3, |shape| {
        if shape.workers.len() == 1 {
            shape.workers.push(2);
        }
    });
}
