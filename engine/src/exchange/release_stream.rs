//! Stream-ordered allocators, and the stream in whose order an allocator reuses memory.
//!
//! PyTorch's caching allocator, CuPy's memory pool and RMM reuse a freed block at once for allocations *on
//! the block's own stream*: work that is enqueued there later runs after the uses of the block. The deleter
//! of such memory need not wait until the device is done. It may run as soon as that stream waits for the
//! last uses of the block: the device keeps the order, and the host neither waits nor queries.
//!
//! The wait is right on this one stream. On another stream the wait would delay unrelated work, and not the
//! next user of the block. No exchange protocol names the stream, so code that knows the allocator makes a
//! [`ReleaseStream`].

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use estafette_devices::{DLDevice, Device, FenceSet, Order};
use estafette_sync::sync::atomic::{AtomicU64, Ordering};

use crate::core::error::Error;

estafette_sync::statics! {
    /// Releases before the last use was over.
    static HANDED_BACK: AtomicU64 = AtomicU64::new(0);
}

/// The number of deleters called so far behind a wait of the release stream, instead of after the last use.
pub(crate) fn handed_back() -> u64 {
    HANDED_BACK.load(Ordering::Relaxed)
}

/// The stream in whose order the allocator of some memory reuses it.
pub struct ReleaseStream {
    device: Arc<dyn Device>,
    stream: usize,
    /// Keeps the stream alive.
    _keeper: Option<Box<dyn Any + Send + Sync>>,
}

impl ReleaseStream {
    /// The stream of `device` with the native handle `stream`. `keeper` is dropped after the last use of the
    /// handle.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a handle that means another stream on other threads
    /// ([`Device::handle_is_same_on_all_threads`]), and for a stream of another device; [`Error::Device`]
    /// when the driver refuses.
    ///
    /// # Safety
    /// The allocator of memory with this release stream reuses the memory only for work that is ordered after
    /// this stream, and frees the memory only in that order. The stream is live until `keeper` is dropped, or
    /// for ever without a keeper.
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
    pub(crate) fn device(&self) -> DLDevice {
        self.device.id()
    }

    /// Makes the stream wait for `uses`. Returns whether the stream waits for all of them. False where only
    /// the host can wait for a use, where a use has failed, and while the stream is captured (the wait would
    /// repeat at every launch).
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
