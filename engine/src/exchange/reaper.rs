//! The thread that releases memory: it drops each `Storage` after its last use on a device, with no lock
//! held, and never on a driver callback or a user's thread. Foreign deleters may take any lock, the Python
//! one included, and may run for as long as they like; here they delay nothing but each other, and that for a
//! quarter of a second at most.
//!
//! # The way of a storage
//! 1. *Handed over* by `Reaper::release` with the fences that its memory still carries. A thread that holds a
//!    lock of the program, as in [`with_inline_deleters`], leaves everything that may call a driver to the
//!    reaper's thread: the driver may wait for another thread that wants this lock.
//! 2. *Waiting* in the [`Reactor`] until every fence has settled. Nothing here blocks meanwhile. Memory with
//!    a [`ReleaseStream`](super::ReleaseStream) skips this step if the stream there can be made to wait
//!    instead.
//! 3. *Ready*: in the thread's queue. Plain memory of this crate and memory of other processes skip the
//!    queue, and are dropped where the last fence settles: another process may wait. The rest is dropped
//!    (*released*), or *leaked* where dropping it could do harm:
//!
//! | leaked because | why that is right |
//! |---|---|
//! | a fence failed with kind [`Fault`](DeviceErrorKind::Fault), other than those of the producer that the import was to wait for | what still runs in a broken context is unknown |
//! | this is a forked child | the parent owns the other half |
//! | [`Reaper::stop`] has been called | the interpreter that the deleter needs may be gone |
//!
//! If the system refuses the reactor's thread, so that no thread observes a fence, memory stays due: the next
//! release behind a fence and the next flush try again.
//!
//! Any other failure of a fence says that the work never ran or is over, so memory is released after it.
//!
//! # Sleeping protocol
//! All state is under one lock, so there are no orderings to get wrong; the protocol only spares wake-ups.
//! The thread is *busy*, *napping* or *asleep*. Only a sleeping thread is woken by a release (which marks it
//! busy, so the next release does not wake it again). When its queue runs dry it naps for `NAP` first: a
//! steady stream of releases costs a timer per nap, not a futex call per release. [`flush`](Reaper::flush),
//! [`stop`](Reaper::stop), a queue of `BACKLOG` and memory that another process may wait for end a nap at
//! once.
//!
//! # Slow deleters
//! One thread, the *leader*, calls deleters one after the other, in the order in which storages became ready.
//! While something waits behind a deleter, a second thread, the *follower*, sleeps until that deleter is
//! slow, and leads from then on: the first thread is *overtaken* and ends after its deleter, or follows if no
//! thread does by then. So a deleter begins when the one before it has returned or is slow, and only slow
//! deleters run beside others. A storage with the address of an overtaken one waits for it, so deleters of
//! the same memory never run side by side and keep their order. At `THREADS_MAX` threads memory waits until a
//! deleter returns. What is slow is named by `diagnose()` and the watchdog (`slow.rs`).
//!
//! The lock of the queue comes before that of a thread's `DeleterThread`. A thread is overtaken under both,
//! while it is in a deleter, and sees that at its next step, before it takes anything.
//!
//! | part | what it has |
//! |---|---|
//! | `inline` | deleters that need not go to the thread |
//! | `queue` | storages that are ready, and counts of those that are not |
//! | `releasing` | threads that still hold the operands of an operation that has ended |
//! | `slow` | memory whose release takes long, for diagnoses |
//! | `thread`, `thread_state` | the threads; what one of them has taken and is doing |

mod inline;
mod queue;
mod releasing;
mod slow;
mod thread;
mod thread_state;

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::sync::Arc;
use std::time::Duration;

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, FenceSet, FenceState, Reactor};
use estafette_sync::process;
use estafette_sync::sync::OnceLock;
use estafette_sync::sync::atomic::Ordering;
use estafette_sync::time::Instant;

pub use self::inline::with_inline_deleters;
use self::queue::{Phase, Queue, Ready, Receipt};
use self::releasing::Others;
pub(crate) use self::releasing::{Releasing, is_releasing, releasing};
pub use self::slow::{Release, ReleaseStatus, ReleasedMemory};
use self::thread::{ReaperState, warn_without};

use super::callback;
use super::storage::Storage;

/// The time that the thread stays awake for more when its queue is empty: long against a wake-up (some 20
/// µs), short against anything that waits for memory to come back.
const NAP: Duration = Duration::from_millis(1);

