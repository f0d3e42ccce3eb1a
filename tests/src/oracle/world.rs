//! Where it is run: cells, bodies, and what they observe.

use std::cell::Cell as ThreadCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use estafette::devices::{Frontier, host};
use estafette::{BodyResult, Completion, DType, Engine, Error, ManagedTensor, Op, Origin, Tensor, Variable};
use estafette_sync::sync::mpsc::{Receiver, Sender, channel};
use estafette_sync::{thread, thread_local};

use super::bystander;
use super::program::{Body, CellId, Fate, OpIndex, Plan, Shape};
use crate::dice::{Dice, mix};
use crate::foreign::{Deleted, Memory};
use crate::gate::Gate;
use crate::watchdog::Watchdog;

/// Far more than a program takes on a loaded machine with two cores.
const LIMIT: Duration = Duration::from_secs(120);

/// Operations of each engine that a diagnosis shows.
const SHOWN: usize = 30;

/// How one operation ended, as its submitter saw it.
#[derive(Debug)]
pub struct Ended {
    /// Whether `cancel` said that it did cancel.
    pub cancelled: bool,
    /// What waiting for it said, twice.
    pub outcomes: [Result<(), Error>; 2],
}

/// An entry in the log of a cell.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Who.
    pub op: OpIndex,
    /// Whether its body ran, or was dropped.
    pub ran: bool,
}

/// Something that order is kept for.
#[derive(Debug)]
pub struct Cell {
    handle: Handle,
    data: *mut u64,
    /// Where it belongs to another library.
    memory: Option<Memory>,
    /// -1 while somebody is alone, else the number of readers.
    users: AtomicIsize,
    log: Mutex<Vec<Entry>>,
}

#[derive(Debug)]
enum Handle {
    Tensor(Tensor),
    Variable(Variable),
}

// SAFETY: `data` is touched only by operations that have been granted the cell, which is what the test is about, and
// `users` tells when that goes wrong.
unsafe impl Send for Cell {}
// SAFETY: as above.
unsafe impl Sync for Cell {}

impl Cell {
    /// Finished writes.
    pub fn version(&self) -> u64 {
        match &self.handle {
            Handle::Tensor(tensor) => tensor.version(),
            Handle::Variable(variable) => variable.version(),
        }
    }

    /// What it holds. Only when nobody uses it.
    pub fn value(&self) -> u64 {
        // SAFETY: one element, which nobody writes now.
        unsafe { *self.data }
    }

    /// The tensor, where it is one.
    pub fn tensor(&self) -> Option<&Tensor> {
        match &self.handle {
            Handle::Tensor(tensor) => Some(tensor),
            Handle::Variable(_) => None,
        }
    }

    /// Everybody who used it, in order.
    pub fn log(&self) -> Vec<Entry> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn variable(&self) -> &Variable {
        match &self.handle {
            Handle::Variable(variable) => variable,
            Handle::Tensor(_) => panic!("plans keep tensors and variables apart"),
        }
    }

