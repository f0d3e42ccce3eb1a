//! The tasks, their marks, and the check of the marks by later tasks.

use estafette::{Engine, Variable};
use estafette_sync::sync::OnceLock;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};

use crate::access::Access;
use crate::measure::some_variables;
use crate::metg::pattern::Pattern;
use crate::spin::SpinBody;

/// Grids of points, computed step by step. All steps of all runs share two rows.
pub(super) struct Grid {
    /// Points of a step, of all grids together.
    row: usize,
    period: usize,
    /// Accesses of the tasks: by row, turn of the period, and point.
    accesses: Vec<Access>,
    /// As `accesses`, for the first step of a run, which reads nothing.
    beginnings: Vec<Access>,
    /// One variable per cell.
    variables: Vec<Variable>,
    cells: Vec<Cell>,
    /// Steps of all runs so far. Numbers continue from run to run, so marks of an earlier run are wrong in a
    /// later one.
    steps: AtomicU64,
    wrong: OnceLock<WrongInput>,
}

/// The mark of a task: 16 bytes that name the task. Only the engine's order keeps tasks from reading a mark
/// too early, so relaxed accesses are enough, and cost no more than plain ones.
#[derive(Default)]
struct Cell {
    step: AtomicU64,
    /// Its own index.
    cell: AtomicU64,
}

/// A task has read another mark than that of the step before.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error(
    "cell {cell} should hold step {step}, but holds step {found_step} of cell {found_cell}: a task ran too early"
)]
pub struct WrongInput {
    step: u64,
    cell: usize,
    found_step: u64,
    found_cell: u64,
}

/// One task; small, as every operation carries one.
#[derive(Clone, Copy)]
struct GridTask {
    grid: &'static Grid,
    access: &'static Access,
    step: u64,
    body: SpinBody,
}

impl Grid {
    /// Makes `grids` grids of `width` points. They are leaked on purpose: otherwise tasks would count
    /// references, and the bench would measure that.
    pub(super) fn leak(engine: &Engine, pattern: Pattern, width: usize, grids: usize) -> &'static Self {
        let (row, period) = (width * grids, pattern.period(width));
        let access = |parity: usize, turn: usize, point: usize| {
            let (grid, own) = (point / width, point % width);
            let old_row = (1 - parity) * row + grid * width;
            let inputs: Vec<usize> =
                pattern.inputs(turn, own, width).into_iter().map(|input| old_row + input).collect();
            Access::new(&inputs, Some(parity * row + point))
        };
        let mut accesses = Vec::new();
        for parity in 0..2 {
            for turn in 0..period {
                accesses.extend((0..row).map(|point| access(parity, turn, point)));
            }
        }
        Box::leak(Box::new(Self {
            row,
            period,
            accesses,
            beginnings: (0..2 * row).map(|cell| Access::new(&[], Some(cell))).collect(),
            variables: some_variables(engine, 2 * row),
            cells: (0..2 * row).map(|_| Cell::default()).collect(),
            steps: AtomicU64::new(0),
            wrong: OnceLock::new(),
        }))
    }

    /// The variables that tasks write, one per task.
    pub(super) fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// Submits all tasks of a run.
    pub(super) fn submit(
        &'static self,
        engine: &Engine,
        steps: usize,
        body: SpinBody,
    ) -> Result<(), estafette::Error> {
        let first = self.steps.fetch_add(steps as u64, Ordering::Relaxed) + 1;
        for step in first..first + steps as u64 {
            for access in self.step(step, step == first) {
                self.submit_one(engine, GridTask { grid: self, access, step, body })?;
            }
        }
        Ok(())
    }

    /// Accesses of the tasks of a step, in the order of their points.
    fn step(&self, step: u64, begins: bool) -> &[Access] {
        let (parity, turn) = ((step % 2) as usize, (step % self.period as u64) as usize);
        if begins {
            &self.beginnings[parity * self.row..][..self.row]
        } else {
            &self.accesses[(parity * self.period + turn) * self.row..][..self.row]
        }
    }

    #[inline]
    fn submit_one(&self, engine: &Engine, task: GridTask) -> Result<(), estafette::Error> {
        crate::submit::describe(engine, &self.variables, task.access).run_detached(move |[], []| {
            task.run();
            Ok(())
        })
    }

    /// Checks that every task has found the marks it needed, and that the last step is complete.
    /// The error is the wrong mark that the first failed task has found.
    pub(super) fn verify(&self) -> Result<(), WrongInput> {
        let last = self.steps.load(Ordering::Relaxed);
        let row = (last % 2) as usize * self.row;
        (row..row + self.row).for_each(|cell| self.expect(last, cell));
        self.wrong.get().map_or(Ok(()), |wrong| Err(*wrong))
    }

    /// Notes a cell that has not the mark of the given step.
    #[inline]
    fn expect(&self, step: u64, cell: usize) {
        let found = &self.cells[cell];
        let (found_step, found_cell) =
            (found.step.load(Ordering::Relaxed), found.cell.load(Ordering::Relaxed));
        if (found_step, found_cell) != (step, cell as u64) {
            // Only the first wrong mark counts: others may be its consequences.
            let _ = self.wrong.set(WrongInput { step, cell, found_step, found_cell });
        }
    }
}

impl GridTask {
    #[inline]
    fn run(self) {
        for input in self.access.reads() {
            self.grid.expect(self.step - 1, input);
        }
        self.body.run();
        if let Some(cell) = self.access.write() {
            let output = &self.grid.cells[cell];
            output.step.store(self.step, Ordering::Relaxed);
            output.cell.store(cell as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(engine: &Engine, pattern: Pattern) -> &'static Grid {
        Grid::leak(engine, pattern, 8, 2)
    }

    #[test]
    fn runs_of_any_length_follow_each_other() {
        let engine = Engine::builder().workers(1).build().unwrap();
        for pattern in [Pattern::Trivial, Pattern::Stencil, Pattern::Nearest, Pattern::Spread, Pattern::Fft] {
            let grid = grid(&engine, pattern);
            for steps in [1, 4, 7, 2] {
                grid.submit(&engine, steps, SpinBody::EMPTY).unwrap();
                engine.wait_all(None).unwrap();
                grid.verify().unwrap();
            }
        }
    }

    #[test]
    fn a_task_that_runs_too_early_is_noticed() {
        let engine = Engine::builder().workers(0).build().unwrap();
        let grid = grid(&engine, Pattern::Stencil);
        grid.submit(&engine, 2, SpinBody::EMPTY).unwrap();
        engine.wait_all(None).unwrap();
        grid.verify().unwrap();
        // A task of step 4, although step 3 was not computed.
        GridTask { grid, access: &grid.step(4, false)[0], step: 4, body: SpinBody::EMPTY }.run();
        let wrong = grid.verify().unwrap_err();
        assert_eq!((wrong.step, wrong.found_step), (3, 1));
    }

    #[test]
    fn a_task_that_never_ran_is_noticed() {
        let engine = Engine::builder().workers(0).build().unwrap();
        let grid = grid(&engine, Pattern::Trivial);
        grid.steps.store(1, Ordering::Relaxed);
        assert_eq!(grid.verify().unwrap_err().found_step, 0);
    }
}