/// So many storages ready during a nap end it: memory should not pile up for want of a wake-up.
const BACKLOG: usize = 256;

/// After so many deleters the thread reports progress, so that a flush need not wait for a whole queue that
/// grew meanwhile.
const REPORT: u64 = 256;

/// The number of times that a flush looks for the operands of operations that have just ended before it
/// sleeps.
const POLLS: u32 = 64;

/// Threads of a reaper: seven deleters may hang at once while the others go on. More that hang share a cause,
/// which more threads would only hide.
const THREADS_MAX: usize = 8;

/// The reaper of the process. The thread starts with the first storage that needs it.
pub fn reaper() -> &'static Reaper {
    estafette_sync::per_process! {
        static REAPER: OnceLock<Reaper> = OnceLock::new();
    }
    REAPER.get_or_init(Reaper::new)
}

/// Waits until all memory that fell out of use before this call has been released or leaked, and what the
/// deleters of that have dropped, for at most `timeout`. Returns whether that was so. The caller must hold
/// nothing that a deleter or a callback needs (the Python lock).
///
/// Memory falls out of use when its handles are dropped and the operations and leases that use it have ended.
/// Fences that these, or an import, have left are waited for; operations and leases are not, and neither is
/// the fence of an import that is described late.
///
/// In a deleter, in a callback of a foreign fence, and where the end of an operation wakes a future, it does
/// not wait: it might wait for itself.
pub fn flush_deleters(timeout: Duration) -> bool {
    reaper().flush(timeout)
}

/// Gives memory back when it is safe to. See the module for the rules.
pub struct Reaper {
    shared: Arc<ReaperState>,
}

/// Counts of the storages handed to the reaper, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReaperStats {
    /// Dropped: their deleter has returned.
    pub released: u64,
    /// Those among them that were tensors of other libraries.
    pub deleters: u64,
    /// Kept for ever, for one of the reasons in the table of the module.
    pub leaked: u64,
    /// Handed over and neither released nor leaked yet. Includes memory that waits for fences, so a
    /// limit of bytes in flight should count it.
    pub pending: u64,
}

impl Reaper {
    fn new() -> Self {
        Self { shared: Arc::new(ReaperState::default()) }
    }

    /// Adopts `storage`, to be dropped once when all of `fence_set` has settled.
    ///
    /// Never blocks. Foreign code runs on this thread only if it is an inline deleter in a scope of
    /// [`with_inline_deleters`]. Plain memory of the engine whose fences are known to be done is freed by
    /// this call, which is cheaper than passing it to the reaper. Must not be called under a lock that a
    /// fence's subscriber may take.
    pub(crate) fn release(&self, fence_set: FenceSet, storage: Storage) {
        self.release_of(fence_set, storage, ReleasedMemory::default);
    }