    pub(super) fn enter(&self, alone: bool) {
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

    pub(super) fn leave(&self, alone: bool) {
        if alone {
            self.users.store(0, Ordering::Release);
        } else {
            self.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The cells, the plans, and what was observed.
pub struct World {
    /// Its dimensions.
    pub shape: Shape,
    /// Tensors first, then plain variables.
    pub cells: Vec<Cell>,
    /// Every operation with its submitter, in the order of submission of each submitter.
    pub plans: Vec<(usize, Plan)>,
    /// Versions that exist before the program (the gate's).
    pub first_version: u64,
    /// What each body that ran has read.
    pub digests: Vec<OnceLock<u64>>,
    /// How each operation ended.
    pub ended: Vec<OnceLock<Ended>>,
    /// The engine's name of each operation.
    pub ids: Mutex<HashMap<u64, OpIndex>>,
    /// The deleters of all tensors that were imported, with the operation that a tensor was imported for.
    pub deleted: Mutex<Vec<(Option<OpIndex>, Deleted)>>,
    pub(super) engines: Vec<Engine>,
}

impl World {
    /// Draws a program and makes what it needs.
    ///
    /// # Errors
    /// The engine's.
    pub fn new(shape: Shape) -> Result<Arc<Self>, Error> {
        let plans = draw_plans(&shape);
        Self::with_plans(shape, plans)
    }

    /// Makes what a program needs: operations with their submitters, in the order of submission of each submitter.
    ///
    /// # Errors
    /// The engine's.
    pub fn with_plans(shape: Shape, plans: Vec<(usize, Plan)>) -> Result<Arc<Self>, Error> {
        let engine = || Engine::builder().workers(shape.workers).window(shape.window).build();
        let engines = (0..shape.engines).map(|_| engine()).collect::<Result<Vec<_>, _>>()?;
        let (mut cells, mut deleted) = (Vec::new(), Vec::new());
        for number in 0..shape.tensors + shape.variables {
            let memory = (shape.aliases && number < shape.tensors).then(|| Memory::of(&[0.0; 4]));
            let (handle, data) = if number < shape.tensors {
                let engine = &engines[number % engines.len()];
                let tensor = match &memory {
                    Some(memory) => {
                        let counter = Deleted::default();
                        deleted.push((None, counter.clone()));
                        import(engine, memory, &counter)?
                    }
                    None => engine.zeros(&[1], DType::U64)?,
                };
                let data = tensor.data_ptr()?.cast_mut().cast();
                (Handle::Tensor(tensor), data)
            } else {
                (Handle::Variable(engines[0].var()), Box::into_raw(Box::new(0)))
            };
            cells.push(Cell { handle, data, memory, users: AtomicIsize::new(0), log: Mutex::default() });
        }
        Ok(Arc::new(Self {
            first_version: u64::from(shape.gated),
            cells,
            digests: plans.iter().map(|_| OnceLock::new()).collect(),
            ended: plans.iter().map(|_| OnceLock::new()).collect(),
            plans,
            ids: Mutex::default(),
            deleted: Mutex::new(deleted),
            engines,
            shape,
        }))
    }

    /// Its engines.
    pub fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// Submits everything and waits for the end.
    ///
    /// # Panics
    /// When the engine refuses what it should not, or grants what it should not.
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
                scope.spawn(move || bystander::look_on(self, number));
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
                let ended = Ended { cancelled, outcomes: [op.wait(), op.wait()] };
                self.ended[index].set(ended).expect("each operation ends once");
            }
        });
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
    fn begin(&self, op: OpIndex) -> u64 {
        let plan = &self.plans[op].1;
        for (cell, _, writes) in plan.accesses() {
            self.cells[cell].enter(writes);
        }
        (0..plan.spins).for_each(|_| std::hint::spin_loop());
        let read = |cell: CellId| (self.cells[cell].value(), self.cells[cell].version());
        digest(plan, op, read)
    }

    /// The tensor that `op` is given: the one of the cell, or one that is imported for it alone.
    fn operand(&self, op: OpIndex, cell: CellId) -> Tensor {
        let (plan, cell) = (&self.plans[op].1, &self.cells[cell]);
        match &cell.memory {
            Some(memory) if plan.aliased => {
                let counter = Deleted::default();
                self.deleted.lock().unwrap_or_else(PoisonError::into_inner).push((Some(op), counter.clone()));
                import(&self.engines[plan.engine], memory, &counter).expect("memory that is known")
            }
            _ => cell.tensor().expect("a tensor").clone(),
        }
    }

    /// Writes, notes what was seen, and lets the cells go.
    fn end(&self, op: OpIndex, digest: u64) -> BodyResult {
        self.sign(op, true);
        self.finish(op, digest);
        match self.plans[op].1.fate {
            Fate::Well => Ok(()),
            Fate::Error => Err(format!("fate of {op}").into()),
            Fate::Panic => std::panic::panic_any(format!("fate of {op}")),
        }
    }

    fn finish(&self, op: OpIndex, digest: u64) {
        let plan = &self.plans[op].1;
        for (cell, reads, _) in plan.accesses().into_iter().filter(|(_, _, writes)| *writes) {
            let before = if reads { self.cells[cell].value() } else { 0 };
            let data = self.cells[cell].data;
            // SAFETY: the operation has the cell to itself, as `enter` has checked.
            unsafe { *data = written(op, cell, digest, before) };
        }
        self.digests[op].set(digest).expect("a body runs once");
        for (user, deleted) in &*self.deleted.lock().unwrap_or_else(PoisonError::into_inner) {
            assert!(*user != Some(op) || deleted.count() == 0, "operation {op} still used what was deleted");
        }
        for (cell, _, writes) in plan.accesses() {
            self.cells[cell].leave(writes);
        }
    }

    fn sign(&self, op: OpIndex, ran: bool) {
        for (cell, _, _) in self.plans[op].1.accesses() {
            self.cells[cell].log.lock().unwrap_or_else(PoisonError::into_inner).push(Entry { op, ran });
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for cell in self.cells.iter().filter(|cell| cell.tensor().is_none()) {
            // SAFETY: made from a box in `new`; all operations have ended with the threads of `run`.
            drop(unsafe { Box::from_raw(cell.data) });
        }
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// One more tensor of `memory`.
fn import(engine: &Engine, memory: &Memory, deleted: &Deleted) -> Result<Tensor, Error> {
    let tensor =
        memory.versioned(0, 1, deleted, |managed| (managed.tensor.code, managed.tensor.bits) = (1, 64));
    // SAFETY: a fresh tensor of one `u64`, whose memory holds two. Nothing but operations and leases writes it.
    unsafe {
        let managed = ManagedTensor::from_raw_versioned(tensor).expect("version 1.1 is known");
        engine.import_from(managed, Frontier::default(), false, || Origin::Owner)
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

/// What `op` leaves in a cell that held `before`; 0 when it does not look.
pub fn written(op: OpIndex, cell: CellId, digest: u64, before: u64) -> u64 {
    mix(digest ^ mix(op as u64) ^ mix(cell as u64 + 1).rotate_left(9) ^ before.rotate_left(31))
}

thread_local! {
    /// The operation whose submission this thread is inside of, if it may be refused: its body, dropped now, was never
    /// submitted.
    static REFUSABLE: ThreadCell<Option<OpIndex>> = const { ThreadCell::new(None) };

    /// The operation that this thread cancels just now: its body is dropped at once, before its turn comes.
    static CANCELLING: ThreadCell<Option<OpIndex>> = const { ThreadCell::new(None) };
}

/// Held by the body of one operation. Dropped without having been run, it signs the logs: the operation was skipped. One that was
/// cancelled need not have its accesses then, and signs nothing.
struct Ticket {
    world: Arc<World>,
    op: OpIndex,
    ran: bool,
}

impl Ticket {
    fn begin(mut self) -> (Arc<World>, OpIndex, u64) {
        self.ran = true;
        (Arc::clone(&self.world), self.op, self.world.begin(self.op))
    }

    fn run(self) -> BodyResult {
        let (world, op, digest) = self.begin();
        world.end(op, digest)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.ran || [REFUSABLE.get(), CANCELLING.get()].contains(&Some(self.op)) {
            return;
        }
        if self.world.shape.fences || self.world.shape.bystanders > 0 {
            // Fences of what comes before need not be done.
            return self.world.sign(self.op, false);
        }
        let accesses = self.world.plans[self.op].1.accesses();
        for (cell, _, writes) in &accesses {
            self.world.cells[*cell].enter(*writes);
        }
        self.world.sign(self.op, false);
        for (cell, _, writes) in &accesses {
            self.world.cells[*cell].leave(*writes);
        }
    }
}

/// An external operation on its way to the thread that ends it.
type Unfinished = (Arc<World>, OpIndex, u64, Completion);

/// The thread that ends external operations.
fn finish_all(to_finish: &Receiver<Unfinished>) {
    for (world, op, digest, completion) in to_finish {
        if world.plans[op].1.body == Body::Fenced {
            let (completer, fence) = host::promise("work of an operation");
            // While it has its accesses: one that is skipped after it does not wait for its work.
            world.sign(op, true);
            completion.complete_after(&fence);
            // Work goes on with what the operation, which has ended, had accesses to.
            thread::yield_now();
            world.finish(op, digest);
            completer.complete();
            continue;
        }
        let end = std::panic::AssertUnwindSafe(|| world.end(op, digest));
        match std::panic::catch_unwind(end) {
            Ok(result) => completion.complete(result),
            // Fails the operation, as losing it would.
            Err(_) => drop(completion),
        }
    }
}

struct Submitter<'w> {
    world: &'w Arc<World>,
    finisher: Sender<Unfinished>,
    half: Option<Sender<()>>,
}

impl Submitter<'_> {
    fn submit(mut self, number: usize) -> Vec<(OpIndex, Op, bool)> {
        let mut dice = Dice::new(mix(self.world.shape.seed ^ (1 << 32) ^ number as u64));
        let mut ops: Vec<(OpIndex, Op, bool)> = Vec::new();
        let mut to_cancel: Vec<usize> = Vec::new();
        let mine = || self.world.plans.iter().enumerate().filter(|(_, (submitter, _))| *submitter == number);
        let half = mine().count() / 2;
        for (index, (_, plan)) in mine() {
            let op = self.submit_one(index, plan);
            self.world.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(op.id(), index);
            // Behind a gate that opens at half, a wait before that would never end.
            if plan.wait && (ops.len() > half || !self.world.shape.gated) {
                let _ = op.wait();
            }
            if plan.cancel {
                to_cancel.push(ops.len());
            }
            ops.push((index, op, false));
            if !to_cancel.is_empty() && dice.once_in(2) {
                let place = to_cancel.swap_remove(dice.roll(to_cancel.len()));
                CANCELLING.set(Some(ops[place].0));
                ops[place].2 = ops[place].1.cancel();
                CANCELLING.set(None);
            }
            if ops.len() == half {
                self.half = None;
            }
        }
        ops
    }

    fn submit_one(&self, op: OpIndex, plan: &Plan) -> Op {
        let tensors = |cells: &[CellId]| -> Vec<Tensor> {
            cells.iter().map(|cell| self.world.operand(op, *cell)).collect()
        };
        let variables = |cells: &[CellId]| -> Vec<_> {
            cells.iter().map(|cell| self.world.cells[*cell].variable()).collect()
        };
        let updates = tensors(&plan.updates);
        let builder = || {
            self.world.engines[plan.engine]
                .op("random")
                .reads_slice(&tensors(&plan.reads))
                .writes_slice(&tensors(&plan.writes))
                .reads_vars(&variables(&plan.variables_read))
                .writes_vars(&variables(&plan.variables_written))
                .priority(plan.priority)
        };
        let finisher = self.finisher.clone();
        let ticket = || Ticket { world: Arc::clone(self.world), op, ran: false };
        let external = |ticket: Ticket| {
            move |completion| {
                let (world, op, digest) = ticket.begin();
                finisher.send((world, op, digest, completion)).expect("the finisher outlives all operations");
            }
        };
        // The number of updates is part of the type.
        macro_rules! with_updates {
            ($($tensor:ident)*) => {{
                let [$($tensor),*] = &updates[..] else { unreachable!("counted by the caller") };
                let builder = || builder().updates([$($tensor),*]);
                match plan.body {
                    Body::Sync | Body::Refusing => {
                        let ticket = ticket();
                        builder().run(move |_, _, _| ticket.run())
                    }
                    Body::Future => {
                        let ticket = ticket();
                        builder().run_future(move |reads, writes, updates| asynchronous(ticket, (reads, writes, updates)))
                    }
                    Body::External | Body::Fenced => builder().run_external(external(ticket())),
                }
            }};
        }
        let submitted = match (updates.len(), plan.body) {
            // Without workers it may be skipped inside its submission, where that cannot be told from being refused.
            (0, Body::Refusing) if self.world.shape.workers == 0 && self.world.shape.faults => {
                let ticket = ticket();
                builder().run(move |_, _| ticket.run())
            }
            (0, Body::Sync) => {
                let ticket = ticket();
                builder().run(move |_, _| ticket.run())
            }
            (0, Body::Refusing) => loop {
                let ticket = ticket();
                REFUSABLE.set(Some(op));
                let result = builder().try_run(move |_, _| ticket.run());
                REFUSABLE.set(None);
                match result {
                    Err(Error::WindowFull { .. }) if self.world.shape.workers == 0 => {
                        // Nobody else would make room.
                        self.world.engines[plan.engine].run_ready();
                    }
                    Err(Error::WindowFull { .. }) => thread::yield_now(),
                    other => break other,
                }
            },
            (0, Body::Future) => {
                let ticket = ticket();
                builder().run_future(move |reads, writes| asynchronous(ticket, (reads, writes)))
            }
            (0, Body::External | Body::Fenced) => builder().run_external(external(ticket())),
            (1, _) => with_updates!(a),
            (2, _) => with_updates!(a b),
            (3, _) => with_updates!(a b c),
            (more, _) => unreachable!("{more} updates were never planned"),
        };
        submitted.unwrap_or_else(|error| panic!("operation {op} was refused: {error}"))
    }
}

/// Reads, lets others run, and writes.
async fn asynchronous(ticket: Ticket, guards: impl Send) -> BodyResult {
    let (world, op, digest) = ticket.begin();
    let_others_run().await;
    let result = world.end(op, digest);
    drop(guards);
    result
}

/// Pending once, and woken at once.
async fn let_others_run() {
    let mut pending = true;
    std::future::poll_fn(|cx| {
        if std::mem::take(&mut pending) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}
