//! Memory of the host that a device's copies go through, where those from and to plain memory would hold up who asks for them.
//!
//! # Bounded, without anybody standing in another's way
//! A device's pieces are of two sizes, so that many small copies do not take what large ones need. Each size has a fixed number
//! of places; a piece is allocated when a place is taken for which there is none, and is kept for as long as the device is.
//! Whoever finds no place waits his turn, on no thread. A copy waits only while it has no piece, so copies never wait for each
//! other in a circle.

use std::sync::Arc;

use estafette_devices::{Allocation, Device, DeviceError, DeviceErrorKind, Fence, Reactor};
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::core::per_device::PerDevice;

/// Bytes of a small piece, and how many a device has. Under shuttle copies wait for pieces at once.
const SMALL: (usize, usize) = if cfg!(estafette_shuttle) { (8, 1) } else { (64 << 10, 64) };
/// Bytes of a large piece, and how many a device has. Large enough that enqueueing costs little beside the copy itself.
const LARGE: (usize, usize) = if cfg!(estafette_shuttle) { (16, 2) } else { (2 << 20, 12) };

estafette_sync::statics! {
    static STAGING: PerDevice<Staging> = PerDevice::new();
    /// Bytes that are kept for staging, of all devices.
    static BYTES: AtomicU64 = AtomicU64::new(0);
}

/// Bytes of host memory that are pinned for copies to go through.
pub(crate) fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// The pieces of a device.
pub(super) struct Staging {
    small: Arc<Size>,
    large: Arc<Size>,
}

impl Default for Staging {
    fn default() -> Self {
        Self { small: Size::new(SMALL), large: Size::new(LARGE) }
    }
}

impl Staging {
    pub(super) fn of(device: &Arc<dyn Device>) -> Arc<Self> {
        STAGING.of(device)
    }

    /// The pieces that a copy of `bytes` bytes is divided into.
    pub(super) fn for_copy(&self, bytes: usize) -> &Arc<Size> {
        if bytes <= self.small.bytes { &self.small } else { &self.large }
    }
}

/// Pieces of one size.
pub(super) struct Size {
    bytes: usize,
    places: Arc<Semaphore>,
    free: Mutex<Vec<Allocation>>,
}

impl Size {
    fn new((bytes, places): (usize, usize)) -> Arc<Self> {
        Arc::new(Self { bytes, places: Arc::new(Semaphore::new(places)), free: Mutex::default() })
    }

    /// Bytes of a piece.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A piece, once there is one.
    ///
    /// # Errors
    /// The device gives no such memory.
    pub(super) async fn take(self: &Arc<Self>, device: &Arc<dyn Device>) -> Result<Piece, DeviceError> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        self.fill(device, place.map_err(|_| closed())?)
    }

    /// A piece, if there is one now.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(super) fn try_take(self: &Arc<Self>, device: &Arc<dyn Device>) -> Result<Option<Piece>, DeviceError> {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => self.fill(device, place).map(Some),
            Err(TryAcquireError::NoPermits) => Ok(None),
            Err(TryAcquireError::Closed) => Err(closed()),
        }
    }

    fn fill(
        self: &Arc<Self>,
        device: &Arc<dyn Device>,
        place: OwnedSemaphorePermit,
    ) -> Result<Piece, DeviceError> {
        let free = self.free.lock().pop();
        let memory = match free {
            Some(memory) => memory,
            None => {
                let memory = device.allocate_staging(self.bytes)?;
                BYTES.fetch_add(self.bytes as u64, Ordering::Relaxed);
                memory
            }
        };
        Ok(Piece { memory: Some(memory), size: Arc::clone(self), _place: place })
    }
}

impl Drop for Size {
    fn drop(&mut self) {
        let free = self.free.get_mut().len();
        BYTES.fetch_sub((free * self.bytes) as u64, Ordering::Relaxed);
    }
}

/// Nobody closes a semaphore here.
fn closed() -> DeviceError {
    DeviceError::new(DeviceErrorKind::Other, "the staging of copies has ended")
}

/// A piece in use. Dropped, it is free for the next copy: so not before the device has done with it.
pub(super) struct Piece {
    memory: Option<Allocation>,
    size: Arc<Size>,
    /// Given back after the memory was.
    _place: OwnedSemaphorePermit,
}

impl Piece {
    /// The first byte.
    pub(super) fn at(&self) -> *mut u8 {
        self.memory.as_ref().expect("a piece has its memory until it is dropped").ptr().as_ptr()
    }

    /// Frees the piece when `fence` has settled. If the device may use the memory even then, the memory is leaked, and the next copy
    /// gets a fresh piece or the device's error.
    pub(super) fn give_back_after(mut self, fence: &Fence) {
        Reactor::global().when_settled([fence], move |outcome| {
            if let Err(error) = outcome
                && error.kind() == DeviceErrorKind::Fault
            {
                tracing::warn!(%error, "memory for staging is leaked: the device may still use it");
                std::mem::forget(self.memory.take());
            }
            drop(self);
        });
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.size.free.lock().extend(self.memory.take());
    }
}
