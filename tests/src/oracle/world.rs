//! The world that a program runs in: cells, bodies, and their observations.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use estafette::bindings;
use estafette::devices::sim::SimDevice;
use estafette::devices::{Device, FenceSet, Queue};
use estafette::engine::SharedLock;
use estafette::{BodyResult, Engine, Error, Tensor, Variable};
use estafette_sync::sync::mpsc::channel;
use estafette_sync::thread;

use super::alias::{self, Uses};
use super::bystander;
use super::program::{CellId, Fate, OpIndex, Plan, Shape};
use super::submitter::{Submitter, finish_all};
use crate::dice::{Dice, mix};
use crate::gate::Gate;
use crate::watchdog::Watchdog;

/// Far more than a program takes on a loaded machine with two cores.
const LIMIT: Duration = Duration::from_secs(120);

/// Time between two checks of running work.
pub(super) const PAUSE: Duration = Duration::from_micros(100);

/// Operations of each engine that a diagnosis shows.
const SHOWN: usize = 30;

/// End of one operation, as its submitter saw it.
#[derive(Debug)]
pub struct OpEnd {
    /// True if `cancel` said that it did cancel.
    pub cancelled: bool,
    /// Results of waiting for it, twice.
    pub outcomes: [Result<(), Error>; 2],
}

#[derive(Debug, Clone, Copy)]
pub struct LogEntry {
    pub op: OpIndex,
    /// True if its body ran, or was dropped.
    pub ran: bool,
}

/// Something that order is kept for.
#[derive(Debug)]
pub struct Cell {
    handle: Handle,
    data: *mut u64,
    /// -1 while a writer is inside, else the number of readers.
    users: AtomicIsize,
    log: Mutex<Vec<LogEntry>>,
    /// True if its versions are those of the program's operations alone.
    versioned: bool,
}

#[derive(Debug)]
enum Handle {
    Tensor(Tensor),
    Variable(Variable),
}

// SAFETY: `data` is touched only by operations that have been granted the cell, which is what the test is
// about, and `users` detects a violation.
unsafe impl Send for Cell {}
// SAFETY: as above.
unsafe impl Sync for Cell {}

impl Cell {
    /// Finished writes; 0 where others write as well.
    pub fn version(&self) -> u64 {
        if !self.versioned {
            return 0;
        }
        match &self.handle {
            Handle::Tensor(tensor) => tensor.version(),
            Handle::Variable(variable) => variable.version(),
        }
    }

    /// The cell's value. Only called while no operation uses the cell.
    pub fn value(&self) -> u64 {
        // SAFETY: one element, which no operation writes now.
        unsafe { *self.data }
    }

    pub fn tensor(&self) -> Option<&Tensor> {
        match &self.handle {
            Handle::Tensor(tensor) => Some(tensor),
            Handle::Variable(_) => None,
        }
    }

    /// All users of the cell, in order.
    pub fn log(&self) -> Vec<LogEntry> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn address(&self) -> *mut u64 {
        self.data
    }

    pub(super) fn variable(&self) -> &Variable {
        match &self.handle {
            Handle::Variable(variable) => variable,
            Handle::Tensor(_) => panic!("plans keep tensors and variables apart"),
        }
    }

    pub(super) fn begin_access(&self, alone: bool) {
        let before = if alone {
            self.users.swap(-1, Ordering::AcqRel)
        } else {
            self.users.fetch_add(1, Ordering::AcqRel)
        };
        assert!(
            if alone { before == 0 } else { before >= 0 },
            "granted beside {before} others, alone: {alone}"
        );
    }

