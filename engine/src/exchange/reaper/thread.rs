//! The threads and what they share with those who hand over. See the [parent](super)'s protocols.

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use estafette_devices::{CurrentGuard, DLDevice, Device, log_panic, table};
use estafette_sync::essential::essential;
use estafette_sync::process::Generation;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use estafette_sync::sync::{Condvar, Mutex, MutexGuard};
use estafette_sync::time::{Duration, Instant};
use estafette_sync::{daemon, stack, thread, thread_local, valgrind};

use super::super::abi::ManagedTensor;
use super::queue::{Follower, LeaderState, Phase, Queue, Ready, Receipt};
use super::slow::{ReleasedMemory, SLOW};
use super::thread_state::{ActiveDeleter, DeleterThread, NextDeleter, Overtaken, Run};
use super::{BACKLOG, FenceSet, FencedStorage, NAP, Storage, THREADS_MAX};

thread_local! {
    /// The deleter that this thread is in: the address of what its reaper shares, and the deleter's epoch.
    static DELETER: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
}

pub(super) struct ReaperState {
    pub(super) generation: Generation,
    /// After this time a deleter is slow.
    pub(super) slow: Duration,
    queue: Mutex<Queue>,
    /// Storages whose fences no thread observes.
    unwatched: Mutex<Vec<(FencedStorage, FenceSet)>>,
    /// Wakes the leader.
    pub(super) work: Condvar,
    /// Wakes the follower.
    watch: Condvar,
    /// Wakes those who flush or stop.
    pub(super) progress: Condvar,
    /// True if the threads must run no further deleter: `stop` has given up on it. Relaxed, since the lock
    /// orders the rest.
    pub(super) abandoned: AtomicBool,
    /// As `abandoned`, from the beginning of `stop` on, for those who would run a deleter elsewhere.
    pub(super) stopped: AtomicBool,
    pub(super) released: AtomicU64,
    pub(super) deleters: AtomicU64,
    pub(super) leaked: AtomicU64,
}

impl Default for ReaperState {
    fn default() -> Self {
        Self {
            generation: Generation::current(),
            slow: SLOW,
            queue: Mutex::default(),
            unwatched: Mutex::default(),
            work: Condvar::new(),
            watch: Condvar::new(),
            progress: Condvar::new(),
            abandoned: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            released: AtomicU64::new(0),
            deleters: AtomicU64::new(0),
            leaked: AtomicU64::new(0),
        }
    }
}

