//! The queues that copies are enqueued on.
//!
//! A copy waits on its queue for what it reads, and holds up what is enqueued there next; so it gets a queue that has nothing
//! to do, of which a device has a few. Past them it shares one.

use std::sync::Arc;

use estafette_devices::{Device, DeviceError, Fence, Queue};
use estafette_sync::sync::{Mutex, MutexGuard};

use crate::core::per_device::PerDevice;
use crate::operation::submit::lost;

/// Queues per device. More than a device has engines for copies, since some of them wait for what they read.
const LANES_MAX: usize = 8;

estafette_sync::statics! {
    static LANES: PerDevice<Lanes> = PerDevice::new();
}

/// The queues of a device, the one that was used least recently first.
#[derive(Default)]
struct Lanes(Mutex<Vec<Lane>>);

struct Lane {
    queue: Arc<dyn Queue>,
    /// Copies that are being enqueued there.
    turns: usize,
    last: Option<Fence>,
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.turns == 0 && self.last.as_ref().is_none_or(Fence::observed_done)
    }
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.0.lock()
    }

    /// A queue that is there: idle, or the one with the least to do if there are enough of them.
    fn take(&self) -> Option<Arc<dyn Queue>> {
        let mut lanes = self.lock();
        let at = lanes.iter().position(Lane::is_idle).or_else(|| {
            let least = (0..lanes.len()).min_by_key(|at| lanes[*at].turns);
            least.filter(|_| lanes.len() >= LANES_MAX)
        })?;
        let mut lane = lanes.remove(at);
        lane.turns += 1;
        let queue = Arc::clone(&lane.queue);
        lanes.push(lane);
        Some(queue)
    }
}

/// The right to enqueue one copy on a queue of its device.
pub(super) struct Turn {
    lanes: Arc<Lanes>,
    queue: Arc<dyn Queue>,
    last: Option<Fence>,
}

impl Turn {
    /// # Errors
    /// The device gives no queue.
    pub(super) fn on(device: &Arc<dyn Device>) -> Result<Self, DeviceError> {
        let lanes = LANES.of(device);
        let queue = match lanes.take() {
            Some(queue) => queue,
            None => {
                let queue = device.create_queue()?;
                lanes.lock().push(Lane { queue: Arc::clone(&queue), turns: 1, last: None });
                queue
            }
        };
        Ok(Self { lanes, queue, last: None })
    }

    pub(super) fn queue(&self) -> &Arc<dyn Queue> {
        &self.queue
    }

    /// The fence of what has been enqueued.
    pub(super) fn record(&mut self) -> Fence {
        // What was enqueued may run even if nobody will know when it ends.
        let fence = self.queue.record().unwrap_or_else(lost);
        self.last = Some(fence.clone());
        fence
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut lanes = self.lanes.lock();
        let lane = lanes.iter_mut().find(|lane| Arc::ptr_eq(&lane.queue, &self.queue));
        let Some(lane) = lane else { return };
        lane.turns -= 1;
        let before = self.last.take().and_then(|last| lane.last.replace(last));
        drop(lanes);
        // It may be the last holder of something of the driver's.
        drop(before);
    }
}

#[cfg(all(test, not(estafette_shuttle)))]
mod tests {
    use estafette_devices::sim::{SimDevice, SimOptions};

    use super::*;

    #[test]
    fn a_copy_gets_an_idle_queue_and_past_the_bound_the_one_with_the_least_to_do() {
        let device: Arc<dyn Device> = SimDevice::new(SimOptions::default()).unwrap();
        let first = Turn::on(&device).unwrap();
        let queue = first.queue().id();
        let second = Turn::on(&device).unwrap();
        assert_ne!(second.queue().id(), queue, "the first is in use");
        drop(first);
        assert_eq!(Turn::on(&device).unwrap().queue().id(), queue, "and is idle now");

        let many: Vec<_> = (0..10 * LANES_MAX).map(|_| Turn::on(&device).unwrap()).collect();
        let lanes = LANES.of(&device);
        assert_eq!(lanes.lock().len(), LANES_MAX);
        let turns: Vec<_> = lanes.lock().iter().map(|lane| lane.turns).collect();
        assert!(turns.iter().all(|turns| (10..=11).contains(turns)), "{turns:?}");
        drop((many, second));
        assert!(lanes.lock().iter().all(Lane::is_idle));
    }
}
