use std::any::Any;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{DLDevice, DeviceError, Fence, Timing};

/// A queue of a device: a CUDA stream, a SYCL queue, a simulated queue. Thread-safe.
///
/// The order of one operation is: [`Queue::order_after`] for each earlier fence, enqueue the work,
/// [`Queue::record`]. Where it matters, the caller keeps other threads from enqueueing between its work and
/// its `record`. A fence that covers more than it should is late, never wrong.
pub trait Queue: Send + Sync + fmt::Debug + Any {
    /// The identity of this queue, unique in the process and never used again.
    fn id(&self) -> QueueId;

    /// The device it belongs to.
    fn device(&self) -> DLDevice;

    /// True if work runs in the order in which it was enqueued. Only then is a fence of this queue ordered
    /// before later work of this queue without a wait.
    fn in_order(&self) -> bool;

    /// Orders the work enqueued here next after `fence`, in the cheapest way that this queue knows.
    ///
    /// # Errors
    /// The fence has failed, this queue has failed, or the driver refused the wait. No wait was enqueued
    /// then.
    fn order_after(&self, fence: &Fence) -> Result<Order, DeviceError>;

    /// The fence of everything enqueued here so far.
    ///
    /// # Errors
    /// The queue has failed or the driver refused the marker.
    fn record(&self) -> Result<Fence, DeviceError>;

    /// True if foreign code such as the deleter of a tensor may call [`record`](Queue::record). It may not if
    /// the runtime runs such code on its threads while other threads wait for it under a lock of the runtime.
    fn record_is_thread_safe(&self) -> bool {
        true
    }

    /// Starts to measure when work runs that is enqueued here before the next [`record`](Queue::record). The
    /// result is there once that record's fence is done. `None` where the device cannot measure (the
    /// default). Measuring may cost driver calls, so callers ask for it only while a trace is recorded.
    fn time(&self) -> Option<Arc<dyn Timing>> {
        None
    }

    /// Prepares the calling thread for functions of the runtime that enqueue here: CUDA makes the device's
    /// context current. Returns true if that changed the thread; then the caller calls
    /// [`restore_current`](Queue::restore_current) on the same thread, as
    /// [`CurrentGuard`](crate::CurrentGuard) does.
    ///
    /// # Errors
    /// The device is broken.
    fn make_current(&self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Undoes a [`make_current`](Queue::make_current) that returned `true`, on the same thread.
    fn restore_current(&self) {}

    /// The native handle (`CUstream`, pointer to a `sycl::queue`), or 0. The call may wait for a driver.
    fn native(&self) -> usize {
        0
    }

    /// The same, to compare: the caller enqueues nothing. A queue whose [`native`](Queue::native) calls a
    /// driver may know it without.
    fn handle(&self) -> usize {
        self.native()
    }

    /// True if this handle stays valid for as long as it is kept. The raw handle of a foreign stream does
    /// not: after the call that gave the handle, the stream may be destroyed and another stream may get its
    /// address.
    fn handle_outlives_call(&self) -> bool {
        true
    }

    /// True if a capture records what is enqueued here now, instead of running it. Such a queue gets waits
    /// and is never queried; each launch of the graph reads its inputs again.
    ///
    /// # Errors
    /// The driver does not report it.
    fn is_capturing(&self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// True if [`capture_graph`](Queue::capture_graph) works here.
    fn supports_capture(&self) -> bool {
        false
    }

    /// Captures a graph of the work that `enqueue` enqueues on the queues passed to it: `queues` new queues
    /// of this device, which no other code knows. Nothing runs. The queues share one capture: a fence of one
    /// can be waited for on another, and no fence from outside can.
    ///
    /// # Errors
    /// The error of `enqueue`; or the device captures no graphs, or refused what was enqueued.
    fn capture_graph(
        &self,
        queues: usize,
        enqueue: Recorded<'_>,
    ) -> Result<Arc<dyn LaunchGraph>, DeviceError> {
        let _ = (queues, enqueue);
        let message = format!("queues of {} record no graphs", self.device());
        Err(DeviceError::invalid(message).with_queue(self.id()))
    }

    /// For the device's own code to recognise its queues.
    fn as_any(&self) -> &dyn Any;
}

/// The closure that enqueues on the queues of a capture.
pub type Recorded<'a> = &'a mut dyn FnMut(&[Arc<dyn Queue>]) -> Result<(), DeviceError>;

/// Work that was captured once, and is launched by one call each time. Launches run one after the other. The
/// memory that the graph uses lives for as long as the graph is launched. Launches under way complete when
/// the graph is dropped.
pub trait LaunchGraph: Send + Sync + fmt::Debug {
    /// Enqueues the whole graph on `queue`. Returns the fence of this launch.
    ///
    /// # Errors
    /// The queue is of another device, or refused it.
    fn launch(&self, queue: &dyn Queue) -> Result<Fence, DeviceError>;
}

/// The cases of [`Queue::order_after`] that all drivers share; each driver adds its native wait.
///
/// `is_ordered` says whether `queue` comes after `fence` already. `wait` makes the driver wait; `None` if the
/// driver does not know what is behind `fence`. Both are called under no lock.
pub(crate) fn order_after(
    queue: &dyn Queue,
    fence: &Fence,
    is_ordered: impl FnOnce() -> bool,
    wait: impl FnOnce() -> Result<Option<Order>, DeviceError>,
) -> Result<Order, DeviceError> {
    if fence.observed_done() || is_ordered() {
        return Ok(Order::Nothing);
    }
    // A foreign promise may know how to order work on `queue`.
    if let Some(order) = fence.as_event().and_then(|event| event.order_on(queue)) {
        return order;
    }
    match wait()? {
        Some(order) => Ok(order),
        None => order_by_state(fence),
    }
}

/// The order after a fence that no driver call can wait for.
pub(crate) fn order_by_state(fence: &Fence) -> Result<Order, DeviceError> {
    fence.state().outcome().map_or(Ok(Order::Host), |outcome| outcome.map(|()| Order::Nothing))
}

/// The way in which a queue was ordered after an earlier fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Nothing had to be done: the fence is done, or the queue is ordered after it already.
    Nothing,
    /// A device-side wait was enqueued; the host does not wait.
    Device,
    /// Only the host can wait: the caller parks the work until the fence has settled.
    Host,
}

/// Identity of a queue, unique in the process and never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(NonZeroU64);

impl QueueId {
    /// A new identity, for a new queue (or a new import of a foreign one).
    pub fn next() -> Self {
        // An id allocator outside of every protocol: a plain std atomic, so that it may be a static under
        // model checkers too.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(NonZeroU64::new(number).expect("the numbers do not run out"))
    }

    /// The number, for traces.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}", self.0)
    }
}

debug_as!(id: QueueId, "{id}");
