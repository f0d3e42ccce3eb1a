//! The countdown of a replay under every interleaving (within a preemption bound) that loom can produce.
//!
//! Run with `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette-graph --profile model --test
//! loom_replay`.
//!
//! Loom watches the cells that the operations use: two that overlap and should not are reported as a race.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]
#![cfg(estafette_loom)]

use estafette_graph::program::{Countdown, ProgramLog, ProgramOrder};
use estafette_graph::{AccessMode, VarId};
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

const READ: AccessMode = AccessMode::Read;
const WRITE: AccessMode = AccessMode::Write;

type Program = &'static [&'static [(usize, AccessMode)]];

/// One writer, three readers, one writer.
const FAN: Program = &[&[(0, WRITE)], &[(0, READ), (1, WRITE)], &[(0, READ)], &[(0, READ)], &[(0, WRITE)]];

/// Two steps of a row of three.
const STENCIL: Program = &[
    &[(0, WRITE)],
    &[(1, WRITE)],
    &[(2, WRITE)],
    &[(0, READ), (1, READ), (3, WRITE)],
    &[(0, READ), (1, READ), (2, READ), (4, WRITE)],
    &[(1, READ), (2, READ), (5, WRITE)],
];

/// Each of two operations lets two others go, so two threads list at the same time.
const FORKS: Program =
    &[&[(0, WRITE)], &[(1, WRITE)], &[(0, READ)], &[(0, READ)], &[(1, READ)], &[(1, READ)]];

struct World {
    program: Program,
    order: ProgramOrder,
    run: Countdown,
    cells: Vec<UnsafeCell<usize>>,
    /// Threads that found that they account for the last operation.
    told: AtomicUsize,
}

impl World {
    fn new(program: Program, order: &ProgramOrder, done: usize) -> Self {
        let mut run = Countdown::new(order.len());
        run.restart(order, done);
        let cells = (0..6).map(|_| UnsafeCell::new(0)).collect();
        Self { program, order: order.clone(), run, cells, told: AtomicUsize::new(0) }
    }

    fn run_one(&self, op: u32) {
        for (cell, mode) in self.program[op as usize] {
            let cell = &self.cells[*cell];
            match mode {
                // SAFETY: exactly what the order promises, and loom checks.
                AccessMode::Read => assert!(cell.with(|value| unsafe { *value }) > 0),
                // SAFETY: as above.
                _ => cell.with_mut(|value| unsafe { *value += 1 }),
            }
        }
    }

    /// The work of each thread of a run.
    fn take_part(&self) {
        let mut ran = 0;
        while let Some(taken) = self.run.take() {
            let mut next = Some(taken);
            while let Some(op) = next {
                self.run_one(op);
                ran += 1;
                next = self.run.ended(&self.order, op).next;
            }
        }
        if self.run.account(ran) {
            // Everything that the operations did happens before this, on whatever thread.
            let writes = |cell: usize| {
                self.program
                    .iter()
                    .flat_map(|op| op.iter())
                    .filter(|(its, mode)| *its == cell && *mode != READ)
                    .count()
            };
            for (number, cell) in self.cells.iter().enumerate() {
                // SAFETY: no other thread touches the cells any more, as loom checks.
                assert_eq!(cell.with(|value| unsafe { *value }), writes(number));
            }
            self.told.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn order(program: Program) -> ProgramOrder {
    let mut log = ProgramLog::new();
    for uses in program {
        log.push(uses.iter().map(|(cell, mode)| (VarId::new(*cell as u64), *mode)));
    }
    ProgramOrder::of(&log)
}

/// `threads` threads take part in a run whose first `done` operations one thread has run alone.
/// `LOOM_MAX_PREEMPTIONS` lowers `preemptions`.
fn check(program: Program, threads: usize, done: usize, preemptions: usize) {
    let order = order(program);
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.into_iter().chain([preemptions]).min();
    builder.check(move || {
        let world = Arc::new(World::new(program, &order, done));
        for op in 0..done {
            world.run_one(u32::try_from(op).unwrap());
        }
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let world = Arc::clone(&world);
                thread::spawn(move || world.take_part())
            })
            .collect();
        world.take_part();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(world.told.load(Ordering::Relaxed), 1, "one thread accounts for the last operation");
    });
}

#[test]
fn a_fan_by_two_threads() {
    check(FAN, 2, 0, 4);
}

#[test]
fn a_fan_begun_by_one_thread_alone() {
    check(FAN, 2, 2, 4);
}

#[test]
fn a_stencil_by_two_threads() {
    check(STENCIL, 2, 0, 3);
}

#[test]
fn two_threads_that_list_at_once_leave_nothing_behind() {
    check(FORKS, 2, 0, 4);
}

#[test]
fn three_threads_leave_nothing_behind() {
    check(FORKS, 3, 0, 2);
}
