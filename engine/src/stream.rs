//! Streams by their native handles: those of others, and ours that producers are told to order their work before.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use estafette_devices::{DLDevice, Device, DeviceType, Fence, Frontier, Queue};
use estafette_sync::sync::Mutex;

use crate::consumer::Consumer;
use crate::core_ref::CoreRef;
use crate::engine::Engine;
use crate::error::Error;
use crate::exchange::quarantine::device_of;
use crate::tensor::Tensor;

/// Queues for acquisitions that are kept per device. A producer's wait on a queue holds up what is acquired there next, so
/// each acquisition gets one with nothing pending; past this many, the one that has waited longest.
const KEPT: usize = 8;

/// The queues of one device that no acquisition uses right now, with what each waits for, the oldest first.
#[derive(Default)]
pub(crate) struct Lanes {
    devices: Mutex<Vec<(DLDevice, VecDeque<Lane>)>>,
}

struct Lane {
    queue: Arc<dyn Queue>,
    last: Option<Fence>,
}

impl Lane {
    fn is_free(&self) -> bool {
        self.last.as_ref().is_none_or(Fence::is_done)
    }
}

impl Lanes {
    /// A queue with nothing pending, if there is one or too many have something.
    fn take(&self, device: DLDevice) -> Option<Lane> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, lanes) = devices.iter_mut().find(|(known, _)| *known == device)?;
        let full = lanes.len() >= KEPT;
        // The oldest are done first; asking more than these calls the driver in vain.
        match lanes.front() {
            Some(lane) if full || lane.is_free() => lanes.pop_front(),
            _ => None,
        }
    }

    fn put(&self, device: DLDevice, lane: Lane) {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let at = devices.iter().position(|(known, _)| *known == device).unwrap_or_else(|| {
            devices.push((device, VecDeque::new()));
            devices.len() - 1
        });
        devices[at].1.push_back(lane);
    }
}

/// A queue of ours that a producer orders its work before, for one tensor. See [`Engine::acquisition`].
#[derive(Debug)]
pub struct Acquisition {
    core: CoreRef,
    device: DLDevice,
    queue: Arc<dyn Queue>,
    stream: usize,
}

impl Acquisition {
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
        let lane = Lane { queue: self.queue, last: Some(fence.clone()) };
        self.core.lanes.put(self.device, lane);
        Ok(fence)
    }
}

impl Engine {
    /// A queue of `device` for a producer to order its work before: give it [`Acquisition::stream`], and import with
    /// [`Acquisition::fence`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that the engine does not have or whose queues have no handles; [`Error::Device`] when it
    /// gives no queue.
    pub fn acquisition(&self, device: DLDevice) -> Result<Acquisition, Error> {
        let core = self.core().clone();
        let found = device_with_streams(&core, device)?;
        let queue = match core.lanes.take(found.id()) {
            Some(lane) => lane.queue,
            None => found.create_queue()?,
        };
        let stream = queue.native();
        if stream == 0 {
            return Err(Error::invalid(format!("queues of {device} have no handles")));
        }
        Ok(Acquisition { core, device: found.id(), queue, stream })
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

    /// As [`fence_of_stream`](Self::fence_of_stream), as what an import is ready with.
    ///
    /// # Errors
    /// As [`fence_of_stream`](Self::fence_of_stream).
    ///
    /// # Safety
    /// As for [`Device::foreign_queue`].
    pub unsafe fn ready_after_stream(&self, device: DLDevice, stream: usize) -> Result<Frontier, Error> {
        // SAFETY: by contract.
        unsafe { self.fence_of_stream(device, stream) }.map(Frontier::from)
    }
}

/// The device whose queues use memory of `device`.
fn device_with_streams(core: &CoreRef, device: DLDevice) -> Result<Arc<dyn Device>, Error> {
    let id = device_of(device);
    core.device(id).ok_or_else(|| Error::invalid(format!("device {id} is not available in this engine")))
}

impl Tensor {
    /// A consumer that uses the tensor on `stream`, a native handle, of `device`: the memory's own, or, for pinned and managed
    /// memory, any CUDA device.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that the memory is not on, or that the engine does not have; [`Error::Device`] for a stream
    /// of another device.
    ///
    /// # Safety
    /// As for [`Device::foreign_queue`], for as long as the consumer is used.
    pub unsafe fn consumer_on(&self, device: DLDevice, stream: usize) -> Result<Consumer, Error> {
        let place = self.device()?;
        let shared = [DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED].contains(&place.device_type);
        let fits = device == place || shared && device_of(device).device_type == DeviceType::CUDA;
        if !fits {
            return Err(Error::invalid(format!("device: the memory is on {place}, not on {device}")));
        }
        let device = device_with_streams(&self.inner.core, device)?;
        // SAFETY: by contract.
        Ok(Consumer::Queue(unsafe { device.foreign_queue(stream) }?))
    }
}
