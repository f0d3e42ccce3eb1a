//! The thread and what it shares with those who hand over. See the [parent](super)'s sleeping protocol.

use std::mem;

use estafette_devices::{DLDevice, Device, DeviceType, Entered, table};
use estafette_sync::essential::essential;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use estafette_sync::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use estafette_sync::time::{Duration, Instant};
use estafette_sync::{daemon, stack, valgrind};

use super::super::abi::ManagedTensor;
use super::super::contain::contain;
use super::queue::{Phase, Queue, Ready, Rest};
use super::{BACKLOG, NAP, REPORT, Storage, fork};

pub(super) struct Shared {
    /// The fork generation that the thread lives in.
    generation: u32,
    queue: Mutex<Queue>,
    /// Wakes the thread.
    pub(super) work: Condvar,
    /// Wakes those who flush or stop.
    pub(super) progress: Condvar,
    /// Tells the thread to run no further deleter: `stop` has given up on it. Relaxed, since the lock
    /// orders the rest.
    pub(super) abandoned: AtomicBool,
    /// As `abandoned`, from the beginning of `stop` on, for those who would run a deleter elsewhere.
    pub(super) stopped: AtomicBool,
    pub(super) released: AtomicU64,
    pub(super) deleters: AtomicU64,
    pub(super) leaked: AtomicU64,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            generation: fork::generation(),
            queue: Mutex::default(),
            work: Condvar::new(),
            progress: Condvar::new(),
            abandoned: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            released: AtomicU64::new(0),
            deleters: AtomicU64::new(0),
            leaked: AtomicU64::new(0),
        }
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing that can panic runs under the lock but allocation failure, which aborts.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_forked(&self) -> bool {
        self.generation != fork::generation()
    }

    pub(super) fn push(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>, ready: Ready) {
        queue.ready.push(ready);
        self.start(&mut queue);
        let wake = match queue.rest {
            Rest::Busy => false,
            Rest::Napping => queue.ready.len() == BACKLOG,
            Rest::Asleep => true,
        };
        if wake {
            queue.rest = Rest::Busy;
            drop(queue);
            self.work.notify_one();
        }
    }

    /// Starts the thread if there is work for it. When the system refuses, the next push or flush tries
    /// again.
    pub(super) fn start(self: &Arc<Self>, queue: &mut Queue) {
        if queue.thread.is_some() || queue.ready.is_empty() || queue.phase != Phase::Running {
            return;
        }
        let shared = self.clone();
        let reaper = move || essential("the reaper", || shared.run());
        match stack::thread("estafette-reaper").spawn(reaper) {
            Ok(thread) => queue.thread = Some(daemon(thread)),
            Err(error) => tracing::warn!(%error, "the reaper thread does not start; memory waits"),
        }
    }

    pub(super) fn leak(&self, storage: Storage) {
        mem::forget(storage);
        self.leaked.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leak_entered(&self, ready: Ready) {
        self.leak(ready.storage);
        self.lock().leave(ready.epoch, 1);
        self.progress.notify_all();
    }

    pub(super) fn wait_until<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        timeout: Duration,
        done: impl Fn(&Queue) -> bool,
    ) -> MutexGuard<'a, Queue> {
        // A timeout beyond what a clock can say is no timeout.
        let deadline = Instant::now().checked_add(timeout);
        while !done(&queue) {
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            queue = match self.progress.wait_timeout(queue, left) {
                Ok((queue, _)) => queue,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        queue
    }

    /// The thread.
    fn run(&self) {
        let on_start = self.lock().on_start;
        if let Some(hook) = on_start {
            contain("start of the reaper", hook);
        }
        let mut batch = Vec::new();
        let mut queue = self.lock();
        loop {
            queue = self.rest(queue);
            if queue.ready.is_empty() || queue.phase == Phase::Stopped {
                queue.phase = Phase::Stopped;
                break;
            }
            mem::swap(&mut queue.ready, &mut batch);
            drop(queue);
            self.drop_all(&mut batch);
            queue = self.lock();
        }
        drop(queue);
        self.progress.notify_all();
    }

    /// Returns when there is something ready or the thread is to end: first naps, then sleeps.
    fn rest<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        if queue.ready.is_empty() && queue.phase == Phase::Running {
            queue.rest = Rest::Napping;
            queue = match self.work.wait_timeout(queue, NAP) {
                Ok((queue, _)) => queue,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        while queue.ready.is_empty() && queue.phase == Phase::Running {
            queue.rest = Rest::Asleep;
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.rest = Rest::Busy;
        queue
    }

    fn drop_all(&self, batch: &mut Vec<Ready>) {
        // Storages of one epoch stand together nearly always, so runs are counted, not single ones.
        let mut run: Option<(u64, u64)> = None;
        for Ready { storage, epoch } in batch.drain(..) {
            if self.abandoned.load(Ordering::Relaxed) {
                self.leak(storage);
            } else {
                self.release(storage);
            }
            run = match run {
                Some((current, count)) if current == epoch && count < REPORT as u64 => {
                    Some((epoch, count + 1))
                }
                _ => {
                    self.report(run);
                    Some((epoch, 1))
                }
            };
        }
        self.report(run);
    }

    /// Drops a storage and counts it.
    pub(super) fn release(&self, storage: Storage) {
        let foreign = storage.as_foreign().map(ManagedTensor::device);
        let device = foreign.and_then(of_deleter);
        // Where the device is broken the deleter is called all the same.
        let entered = device.as_deref().map(Entered::device);
        contain("deleter", || valgrind::foreign(|| drop(storage)));
        drop(entered);
        if foreign.is_some() {
            self.deleters.fetch_add(1, Ordering::Relaxed);
        }
        self.released.fetch_add(1, Ordering::Relaxed);
    }

    fn report(&self, run: Option<(u64, u64)>) {
        if let Some((epoch, count)) = run {
            self.lock().leave(epoch, count);
            self.progress.notify_all();
        }
    }
}

/// The device that a deleter of memory on `device` finds current on its thread. Libraries free CUDA memory in whatever context that is,
/// and a thread of ours has none by itself.
fn of_deleter(device: DLDevice) -> Option<Arc<dyn Device>> {
    let kinds = [DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED];
    if !kinds.contains(&device.device_type) {
        return None;
    }
    table::resolve(DLDevice::new(DeviceType::CUDA, device.device_id)).ok()?.device
}
