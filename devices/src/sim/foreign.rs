use std::any::Any;
use std::sync::Arc;

use crate::{DLDevice, DeviceError, Fence, Order, Queue, QueueId};

use super::queue::SimQueue;

/// One import of a foreign simulated queue, by its handle. The owner enqueues between any two calls, so
/// no wait is elided and every fence stands alone.
#[derive(Debug)]
pub(super) struct ForeignQueue {
    id: QueueId,
    queue: Arc<SimQueue>,
}

impl ForeignQueue {
    pub(super) fn new(queue: Arc<SimQueue>) -> Self {
        Self { id: QueueId::next(), queue }
    }
}

impl Queue for ForeignQueue {
    fn id(&self) -> QueueId {
        self.id
    }

    fn device(&self) -> DLDevice {
        self.queue.device()
    }

    fn in_order(&self) -> bool {
        false
    }

    fn order_after(&self, fence: &Fence) -> Result<Order, DeviceError> {
        self.queue.order(fence, false, self)
    }

    fn record(&self) -> Result<Fence, DeviceError> {
        self.queue.record_alone()
    }

    fn native(&self) -> usize {
        self.queue.native()
    }

    fn handle_outlives_call(&self) -> bool {
        !self.queue.core.options.raw_handles
    }

    fn is_capturing(&self) -> Result<bool, DeviceError> {
        self.queue.is_capturing()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
