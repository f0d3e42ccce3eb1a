use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::memory;
use crate::fence::source::{Outcome, Subscriber, Timeline, Watch};
use crate::queue::order_by_state;
use crate::{Allocation, Clock, DLDevice, Device, DeviceError, Fence, Order, Queue, QueueId};

/// The host as a device, `cpu:0`. Work "enqueued" on its queues has run when the call returns, so their
/// fences are done when they are recorded.
#[derive(Debug)]
pub struct HostDevice {
    default_queue: Arc<HostQueue>,
    memory: Option<Arc<dyn HostMemory>>,
}

/// The source of a host device's memory, instead of the program's allocator.
pub trait HostMemory: Send + Sync + fmt::Debug {
    /// As [`Device::allocate`]; the content may be anything.
    ///
    /// # Errors
    /// There is no room.
    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError>;
}

impl HostDevice {
    /// The host.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { default_queue: HostQueue::new(), memory: None })
    }

    /// The host, with memory from `memory`.
    pub fn with_memory(memory: Arc<dyn HostMemory>) -> Arc<Self> {
        Arc::new(Self { default_queue: HostQueue::new(), memory: Some(memory) })
    }
}

impl Device for HostDevice {
    fn id(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn name(&self) -> &str {
        "host"
    }

    fn host_accessible(&self) -> bool {
        true
    }

    fn default_queue(&self) -> Arc<dyn Queue> {
        self.default_queue.clone()
    }

    fn create_queue(&self) -> Result<Arc<dyn Queue>, DeviceError> {
        Ok(HostQueue::new())
    }

    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        match &self.memory {
            Some(memory) => memory.allocate(bytes, align),
            None => memory::allocate(bytes, align, DLDevice::CPU, false),
        }
    }

    fn allocate_zeroed(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        let Some(memory) = &self.memory else { return memory::allocate(bytes, align, DLDevice::CPU, true) };
        let allocation = memory.allocate(bytes, align)?;
        // SAFETY: the allocation is this long, and nothing else has it.
        unsafe { allocation.ptr().write_bytes(0, bytes) };
        Ok(allocation)
    }

    unsafe fn copy(
        &self,
        queue: &dyn Queue,
        src: *const u8,
        dst: *mut u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        if !queue.as_any().is::<HostQueue>() {
            return Err(DeviceError::invalid(format!(
                "cannot copy on {}: it is a queue of {}, not of the host",
                queue.id(),
                queue.device()
            )));
        }
        if bytes > 0 {
            // SAFETY: the caller vouches for both ranges, that they do not overlap and that they are host
            // memory.
            unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) };
        }
        Ok(())
    }
}

/// A queue on which everything has run already.
#[derive(Debug)]
struct HostQueue(Arc<HostTimeline>);

impl HostQueue {
    fn new() -> Arc<Self> {
        Arc::new(Self(Arc::new(HostTimeline(QueueId::next()))))
    }
}

impl Queue for HostQueue {
    fn id(&self) -> QueueId {
        self.0.0
    }

    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn in_order(&self) -> bool {
        true
    }

    fn order_after(&self, fence: &Fence) -> Result<Order, DeviceError> {
        order_by_state(fence)
    }

    fn record(&self) -> Result<Fence, DeviceError> {
        Ok(Fence::point(self.0.clone(), 0, Clock::default()).of_this_crate())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A timeline that has always arrived.
#[derive(Debug)]
struct HostTimeline(QueueId);

impl Timeline for HostTimeline {
    fn queue(&self) -> QueueId {
        self.0
    }

    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn completed(&self) -> u64 {
        u64::MAX
    }

    fn failure(&self) -> Option<DeviceError> {
        None
    }

    fn poll(&self) -> u64 {
        u64::MAX
    }

    fn watch(&self, _sequence: u64, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        Watch::Settled(Outcome::Ok(()))
    }
}
