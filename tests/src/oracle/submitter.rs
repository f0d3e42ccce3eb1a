//! Submission of a program: its operations with their bodies, and the thread that ends external ones.

use std::cell::Cell as ThreadCell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::Poll;

use estafette::bindings;
use estafette::devices::host;
use estafette::{BodyResult, Completion, Error, Op, Produced, Tensor};
use estafette_sync::sync::mpsc::{Receiver, Sender};
use estafette_sync::{thread, thread_local};

use super::alias::{self, Settle, Uses};
use super::elsewhere::{self, Operands};
use super::program::{BodyKind, CellId, OpIndex, Plan};
use super::world::{PAUSE, World, has_lock};
use crate::dice::{Dice, mix};

thread_local! {
    /// The operation whose submission this thread is inside of, if it may be refused: its body, dropped now,
    /// was never submitted.
    static REFUSABLE: ThreadCell<Option<OpIndex>> = const { ThreadCell::new(None) };

    /// The operation that this thread cancels just now: its body is dropped at once, before its turn comes.
    static CANCELLING: ThreadCell<Option<OpIndex>> = const { ThreadCell::new(None) };
}

/// Held by the body of one operation. Dropped without having been run, it signs the logs: the operation was
/// skipped. One that was cancelled need not have its accesses then, and signs nothing.
pub(super) struct Ticket {
    world: Arc<World>,
    op: OpIndex,
    ran: bool,
}

impl Ticket {
    fn begin(mut self) -> (Arc<World>, OpIndex, u64) {
        self.ran = true;
        (Arc::clone(&self.world), self.op, self.world.begin(self.op))
    }

    pub(super) fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// Its work is enqueued, and not done yet.
    pub(super) fn issue(mut self) -> (Arc<World>, OpIndex) {
        self.ran = true;
        self.world.uses[self.op].begin(self.op);
        (Arc::clone(&self.world), self.op)
    }

    pub(super) fn run(self) -> BodyResult {
        let (world, op, digest) = self.begin();
        world.end(op, digest)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.ran || REFUSABLE.get() == Some(self.op) {
            return;
        }
        self.world.uses[self.op].over.store(true, Ordering::Release);
        if CANCELLING.get() == Some(self.op) {
            return;
        }
        let shape = &self.world.shape;
        if shape.fences || shape.bystanders > 0 || shape.device.is_some() {
            // Fences of what comes before need not be done.
            return self.world.sign(self.op, false);
        }
        let accesses = self.world.plans[self.op].1.accesses();
        for (cell, _, writes) in &accesses {
            self.world.cells[*cell].begin_access(*writes);
        }
        self.world.sign(self.op, false);
        for (cell, _, writes) in &accesses {
            self.world.cells[*cell].end_access(*writes);
        }
    }
}

/// Operations that another thread has to end.
pub(super) enum Unfinished {
    Operation(Arc<World>, OpIndex, u64, Completion),
    /// The definition of the tensor that this operation reads as well.
    Definition(OpIndex, Completion),
    Import(Arc<Uses>, Settle),
}

