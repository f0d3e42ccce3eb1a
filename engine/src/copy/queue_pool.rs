//! Pools of a device's queues: for copies, and for producers that order their work before an import.
//!
//! Work that waits on a queue holds up what is enqueued there next. A user therefore gets a queue with
//! nothing pending. A pool has [`QUEUES_MAX`] queues per device; past them, users share queues. A fence of a
//! shared queue covers more than its user's work: such a fence is late, never wrong.

use std::sync::Arc;

use estafette_devices::{Device, DeviceError, Fence, Queue};
use estafette_sync::sync::{Mutex, MutexGuard};

use crate::core::lost::lost;
use crate::core::per_device::PerDevice;

/// Queues per device and pool. More than a device has engines for copies, since some queues wait for what
/// they read.
const QUEUES_MAX: usize = 8;

estafette_sync::per_process! {
    /// For copies.
    static COPIES: PerDevice<QueuePool> = PerDevice::new();
    /// For import streams. A producer's wait may be long, so copies do not use these queues.
    static IMPORTS: PerDevice<QueuePool> = PerDevice::new();
}

/// The queues of a device, the least recently used first.
#[derive(Default)]
struct QueuePool(Mutex<Vec<PoolEntry>>);

struct PoolEntry {
    queue: Arc<dyn Queue>,
    users: usize,
    last: Option<Fence>,
}

impl PoolEntry {
    /// True if nothing is pending, as far as is known without a call of the driver.
    fn is_idle(&self) -> bool {
        self.users == 0 && self.last.as_ref().is_none_or(Fence::observed_done)
    }

    /// As [`is_idle`](Self::is_idle), by a query of the driver.
    fn query_idle(&self) -> bool {
        self.users == 0 && self.last.as_ref().is_none_or(Fence::is_done)
    }
}

impl QueuePool {
    fn lock(&self) -> MutexGuard<'_, Vec<PoolEntry>> {
        self.0.lock()
    }

    /// A queue of the pool: an idle one, or the one with the fewest users if the pool is full. `None`: make
    /// one.
    fn take(&self) -> Option<Arc<dyn Queue>> {
        let mut queues = self.lock();
        let idle = queues.iter().position(PoolEntry::is_idle);
        // The least recently used queue is done first; queries of others would be in vain.
        let done = || queues.first().is_some_and(PoolEntry::query_idle).then_some(0);
        let fewest = || {
            let fewest = (0..queues.len()).min_by_key(|at| queues[*at].users);
            fewest.filter(|_| queues.len() >= QUEUES_MAX)
        };
        let at = idle.or_else(done).or_else(fewest)?;
        let mut entry = queues.remove(at);
        entry.users += 1;
        let queue = Arc::clone(&entry.queue);
        queues.push(entry);
        Some(queue)
    }

    fn lend(self: Arc<Self>, device: &dyn Device) -> Result<PooledQueue, DeviceError> {
        let queue = match self.take() {
            Some(queue) => queue,
            None => {
                let queue = device.create_queue()?;
                self.lock().push(PoolEntry { queue: Arc::clone(&queue), users: 1, last: None });
                queue
            }
        };
        Ok(PooledQueue { pool: self, queue, last: None })
    }
}

/// The use of a queue of a pool, until dropped.
pub(crate) struct PooledQueue {
    pool: Arc<QueuePool>,
    queue: Arc<dyn Queue>,
    last: Option<Fence>,
}

impl PooledQueue {
    /// A queue for one copy.
    ///
    /// # Errors
    /// The device gives no queue.
    pub(crate) fn for_copy(device: &Arc<dyn Device>) -> Result<Self, DeviceError> {
        COPIES.of(device).lend(&**device)
    }

    /// A queue for one import stream.
    ///
    /// # Errors
    /// The device gives no queue.
    pub(crate) fn for_import(device: &Arc<dyn Device>) -> Result<Self, DeviceError> {
        IMPORTS.of(device).lend(&**device)
    }

    pub(crate) fn queue(&self) -> &Arc<dyn Queue> {
        &self.queue
    }

    /// The fence of what has been enqueued.
    ///
    /// # Errors
    /// The queue has failed.
    pub(crate) fn try_record(&mut self) -> Result<Fence, DeviceError> {
        let fence = self.queue.record()?;
        self.last = Some(fence.clone());
        Ok(fence)
    }

    /// As [`try_record`](Self::try_record). Where the queue has failed, the fence is one whose end is never
    /// known: what was enqueued may still run.
    pub(super) fn record(&mut self) -> Fence {
        let fence = self.queue.record().unwrap_or_else(lost);
        self.last = Some(fence.clone());
        fence
    }
}

impl std::fmt::Debug for PooledQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PooledQueue").field(&self.queue).finish()
    }
}

impl Drop for PooledQueue {
    fn drop(&mut self) {
        let mut queues = self.pool.lock();
        let entry = queues.iter_mut().find(|entry| Arc::ptr_eq(&entry.queue, &self.queue));
        let Some(entry) = entry else { return };
        entry.users -= 1;
        let before = self.last.take().and_then(|last| entry.last.replace(last));
        drop(queues);
        // The fence may be the last owner of an object of the driver.
        drop(before);
    }
}

#[cfg(all(test, not(estafette_shuttle)))]
mod tests {
    use estafette_devices::sim::{SimDevice, SimOptions};

    use super::*;

    #[test]
    fn a_user_gets_an_idle_queue_and_past_the_bound_the_one_with_the_fewest_users() {
        let device: Arc<dyn Device> = SimDevice::new(SimOptions::default()).unwrap();
        let lend = || PooledQueue::for_copy(&device).unwrap();
        let first = lend();
        let queue = first.queue().id();
        let second = lend();
        assert_ne!(second.queue().id(), queue, "the first is in use");
        drop(first);
        assert_eq!(lend().queue().id(), queue, "and is idle now");

        let many: Vec<_> = (0..10 * QUEUES_MAX).map(|_| lend()).collect();
        let pool = COPIES.of(&device);
        assert_eq!(pool.lock().len(), QUEUES_MAX);
        let users: Vec<_> = pool.lock().iter().map(|entry| entry.users).collect();
        assert!(users.iter().all(|users| (10..=11).contains(users)), "{users:?}");
        drop((many, second));
        assert!(pool.lock().iter().all(PoolEntry::is_idle));
    }

    #[test]
    fn a_burst_of_imports_leaves_no_more_queues_than_the_bound() {
        let device: Arc<dyn Device> = SimDevice::new(SimOptions::default()).unwrap();
        let burst: Vec<_> = (0..100).map(|_| PooledQueue::for_import(&device).unwrap()).collect();
        for mut queue in burst {
            queue.try_record().unwrap();
        }
        assert_eq!(IMPORTS.of(&device).lock().len(), QUEUES_MAX);
        assert!(!IMPORTS.of(&device).lock().is_empty() && COPIES.of(&device).lock().is_empty());
    }
}
