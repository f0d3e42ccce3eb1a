//! Random programs, replayed, have the meaning that their nodes would have one at a time.
//!
//! `ESTAFETTE_SEED` sets the first seed and `ESTAFETTE_SEEDS` how many follow; a failure names its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use estafette::{Engine, Program, Variable};
use tests::dice::{self, Dice, mix};
use tests::ops::engine;
use tests::watchdog::Watchdog;

/// Programs per test, unless `ESTAFETTE_SEEDS` says how many.
const SEEDS: u64 = 60;

/// Replays of each program, with ordinary operations in between.
const ROUNDS: u64 = 6;

/// Effect of one step on the cells: a hash that shows every change of order.
#[derive(Debug, Clone)]
struct Step {
    id: u64,
    reads: Vec<usize>,
    overwrites: Vec<usize>,
    updates: Vec<usize>,
    /// Turns of a loop, so that some programs are worth sharing and others are not.
    work: u64,
    fails: bool,
}

impl Step {
    fn drawn(dice: &mut Dice, id: u64, cells: usize, work: u64) -> Self {
        let mut free: Vec<usize> = (0..cells).collect();
        let mut draw = |most: usize| {
            let wanted = dice.roll(most + 1).min(free.len());
            (0..wanted).map(|_| free.swap_remove(dice.roll(free.len()))).collect()
        };
        let (reads, overwrites, updates) = (draw(3), draw(1), draw(2));
        Self { id, reads, overwrites, updates, work, fails: false }
    }

