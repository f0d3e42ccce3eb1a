//! Streams by their native handles: streams of consumers, and streams that producers order their work before.

use std::sync::Arc;

use estafette_devices::{DLDevice, Device, Fence, Queue};

use crate::copy::queue_pool::PooledQueue;
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::lease::consumer::{Consumer, Keeper};
use crate::tensor::handle::Tensor;

/// A queue of the engine for one import: the producer orders its work before the queue.
#[derive(Debug)]
pub struct ImportStream(PooledQueue);

impl ImportStream {
    /// A queue of `device` for an import. Hand [`stream`](Self::stream) to the producer, which orders its
    /// work before the queue; then import with [`fence`](Self::fence).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device whose queues have no handles; [`Error::Device`] when the device gives
    /// no queue.
    pub fn on(device: Arc<dyn Device>) -> Result<Self, Error> {
        let queue = PooledQueue::for_import(&device)?;
        if queue.queue().handle() == 0 {
            return Err(Error::invalid(format!("queues of {} have no handles", device.id())));
        }
        Ok(Self(queue))
    }

    /// The native handle, for the producer.
    pub fn stream(&self) -> usize {
        self.0.queue().native()
    }

    /// The fence of the work that the producer has ordered before the queue so far. Call this when the
    /// producer has returned: the fence does not cover work that the producer enqueues later on its own
    /// streams.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has failed.
    pub fn fence(mut self) -> Result<Fence, Error> {
        Ok(self.0.try_record()?)
    }
}

/// The device whose queues use memory of `device`.
pub(crate) fn device_with_streams(core: &CoreRef, device: DLDevice) -> Result<Arc<dyn Device>, Error> {
    let id = device.queue_device();
    core.device(id).ok_or_else(|| Error::invalid(format!("device {id} is not available in this engine")))
}

impl Tensor {
    /// As `bindings::tensor::consumer_on`, for a stream that stays until `keeper` is dropped. No barrier over
    /// the device is needed when its lease ends.
    ///
    /// # Errors
    /// As there; [`Error::Invalid`] for a handle that means another stream on other threads
    /// ([`Device::handle_is_same_on_all_threads`]).
    ///
    /// # Safety
    /// `stream` is a live native handle of a queue of the device, and stays so until `keeper` is dropped.
    pub(crate) unsafe fn consumer_on_kept(
        &self,
        device: DLDevice,
        stream: usize,
        keeper: Keeper,
    ) -> Result<Consumer, Error> {
        // SAFETY: by contract.
        let queue = unsafe { self.queue_for_consumer(device, stream) }?;
        let place = device_with_streams(&self.inner.core, device)?;
        if !place.handle_is_same_on_all_threads(stream) {
            return Err(Error::invalid(format!(
                "stream {stream} cannot be kept: it means another stream on other threads"
            )));
        }
        Ok(Consumer::KeptQueue(queue, keeper))
    }

    /// # Safety
    /// As for `bindings::tensor::consumer_on`.
    pub(crate) unsafe fn queue_for_consumer(
        &self,
        device: DLDevice,
        stream: usize,
    ) -> Result<Arc<dyn Queue>, Error> {
        let place = self.device()?;
        let owner = place.queue_device();
        let is_shared = owner != place;
        let fits = device == place || is_shared && device.queue_device().device_type == owner.device_type;
        if !fits {
            return Err(Error::invalid(format!("device: the memory is on {place}, not on {device}")));
        }
        let device = device_with_streams(&self.inner.core, device)?;
        // SAFETY: by contract.
        Ok(unsafe { device.foreign_queue(stream) }?)
    }
}