    /// As [`release`](Self::release), of memory that diagnoses describe by `what`, which is asked only where
    /// it may be needed.
    pub(crate) fn release_of(
        &self,
        mut fence_set: FenceSet,
        storage: Storage,
        what: impl FnOnce() -> ReleasedMemory,
    ) {
        if self.shared.generation.is_inherited() {
            // No lock may be taken here: its holder may not exist in this process.
            return self.shared.leak(storage);
        }
        fence_set.prune();
        if !fence_set.is_empty() {
            if inline::is_good_place() {
                return self.release_later(fence_set, storage, what());
            }
            if !is_ordered(&storage, &fence_set) {
                return self.release_after(fence_set, storage, what());
            }
        }
        if !storage.runs_foreign_code() {
            drop(storage);
            self.shared.released.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if storage.has_inline_deleter()
            && !self.shared.stopped.load(Ordering::Relaxed)
            && let Some(_deleter) = inline::begin_deleter()
        {
            return self.shared.release(storage);
        }
        let mut queue = self.shared.lock();
        if queue.phase != Phase::Running {
            drop(queue);
            return self.shared.leak(storage);
        }
        let receipt = self.shared.register(&mut queue);
        self.shared.push(queue, Ready { storage, receipt, what: what() });
    }

    /// Keeps `storage` for ever.
    pub(crate) fn leak(&self, storage: Storage) {
        self.shared.leak(storage);
    }

    /// As [`flush_deleters`].
    pub fn flush(&self, timeout: Duration) -> bool {
        if self.shared.generation.is_inherited() {
            return true;
        }
        // A timeout beyond what a clock can say is no timeout.
        let deadline = Instant::now().checked_add(timeout);
        let left = || deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        let waits = !(self.shared.lock().on_own_thread() || callback::is_running() || is_releasing());
        let mut others = Others::now();
        let mut polls = 0;
        while !others.are_through() {
            if !waits || left().is_zero() {
                return false;
            }
            // They take microseconds, unless a callback that they notify takes longer.
            polls += 1;
            if polls < POLLS {
                estafette_sync::thread::yield_now();
            } else {
                drop(self.shared.progress.wait_timeout(self.shared.lock(), NAP.min(left())));
            }
        }
        self.shared.watch_again(usize::MAX);
        let mut queue = self.shared.lock();
        let last = queue.close_epoch();
        if !waits {
            return queue.first_epoch > last;
        }
        self.shared.start(&mut queue);
        warn_without(queue, || self.shared.work.notify_all());
        let done = self.shared.wait_until(self.shared.lock(), left(), |queue| {
            // Memory that still waits for fences after a stop will leak some day; nothing can hurry it.
            queue.first_epoch > last || queue.phase == Phase::Stopped
        });
        done.first_epoch > last
    }

    /// Runs what is ready and ends the threads; whatever is handed over or settles later leaks. For the
    /// shutdown of an interpreter that deleters need. Returns whether all threads have ended within
    /// `timeout`; one that has not ends after the deleter that it is in, and the rest is leaked.
    pub fn stop(&self, timeout: Duration) -> bool {
        if self.shared.generation.is_inherited() {
            return true;
        }
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Their drop leaks them.
        let unwatched = mem::take(&mut *self.shared.unwatched());
        drop(unwatched);
        let mut queue = self.shared.lock();
        if queue.phase == Phase::Running {
            queue.phase = if queue.threads.is_empty() { Phase::Stopped } else { Phase::Stopping };
        }
        if queue.on_own_thread() {
            return false;
        }
        self.shared.work.notify_all();
        let has_ended = |queue: &Queue| queue.phase == Phase::Stopped && queue.overtaken.is_empty();
        let mut queue = self.shared.wait_until(queue, timeout, has_ended);
        let ended = has_ended(&queue);
        let (threads, rest) = if ended {
            (mem::take(&mut queue.threads), mem::take(&mut queue.ready))
        } else {
            // A thread is in a deleter that does not return. It sees this before the next one.
            self.shared.abandoned.store(true, Ordering::Relaxed);
            queue.phase = Phase::Stopped;
            (Vec::new(), queue.take_waiting())
        };
        drop(queue);
        self.shared.wake_all();
        rest.into_iter().for_each(|ready| self.shared.leak_entered(ready));
        for thread in threads {
            // It has left its loop, so this waits for a few instructions. It cannot have panicked: deleters
            // are contained.
            let _ = thread.join();
        }
        ended
    }

    /// Sets what each thread does before its first deleter: whatever deleters want to find there, such as an
    /// interpreter's notion of the thread. Only the first call counts, and only for threads that have run no
    /// deleter.
    pub fn on_start(&self, hook: fn()) {
        self.shared.lock().on_start.get_or_insert(hook);
    }

    /// Counts of everything handed over so far. For the reaper of a process that this one was forked from
    /// only `leaked` moves.
    pub fn stats(&self) -> ReaperStats {
        let released = self.shared.released.load(Ordering::Relaxed);
        let deleters = self.shared.deleters.load(Ordering::Relaxed);
        let leaked = self.shared.leaked.load(Ordering::Relaxed) + process::leaked();
        if self.shared.generation.is_inherited() {
            return ReaperStats { released, deleters, leaked, ..ReaperStats::default() };
        }
        ReaperStats { released, deleters, leaked, pending: self.shared.lock().pending }
    }

    fn release_after(&self, fence_set: FenceSet, storage: Storage, what: ReleasedMemory) {
        // Two for each that may join them, so they become fewer.
        self.shared.watch_again(2);
        FencedStorage::new(&self.shared, storage, what).watch(fence_set);
    }

    /// As [`release_after`](Self::release_after), on the reaper's thread.
    fn release_later(&self, fence_set: FenceSet, storage: Storage, what: ReleasedMemory) {
        // Another process may wait for memory of its own.
        let may_wait = storage.runs_foreign_code();
        FencedStorage::new(&self.shared, storage, what).watch_later(fence_set);
        self.shared.watch_soon(may_wait);
    }
}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// True if the stream that the allocator of `storage` goes by waits for `fences` from now on.
fn is_ordered(storage: &Storage, fences: &FenceSet) -> bool {
    storage.release_stream().is_some_and(|release_stream| release_stream.waits_for(fences))
}

/// True if `storage` behind these fences, of which at least one failed, is certainly out of use. The reactor
/// reports one failure; a worse one may hide behind it, and its own failure to observe says nothing about
/// the fence.
fn may_release(storage: &Storage, fences: &FenceSet) -> bool {
    fences.iter().all(|fence| match fence.state() {
        FenceState::Done => true,
        FenceState::Pending => false,
        FenceState::Failed(error) => !is_fault(storage, fence, &error),
    })
}

/// True if a fence has failed in a way that says nothing about what still runs, or settles in another
/// process.
fn is_faulty(storage: &Storage, fences: &FenceSet) -> bool {
    fences.iter().any(|fence| {
        let has_fault =
            || matches!(fence.state(), FenceState::Failed(error) if is_fault(storage, fence, &error));
        fence.is_inherited() || has_fault()
    })
}

/// True if work that `fence` marks may go on in the memory, though the fence has failed. The work of the
/// producer, which gets the memory back, is the producer's matter.
fn is_fault(storage: &Storage, fence: &Fence, error: &DeviceError) -> bool {
    error.kind() == DeviceErrorKind::Fault && !storage.is_of_producer(fence)
}

/// A storage that waits for fences. It is leaked unless a callback lets it proceed: a callback that is lost
/// must not free early.
struct FencedStorage {
    storage: ManuallyDrop<Storage>,
    receipt: Receipt,
    what: ReleasedMemory,
    shared: Arc<ReaperState>,
}

impl FencedStorage {
    fn new(shared: &Arc<ReaperState>, storage: Storage, what: ReleasedMemory) -> Self {
        let what = what.at(storage.data());
        let mut queue = shared.lock();
        let receipt = shared.register(&mut queue);
        queue.fenced.insert(receipt.id, (receipt.since, what));
        drop(queue);
        Self { storage: ManuallyDrop::new(storage), receipt, what, shared: shared.clone() }
    }

