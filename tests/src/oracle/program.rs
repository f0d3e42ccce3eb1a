//! The program, drawn from a seed before anything runs.

use estafette::devices::sim::SimOptions;

use crate::dice::Dice;

/// Number of a cell of the program: tensors first, then plain variables.
pub type CellId = usize;

/// Number of an operation of the program, over all submitters.
pub type OpIndex = usize;

/// The dimensions of a program and of the engines that run it.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Source of everything else that is drawn.
    pub seed: u64,
    /// Threads that submit at the same time.
    pub submitters: usize,
    /// Worker threads of each engine.
    pub workers: usize,
    /// Engines; each operation goes to one of them, the cells belong to all.
    pub engines: usize,
    /// Operations in flight per engine.
    pub in_flight_limit: usize,
    /// Cells with memory.
    pub tensors: usize,
    /// Cells without.
    pub variables: usize,
    /// Operations of all submitters together.
    pub operations: usize,
    /// True if operations fail, panic and are cancelled.
    pub faults: bool,
    /// True if everything waits behind a gate until half of it has been submitted, so that queues get long.
    pub gated: bool,
    /// True if some operations end with work under way that a fence marks.
    pub fences: bool,
    /// Bystander threads: they lease, await, query and give up, which changes nothing.
    pub bystanders: usize,
    /// The most accesses of an operation.
    pub accesses: usize,
    /// The device that operations may work on.
    pub device: Option<SimOptions>,
    /// True if work on the device fails now and then: results that follow from that are not compared with the
    /// oracle.
    pub breaks: bool,
    /// True if bystanders take write leases, which make versions of their own: versions are not compared
    /// then.
    pub write_leases: bool,
    /// Threads that are started before one is refused, while the program runs.
    pub refused: Option<u32>,
}

impl Shape {
    /// A shape whose numbers of threads, engines and places depend on `seed`.
    pub fn drawn(seed: u64, operations: usize) -> Self {
        let mut dice = Dice::new(seed);
        let workers = dice.pick(&[0, 1, 1, 2, 2, 3, 4]);
        let in_flight_limit = dice.pick(&[8, 64, 1 << 16, 1 << 16]);
        Self {
            seed,
            submitters: 1 + dice.roll(4),
            workers,
            engines: if workers == 0 { 1 } else { dice.pick(&[1, 1, 2]) },
            in_flight_limit,
            tensors: 80,
            variables: 20,
            operations,
            faults: !dice.once_in(4),
            gated: in_flight_limit > operations && dice.once_in(2),
            fences: false,
            bystanders: 0,
            accesses: 19,
            device: None,
            breaks: false,
            write_leases: false,
            refused: None,
        }
    }
}

/// End of a body if it is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Well,
    Error,
    Panic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    Sync,
    /// As `Sync`, but refused when the in-flight limit is reached, and then tried again.
    Refusing,
    Future,
    /// Finished by another thread.
    External,
    /// Ended with a fence by another thread, which does the work after that and then lets the fence be done.
    Fenced,
    Device,
    /// A program that is recorded and replayed once, with its last node on the device or not.
    Replay {
        device: bool,
    },
}

/// Event that the content of an import waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportWait {
    Promise,
    /// A foreign fence that has to be asked.
    Polled,
    /// A foreign fence that accepts subscriptions and never calls.
    Silent,
}

#[derive(Debug, Clone)]
pub struct Plan {
    /// Tensors that are read, with duplicates.
    pub reads: Vec<CellId>,
    pub writes: Vec<CellId>,
    /// Tensors that are read and written.
    pub updates: Vec<CellId>,
    /// Plain variables that are read; may be in `variables_written` as well, and repeat.
    pub variables_read: Vec<CellId>,
    /// Plain variables that are written; may repeat.
    pub variables_written: Vec<CellId>,
    pub priority: i32,
    pub engine: usize,
    pub body: BodyKind,
    pub fate: Fate,
    /// True if the submitter tries to cancel it. Nothing shows when the turn of a cancelled operation comes,
    /// so that its place is known only where one thread submits everything.
    pub cancel: bool,
    pub wait: bool,
    /// Rounds of idle work, so that some operations are long.
    pub spins: u32,
    /// True if it uses its tensors by imports of its own.
    pub alias: bool,
    /// Event that the content of these imports waits for.
    pub pending: Option<ImportWait>,
    /// True if it reads a tensor as well that another operation defines late.
    pub late: bool,
}

