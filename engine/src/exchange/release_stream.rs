//! Allocators that work in stream order, and the stream on which one of them takes memory back.
//!
//! PyTorch's caching allocator, CuPy's memory pool and RMM give a block that was freed out again at once, to whoever allocates
//! *on the block's own stream*, since what he enqueues there comes after what the block was used for there. So an owner who has
//! to be told only when the device is done with a block could have been told at once, if that stream had been made to
//! wait for the block's last uses: the device keeps the order then, and the host neither waits nor is asked.
//!
//! That is right for the stream that the allocator orders the block by, and for no other: on another one, the wait holds up
//! those who have nothing to do with the block, and not those who get it next. Which stream it is, no exchange protocol
//! says. So a [`ReleaseStream`] is made by whoever knows.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use estafette_devices::{DLDevice, Device, FenceSet, Order};
use estafette_sync::sync::atomic::{AtomicU64, Ordering};

use crate::core::error::Error;

estafette_sync::statics! {
    /// How often memory went home before its last use was over.
    static HANDED_BACK: AtomicU64 = AtomicU64::new(0);
}

/// Memory given back so far behind waits of its owner's stream, instead of after its last use.
pub(crate) fn handed_back() -> u64 {
    HANDED_BACK.load(Ordering::Relaxed)
}

/// The stream in whose order the allocator of some memory gives it out again.
pub struct ReleaseStream {
    device: Arc<dyn Device>,
    stream: usize,
    /// What keeps the stream alive.
    _keeper: Option<Box<dyn Any + Send + Sync>>,
}

impl ReleaseStream {
    /// The stream of `device` with that native handle. `keeper` is dropped after the last use of the handle.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a handle that means another stream on other threads ([`Device::handle_is_same_on_all_threads`]), and
    /// for a stream of another device; [`Error::Device`] when the driver refuses.
    ///
    /// # Safety
    /// The allocator of the memory that goes home here gives it to nobody whose work is not ordered behind this stream, and
    /// frees it only in that order. The stream is live until `keeper` is dropped, and for good without one.
    pub unsafe fn new(
        device: Arc<dyn Device>,
        stream: usize,
        keeper: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<Self, Error> {
        if !device.handle_is_same_on_all_threads(stream) {
            return Err(Error::invalid(format!(
                "stream {stream} cannot be a release stream: it means another stream on other threads"
            )));
        }
        // SAFETY: live by contract.
        unsafe { device.foreign_queue(stream) }?;
        Ok(Self { device, stream, _keeper: keeper })
    }

    /// The device of the stream.
    pub fn device(&self) -> DLDevice {
        self.device.id()
    }

    /// Makes the stream wait for `uses`; says whether it does for all of them. It does not where one of them can only be waited
    /// for by the host, or has failed, and while a graph is recorded from the stream, which would wait at every launch.
    pub(super) fn waits_for(&self, uses: &FenceSet) -> bool {
        // SAFETY: the stream is live, by the contract of `new`.
        let Ok(queue) = (unsafe { self.device.foreign_queue(self.stream) }) else { return false };
        if !matches!(queue.is_capturing(), Ok(false)) {
            return false;
        }
        let waits =
            uses.iter().all(|fence| matches!(queue.order_after(fence), Ok(Order::Nothing | Order::Device)));
        if waits {
            HANDED_BACK.fetch_add(1, Ordering::Relaxed);
        }
        waits
    }
}

impl fmt::Debug for ReleaseStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReleaseStream({:#x} of {})", self.stream, self.device.id())
    }
}