    /// Goes on once all of `fences` have settled, or now if the allocator's stream waits for them.
    fn order(self, fences: FenceSet) {
        if is_ordered(&self.storage, &fences) { self.proceed() } else { self.watch(fences) }
    }

    /// Goes on once all of `fences` have settled.
    fn watch(self, fences: FenceSet) {
        let watched = fences.clone();
        Reactor::global().when_settled(&watched, move |outcome| match outcome {
            // The child has copies of the parent's promises and may settle them; the drop leaks.
            _ if self.shared.generation.is_inherited() => drop(self),
            Ok(()) => self.proceed(),
            Err(_) if may_release(&self.storage, &fences) => self.proceed(),
            Err(_) if !is_faulty(&self.storage, &fences) => self.watch_later(fences),
            Err(error) => self.give_up(&error),
        });
    }

    /// No thread observes the fences yet: the system has refused the reactor's thread, or this one must not
    /// ask.
    fn watch_later(self, fences: FenceSet) {
        let shared = self.shared.clone();
        let mut unwatched = shared.unwatched();
        if !shared.stopped.load(Ordering::Relaxed) {
            unwatched.push((self, fences));
            return;
        }
        drop(unwatched);
        // The drop leaks it.
        drop(self);
    }

    fn proceed(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped nor used again, so storage and count are moved out exactly once.
        let (storage, shared) =
            unsafe { (ManuallyDrop::take(&mut this.storage), std::ptr::read(&this.shared)) };
        let ready = Ready { storage, receipt: this.receipt, what: this.what };
        let mut queue = shared.lock();
        queue.fenced.remove(&ready.receipt.id);
        if !ready.storage.runs_foreign_code() {
            drop(queue);
            shared.free_entered(ready);
        } else if queue.phase == Phase::Running {
            shared.push(queue, ready);
        } else {
            drop(queue);
            shared.leak_entered(ready);
        }
    }

    fn give_up(self, error: &DeviceError) {
        tracing::error!(storage = ?*self.storage, %error, "memory leaked: it may still be in use on a device");
    }
}

impl Drop for FencedStorage {
    fn drop(&mut self) {
        self.shared.leaked.fetch_add(1, Ordering::Relaxed);
        if self.shared.generation.is_current() {
            let mut queue = self.shared.lock();
            queue.fenced.remove(&self.receipt.id);
            queue.complete(self.receipt.epoch, 1);
            drop(queue);
            self.shared.progress.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
