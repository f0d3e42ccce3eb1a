//! Readiness, exports and fences of a tensor.

use std::ptr::NonNull;

use estafette_devices::{DLDevice, Fence};

use crate::core::error::Error;
use crate::exchange::abi::table;
use crate::exchange::foreign_fence::RawFence;
use crate::exchange::{Abi, ManagedTensor};
use crate::export::{ExportOptions, export_lease};
use crate::lease::consumer::{Consumer, Keeper, after_of};
use crate::lease::{LeaseOwner, LeaseState};
use crate::tensor::handle::Tensor;
use crate::trace::hooks;
use crate::wait::fence;
use crate::wait::notify::{Notice, fence_of, notify_end};
use crate::wait::ready::VersionEnd;

pub use super::fenced::export_fenced;

pub fn same(tensor: &Tensor, other: &Tensor) -> bool {
    tensor.same(other)
}

pub fn is_write_unsaid(tensor: &Tensor) -> bool {
    tensor.is_write_unsaid()
}

pub fn is_defined(tensor: &Tensor) -> bool {
    tensor.is_defined()
}

/// As [`is_ready`](Tensor::is_ready), without a call of a driver: `None` where only such a call could tell.
pub fn known_ready(tensor: &Tensor) -> Option<bool> {
    tensor.inner.known_finished()
}

pub fn export_as_copy(tensor: &Tensor, options: &ExportOptions) -> Result<ManagedTensor, Error> {
    tensor.export_as_copy(options)
}

/// A read lease for a consumer, in the versioned struct, if the tensor is ready and free: the cheapest
/// export. Returns `None` where the export would have to wait, or to inspect failures and fences; then
/// `owner` is not called.
///
/// # Errors
/// [`Error::Forked`] in a forked child.
#[inline]
pub fn export_at_once(
    tensor: &Tensor,
    owner: impl FnOnce() -> LeaseOwner,
) -> Result<Option<ManagedTensor>, Error> {
    tensor.inner.core.generation.check()?;
    let Ok(definition) = tensor.inner.definition() else { return Ok(None) };
    if !tensor.inner.is_quiet() {
        return Ok(None);
    }
    let lease = LeaseState::try_read(tensor, owner);
    if let Some(lease) = &lease
        && !definition.host
        && let Some(after) = after_of(&Consumer::Host, &tensor.inner)
    {
        lease.ends_after(after);
    }
    Ok(lease.map(|lease| export_lease(lease, definition, Abi::Versioned)))
}

/// Describes the tensor in `out` without a lease: the struct borrows shape and strides, and nothing orders
/// the reader's uses. For calls that end before control returns (`dltensor_from_py_object_no_sync` of the
/// exchange table). Does not wait.
///
/// # Errors
/// [`Error::NotDefined`] while the tensor is not defined.
///
/// # Safety
/// `out` may be written. Reads of `out` must end before the last handle of the tensor is dropped, and the
/// reader must order its own uses of the memory.
pub unsafe fn lend(tensor: &Tensor, out: NonNull<table::DLTensor>) -> Result<(), Error> {
    let definition = tensor.inner.definition()?;
    // SAFETY: the place is the caller's, and the definition of a tensor lives, in place, as long as its last
    // handle.
    unsafe { table::lend(&definition.layout, definition.data, out) };
    Ok(())
}

/// As [`export_wait`](Tensor::export_wait), or `None` where earlier work would have to be waited for.
///
/// # Errors
/// As [`export`](Tensor::export).
pub fn try_export(tensor: &Tensor, options: &ExportOptions) -> Result<Option<ManagedTensor>, Error> {
    let wanted = tensor.lease(options.lease_access(), options.owner_text());
    let lease = wanted.for_consumer(options.settled_by()).try_now()?;
    lease.map(|lease| lease.export(options)).transpose()
}

/// A consumer that uses the tensor on `stream`, a native handle, of `device`: the memory's own, or, for
/// pinned and managed memory, any device of the runtime that shares it.
///
/// # Errors
/// [`Error::Invalid`] for a device that the memory is not on, or that the engine does not have;
/// [`Error::Device`] for a stream of another device.
///
/// # Safety
/// As for [`foreign_queue`](estafette_devices::Device::foreign_queue), for as long as the consumer is used.
pub unsafe fn consumer_on(tensor: &Tensor, device: DLDevice, stream: usize) -> Result<Consumer, Error> {
    // SAFETY: by contract.
    Ok(Consumer::Queue(unsafe { tensor.queue_for_consumer(device, stream) }?))
}

pub unsafe fn consumer_on_kept(
    tensor: &Tensor,
    device: DLDevice,
    stream: usize,
    keeper: Keeper,
) -> Result<Consumer, Error> {
    // SAFETY: by contract.
    unsafe { tensor.consumer_on_kept(device, stream, keeper) }
}

/// As [`on_ready`](Tensor::on_ready), but a failure stays unretrieved.
pub fn on_end<C>(tensor: &Tensor, callback: C) -> Notice
where
    C: FnOnce(Result<(), Error>) + Send + 'static,
{
    let ended = VersionEnd::new(&tensor.inner, false);
    let query = ended.handle();
    let noted = query.clone().filter(|query| query.payload().noted);
    notify_end(ended, query.as_ref(), move |outcome| {
        if let Some(query) = noted {
            hooks::resumed(query.id().get(), false);
        }
        callback(outcome);
    })
}

pub fn outcome(tensor: &Tensor) -> Option<Result<(), Error>> {
    tensor.outcome()
}

/// [`ready_fence`](Tensor::ready_fence) for another scheduler. The owner of the struct owns one count of
/// the fence.
pub fn export_ready_fence(tensor: &Tensor) -> RawFence {
    // Before the fence: a write that comes in between is none that the fence waits for.
    let after = tensor.last_uses(|var| var.queued_writes().pop().into_iter().collect());
    fence::export(&tensor.inner.core, tensor.ready_fence(), after)
}

pub fn export_fence(tensor: &Tensor, fence: Fence) -> RawFence {
    tensor.export_fence(fence)
}

/// [`writable_fence`] for another scheduler. The owner of the struct owns one count of the fence.
pub fn export_writable_fence(tensor: &Tensor) -> RawFence {
    let after = tensor.last_uses(|var| var.queued());
    fence::export(&tensor.inner.core, writable_fence(tensor), after)
}

/// The end of every use that was submitted before this call, as a fence. When the fence is done, the
/// memory may be overwritten.
pub fn writable_fence(tensor: &Tensor) -> Fence {
    fence_of("the uses of a tensor", tensor.writable())
}

pub unsafe fn import_fence(tensor: &Tensor, fence: NonNull<RawFence>) -> Result<Fence, Error> {
    // SAFETY: by contract.
    unsafe { tensor.import_fence(fence) }
}
