//! Threads that look on while a program runs. What they do changes nothing that the program observes, and
//! takes every turn that a lease, a question or a wait can take: had at once, waited for, given up, and
//! returned with work under way.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use estafette::devices::host;
use estafette::{Access, DType, Engine, Lease, Tensor};
use estafette_sync::thread;

use super::world::{Cell, World};
use crate::dice::{Dice, mix};

/// Number of steps of each of them.
const STEPS: usize = 6;

/// Runs the bystander until it has taken its steps.
pub(super) fn disturb(world: &Arc<World>, number: usize) {
    let mut dice = Dice::new(mix(world.shape.seed ^ (2 << 32) ^ number as u64));
    for _ in 0..STEPS {
        let cell = &world.cells[dice.roll(world.shape.tensors)];
        let tensor = cell.tensor().expect("tensors come first");
        let soon = Duration::from_micros(1 << dice.roll(12));
        match dice.roll(10) {
            // A failed version cannot be leased.
            0 => {
                if let Ok(Some(lease)) = tensor.lease(Access::Read, "a bystander").try_now() {
                    hold(cell, lease, soon, &mut dice);
                }
            }
            1 | 2 => {
                if let Ok(lease) = tensor.lease(Access::Read, "a bystander").wait(Some(soon)) {
                    hold(cell, lease, soon, &mut dice);
                }
            }
            // Asked for, perhaps granted meanwhile, and not wanted any more.
            3 | 4 => {
                let mut lease = pin!(tensor.lease(Access::Read, "a bystander"));
                if let Poll::Ready(Ok(lease)) = poll_for(&mut lease, &mut dice) {
                    hold(cell, lease, soon, &mut dice);
                }
            }
            5 if dice.once_in(2) => drop(poll_for(&mut pin!(tensor.ready()), &mut dice)),
            5 => wait_to_be_woken(cell, tensor, soon, &mut dice),
            6 => drop(tensor.wait_timeout(soon)),
            7 if world.shape.write_leases => hold_alone(cell, tensor, soon, &mut dice),
            8 => come_and_go(world, cell, tensor, &mut dice),
            _ => query(world, tensor, &mut dice),
        }
    }
}

fn query(world: &World, tensor: &Tensor, dice: &mut Dice) {
    match dice.roll(4) {
        3 => {
            let refused = world.engines[0].zeros(&[1 << 46], DType::U64);
            assert!(refused.is_err(), "half a pebibyte");
        }
        0 => drop(tensor.state()),
        1 => drop(world.engines[dice.roll(world.engines.len())].diagnose()),
        _ => thread::sleep(Duration::from_micros(1 << dice.roll(12))),
    }
}

/// Awaits, and polls only when it is woken.
fn wait_to_be_woken(cell: &Cell, tensor: &Tensor, soon: Duration, dice: &mut Dice) {
    match dice.roll(3) {
        0 => drop(block_on(tensor.ready())),
        1 => drop(block_on(tensor.writable())),
        _ => {
            if let Ok(lease) = block_on(tensor.lease(Access::Read, "a bystander")) {
                hold(cell, lease, soon, dice);
            }
        }
    }
}

/// Has it alone for a while, beside nothing else.
fn hold_alone(cell: &Cell, tensor: &Tensor, soon: Duration, dice: &mut Dice) {
    let Ok(lease) = tensor.lease(Access::Write, "a bystander").wait(Some(soon)) else { return };
    cell.begin_access(true);
    thread::yield_now();
    if dice.once_in(2) {
        cell.end_access(true);
        return drop(lease);
    }
    let (completer, fence) = host::promise("work of a write lease");
    lease.release_after(fence);
    thread::yield_now();
    cell.end_access(true);
    completer.complete();
}

/// An engine that reads once and goes, perhaps before it has read. A system that refuses threads may refuse
/// it.
fn come_and_go(world: &Arc<World>, cell: &Cell, tensor: &Tensor, dice: &mut Dice) {
    let engine = match Engine::builder().workers(1).in_flight_limit(dice.pick(&[2, 64])).build() {
        Ok(engine) => engine,
        Err(error) => return assert!(world.shape.refused.is_some(), "refused without a cause: {error}"),
    };
    let number = world.cells.iter().position(|one| std::ptr::eq(one, cell)).expect("one of the cells");
    let reading = Arc::clone(world);
    let op = engine.op("comes and goes").reads([tensor]).run(move |_, []| {
        reading.value_of(number);
        Ok(())
    });
    let op = op.expect("an engine with room takes it");
    if dice.once_in(2) {
        // It fails if its input has failed.
        let _ = op.wait();
    }
}

/// Reads for a while, beside other readers and no writer.
fn hold(cell: &Cell, lease: Lease, soon: Duration, dice: &mut Dice) {
    cell.begin_access(false);
    let before = cell.value();
    if dice.once_in(2) {
        thread::yield_now();
    } else {
        thread::sleep(soon);
    }
    if dice.once_in(2) {
        assert_eq!(cell.value(), before, "written while it was leased for reading");
        cell.end_access(false);
        return drop(lease);
    }
    let (completer, fence) = host::promise("work of a lease");
    lease.release_after(fence);
    // Work that reads is still running.
    thread::yield_now();
    assert_eq!(cell.value(), before, "written while work of a lease was under way");
    cell.end_access(false);
    completer.complete();
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls once, and then each time after it was woken.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// Polls now and then, a few times.
fn poll_for<F: Future + Unpin>(future: &mut F, dice: &mut Dice) -> Poll<F::Output> {
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..dice.roll(4) {
        if let Poll::Ready(output) = std::pin::Pin::new(&mut *future).poll(&mut cx) {
            return Poll::Ready(output);
        }
        thread::yield_now();
    }
    Poll::Pending
}
