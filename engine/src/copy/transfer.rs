//! Copies between a device and the host, which no thread has to wait for.
//!
//! If a copy of plain host memory may block the caller, it goes through chunks of
//! [`staging`](super::staging): the device copies one chunk while the host copies another. Otherwise it is
//! one copy.
//!
//! # Cancellation
//! A dropped future leaves copies of the device in flight. Their memory lives until they end: a chunk by
//! [`Chunk::release_after`], all other memory by [`KeepAlive`].

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use estafette_devices::{Device, DeviceError, Fence, FenceSet};

use super::queue_pool::PooledQueue;
use super::staging::{Chunk, StagingBuffers};
use crate::core::context;
use crate::core::engine_core::Core;
use crate::exchange::{Storage, reaper};
use crate::tensor::handle::Tensor;

/// Chunks of one copy in flight at once: one that the device copies, one that the host copies, one in
/// reserve.
const AHEAD: usize = 3;

/// An address that moves between threads with its copy.
#[derive(Clone, Copy)]
pub(super) struct Address(pub(super) *mut u8);

// SAFETY: only code that keeps the memory alive dereferences the address.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    fn plus(self, bytes: usize) -> *mut u8 {
        self.0.wrapping_add(bytes)
    }
}

/// Memory that a device may be using. Drop releases the memory after the fences in `after`.
pub(crate) struct KeepAlive<T: ReleaseAfter> {
    what: Option<T>,
    after: FenceSet,
}

/// Memory that can outlive its owner until a device is done with it.
pub(crate) trait ReleaseAfter: Send + 'static {
    /// Drops the memory when `after` has settled; never if the device may still use it after a failure.
    fn release_after(self, after: FenceSet);
}

impl ReleaseAfter for Storage {
    fn release_after(self, after: FenceSet) {
        reaper().release(after, self);
    }
}

impl ReleaseAfter for Tensor {
    fn release_after(self, mut after: FenceSet) {
        after.prune();
        if !after.is_empty() {
            reaper().release(after, Storage::owned(Box::new(self), std::ptr::null_mut()));
        }
    }
}

#[cfg(feature = "links")]
impl ReleaseAfter for Arc<Storage> {
    fn release_after(self, mut after: FenceSet) {
        after.prune();
        if !after.is_empty() {
            reaper().release(after, Storage::owned(Box::new(self), std::ptr::null_mut()));
        }
    }
}

impl<T: ReleaseAfter> KeepAlive<T> {
    pub(super) fn new(what: T) -> Self {
        Self::after(what, FenceSet::default())
    }

    /// Memory that devices use until these fences.
    pub(crate) fn after(what: T, after: FenceSet) -> Self {
        Self { what: Some(what), after }
    }

    /// Waits for the fences.
    ///
    /// # Errors
    /// A fence has failed.
    pub(super) fn settle(&self, core: &Core) -> Result<(), DeviceError> {
        self.after.iter().try_for_each(|fence| wait(core, fence))
    }

    /// The device uses the memory until `fence`.
    pub(super) fn until(&mut self, fence: &Fence) {
        self.after.insert(fence.clone());
    }

    pub(super) fn get(&self) -> &T {
        self.what.as_ref().expect("present until taken")
    }

    /// Moves the memory to the caller, who keeps it alive from now on.
    pub(crate) fn take(mut self) -> T {
        self.what.take().expect("present until taken")
    }
}

impl<T: ReleaseAfter> Drop for KeepAlive<T> {
    fn drop(&mut self) {
        if let Some(what) = self.what.take() {
            what.release_after(std::mem::take(&mut self.after));
        }
    }
}

/// Blocks until `fence` is done, with another thread for what this one would run meanwhile.
pub(super) fn wait(core: &Core, fence: &Fence) -> Result<(), DeviceError> {
    if let Some(outcome) = fence.state().outcome() {
        return outcome;
    }
    let _spare = core.pool.blocking();
    context::blocking(|| fence.wait_timeout(None)).unwrap_or(Ok(()))
}

/// A chunk that the device fills.
struct PendingChunk {
    /// `None` once the host has copied the chunk.
    chunk: Option<Chunk>,
    fence: Fence,
    /// The bytes of the copy that the chunk holds.
    bytes: Range<usize>,
}

impl Drop for PendingChunk {
    fn drop(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            chunk.release_after(&self.fence);
        }
    }
}

/// Enqueues a copy of `bytes` bytes, at least one, from `from` to `to`. Both memories are kept until it is
/// over, also where its end cannot be known.
///
/// # Errors
/// The device refuses the copy.
///
/// # Safety
/// `source` keeps the memory at `from`, and `target` the memory at `to`. No other code uses `to`, and none
/// writes `from`, before the fence is done.
pub(super) unsafe fn enqueue<S: ReleaseAfter, T: ReleaseAfter>(
    device: &Arc<dyn Device>,
    pooled: &mut PooledQueue,
    (source, from): (&mut KeepAlive<S>, Address),
    (target, to): (&mut KeepAlive<T>, Address),
    bytes: usize,
) -> Result<Fence, DeviceError> {
    // SAFETY: by contract.
    unsafe { device.copy(&**pooled.queue(), from.0, to.0, bytes) }?;
    let fence = pooled.record();
    source.until(&fence);
    target.until(&fence);
    Ok(fence)
}