    /// Plain loads and stores on purpose: two steps that overlap and should not lose each other's values.
    fn run(&self, cells: &[AtomicU64]) {
        let mut hash = mix(self.id);
        for cell in self.reads.iter().chain(&self.updates) {
            hash = mix(hash ^ cells[*cell].load(Ordering::Relaxed));
        }
        for _ in 0..self.work {
            hash = std::hint::black_box(mix(hash));
        }
        for cell in &self.overwrites {
            cells[*cell].store(hash, Ordering::Relaxed);
        }
        for cell in &self.updates {
            cells[*cell].store(mix(hash ^ cells[*cell].load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    fn vars<'a>(&self, vars: &'a [Variable]) -> (Vec<&'a Variable>, Vec<&'a Variable>) {
        let pick =
            |cells: &[usize], more: &[usize]| cells.iter().chain(more).map(|cell| &vars[*cell]).collect();
        (pick(&self.reads, &self.updates), pick(&self.overwrites, &self.updates))
    }
}

/// Cells, and the variables that order their uses.
struct World {
    engine: Engine,
    vars: Vec<Variable>,
    cells: Arc<[AtomicU64]>,
    /// Contents of the cells if everything ran at its submission.
    expected: Arc<[AtomicU64]>,
}

impl World {
    fn new(workers: usize, cells: usize) -> Self {
        let engine = engine(workers);
        let vars = (0..cells).map(|_| engine.var()).collect();
        let zeros = || (0..cells).map(|_| AtomicU64::new(0)).collect();
        Self { engine, vars, cells: zeros(), expected: zeros() }
    }

    fn record(&self, steps: &[Step], called: &Arc<[AtomicU64]>) -> Program {
        let mut builder = self.engine.program("program");
        for (number, step) in steps.iter().enumerate() {
            let (reads, writes) = step.vars(&self.vars);
            let node = builder.op(step.id.to_string()).reads_vars(&reads).writes_vars(&writes);
            let (step, cells, called) = (step.clone(), Arc::clone(&self.cells), Arc::clone(called));
            node.run(move |[], []| {
                called[number].fetch_add(1, Ordering::Relaxed);
                step.run(&cells);
                if step.fails { Err(format!("fate of {}", step.id).into()) } else { Ok(()) }
            })
            .unwrap();
        }
        builder.finish().unwrap()
    }

    fn submit(&self, step: Step) {
        step.run(&self.expected);
        let (reads, writes) = step.vars(&self.vars);
        let cells = Arc::clone(&self.cells);
        let op = self.engine.op("beside").reads_vars(&reads).writes_vars(&writes);
        op.run(move |[], []| {
            step.run(&cells);
            Ok(())
        })
        .unwrap();
    }
}

fn values(cells: &[AtomicU64]) -> Vec<u64> {
    cells.iter().map(|cell| cell.load(Ordering::Relaxed)).collect()
}

fn counters(len: usize) -> Arc<[AtomicU64]> {
    (0..len).map(|_| AtomicU64::new(0)).collect()
}

fn seeds() -> impl Iterator<Item = u64> {
    let first = dice::from_environment("ESTAFETTE_SEED", 1);
    // Shown by the harness when the test fails.
    (first..first + dice::from_environment("ESTAFETTE_SEEDS", SEEDS))
        .inspect(|seed| println!("ESTAFETTE_SEED={seed}"))
}

fn drawn_program(dice: &mut Dice) -> (usize, Vec<Step>) {
    let cells = 1 + dice.roll(16);
    let work = dice.pick(&[0, 0, 100, 1_000]);
    let len = 1 + dice.roll(if work > 100 { 300 } else { 1_500 });
    // A few long nodes among many short ones make a run turn from one thread to several in the middle.
    let long = if work == 0 { dice.pick(&[usize::MAX, 300]) } else { usize::MAX };
    let mut step = |id| {
        let work = if dice.once_in(long) { 20_000 } else { work };
        Step::drawn(dice, id, cells, work)
    };
    (cells, (0..len as u64).map(&mut step).collect())
}

fn replays_keep_the_order(workers: usize) {
    for seed in seeds() {
        let mut dice = Dice::new(mix(seed) ^ workers as u64);
        let (cells, steps) = drawn_program(&mut dice);
        let world = World::new(workers, cells);
        let watchdog = Watchdog::of(&world.engine);
        let called = counters(steps.len());
        let program = world.record(&steps, &called);
        for round in 0..ROUNDS {
            program.replay().unwrap();
            steps.iter().for_each(|step| step.run(&world.expected));
            for _ in 0..dice.roll(4) {
                world.submit(Step::drawn(&mut dice, mix(round), cells, 0));
            }
            if dice.once_in(3) {
                world.engine.wait_all(None).unwrap();
            }
        }
        world.engine.wait_all(None).unwrap();
        assert_eq!(values(&world.cells), values(&world.expected), "seed {seed}, {} nodes", steps.len());
        assert!(values(&called).iter().all(|calls| *calls == ROUNDS), "seed {seed}");
        assert!(watchdog.still_watches());
    }
}

#[test]
fn replays_keep_the_order_without_workers() {
    replays_keep_the_order(0);
}

#[test]
fn replays_keep_the_order_with_one_worker() {
    replays_keep_the_order(1);
}

#[test]
fn replays_keep_the_order_with_two_workers() {
    replays_keep_the_order(2);
}

#[test]
fn replays_keep_the_order_with_three_workers() {
    replays_keep_the_order(3);
}

/// Nodes that run, and the one to blame, by the rule in words: a reader of a failed or skipped node
/// is skipped.
fn fates(steps: &[Step]) -> (Vec<u64>, Option<u64>) {
    let mut broken = BTreeSet::new();
    let mut ran = Vec::new();
    let mut blamed = None;
    for step in steps {
        let skipped = step.reads.iter().chain(&step.updates).any(|cell| broken.contains(cell));
        ran.push(u64::from(!skipped));
        if !skipped && step.fails && blamed.is_none() {
            blamed = Some(step.id);
        }
        for cell in step.overwrites.iter().chain(&step.updates) {
            if skipped || step.fails {
                broken.insert(*cell)
            } else {
                broken.remove(cell)
            };
        }
    }
    (ran, blamed)
}

#[test]
fn failures_skip_what_reads_from_them_and_nothing_else() {
    let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds() {
        for workers in 0..=3 {
            let mut dice = Dice::new(mix(seed) ^ 0xfa11 ^ workers as u64);
            let (cells, mut steps) = drawn_program(&mut dice);
            let rarity = dice.pick(&[10, 100, 1_000]);
            steps.iter_mut().for_each(|step| step.fails = dice.once_in(rarity));
            let (ran, blamed) = fates(&steps);
            let world = World::new(workers, cells);
            let watchdog = Watchdog::of(&world.engine);
            let called = counters(steps.len());
            let program = world.record(&steps, &called);
            for round in 1..=3 {
                // Heals what the last round has left.
                let all: Vec<_> = world.vars.iter().collect();
                world.engine.op("heal").writes_vars(&all).run(|[], []| Ok(())).unwrap();
                let outcome = program.replay().unwrap().wait();
                let cause = outcome.err().map(|error| error.operation().unwrap().operation().to_string());
                assert_eq!(cause, blamed.map(|id| id.to_string()), "seed {seed}, {workers} workers");
                let expected: Vec<u64> = ran.iter().map(|ran| ran * round).collect();
                assert_eq!(values(&called), expected, "seed {seed}, {workers} workers");
            }
            for (outcome, count) in [
                ("ran", ran.iter().sum()),
                ("skipped", ran.iter().filter(|ran| **ran == 0).count() as u64),
                ("failed", steps.iter().filter(|step| step.fails).count() as u64),
            ] {
                *outcomes.entry(outcome).or_default() += count;
            }
            assert!(watchdog.still_watches());
        }
    }
    println!("{outcomes:?}");
    assert!(outcomes.values().all(|count| *count > 0), "{outcomes:?}");
}