impl ReaperState {
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing that can panic runs under the lock but allocation failure, which aborts.
        self.queue.lock()
    }

    pub(super) fn unwatched(&self) -> MutexGuard<'_, Vec<(FencedStorage, FenceSet)>> {
        self.unwatched.lock()
    }

    /// Has the reactor observe the fences of `most` storages at most that no thread observes.
    pub(super) fn watch_again(&self, most: usize) {
        let unwatched = {
            let mut unwatched = self.unwatched();
            let most = most.min(unwatched.len());
            unwatched.drain(..most).collect::<Vec<_>>()
        };
        unwatched.into_iter().for_each(|(waiting, fences)| waiting.order(fences));
    }

    /// Has the leader do the same for all of them, after its nap if that `may_wait`.
    pub(super) fn watch_soon(self: &Arc<Self>, may_wait: bool) {
        let mut queue = self.lock();
        queue.watch_due = true;
        self.wake(queue, may_wait);
    }

    /// Counts a storage in. What a deleter hands over belongs to the deleter's epoch: a flush that waits for
    /// the deleter waits for it too.
    pub(super) fn register(&self, queue: &mut Queue) -> Receipt {
        // A thread that ends is in no deleter.
        let deleter = DELETER.try_with(Cell::get).ok().flatten();
        let own = |(reaper, epoch)| (reaper == std::ptr::from_ref(self).addr()).then_some(epoch);
        queue.register(deleter.and_then(own))
    }

    pub(super) fn push(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>, ready: Ready) {
        queue.ready.push_back(ready);
        self.wake(queue, true);
    }

    /// Sees to it that the leader notices what there is to do, after its nap if that `may_wait`.
    fn wake(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>, may_wait: bool) {
        self.start(&mut queue);
        let wake = match queue.rest {
            LeaderState::Busy => {
                self.follow_the_leader(&mut queue);
                false
            }
            LeaderState::Napping => !may_wait || queue.ready.len() == BACKLOG,
            LeaderState::Asleep => true,
        };
        if wake {
            queue.rest = LeaderState::Busy;
        }
        warn_without(queue, || {
            if wake {
                self.work.notify_one();
            }
        });
    }

    /// Starts the first thread if there is work for it. When the system refuses, the next push or flush tries
    /// again. The caller releases the lock by [`warn_without`].
    pub(super) fn start(self: &Arc<Self>, queue: &mut Queue) {
        if queue.threads.is_empty() && queue.has_work() && queue.phase == Phase::Running {
            self.spawn(queue);
        }
    }

    fn spawn(self: &Arc<Self>, queue: &mut Queue) {
        let shared = self.clone();
        let reaper = move || essential("the reaper", || shared.run());
        match stack::thread("estafette-reaper").spawn(reaper) {
            Ok(thread) => {
                queue.threads.push(daemon(thread));
                queue.follower = Follower::Resting;
            }
            Err(error) => queue.refused = Some(error),
        }
    }

    /// Something waits for the leader's deleter: another thread has to see when that is slow.
    fn follow_the_leader(self: &Arc<Self>, queue: &mut Queue) {
        match queue.follower {
            Follower::Watching => {}
            Follower::Resting => {
                queue.follower = Follower::Watching;
                self.watch.notify_one();
            }
            Follower::None if queue.threads.len() < THREADS_MAX => self.spawn(queue),
            Follower::None => {}
        }
    }

    /// Everything is over.
    pub(super) fn wake_all(&self) {
        self.work.notify_all();
        self.watch.notify_all();
    }

    pub(super) fn leak(&self, storage: Storage) {
        mem::forget(storage);
        self.leaked.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leak_entered(&self, ready: Ready) {
        self.leak(ready.storage);
        self.lock().complete(ready.receipt.epoch, 1);
        self.progress.notify_all();
    }

    /// Frees plain memory of this crate, or gives memory of another process back, on the calling thread.
    pub(super) fn free_entered(&self, ready: Ready) {
        drop(ready.storage);
        self.released.fetch_add(1, Ordering::Relaxed);
        self.lock().complete(ready.receipt.epoch, 1);
        self.progress.notify_all();
    }

    pub(super) fn wait_until<'a>(
        &'a self,
        queue: MutexGuard<'a, Queue>,
        timeout: Duration,
        done: impl Fn(&Queue) -> bool,
    ) -> MutexGuard<'a, Queue> {
        // A timeout beyond what a clock can say is no timeout.
        let deadline = Instant::now().checked_add(timeout);
        self.progress.wait_while(queue, deadline, |queue| !done(queue)).0
    }

    /// One thread: follows, then leads until it is overtaken.
    fn run(self: &Arc<Self>) {
        let thread = Arc::new(DeleterThread::default());
        let mut is_new = true;
        while self.follow(&thread) {
            let hook = self.lock().on_start.filter(|_| mem::take(&mut is_new));
            if let Some(hook) = hook {
                log_panic("start of the reaper", hook);
            }
            if !self.lead(&thread) || !self.is_back(&thread) {
                return;
            }
        }
    }

    /// Waits until this thread leads; false if it has to leave instead.
    fn follow(&self, thread: &Arc<DeleterThread>) -> bool {
        let mut queue = self.lock();
        loop {
            if queue.phase == Phase::Stopped {
                return false;
            }
            queue = match slow_in(&queue, self.slow) {
                Some(left) if left.is_zero() => {
                    let overtaken = overtake(&mut queue, self.slow);
                    if overtaken.is_none() && queue.leader.is_some() {
                        continue;
                    }
                    queue.leader = Some(Arc::clone(thread));
                    queue.follower = Follower::None;
                    queue.rest = LeaderState::Busy;
                    drop(queue);
                    if let Some(what) = overtaken {
                        // Deleters that have returned before may be waited for.
                        self.progress.notify_all();
                        tracing::warn!(%what, "a deleter is slow; the others continue without it");
                    }
                    return true;
                }
                Some(left) => {
                    queue.follower = Follower::Watching;
                    self.watch.wait_timeout(queue, left).0
                }
                None => {
                    queue.follower = Follower::Resting;
                    self.watch.wait(queue)
                }
            };
        }
    }

    /// Runs deleters. True if another thread leads now, false at the end.
    fn lead(self: &Arc<Self>, thread: &Arc<DeleterThread>) -> bool {
        loop {
            let mut queue = self.rest(self.lock());
            if mem::take(&mut queue.watch_due) && queue.phase == Phase::Running {
                drop(queue);
                self.watch_again(usize::MAX);
                continue;
            }
            if queue.ready.is_empty() || queue.phase == Phase::Stopped {
                queue.phase = Phase::Stopped;
                queue.leader = None;
                drop(queue);
                self.progress.notify_all();
                self.watch.notify_all();
                return false;
            }
            let waits = self.take_batch(&mut queue, thread);
            if waits {
                self.follow_the_leader(&mut queue);
            }
            warn_without(queue, || ());
            if self.drop_all(thread) {
                return true;
            }
        }
    }

    /// Moves what is ready to `thread`, but for memory that an overtaken deleter still has: that waits behind
    /// it. Says whether more than one was taken.
    fn take_batch(&self, queue: &mut Queue, thread: &DeleterThread) -> bool {
        let mut books = thread.lock();
        mem::swap(&mut queue.ready, &mut books.batch);
        for slow in &queue.overtaken {
            let mut slow = slow.lock();
            let Some(what) = slow.active.as_ref().map(|active| active.what) else { continue };
            let (behind, others): (VecDeque<_>, VecDeque<_>) =
                books.batch.drain(..).partition(|ready| what.has_memory_of(ready.storage.data()));
            slow.behind.extend(behind);
            books.batch = others;
        }
        books.batch.len() > 1
    }

    /// Runs the deleters of a thread's batch. True if another thread leads now.
    fn drop_all(&self, thread: &DeleterThread) -> bool {
        loop {
            let (step, reports) = thread.step();
            self.report(reports);
            match step {
                NextDeleter::Over => return false,
                NextDeleter::Overtaken => return true,
                NextDeleter::Run(Ready { storage, .. }) if self.abandoned.load(Ordering::Relaxed) => {
                    self.leak(storage)
                }
                NextDeleter::Run(Ready { storage, receipt, .. }) => {
                    DELETER.set(Some((std::ptr::from_ref(self).addr(), receipt.epoch)));
                    self.release(storage);
                    DELETER.set(None);
                }
            }
        }
    }

    /// The deleter that this thread was overtaken in has returned. True if the thread follows from now on,
    /// false if it has to leave.
    fn is_back(&self, thread: &Arc<DeleterThread>) -> bool {
        let mut queue = self.lock();
        queue.overtaken.retain(|slow| !Arc::ptr_eq(slow, thread));
        let mut books = thread.lock();
        let behind = mem::take(&mut books.behind);
        books.overtaken = false;
        if let Some(ActiveDeleter { receipt, .. }) = books.active.take() {
            queue.complete(receipt.epoch, 1);
        }
        drop(books);
        let mut leaked = VecDeque::new();
        if queue.phase == Phase::Stopped {
            leaked = behind;
        } else if !behind.is_empty() {
            queue.put_first(behind);
            if queue.rest != LeaderState::Busy {
                queue.rest = LeaderState::Busy;
                self.work.notify_one();
            }
        }
        let stays = queue.phase != Phase::Stopped && queue.follower == Follower::None;
        if stays {
            queue.follower = Follower::Resting;
        } else {
            let this = thread::current().id();
            // The thread that stops the reaper joins those that are left; this one leaves by itself.
            queue.threads.retain(|thread| thread.thread().id() != this);
        }
        drop(queue);
        leaked.into_iter().for_each(|ready| self.leak_entered(ready));
        self.progress.notify_all();
        stays
    }

    /// Returns when there is something ready or the thread is to end: first naps, then sleeps.
    fn rest<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        if !queue.has_work() && queue.phase == Phase::Running {
            queue.rest = LeaderState::Napping;
            queue = self.work.wait_timeout(queue, NAP).0;
        }
        while !queue.has_work() && queue.phase == Phase::Running {
            queue.rest = LeaderState::Asleep;
            queue = self.work.wait(queue);
        }
        queue.rest = LeaderState::Busy;
        queue
    }

    /// Drops a storage and counts it.
    pub(super) fn release(&self, storage: Storage) {
        let is_foreign = storage.is_foreign();
        let device = storage.as_foreign().map(ManagedTensor::device).and_then(of_deleter);
        // The deleter is called even if the device is broken.
        let current = device.as_deref().map(CurrentGuard::device);
        log_panic("deleter", || valgrind::foreign(|| drop(storage)));
        drop(current);
        if is_foreign {
            self.deleters.fetch_add(1, Ordering::Relaxed);
        }
        self.released.fetch_add(1, Ordering::Relaxed);
    }

    fn report(&self, runs: [Option<Run>; 2]) {
        if runs == [None; 2] {
            return;
        }
        let mut queue = self.lock();
        runs.into_iter().flatten().for_each(|(epoch, count)| queue.complete(epoch, count));
        drop(queue);
        self.progress.notify_all();
    }
}

