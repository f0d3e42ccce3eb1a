use std::any::Any;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{DLDevice, DeviceError, DeviceErrorKind, Fence, Timing};

/// A lane of a device: a CUDA stream, a SYCL queue, a simulated queue. Thread-safe.
///
/// The order of one operation is: [`Queue::order_after`] for each earlier fence, enqueue the work, [`Queue::record`].
/// The caller makes sure that nobody else enqueues between its work and its `record` where that matters; a fence that
/// covers more than it should is late, never wrong.
pub trait Queue: Send + Sync + fmt::Debug + Any {
    /// The identity of this queue, unique in the process and never used again.
    fn id(&self) -> QueueId;

    /// The device it belongs to.
    fn device(&self) -> DLDevice;

    /// Whether work runs in the order in which it was enqueued. Only then is a fence of this queue ordered before
    /// later work of this queue without a wait.
    fn in_order(&self) -> bool;

    /// Makes the work that is enqueued here next run after `fence`, in the cheapest way this queue knows.
    ///
    /// # Errors
    /// The fence has failed, this queue has failed, or the driver refused the wait. No wait was enqueued then.
    fn order_after(&self, fence: &Fence) -> Result<Order, DeviceError>;

    /// The fence of everything enqueued here so far.
    ///
    /// # Errors
    /// The queue has failed or the driver refused the marker.
    fn record(&self) -> Result<Fence, DeviceError>;

    /// Whether [`record`](Queue::record) may be called by whatever code of others runs, such as the deleter of a tensor. Of a runtime that
    /// lets its threads run such code while others wait for it under a lock of its own, it may not.
    fn record_is_thread_safe(&self) -> bool {
        true
    }

    /// Begins to measure when the work runs that is enqueued here from now until the next [`record`](Queue::record). The answer is
    /// there once that record's fence is done. `None` where nobody can tell (the default). Measuring may cost driver calls, so it is
    /// asked for only while somebody records where the time goes.
    fn time(&self) -> Option<Arc<dyn Timing>> {
        None
    }

    /// Makes the calling thread one that can enqueue here by the runtime's own functions: of CUDA, the device's context becomes
    /// its current one. Whether that changed anything, and [`restore_current`](Queue::restore_current) is owed on the same thread;
    /// [`CurrentGuard`](crate::CurrentGuard) pays it.
    ///
    /// # Errors
    /// The device is broken.
    fn make_current(&self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Takes back an [`make_current`](Queue::make_current) that said `true`.
    fn restore_current(&self) {}

    /// The native handle (`CUstream`, pointer to a `sycl::queue`), or 0.
    fn native(&self) -> usize {
        0
    }

    /// Whether this handle stays good for as long as it is kept. A raw handle of somebody else's stream does not: it may be
    /// destroyed, and its address be another stream's, once the call that gave it is over.
    fn handle_outlives_call(&self) -> bool {
        true
    }

    /// Whether what is enqueued here now is recorded into a graph instead of being run. Such a queue gets waits and is never
    /// queried; what it reads is read again at every launch of the graph.
    ///
    /// # Errors
    /// The driver does not say.
    fn is_capturing(&self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Whether [`capture_graph`](Queue::capture_graph) works here.
    fn supports_capture(&self) -> bool {
        false
    }

    /// Makes a graph of what `enqueue` enqueues on the queues that it is given: `queues` new ones of this queue's device, which
    /// nobody else has. Nothing of it runs. They are one recording: a fence of one orders another one within it, and nothing
    /// outside of it can be waited for.
    ///
    /// # Errors
    /// What `enqueue` says; or the device records no graphs, or refused what was enqueued.
    fn capture_graph(
        &self,
        queues: usize,
        enqueue: Recorded<'_>,
    ) -> Result<Arc<dyn LaunchGraph>, DeviceError> {
        let _ = (queues, enqueue);
        let message = format!("queues of {} record no graphs", self.device());
        Err(DeviceError::new(DeviceErrorKind::Invalid, message).with_queue(self.id()))
    }

    /// For the device's own code to recognise its queues.
    fn as_any(&self) -> &dyn Any;
}

/// What enqueues on the queues of a recording.
pub type Recorded<'a> = &'a mut dyn FnMut(&[Arc<dyn Queue>]) -> Result<(), DeviceError>;

/// Work that was recorded once, and is launched by one call each time. Its launches run one after the other. The memory that it
/// uses has to live for as long as it is launched; when it is dropped, launches that are under way end in peace.
pub trait LaunchGraph: Send + Sync + fmt::Debug {
    /// Enqueues all of it on `queue`, and gives the fence of it.
    ///
    /// # Errors
    /// The queue is of another device, or refused it.
    fn launch(&self, queue: &dyn Queue) -> Result<Fence, DeviceError>;
}

/// The cases of [`Queue::order_after`] that all drivers share; each driver adds its native wait.
///
/// `is_ordered` says whether `queue` comes after `fence` already. `wait` makes the driver wait; `None` if the driver does
/// not know what is behind `fence`. Both are called under no lock.
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

/// How an earlier fence was settled for the work that a queue gets next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Nothing had to be done: it is done, or the queue is ordered after it already.
    Nothing,
    /// A device-side wait was enqueued; the host goes on.
    Device,
    /// Only the host can wait: the caller parks the work until the fence has settled.
    Host,
}

/// Identity of a queue, unique in the process and never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(NonZeroU64);

impl QueueId {
    /// A new identity, for a new queue (or a new acquisition of a foreign one).
    pub fn next() -> Self {
        // An id allocator outside of every protocol: a plain std atomic, so that it may be a static under model
        // checkers too.
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

impl fmt::Debug for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
