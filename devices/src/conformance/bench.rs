use std::sync::Arc;

use estafette_sync::thread;
use estafette_sync::time::{Duration, Instant};

use crate::{Allocation, Device, Fence, Order, Outcome, Queue};

use super::{Blocked, Harness, Skip};

/// A check that waits this long for something has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time before the device is asked to make progress again.
const ROUND: Duration = Duration::from_micros(200);

/// One device on the bench, and what checks do with it again and again.
pub(super) struct Bench<'a> {
    pub(super) harness: &'a dyn Harness,
    pub(super) device: Arc<dyn Device>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(harness: &'a dyn Harness) -> Self {
        Self { harness, device: harness.device() }
    }

    pub(super) fn queue(&self) -> Arc<dyn Queue> {
        self.device.create_queue().expect("a device gives a few queues")
    }

    /// Memory for `bytes` bytes, filled with zeros.
    pub(super) fn memory(&self, bytes: usize) -> Allocation {
        let memory = self.device.allocate(bytes, 64).expect("a device has room for a few bytes");
        let queue = self.queue();
        self.fill(&*queue, &memory, 0);
        assert!(self.settle(&self.record(&*queue)).is_ok());
        memory
    }

    pub(super) fn fill(&self, queue: &dyn Queue, memory: &Allocation, value: u8) {
        self.harness.fill(queue, memory, value).expect("a queue that has not failed takes work");
    }

    pub(super) fn copy(&self, queue: &dyn Queue, from: &Allocation, to: &Allocation) {
        assert_eq!(from.len(), to.len());
        // SAFETY: checks settle what they enqueue before they drop their memory (a failing check panics and
        // aborts the suite), and order accesses with the waits under test.
        let copied = unsafe { self.device.copy(queue, from.ptr().as_ptr(), to.ptr().as_ptr(), from.len()) };
        copied.expect("a queue that has not failed takes work");
    }

    pub(super) fn record(&self, queue: &dyn Queue) -> Fence {
        queue.record().expect("a queue that has not failed gives fences")
    }

    /// Makes `queue` wait for `fence`, in the way that it asks for.
    pub(super) fn order(&self, queue: &dyn Queue, fence: &Fence) -> Order {
        let order = queue.order_after(fence).expect("neither queue nor fence has failed");
        if order == Order::Host {
            assert!(self.settle(fence).is_ok());
        }
        order
    }

    /// Holds back everything that is enqueued on `queue` from here on.
    pub(super) fn block(&self, queue: &dyn Queue) -> Result<Blocked, Skip> {
        self.harness.block(queue)
    }

    /// As [`block`](Self::block), on an out-of-order queue as well.
    pub(super) fn block_all(&self, queue: &dyn Queue) -> Result<Blocked, Skip> {
        let blocked = self.block(queue)?;
        self.order(queue, &self.record(queue));
        Ok(blocked)
    }

    /// As [`assert_filled`](Self::assert_filled), after a queue was broken: where nothing can be read any
    /// more, nothing is.
    pub(super) fn assert_untouched(&self, memory: &Allocation) {
        if !self.harness.breaks_the_device() {
            self.assert_filled(memory, 0);
        }
    }

    /// Lets the device run until `fence` has settled.
    pub(super) fn settle(&self, fence: &Fence) -> Outcome {
        self.harness.advance();
        match fence.wait_timeout(Some(Duration::ZERO)) {
            Some(outcome) => outcome,
            None => self.until(|| fence.wait_timeout(Some(ROUND))),
        }
    }

    /// Lets the device run until `done` gives something.
    pub(super) fn until<R>(&self, mut done: impl FnMut() -> Option<R>) -> R {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.harness.advance();
            if let Some(result) = done() {
                return result;
            }
            assert!(Instant::now() < deadline, "nothing happened for {PATIENCE:?}");
            thread::sleep(ROUND);
        }
    }

    /// The content of `memory`. The work that wrote it has settled.
    pub(super) fn read(&self, memory: &Allocation) -> Vec<u8> {
        let mut host = vec![0xee; memory.len()];
        let queue = self.queue();
        // SAFETY: both are valid for that length, and the fence is settled before either is used again.
        let copied =
            unsafe { self.device.copy(&*queue, memory.ptr().as_ptr(), host.as_mut_ptr(), memory.len()) };
        copied.expect("a fresh queue takes work");
        assert!(self.settle(&self.record(&*queue)).is_ok());
        host
    }

    pub(super) fn assert_filled(&self, memory: &Allocation, value: u8) {
        let bytes = self.read(memory);
        assert!(bytes.iter().all(|&byte| byte == value), "expected only {value}, found {bytes:?}");
    }
}
