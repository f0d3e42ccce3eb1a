//! Copies between a device and the host, which no thread waits for.
//!
//! Where a copy from or to plain host memory may hold up who asks for it, it goes by way of pieces of [`staging`](super::staging):
//! the device copies one while the host copies another, and a few are under way at once. Elsewhere it is one copy.
//!
//! # Given up half-way
//! A future that is dropped leaves copies of the device behind. What they use is kept until they are over: a piece by
//! [`Piece::give_back_after`], everything else by [`Kept`].

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use estafette_devices::{Device, DeviceError, Fence, FenceSet};

use super::queue_pool::PooledQueue;
use super::staging::{Piece, Staging};
use crate::exchange::{Storage, reaper};
use crate::tensor::handle::Tensor;

/// Pieces of one copy that are under way at once: one that the device copies, one that the host does, one in reserve.
const AHEAD: usize = 3;

/// An address that goes from thread to thread with its copy.
#[derive(Clone, Copy)]
pub(super) struct Address(pub(super) *mut u8);

// SAFETY: it is followed only by whoever keeps the memory behind it.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    fn plus(self, bytes: usize) -> *mut u8 {
        self.0.wrapping_add(bytes)
    }
}

/// Something that a device may be using: it goes when that is over.
pub(super) struct Kept<T: Keep> {
    what: Option<T>,
    after: FenceSet,
}

/// What can be kept until a device has done with it.
pub(super) trait Keep: Send + 'static {
    /// Drops it when `after` has settled; never if nobody can tell what the device still does.
    fn let_go(self, after: FenceSet);
}

impl Keep for Storage {
    fn let_go(self, after: FenceSet) {
        reaper().release(after, self);
    }
}

impl Keep for Tensor {
    fn let_go(self, mut after: FenceSet) {
        after.prune();
        if !after.is_empty() {
            reaper().release(after, Storage::owned(Box::new(self), std::ptr::null_mut()));
        }
    }
}

impl<T: Keep> Kept<T> {
    pub(super) fn new(what: T) -> Self {
        Self { what: Some(what), after: FenceSet::default() }
    }

    /// The device uses it until `fence`.
    fn until(&mut self, fence: &Fence) {
        self.after.insert(fence.clone());
    }

    pub(super) fn get(&self) -> &T {
        self.what.as_ref().expect("it is kept until it is taken")
    }

    /// Somebody else keeps it from now on.
    pub(super) fn take(mut self) -> T {
        self.what.take().expect("it is kept until it is taken")
    }
}

impl<T: Keep> Drop for Kept<T> {
    fn drop(&mut self) {
        if let Some(what) = self.what.take() {
            what.let_go(std::mem::take(&mut self.after));
        }
    }
}

/// What the device has been told to copy into a piece.
struct Landing {
    /// `None` once it has landed.
    piece: Option<Piece>,
    fence: Fence,
    /// Which bytes of the copy.
    bytes: Range<usize>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            piece.give_back_after(&self.fence);
        }
    }
}

/// Copies `bytes` bytes, at least one, from the device at `from` to the host at `to`. Gives the last fence, which is done.
///
/// # Errors
/// The device fails, or refuses a copy.
///
/// # Safety
/// `from` is what `source` keeps and `to` what `target` keeps; nobody else uses the latter meanwhile, and nobody writes the
/// former before the fences that `source` is told of are done.
pub(super) async unsafe fn download(
    device: &Arc<dyn Device>,
    pooled: &mut PooledQueue,
    (source, from): (&mut Kept<Tensor>, Address),
    (target, to): (&mut Kept<Storage>, Address),
    bytes: usize,
) -> Result<Fence, DeviceError> {
    let mut begun = 0;
    let mut landings = VecDeque::new();
    if device.host_copy_blocks(to.0) {
        let staging = Staging::of(device);
        let size = staging.for_copy(bytes);
        loop {
            while begun < bytes && landings.len() < AHEAD {
                let piece =
                    if landings.is_empty() { Some(size.take(device).await?) } else { size.try_take(device)? };
                let Some(piece) = piece else { break };
                let end = bytes.min(begun + size.bytes());
                // SAFETY: by contract, and the piece is kept until the fence.
                unsafe { device.copy(&**pooled.queue(), from.plus(begun), piece.at(), end - begun) }?;
                let fence = pooled.record();
                source.until(&fence);
                landings.push_back(Landing { piece: Some(piece), fence, bytes: begun..end });
                begun = end;
            }
            let first: &Landing = landings.front().expect("one was begun, or is under way");
            first.fence.settled().await?;
            let mut landed = landings.pop_front().expect("it was looked at");
            let piece = landed.piece.take().expect("it lands once");
            // SAFETY: the device has filled so much of the piece; by contract there is as much room.
            unsafe { piece.at().copy_to_nonoverlapping(to.plus(landed.bytes.start), landed.bytes.len()) };
            if landed.bytes.end == bytes {
                return Ok(landed.fence.clone());
            }
        }
    }
    // SAFETY: by contract; both are kept until the fence.
    unsafe { device.copy(&**pooled.queue(), from.0, to.0, bytes) }?;
    let fence = pooled.record();
    source.until(&fence);
    target.until(&fence);
    fence.settled().await?;
    Ok(fence)
}

/// Copies `bytes` bytes, at least one, from the host at `from` to the device at `to`. The host's memory has been read when the
/// fence is done, if not before.
///
/// # Errors
/// The device fails, or refuses a copy.
///
/// # Safety
/// As for [`download`], and nobody writes at `from` before the fence is done.
pub(super) async unsafe fn upload<S: Keep>(
    device: &Arc<dyn Device>,
    (source, from): (&mut Kept<S>, Address),
    (target, to): (&mut Kept<Storage>, Address),
    bytes: usize,
) -> Result<Fence, DeviceError> {
    let mut pooled = PooledQueue::for_copy(device)?;
    if !device.host_copy_blocks(from.0) {
        // SAFETY: by contract; both are kept until the fence.
        unsafe { device.copy(&**pooled.queue(), from.0, to.0, bytes) }?;
        let fence = pooled.record();
        source.until(&fence);
        target.until(&fence);
        return Ok(fence);
    }
    let staging = Staging::of(device);
    let size = staging.for_copy(bytes);
    let mut under_way: VecDeque<Fence> = VecDeque::new();
    let mut begun = 0;
    loop {
        if under_way.len() >= AHEAD
            && let Some(first) = under_way.pop_front()
        {
            first.settled().await?;
        }
        let piece = match under_way.front().cloned() {
            None => size.take(device).await?,
            Some(first) => match size.try_take(device)? {
                Some(piece) => piece,
                None => {
                    first.settled().await?;
                    under_way.pop_front();
                    continue;
                }
            },
        };
        let end = bytes.min(begun + size.bytes());
        // SAFETY: by contract; the piece is at least as long and ours.
        unsafe { from.plus(begun).copy_to_nonoverlapping(piece.at(), end - begun) };
        // SAFETY: by contract, and the piece is kept until the fence.
        unsafe { device.copy(&**pooled.queue(), piece.at(), to.plus(begun), end - begun) }?;
        let fence = pooled.record();
        target.until(&fence);
        piece.give_back_after(&fence);
        begun = end;
        if begun == bytes {
            return Ok(fence);
        }
        under_way.push_back(fence);
    }
}
