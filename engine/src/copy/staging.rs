//! Staging buffers: host memory that a device's copies go through, where a copy of plain memory would block
//! the caller.
//!
//! # Bounds
//! A device's chunks have two sizes, so that many small copies do not take the chunks that large copies need.
//! Each size has a fixed number of permits. A chunk is allocated when a permit is taken and no free chunk
//! exists, and lives as long as the device. A copy without a permit waits in order, on no thread. A copy
//! waits only while it has no chunk, so copies never wait for each other in a cycle.

use std::sync::Arc;

use estafette_devices::{Allocation, Device, DeviceError, DeviceErrorKind, Fence, Reactor};
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::core::per_device::PerDevice;

/// Bytes of a small chunk, and the number of them per device. Under shuttle copies wait for chunks at once.
const SMALL: (usize, usize) = if cfg!(estafette_shuttle) { (8, 1) } else { (64 << 10, 64) };
/// Bytes of a large chunk, and the number of them per device. Enqueueing such a chunk costs little beside its
/// copy.
const LARGE: (usize, usize) = if cfg!(estafette_shuttle) { (16, 2) } else { (2 << 20, 12) };

estafette_sync::per_process! {
    static STAGING: PerDevice<StagingBuffers> = PerDevice::new();
    /// Bytes allocated for staging, of all devices.
    static BYTES: AtomicU64 = AtomicU64::new(0);
}

/// Bytes of host memory that are pinned for staging.
pub(crate) fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// The chunks of a device.
pub(super) struct StagingBuffers {
    small: Arc<ChunkPool>,
    large: Arc<ChunkPool>,
}

impl Default for StagingBuffers {
    fn default() -> Self {
        Self { small: ChunkPool::new(SMALL), large: ChunkPool::new(LARGE) }
    }
}

impl StagingBuffers {
    pub(super) fn of(device: &Arc<dyn Device>) -> Arc<Self> {
        STAGING.of(device)
    }

    /// The chunks that a copy of `bytes` bytes is divided into.
    pub(super) fn for_copy(&self, bytes: usize) -> &Arc<ChunkPool> {
        if bytes <= self.small.bytes { &self.small } else { &self.large }
    }
}

/// Chunks of one size.
pub(super) struct ChunkPool {
    bytes: usize,
    permits: Arc<Semaphore>,
    free: Mutex<Vec<Allocation>>,
}

impl ChunkPool {
    fn new((bytes, permits): (usize, usize)) -> Arc<Self> {
        Arc::new(Self { bytes, permits: Arc::new(Semaphore::new(permits)), free: Mutex::default() })
    }

    /// Bytes of a chunk.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A chunk, when one is free.
    ///
    /// # Errors
    /// The device cannot allocate staging memory.
    pub(super) async fn take(self: &Arc<Self>, device: &Arc<dyn Device>) -> Result<Chunk, DeviceError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        self.fill(device, permit.expect("the semaphores are never closed"))
    }

    /// A chunk, if one is free now.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(super) fn try_take(self: &Arc<Self>, device: &Arc<dyn Device>) -> Result<Option<Chunk>, DeviceError> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok();
        permit.map(|permit| self.fill(device, permit)).transpose()
    }

    fn fill(
        self: &Arc<Self>,
        device: &Arc<dyn Device>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Chunk, DeviceError> {
        let free = self.free.lock().pop();
        let memory = match free {
            Some(memory) => memory,
            None => {
                let memory = device.allocate_staging(self.bytes)?;
                BYTES.fetch_add(self.bytes as u64, Ordering::Relaxed);
                memory
            }
        };
        Ok(Chunk { memory: Some(memory), size: Arc::clone(self), _permit: permit })
    }
}

impl Drop for ChunkPool {
    fn drop(&mut self) {
        let free = self.free.get_mut().len();
        BYTES.fetch_sub((free * self.bytes) as u64, Ordering::Relaxed);
    }
}

/// A chunk in use. Drop frees the chunk for the next copy, so the device must be done with it before.
pub(super) struct Chunk {
    memory: Option<Allocation>,
    size: Arc<ChunkPool>,
    /// Released after the memory.
    _permit: OwnedSemaphorePermit,
}

impl Chunk {
    /// The first byte.
    pub(super) fn at(&self) -> *mut u8 {
        self.memory.as_ref().expect("a chunk has its memory until it is dropped").ptr().as_ptr()
    }

    /// Frees the chunk when `fence` has settled. If the device may use the memory even then, the memory is
    /// leaked, and the next copy gets a fresh chunk or the device's error.
    pub(super) fn release_after(mut self, fence: &Fence) {
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

impl Drop for Chunk {
    fn drop(&mut self) {
        self.size.free.lock().extend(self.memory.take());
    }
}
