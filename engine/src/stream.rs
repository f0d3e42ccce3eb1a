//! Streams by their native handles: those of others, and ours that producers are told to order their work before.

use std::collections::VecDeque;
use std::sync::Arc;

use estafette_devices::{DLDevice, Device, Fence, Queue};
use estafette_sync::sync::{Mutex, MutexGuard};

use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::core::per_device::PerDevice;
use crate::engine::Engine;
use crate::lease::consumer::Consumer;
use crate::tensor::handle::Tensor;

/// Queues for acquisitions that are kept per device. A producer's wait on a queue holds up what is acquired there next, so
/// each acquisition gets one with nothing pending; past this many, the one that has waited longest.
const KEPT: usize = 8;

estafette_sync::statics! {
    /// The queues that no acquisition uses right now, with what each waits for, the oldest first.
    static SPARES: PerDevice<Spares> = PerDevice::new();
}

#[derive(Default)]
struct Spares(Mutex<VecDeque<Spare>>);

struct Spare {
    queue: Arc<dyn Queue>,
    last: Option<Fence>,
}

impl Spare {
    fn is_free(&self) -> bool {
        self.last.as_ref().is_none_or(Fence::is_done)
    }
}

impl Spares {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Spare>> {
        self.0.lock()
    }

    /// A queue with nothing pending, if there is one or too many have something.
    fn take(&self) -> Option<Spare> {
        let mut spares = self.lock();
        let full = spares.len() >= KEPT;
        // The oldest are done first; asking more than these calls the driver in vain.
        match spares.front() {
            Some(spare) if full || spare.is_free() => spares.pop_front(),
            _ => None,
        }
    }

    /// Keeps a queue for later, unless a burst has made enough of them: those that are there are done sooner.
    fn put(&self, spare: Spare) {
        let mut spares = self.lock();
        if spares.len() < KEPT {
            return spares.push_back(spare);
        }
        drop(spares);
        // Queues call the driver as they go. What is enqueued goes on, and the fence keeps what it needs.
        drop(spare);
    }
}

/// A queue of ours that a producer orders its work before, for one tensor. See [`Engine::import_stream`].
#[derive(Debug)]
pub struct ImportStream {
    device: Arc<dyn Device>,
    queue: Arc<dyn Queue>,
    stream: usize,
}

impl ImportStream {
    /// As [`Engine::import_stream`], on a device by itself.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device whose queues have no handles; [`Error::Device`] when it gives no queue.
    pub fn on(device: Arc<dyn Device>) -> Result<Self, Error> {
        let queue = match SPARES.of(&device).take() {
            Some(spare) => spare.queue,
            None => device.create_queue()?,
        };
        let stream = queue.native();
        if stream == 0 {
            return Err(Error::invalid(format!("queues of {} have no handles", device.id())));
        }
        Ok(Self { device, queue, stream })
    }

    /// The native handle, for the producer.
    pub fn stream(&self) -> usize {
        self.stream
    }

    /// The fence of what the producer has ordered before the queue by now. Ask at once: what somebody else enqueues on his
    /// own streams afterwards is none of this tensor's.
    ///
    /// # Errors
    /// [`Error::Device`] when the device has failed.
    pub fn fence(self) -> Result<Fence, Error> {
        let fence = self.queue.record()?;
        let spare = Spare { queue: self.queue, last: Some(fence.clone()) };
        SPARES.of(&self.device).put(spare);
        Ok(fence)
    }
}

impl Engine {
    /// The queue of `device` for work that asks for no particular one. The same at every call.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that the engine does not have.
    pub fn queue_on(&self, device: DLDevice) -> Result<Arc<dyn Queue>, Error> {
        Ok(device_with_streams(self.core(), device)?.default_queue())
    }

    /// A queue of `device` for a producer to order its work before: give it [`ImportStream::stream`], and import with
    /// [`ImportStream::fence`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that the engine does not have or whose queues have no handles; [`Error::Device`] when it
    /// gives no queue.
    pub fn import_stream(&self, device: DLDevice) -> Result<ImportStream, Error> {
        ImportStream::on(device_with_streams(self.core(), device)?)
    }

    /// The fence of what is enqueued by now on somebody else's stream.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that the engine does not have; [`Error::Device`] for a stream of another device, or when
    /// the driver refuses.
    ///
    /// # Safety
    /// As for [`Device::foreign_queue`].
    pub unsafe fn fence_of_stream(&self, device: DLDevice, stream: usize) -> Result<Fence, Error> {
        // SAFETY: by contract.
        let queue = unsafe { device_with_streams(self.core(), device)?.foreign_queue(stream) }?;
        Ok(queue.record()?)
    }
}

/// The device whose queues use memory of `device`.
fn device_with_streams(core: &CoreRef, device: DLDevice) -> Result<Arc<dyn Device>, Error> {
    let id = device.queue_device();
    core.device(id).ok_or_else(|| Error::invalid(format!("device {id} is not available in this engine")))
}

impl Tensor {
    /// A consumer that uses the tensor on `stream`, a native handle, of `device`: the memory's own, or, for pinned and managed
    /// memory, any device of the runtime that shares it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that the memory is not on, or that the engine does not have; [`Error::Device`] for a stream
    /// of another device.
    ///
    /// # Safety
    /// As for [`Device::foreign_queue`], for as long as the consumer is used.
    pub unsafe fn consumer_on(&self, device: DLDevice, stream: usize) -> Result<Consumer, Error> {
        let place = self.device()?;
        let owner = place.queue_device();
        let is_shared = owner != place;
        let fits = device == place || is_shared && device.queue_device().device_type == owner.device_type;
        if !fits {
            return Err(Error::invalid(format!("device: the memory is on {place}, not on {device}")));
        }
        let device = device_with_streams(&self.inner.core, device)?;
        // SAFETY: by contract.
        Ok(Consumer::Queue(unsafe { device.foreign_queue(stream) }?))
    }
}

#[cfg(all(test, not(estafette_shuttle)))]
mod tests {
    use estafette_devices::host::HostDevice;

    use super::*;

    #[test]
    fn what_a_burst_of_acquisitions_needed_is_not_kept() {
        let device: Arc<dyn Device> = HostDevice::new();
        let spares = SPARES.of(&device);
        let queues: Vec<_> =
            (0..100).map(|_| device.create_queue().expect("the host gives any number")).collect();
        for queue in &queues {
            let last = Some(queue.record().expect("the host's work is over"));
            spares.put(Spare { queue: Arc::clone(queue), last });
        }
        assert_eq!(spares.lock().len(), KEPT);
        let kept = queues.iter().filter(|queue| Arc::strong_count(queue) > 1).count();
        assert_eq!(kept, KEPT, "the others are gone");
        assert!(spares.take().is_some_and(|spare| Arc::ptr_eq(&spare.queue, &queues[0])), "the oldest first");
    }
}