/// Releases the lock, notifies, and then warns of a thread that the system has refused. A receiver of the
/// warning may use the reaper, and wait for what the notified thread does.
pub(super) fn warn_without(mut queue: MutexGuard<'_, Queue>, notify: impl FnOnce()) {
    let refused = queue.refused.take();
    drop(queue);
    notify();
    if let Some(error) = refused {
        tracing::warn!(%error, "a reaper thread does not start; memory waits");
    }
}

/// The time after which the follower has to look: zero if the leader's place is to be taken now; `None` while
/// nothing waits for the leader.
fn slow_in(queue: &Queue, slow: Duration) -> Option<Duration> {
    let Some(leader) = &queue.leader else { return Some(Duration::ZERO) };
    if queue.rest != LeaderState::Busy {
        return None;
    }
    let books = leader.lock();
    if !queue.has_work() && books.batch.is_empty() {
        return None;
    }
    // Between two deleters the leader is not slow.
    Some(books.active.as_ref().map_or(slow, |active| slow.saturating_sub(active.since.elapsed())))
}

/// Takes what the leader has not begun with, if its deleter is slow, and gives whose deleter that is.
fn overtake(queue: &mut Queue, slow: Duration) -> Option<ReleasedMemory> {
    let Overtaken { rest, returned, what } = queue.leader.as_ref()?.overtake(slow)?;
    returned.into_iter().for_each(|(epoch, count)| queue.complete(epoch, count));
    queue.put_first(rest);
    let overtaken = queue.leader.take();
    queue.overtaken.extend(overtaken);
    Some(what)
}

/// The device that a deleter of memory on `device` finds current on its thread. Some runtimes free memory of
/// the current device only, and a thread of the reaper has none by itself.
fn of_deleter(device: DLDevice) -> Option<Arc<dyn Device>> {
    if !device.device_type.frees_on_current_device() {
        return None;
    }
    table::resolve(table::owner(device)).ok()?.device
}
