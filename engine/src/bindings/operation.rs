//! Descriptions, outcomes and fences of operations.

use std::ptr::NonNull;
use std::time::Duration;

use estafette_devices::{Fence, FenceSet};
use estafette_graph::OpId;

use crate::core::clock;
use crate::core::error::{BodyResult, Error};
use crate::core::operation::Op;
use crate::exchange::ManagedTensor;
use crate::exchange::foreign_fence::{self, RawFence};
use crate::operation::builder::{Description, Nothing, OpBuilder, Target};
use crate::operation::completion::Completion;
use crate::operation::import::Produced;
use crate::operation::operands::Operands;
use crate::tensor::handle::Tensor;
use crate::tensor::variable::Variable;
use crate::wait::fence;
use crate::wait::notify::Notice;

pub use super::submit_permit::{SubmitPermit, reserve};

/// Keeps threads that wait from running the body. Meant for bodies that need a global lock, such as Python's.
/// In a program one such node decides for all of its nodes.
pub fn worker_only<'v, T: Target<'v>, R, W, U>(
    description: Description<T, R, W, U>,
) -> Description<T, R, W, U> {
    description.worker_only()
}

/// The body takes the engine's [shared lock](super::engine::share_lock), and releases it before it waits.
/// Threads that wait for it run it as one of the threads that the engine lets run at once. The operation may
/// begin and end while its thread has the lock.
pub fn needs_lock<'v, T: Target<'v>, R, W, U>(
    mut description: Description<T, R, W, U>,
) -> Description<T, R, W, U> {
    description.target.set_worker_only(true);
    description
}

pub fn beyond_limit<R: Operands, W: Operands, U: Operands>(
    builder: OpBuilder<'_, R, W, U>,
) -> Result<OpBuilder<'_, R, W, U>, Error> {
    builder.beyond_limit()
}

/// As [`receive`](OpBuilder::receive), whatever the in-flight limit and after shutdown too: for results of an
/// operation that runs, whose end completes this one too.
pub fn receive_always<R: Operands, F>(
    builder: OpBuilder<'_, R, Nothing, ()>,
    start: F,
) -> Result<Tensor, Error>
where
    F: FnOnce(Completion) + Send + 'static,
{
    builder.core().generation.check()?;
    builder.check_external()?;
    builder.core().acquire_permit_always();
    Ok(builder.received(start))
}

pub fn mutex() -> Variable {
    Variable::mutex()
}

/// Identity in traces and diagnoses.
pub fn variable_id(variable: &Variable) -> u64 {
    variable.id()
}

/// The operation; `None` for a node of a program.
pub fn completion_op(completion: &Completion) -> Option<Op> {
    completion.op()
}

pub fn produce_after(completion: Completion, fence: &Fence, result: BodyResult<Produced>) {
    completion.produce_after(fence, result)
}

/// Adopts the fence of another scheduler, with the devices of the engine that runs the operation.
///
/// # Errors
/// As [`import`](super::exchange::import); [`Error::Invalid`] for a fence that waits for the end of this
/// operation.
///
/// # Safety
/// As for [`import`](super::exchange::import).
pub unsafe fn import_fence(completion: &Completion, fence: NonNull<RawFence>) -> Result<Fence, Error> {
    let core = completion.scope().core();
    // SAFETY: the caller's promise is the same.
    let imported = unsafe { foreign_fence::import(fence, core.as_ref().map_or(&[], |core| &core.devices)) }?;
    // SAFETY: as above, and the struct is of this version.
    if foreign_fence::waits_for(unsafe { fence.as_ref() }, OpId::new(completion.scope().id())) {
        return Err(Error::invalid(
            "fence: it waits for the end of this very operation, which would wait for itself",
        ));
    }
    Ok(imported)
}

pub fn on_end<C>(op: &Op, callback: C) -> Notice
where
    C: FnOnce(Result<(), Error>) + Send + 'static,
{
    op.on_end(callback)
}

pub fn outcome(op: &Op) -> Option<Result<(), Error>> {
    op.outcome()
}

pub fn left(op: &Op) -> FenceSet {
    op.left()
}

/// Waits until a fence that the operation ends with has settled, well or not. Without a `timeout` the wait
/// may run operations on this thread.
///
/// # Errors
/// [`Error::Timeout`], [`Error::Interrupted`]; [`Error::WouldDeadlock`] in a callback.
pub fn wait_for_fence(op: &Op, fence: &Fence, timeout: Option<Duration>) -> Result<(), Error> {
    let deadline = timeout.and_then(clock::deadline);
    fence::wait_on_host(&op.handle.payload().core, &fence.clone().into(), deadline, timeout)
}

/// `fence`, with which the operation ends, for another scheduler. The owner of the struct owns one count of
/// it.
pub fn export_fence(op: &Op, fence: Fence) -> RawFence {
    fence::export(&op.handle.payload().core, fence, vec![op.handle.id()])
}

pub fn immutable(managed: ManagedTensor) -> Produced {
    Produced::immutable(managed)
}