/// Copies `bytes` bytes, at least one, from the device at `from` to the host at `to`. Returns the last fence,
/// which is done.
///
/// # Errors
/// The device fails, or refuses a copy.
///
/// # Safety
/// `source` keeps the memory at `from`, and `target` the memory at `to`. No other code uses `to` during the
/// copy, and no code writes `from` before the fences that `source` receives are done.
pub(super) async unsafe fn download<T: ReleaseAfter>(
    device: &Arc<dyn Device>,
    pooled: &mut PooledQueue,
    (source, from): (&mut KeepAlive<Tensor>, Address),
    (target, to): (&mut KeepAlive<T>, Address),
    bytes: usize,
) -> Result<Fence, DeviceError> {
    let mut enqueued = 0;
    let mut pending = VecDeque::new();
    if device.host_copy_blocks(to.0) {
        let staging = StagingBuffers::of(device);
        let size = staging.for_copy(bytes);
        loop {
            while enqueued < bytes && pending.len() < AHEAD {
                let chunk =
                    if pending.is_empty() { Some(size.take(device).await?) } else { size.try_take(device)? };
                let Some(chunk) = chunk else { break };
                let end = bytes.min(enqueued + size.bytes());
                // SAFETY: by contract, and the chunk is kept until the fence.
                unsafe { device.copy(&**pooled.queue(), from.plus(enqueued), chunk.at(), end - enqueued) }?;
                let fence = pooled.record();
                source.until(&fence);
                pending.push_back(PendingChunk { chunk: Some(chunk), fence, bytes: enqueued..end });
                enqueued = end;
            }
            let first: &PendingChunk = pending.front().expect("a chunk was enqueued, or is pending");
            first.fence.settled().await?;
            let mut landed = pending.pop_front().expect("it was inspected above");
            let chunk = landed.chunk.take().expect("it lands once");
            // SAFETY: the device has filled so much of the chunk; by contract there is as much room.
            unsafe { chunk.at().copy_to_nonoverlapping(to.plus(landed.bytes.start), landed.bytes.len()) };
            if landed.bytes.end == bytes {
                return Ok(landed.fence.clone());
            }
        }
    }
    // SAFETY: by contract.
    let fence = unsafe { enqueue(device, pooled, (source, from), (target, to), bytes) }?;
    fence.settled().await?;
    Ok(fence)
}

/// Copies `bytes` bytes, at least one, from the host at `from` to the device at `to`. The host's memory has
/// been read when the fence is done, if not before.
///
/// # Errors
/// The device fails, or refuses a copy.
///
/// # Safety
/// As for [`download`], and no code writes `from` before the fence is done.
pub(super) async unsafe fn upload<S: ReleaseAfter>(
    device: &Arc<dyn Device>,
    (source, from): (&mut KeepAlive<S>, Address),
    (target, to): (&mut KeepAlive<Storage>, Address),
    bytes: usize,
) -> Result<Fence, DeviceError> {
    let mut pooled = PooledQueue::for_copy(device)?;
    if !device.host_copy_blocks(from.0) {
        // SAFETY: by contract.
        return unsafe { enqueue(device, &mut pooled, (source, from), (target, to), bytes) };
    }
    let staging = StagingBuffers::of(device);
    let size = staging.for_copy(bytes);
    let mut in_flight: VecDeque<Fence> = VecDeque::new();
    let mut enqueued = 0;
    loop {
        if in_flight.len() >= AHEAD
            && let Some(first) = in_flight.pop_front()
        {
            first.settled().await?;
        }
        let chunk = match in_flight.front().cloned() {
            None => size.take(device).await?,
            Some(first) => match size.try_take(device)? {
                Some(chunk) => chunk,
                None => {
                    first.settled().await?;
                    in_flight.pop_front();
                    continue;
                }
            },
        };
        let end = bytes.min(enqueued + size.bytes());
        // SAFETY: by contract; the chunk is at least as long, and this copy's alone.
        unsafe { from.plus(enqueued).copy_to_nonoverlapping(chunk.at(), end - enqueued) };
        // SAFETY: by contract, and the chunk is kept until the fence.
        unsafe { device.copy(&**pooled.queue(), chunk.at(), to.plus(enqueued), end - enqueued) }?;
        let fence = pooled.record();
        target.until(&fence);
        chunk.release_after(&fence);
        enqueued = end;
        if enqueued == bytes {
            return Ok(fence);
        }
        in_flight.push_back(fence);
    }
}
