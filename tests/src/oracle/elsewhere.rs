//! Operations whose work is done elsewhere: enqueued on a simulated device, or as a program that is recorded
//! and replayed once.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use estafette::devices::sim::SimQueue;
use estafette::devices::{DeviceError, DeviceErrorKind, Queue};
use estafette::operation::OpBuilder;
use estafette::{BodyResult, Engine, Error, Op, Tensor, Variable};

use super::program::{CellId, OpIndex};
use super::submitter::Ticket;
use super::world::{World, digest};
use crate::dice::{Dice, mix};

/// The operands of an operation: tensors to read and to write, variables to read and to write.
pub(super) struct Operands<'a> {
    pub(super) reads: &'a [Tensor],
    pub(super) writes: &'a [Tensor],
    pub(super) variables_read: &'a [&'a Variable],
    pub(super) variables_written: &'a [&'a Variable],
}

impl World {
    /// The queue of `op`, which its number decides.
    fn queue(&self, op: OpIndex) -> Arc<dyn Queue> {
        self.queues[mix(self.shape.seed ^ op as u64) as usize % self.queues.len()].clone()
    }
}

/// Submits `op` as work on a device.
pub(super) fn on_device(
    world: &World,
    op: OpIndex,
    builder: OpBuilder<'_, estafette::operation::Tensors, estafette::operation::Tensors, ()>,
    ticket: Ticket,
) -> Result<Op, Error> {
    builder.on(&world.queue(op)).run_on(move |queue, _, _| enqueue(queue, ticket))
}

/// Enqueues the work of an operation that has been granted what it uses, in the order of the queue.
fn enqueue(queue: &dyn Queue, ticket: Ticket) -> BodyResult {
    let (world, op) = ticket.issue();
    world.sign(op, true);
    let mut dice = Dice::new(mix(world.shape.seed ^ (3 << 32) ^ op as u64));
    let versions: Vec<(CellId, u64)> = world.plans[op]
        .1
        .accesses()
        .into_iter()
        .map(|(cell, _, _)| (cell, world.cells[cell].version()))
        .collect();
    if let Some(device) = world.device.as_ref().filter(|_| world.shape.breaks && dice.once_in(4)) {
        device.fail_next(DeviceError::new(DeviceErrorKind::Fault, "the seed breaks this queue"));
    }
    let work = DeviceWork::new(Arc::clone(&world), op);
    let queue = SimQueue::from_queue(queue).expect("a simulated queue");
    let duration_ns = dice.pick(&[0, 100, 10_000, 1_000_000]);
    queue.launch("work", duration_ns, move || work.carry_out(&versions))?;
    Ok(())
}

/// Work under way on a device. Dropped without having been carried out, it is over as well.
struct DeviceWork {
    world: Arc<World>,
    op: OpIndex,
}

impl DeviceWork {
    fn new(world: Arc<World>, op: OpIndex) -> Self {
        world.begin_work();
        Self { world, op }
    }

    fn carry_out(self, versions: &[(CellId, u64)]) {
        let (world, op) = (&self.world, self.op);
        let plan = &world.plans[op].1;
        world.begin_accesses(op);
        let version = |cell: CellId| versions.iter().find(|(known, _)| *known == cell).expect("noted").1;
        let seen = digest(plan, op, |cell| (world.cells[cell].value(), version(cell)));
        world.finish(op, seen);
    }
}

impl Drop for DeviceWork {
    fn drop(&mut self) {
        self.world.end_work(self.op);
    }
}

/// Submits `op` as a program: nodes that look at one tensor each, beside each other, and one that does the
/// rest after them, on a device where `device` says so.
pub(super) fn replayed(
    engine: &Engine,
    op: OpIndex,
    operands: &Operands<'_>,
    device: bool,
    ticket: Ticket,
) -> Result<Op, Error> {
    let world = Arc::clone(ticket.world());
    let mut builder = engine.program("random");
    let mut noted = Vec::new();
    for (tensor, cell) in operands.reads.iter().zip(world.plans[op].1.reads.clone()) {
        let (variable, seen) = (engine.var(), Arc::new(OnceLock::new()));
        let (looking, place) = (Arc::clone(&world), Arc::clone(&seen));
        let look = builder.op("look").reads(std::slice::from_ref(tensor)).writes_vars(&[&variable]);
        look.run(move |_, _| {
            looking.assert_ready(op);
            let _ = place.set(looking.value_of(cell));
            Ok(())
        })?;
        noted.push((variable, seen, cell));
    }
    let variables: Vec<&Variable> = noted
        .iter()
        .map(|(variable, _, _)| variable)
        .chain(operands.variables_read.iter().copied())
        .collect();
    let seen: Vec<_> = noted.iter().map(|(_, seen, cell)| (Arc::clone(seen), *cell)).collect();
    let rest = builder
        .op("rest")
        .reads(operands.reads)
        .writes(operands.writes)
        .reads_vars(&variables)
        .writes_vars(operands.variables_written);
    let ticket = Mutex::new(Some(ticket));
    let take = move || {
        ticket.lock().unwrap_or_else(PoisonError::into_inner).take().expect("a program that is replayed once")
    };
    if device {
        rest.on(&world.queue(op)).run_on(move |queue, _, _| enqueue(queue, take()))?;
    } else {
        rest.run(move |_, _| {
            let ticket = take();
            for (seen, cell) in &seen {
                let now = ticket.world().cells[*cell].value();
                assert_eq!(seen.get(), Some(&now), "nodes of one replay see the same");
            }
            ticket.run()
        })?;
    }
    drop(world);
    builder.finish()?.replay()
}
