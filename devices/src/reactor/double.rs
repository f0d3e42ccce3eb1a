//! A queue for the tests of the reactor.

use std::sync::Arc;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::fence::source::{Subscriber, Timeline, Watch};
use crate::{DLDevice, DeviceError, QueueId};

#[derive(Debug)]
pub(crate) struct Driver {
    queue: QueueId,
    pub(crate) completed: AtomicU64,
    /// True if a query costs a load.
    pub(crate) is_cheap: AtomicBool,
    pub(crate) failure: Mutex<Option<DeviceError>>,
    pub(crate) queries: AtomicUsize,
    /// True if a query panics, and the drop of its payload as well.
    pub(crate) panics: AtomicBool,
}

struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("while dropping the payload");
    }
}

impl Driver {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: QueueId::next(),
            completed: AtomicU64::new(0),
            is_cheap: AtomicBool::new(false),
            failure: Mutex::new(None),
            queries: AtomicUsize::new(0),
            panics: AtomicBool::new(false),
        })
    }
}

impl Timeline for Driver {
    fn queue(&self) -> QueueId {
        self.queue
    }

    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    fn failure(&self) -> Option<DeviceError> {
        self.failure.lock().clone()
    }

    fn poll(&self) -> u64 {
        self.queries.fetch_add(1, Ordering::Relaxed);
        if self.panics.load(Ordering::Relaxed) {
            std::panic::panic_any(PanicsOnDrop);
        }
        self.completed()
    }

    fn query_is_cheap(&self) -> bool {
        self.is_cheap.load(Ordering::Relaxed)
    }

    fn watch(&self, _sequence: u64, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        Watch::MustPoll
    }
}