/// The most tensors that one operation updates: each number is a type of its own.
pub const UPDATES_MAX: usize = 3;

impl Plan {
    pub fn draw(shape: &Shape, dice: &mut Dice) -> Self {
        let faulty = |dice: &mut Dice, times| shape.faults && dice.once_in(times);
        let mut plan = Self {
            reads: vec![],
            writes: vec![],
            updates: vec![],
            variables_read: vec![],
            variables_written: vec![],
            priority: if dice.once_in(8) { dice.roll(6) as i32 - 2 } else { 0 },
            engine: dice.roll(shape.engines),
            body: dice.pick(&[
                BodyKind::Sync,
                BodyKind::Sync,
                BodyKind::Sync,
                BodyKind::Refusing,
                BodyKind::Future,
                BodyKind::External,
            ]),
            fate: Fate::Well,
            cancel: faulty(dice, 48) && shape.submitters == 1,
            wait: dice.once_in(1024),
            spins: if dice.once_in(32) { 2_000 } else { 0 },
            alias: false,
            pending: None,
            late: false,
        };
        if shape.fences && dice.once_in(3) {
            plan.body = BodyKind::Fenced;
        } else if faulty(dice, 48) {
            plan.fate = dice.pick(&[Fate::Error, Fate::Error, Fate::Panic]);
        }
        // Failures spread to readers. If every operation read much, one failure would soon skip all others,
        // and the test would test only skipping.
        let reads_max = if shape.faults { dice.pick(&[0, 0, 0, 0, 1, 2, 2, 19]) } else { 19 };
        for _ in 0..2 + dice.roll(shape.accesses - 1) {
            plan.add(dice.roll(shape.tensors + shape.variables), reads_max, shape, dice);
        }
        plan
    }

    fn add(&mut self, cell: CellId, reads_max: usize, shape: &Shape, dice: &mut Dice) {
        let written = self.writes.contains(&cell) || self.updates.contains(&cell);
        let read = self.reads.contains(&cell);
        let reads = self.reads.len() + self.updates.len() + self.variables_read.len();
        match if reads < reads_max { dice.roll(4) } else { 0 } {
            0 if cell >= shape.tensors => self.variables_written.push(cell),
            _ if cell >= shape.tensors => self.variables_read.push(cell),
            // Typed views of one tensor exclude each other, so only its reads repeat.
            _ if written => {}
            0 if !read => self.writes.push(cell),
            1 if !read && self.updates.len() < UPDATES_MAX => self.updates.push(cell),
            _ => self.reads.push(cell),
        }
    }

    /// Every cell once, ascending, with what the operation does there: (cell, reads, writes).
    pub fn accesses(&self) -> Vec<(CellId, bool, bool)> {
        let mut cells: Vec<CellId> =
            [&self.reads, &self.writes, &self.updates, &self.variables_read, &self.variables_written]
                .into_iter()
                .flatten()
                .copied()
                .collect();
        cells.sort_unstable();
        cells.dedup();
        let reads = |cell: &CellId| {
            [&self.reads, &self.updates, &self.variables_read].iter().any(|list| list.contains(cell))
        };
        let writes = |cell: &CellId| {
            [&self.writes, &self.updates, &self.variables_written].iter().any(|list| list.contains(cell))
        };
        cells.iter().map(|cell| (*cell, reads(cell), writes(cell))).collect()
    }
}