/// The thread that ends external operations.
pub(super) fn finish_all(to_finish: &Receiver<Unfinished>) {
    for unfinished in to_finish {
        let (world, op, digest, completion) = match unfinished {
            Unfinished::Operation(world, op, digest, completion) => (world, op, digest, completion),
            Unfinished::Definition(op, completion) => {
                thread::yield_now();
                completion.produce(Produced::from_vec(vec![mix(op as u64)], &[1]).map_err(Into::into));
                continue;
            }
            Unfinished::Import(uses, settle) => {
                thread::yield_now();
                uses.pending.store(false, Ordering::Release);
                settle.done();
                continue;
            }
        };
        if world.plans[op].1.body == BodyKind::Fenced {
            let (completer, fence) = host::promise("work of an operation");
            // While it has its accesses: one that is skipped after it does not wait for its work.
            world.sign(op, true);
            completion.complete_after(&fence, Ok(()));
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

pub(super) struct Submitter<'w> {
    pub(super) world: &'w Arc<World>,
    pub(super) finisher: Sender<Unfinished>,
    pub(super) half: Option<Sender<()>>,
}

impl Submitter<'_> {
    pub(super) fn submit(mut self, number: usize) -> Vec<(OpIndex, Op, bool)> {
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
        let engine = &self.world.engines[plan.engine];
        let imports = self.import(op, plan);
        let tensors = |cells: &[CellId]| -> Vec<Tensor> {
            let tensor = |cell: &CellId| match imports.get(cell) {
                Some(import) => import.clone(),
                None => self.world.cells[*cell].tensor().expect("a tensor").clone(),
            };
            cells.iter().map(tensor).collect()
        };
        let mut reads = tensors(&plan.reads);
        if plan.late {
            let finisher = self.finisher.clone();
            let late = engine.op("late").produce_external(move |completion| {
                finisher
                    .send(Unfinished::Definition(op, completion))
                    .expect("the finisher outlives all operations");
            });
            let late = late.expect("submitted");
            reads.push(late.clone());
            self.world.late[op].set(late).expect("submitted once");
        }
        let writes = tensors(&plan.writes);
        let variables = |cells: &[CellId]| -> Vec<_> {
            cells.iter().map(|cell| self.world.cells[*cell].variable()).collect()
        };
        let updates = tensors(&plan.updates);
        let builder = || {
            engine
                .op("random")
                .reads(&reads)
                .writes(&writes)
                .reads_vars(&variables(&plan.variables_read))
                .writes_vars(&variables(&plan.variables_written))
                .priority(plan.priority)
        };
        let finisher = self.finisher.clone();
        let ticket = || Ticket { world: Arc::clone(self.world), op, ran: false };
        let external = |ticket: Ticket| {
            move |completion| {
                let (world, op, digest) = ticket.begin();
                let unfinished = Unfinished::Operation(world, op, digest, completion);
                finisher.send(unfinished).expect("the finisher outlives all operations");
            }
        };
        // The number of updates is part of the type.
        macro_rules! with_updates {
            ($($tensor:ident)*) => {{
                let [$($tensor),*] = &updates[..] else { unreachable!("counted by the caller") };
                let builder = || builder().updates([$($tensor),*]);
                match plan.body {
                    BodyKind::Sync | BodyKind::Refusing => {
                        let ticket = ticket();
                        builder().run(move |_, _, _| ticket.run())
                    }
                    BodyKind::Future => {
                        let ticket = ticket();
                        builder().run_future(move |reads, writes, updates| asynchronous(ticket, (reads, writes, updates)))
                    }
                    BodyKind::External | BodyKind::Fenced => builder().run_external(external(ticket())),
                    BodyKind::Device | BodyKind::Replay { .. } => unreachable!("planned without updates"),
                }
            }};
        }
        let submitted = match (updates.len(), plan.body) {
            // Without workers the operation may be skipped inside its submission, which looks like a refusal.
            (0, BodyKind::Refusing) if self.world.shape.workers == 0 && self.world.shape.faults => {
                let ticket = ticket();
                builder().run(move |_, _| ticket.run())
            }
            (0, BodyKind::Sync) => {
                let ticket = ticket();
                let needs_lock = has_lock(&self.world.shape) && op.is_multiple_of(2);
                let builder = if needs_lock { bindings::operation::needs_lock(builder()) } else { builder() };
                builder.run(move |_, _| ticket.run())
            }
            (0, BodyKind::Refusing) => loop {
                let ticket = ticket();
                REFUSABLE.set(Some(op));
                let result = builder().without_waiting().run(move |_, _| ticket.run());
                REFUSABLE.set(None);
                match result {
                    // Without workers no other thread would make room. A thread that finds nothing to run
                    // sleeps, and does not switch alone: in a simulation, time passes only while threads
                    // sleep.
                    Err(Error::InFlightLimit { .. }) => {
                        if !self.world.engines[plan.engine].run_ready() {
                            thread::sleep(PAUSE);
                        }
                    }
                    other => break other,
                }
            },
            (0, BodyKind::Future) => {
                let ticket = ticket();
                builder().run_future(move |reads, writes| asynchronous(ticket, (reads, writes)))
            }
            (0, BodyKind::External | BodyKind::Fenced) => builder().run_external(external(ticket())),
            (0, BodyKind::Device) => elsewhere::on_device(self.world, op, builder(), ticket()),
            (0, BodyKind::Replay { device }) => {
                let operands = Operands {
                    reads: &reads,
                    writes: &writes,
                    variables_read: &variables(&plan.variables_read),
                    variables_written: &variables(&plan.variables_written),
                };
                elsewhere::replayed(engine, op, &operands, device, ticket())
            }
            (1, _) => with_updates!(a),
            (2, _) => with_updates!(a b),
            (3, _) => with_updates!(a b c),
            (more, _) => unreachable!("{more} updates were never planned"),
        };
        submitted.unwrap_or_else(|error| panic!("operation {op} was refused: {error}"))
    }
}

impl Submitter<'_> {
    /// The tensors of `op` as imports of its own, where it is planned so.
    fn import(&self, op: OpIndex, plan: &Plan) -> BTreeMap<CellId, Tensor> {
        if !plan.alias {
            return BTreeMap::new();
        }
        let cells = plan.accesses().into_iter().map(|(cell, _, _)| cell);
        let tensors: Vec<CellId> = cells.filter(|cell| *cell < self.world.shape.tensors).collect();
        if tensors.is_empty() {
            return BTreeMap::new();
        }
        let (settle, ready) = plan.pending.map(alias::fence).unzip();
        let uses = &self.world.uses[op];
        uses.pending.store(settle.is_some(), Ordering::Release);
        let engine = &self.world.engines[plan.engine];
        let imports = tensors
            .into_iter()
            .map(|cell| (cell, alias::import(self.world, engine, op, cell, ready.as_ref())));
        let imports = imports.collect();
        if let Some(settle) = settle {
            let unfinished = Unfinished::Import(Arc::clone(uses), settle);
            self.finisher.send(unfinished).expect("the finisher outlives all submitters");
        }
        imports
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