    pub(super) fn end_access(&self, alone: bool) {
        if alone {
            self.users.store(0, Ordering::Release);
        } else {
            self.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The cells, the plans, and the observations.
pub struct World {
    pub shape: Shape,
    /// Tensors first, then plain variables.
    pub cells: Vec<Cell>,
    /// Every operation with its submitter, in the order of submission of each submitter.
    pub plans: Vec<(usize, Plan)>,
    /// Versions that exist before the program (the gate's).
    pub first_version: u64,
    /// Digests of what each body that ran has read.
    pub digests: Vec<OnceLock<u64>>,
    pub ended: Vec<OnceLock<OpEnd>>,
    /// The engine's name of each operation.
    pub ids: Mutex<HashMap<u64, OpIndex>>,
    pub uses: Vec<Arc<Uses>>,
    /// Of operations that read one: a tensor that another operation defines.
    pub(super) late: Vec<OnceLock<Tensor>>,
    pub(super) engines: Vec<Engine>,
    pub(super) device: Option<Arc<SimDevice>>,
    pub(super) queues: Vec<Arc<dyn Queue>>,
    /// Work that is enqueued on the device and not over.
    under_way: AtomicUsize,
    #[expect(dead_code, reason = "kept for the cells, which point into it")]
    memory: Box<[CellMemory]>,
}

/// One number. Its place among the others is the same in each execution, as the engine keeps memory in the
/// order of addresses.
#[repr(align(64))]
struct CellMemory(UnsafeCell<u64>);

// SAFETY: as for `Cell`, whose memory it is.
unsafe impl Send for CellMemory {}
// SAFETY: as above.
unsafe impl Sync for CellMemory {}

/// True if the bodies of a world share a lock. By the shape and not by the dice, so that a seed stands for
/// the same program as before.
pub(super) fn has_lock(shape: &Shape) -> bool {
    shape.tensors % 2 == 1
}

/// A lock without one: bodies wait for each other here, and a thread keeps it for as long as bodies follow
/// each other.
#[derive(Debug)]
struct BodyLock;

impl SharedLock for BodyLock {
    fn lock_while(&self, next: &mut dyn FnMut() -> bool) {
        while next() {}
    }
}

impl World {
    /// Draws a program and makes its cells.
    pub fn new(shape: Shape) -> Result<Arc<Self>, Error> {
        let plans = draw_plans(&shape);
        Self::with_plans(shape, plans)
    }

    /// Makes what a program needs: operations with their submitters, in the order of submission of each
    /// submitter.
    pub fn with_plans(shape: Shape, plans: Vec<(usize, Plan)>) -> Result<Arc<Self>, Error> {
        let device = shape.device.clone().map(SimDevice::new).transpose()?;
        let queues = device.iter().flat_map(|device| {
            [device.queue(false) as Arc<dyn Queue>, device.queue(false), device.queue(true)]
        });
        let engine = || {
            let builder = Engine::builder().workers(shape.workers);
            let builder = builder.in_flight_limit(shape.in_flight_limit);
            let engine = match &device {
                Some(device) => builder.device(device.clone() as Arc<dyn Device>).build(),
                None => builder.build(),
            }?;
            if has_lock(&shape) {
                bindings::engine::share_lock(&engine, Arc::new(BodyLock));
            }
            Ok::<_, Error>(engine)
        };
        let engines = (0..shape.engines).map(|_| engine()).collect::<Result<Vec<_>, _>>()?;
        let mut cells = Vec::new();
        let memory = (0..shape.tensors + shape.variables).map(|_| CellMemory(UnsafeCell::new(0)));
        let memory: Box<[CellMemory]> = memory.collect();
        for (number, place) in memory.iter().enumerate() {
            let data = place.0.get();
            let handle = if number < shape.tensors {
                let engine = &engines[number % engines.len()];
                Handle::Tensor(alias::import_place(engine, data, &Arc::default(), FenceSet::default())?)
            } else {
                Handle::Variable(engines[0].var())
            };
            let versioned = !shape.write_leases;
            cells.push(Cell { handle, data, users: AtomicIsize::new(0), log: Mutex::default(), versioned });
        }
        Ok(Arc::new(Self {
            first_version: u64::from(shape.gated && !shape.write_leases),
            cells,
            uses: plans.iter().map(|_| Arc::default()).collect(),
            late: plans.iter().map(|_| OnceLock::new()).collect(),
            queues: queues.collect(),
            under_way: AtomicUsize::new(0),
            memory,
            device,
            digests: plans.iter().map(|_| OnceLock::new()).collect(),
            ended: plans.iter().map(|_| OnceLock::new()).collect(),
            plans,
            ids: Mutex::default(),
            engines,
            shape,
        }))
    }

    pub fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// Submits everything and waits for the end.
    pub fn run(self: &Arc<Self>) {
        let (shape, engines) = (self.shape.clone(), self.engines.clone());
        let watchdog = Watchdog::with(LIMIT, move || {
            let first = |engine: &Engine| -> String {
                let diagnosis = engine.diagnose().to_string();
                diagnosis.lines().take(SHOWN).collect::<Vec<_>>().join("\n")
            };
            format!("{shape:?}\n{}", engines.iter().map(first).collect::<Vec<_>>().join("\n"))
        });
        let (finisher, to_finish) = channel();
        let gate = self.shape.gated.then(|| self.shut());
        thread::scope(|scope| {
            scope.spawn(move || finish_all(&to_finish));
            let submitters: Vec<_> = (0..self.shape.submitters)
                .map(|number| {
                    let (half, reached) = channel();
                    let submitter = Submitter { world: self, finisher: finisher.clone(), half: Some(half) };
                    (scope.spawn(move || submitter.submit(number)), reached)
                })
                .collect();
            drop(finisher);
            for number in 0..self.shape.bystanders {
                scope.spawn(move || bystander::disturb(self, number));
            }
            if let Some((tensors, variables)) = gate {
                for (_, reached) in &submitters {
                    // An error says that the submitter is through already.
                    let _ = reached.recv();
                }
                tensors.open();
                variables.into_iter().for_each(Gate::open);
            }
            let ops: Vec<_> = submitters
                .into_iter()
                .flat_map(|(thread, _)| thread.join().expect("submits to the end"))
                .collect();
            for engine in &self.engines {
                engine.wait_all(None).expect("everything ends");
            }
            for (index, op, cancelled) in ops {
                let ended = OpEnd { cancelled, outcomes: [op.wait(), op.wait()] };
                self.ended[index].set(ended).expect("each operation ends once");
            }
        });
        while self.under_way.load(Ordering::Acquire) > 0 {
            thread::sleep(PAUSE);
        }
        assert!(watchdog.still_watches());
    }

    /// Gates before all cells: each is written once.
    fn shut(&self) -> (Gate, Vec<Gate>) {
        let tensors: Vec<Tensor> = self.cells.iter().filter_map(|cell| cell.tensor().cloned()).collect();
        let gate = Gate::on_tensors(&self.engines[0], &tensors);
        let variables = self.cells.iter().filter(|cell| cell.tensor().is_none());
        (gate, variables.map(|cell| Gate::on_variable(&self.engines[0], cell.variable())).collect())
    }

    /// Takes the cells of `op` and reads.
    pub(super) fn begin(&self, op: OpIndex) -> u64 {
        let plan = &self.plans[op].1;
        self.begin_accesses(op);
        (0..plan.spins).for_each(|_| std::hint::spin_loop());
        let read = |cell: CellId| (self.cells[cell].value(), self.cells[cell].version());
        digest(plan, op, read)
    }

    /// Writes, records the observations, and releases the cells.
    pub(super) fn end(&self, op: OpIndex, digest: u64) -> BodyResult {
        self.sign(op, true);
        self.finish(op, digest);
        match self.plans[op].1.fate {
            Fate::Well => Ok(()),
            Fate::Error => Err(format!("fate of {op}").into()),
            Fate::Panic => std::panic::panic_any(format!("fate of {op}")),
        }
    }

    /// Takes the cells of `op`, and checks the other conditions of its grant.
    pub(super) fn begin_accesses(&self, op: OpIndex) {
        for (cell, _, writes) in self.plans[op].1.accesses() {
            self.cells[cell].begin_access(writes);
        }
        self.assert_ready(op);
    }

    /// Checks that the imports of `op` are ready, and that its promised tensor is defined.
    pub(super) fn assert_ready(&self, op: OpIndex) {
        self.uses[op].begin(op);
        assert!(
            !self.uses[op].pending.load(Ordering::Acquire),
            "operation {op} begins before its import is ready"
        );
        if let Some(late) = self.late[op].get() {
            let data: *const u64 =
                late.data_ptr().expect("operations wait for the definition of what they read").cast();
            // SAFETY: defined with one number, which nothing writes.
            assert_eq!(unsafe { *data }, mix(op as u64), "operation {op} reads a late tensor");
        }
    }

    /// Reads a cell beside other readers.
    pub(super) fn value_of(&self, cell: CellId) -> u64 {
        self.cells[cell].begin_access(false);
        let value = self.cells[cell].value();
        thread::yield_now();
        assert_eq!(self.cells[cell].value(), value, "written while a node reads it");
        self.cells[cell].end_access(false);
        value
    }

    pub(super) fn begin_work(&self) {
        self.under_way.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn end_work(&self, op: OpIndex) {
        self.uses[op].over.store(true, Ordering::Release);
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn finish(&self, op: OpIndex, digest: u64) {
        let plan = &self.plans[op].1;
        for (cell, reads, _) in plan.accesses().into_iter().filter(|(_, _, writes)| *writes) {
            let before = if reads { self.cells[cell].value() } else { 0 };
            let data = self.cells[cell].data;
            // SAFETY: the operation has the cell to itself, as `begin_access` has checked.
            unsafe { *data = written(op, cell, digest, before) };
        }
        self.digests[op].set(digest).expect("a body runs once");
        for (cell, _, writes) in plan.accesses() {
            self.cells[cell].end_access(writes);
        }
        self.uses[op].over.store(true, Ordering::Release);
    }

    pub(super) fn sign(&self, op: OpIndex, ran: bool) {
        for (cell, _, _) in self.plans[op].1.accesses() {
            self.cells[cell].log.lock().unwrap_or_else(PoisonError::into_inner).push(LogEntry { op, ran });
        }
    }
}

/// The operations of a program with their submitters, in the order of submission of each submitter.
pub fn draw_plans(shape: &Shape) -> Vec<(usize, Plan)> {
    let mut plans = Vec::new();
    for submitter in 0..shape.submitters {
        let mut dice = Dice::new(mix(shape.seed ^ submitter as u64));
        let share = (shape.operations + submitter) / shape.submitters;
        plans.extend((0..share).map(|_| (submitter, Plan::draw(shape, &mut dice))));
    }
    plans
}

/// Everything that `op` sees, in order.
pub fn digest(plan: &Plan, op: OpIndex, mut read: impl FnMut(CellId) -> (u64, u64)) -> u64 {
    let mut digest = op as u64;
    let mut fold = |value: u64| digest = mix(digest.rotate_left(7) ^ value);
    for list in [&plan.reads, &plan.updates, &plan.variables_read] {
        for cell in list {
            let (value, version) = read(*cell);
            fold(value);
            fold(version);
        }
    }
    // Of what is only overwritten, the version.
    for cell in plan.writes.iter().chain(&plan.variables_written) {
        fold(read(*cell).1);
    }
    digest
}

/// Value that `op` leaves in a cell that held `before`; 0 when it does not look.
pub fn written(op: OpIndex, cell: CellId, digest: u64, before: u64) -> u64 {
    mix(digest ^ mix(op as u64) ^ mix(cell as u64 + 1).rotate_left(9) ^ before.rotate_left(31))
}
