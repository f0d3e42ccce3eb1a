//! The state that all handles of one engine share.

use std::future::Future;
use std::sync::Arc;

use estafette_devices::cpu::{BlockingGuard, Pool};
use estafette_devices::{DLDevice, Device, table};
use estafette_graph::Graph;
use estafette_sync::barrier;
use estafette_sync::process::Generation;
use estafette_sync::sharded_counter::ShardedCounter;
use estafette_sync::stack;
use estafette_sync::sync::OnceLock;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use estafette_sync::time::Duration;

use crate::core::coalesced;
use crate::core::context::{self, Current};
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::core::notifier::Notifier;
use crate::core::operation::{OpGraph, ReadyOp};
use crate::core::permit_waiters::{self, PermitWaiters};
use crate::core::runtime::Runtime;
use crate::core::unretrieved::Failures;
#[cfg(feature = "links")]
use crate::core::wakers::LockedWakers;
use crate::wait::deadlock::Detector;
use crate::wait::inspect::InspectionPace;
use crate::wait::stand_in::{self, Blocked, StandIns};

/// The process's graph; a forked child makes another one. All engines share the graph, so tensors of one
/// engine are ordered correctly in operations of another. Each operation runs in the pool of the engine that
/// it was submitted to.
#[inline]
pub(crate) fn graph() -> &'static OpGraph {
    estafette_sync::per_process! {
        static GRAPH: OnceLock<OpGraph> = OnceLock::new();
    }
    GRAPH.get_or_init(Graph::immortal)
}

/// Hooks by which a language whose signal handlers run between its own instructions ends waits. All methods
/// are called on the waiting thread.
pub trait WaitHook: Send + Sync {
    /// True if a wait of this thread calls [`ends`](Self::ends) now and then.
    fn concerns(&self) -> bool;

    /// True if the calling thread may run, in its wait, operations that need the shared lock.
    fn may_run_bodies(&self) -> bool {
        true
    }

    /// True if the calling thread may sleep in a call that need not wait, such as an allocation: it runs no
    /// event loop.
    fn may_sleep(&self) -> bool {
        true
    }

    /// True if an operation that this thread has just run, in its wait or its submission, ends that.
    fn has_raised(&self) -> bool {
        false
    }

    /// The wait or the submission ends because of that operation.
    fn raises(&self) {}

    /// True if the wait ends. `needs` gets operations that cannot end while this thread waits, and returns
    /// the place of one whose end the wait needs.
    fn ends(&self, needs: &dyn Fn(&[Current]) -> Option<usize>) -> bool;
}

/// Shared by the handles of one engine and by its operations in flight; never by a thread.
pub(crate) struct Core {
    pub(crate) id: u64,
    /// The process that made the engine.
    pub(crate) generation: Generation,
    pub(crate) pool: Pool<ReadyOp>,
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) lease_timeout: Duration,
    pub(crate) quarantine_timeout: Duration,
    /// Operations that may be in flight before a submission waits.
    in_flight_limit: usize,
    /// Counts the operations in flight.
    pub(crate) sharded_counter: ShardedCounter,
    /// Caller-runs policy: a thread runs what it submits at once (only without workers).
    pub(crate) caller_runs: AtomicBool,
    /// The last engine handle is gone. The thread that ends the last operation closes the engine.
    detached: AtomicBool,
    /// Notified when an operation has ended, and when work has arrived that a waiting thread could run.
    pub(crate) notifier: Notifier,
    /// Notified when nothing is in flight, so that a wait for that does not wake with each end of an
    /// operation.
    pub(crate) idle: Notifier,
    /// Notified when a quarter of the in-flight limit is free. A submission that waited for a single permit
    /// would sleep and wake with each end of an operation.
    pub(crate) room: Notifier,
    /// Futures that wait for a permit outside of operations, and inside.
    pub(crate) permit_waiters: [PermitWaiters; 2],
    /// The watcher will notify those that wait for permits.
    pub(crate) permits_are_watched: AtomicBool,
    pub(crate) stand_ins: StandIns,
    /// Paces the inspections of threads that wait for room or for everything to end: can anything still move?
    pub(crate) progress_looks: InspectionPace,
    /// For waits for room, for waits for everything to end, and for those of them that have a deadline.
    pub(crate) room_checks: Detector,
    pub(crate) idle_checks: Detector,
    pub(crate) timed_checks: Detector,
    /// Paces the inspections of what other engines have to run, and have no thread for.
    pub(crate) others_looks: InspectionPace,
    pub(crate) closing: AtomicBool,
    /// Woken when the engine closes: futures that wait for other processes.
    #[cfg(feature = "links")]
    pub(crate) link_waiters: LockedWakers,
    /// Bytes of stack of each thread that runs bodies.
    pub(crate) stack_size: usize,
    /// True if other threads may have less stack.
    has_large_stacks: bool,
    /// Memory comes from memory that other processes can be shown, where there is such.
    pub(crate) is_shared: bool,
    /// For asynchronous bodies.
    pub(crate) runtime: Runtime,
    /// Called once per wait that only leases hold up: a garbage-collected language collects here.
    pub(crate) on_lease_wait: OnceLock<Box<dyn Fn() + Send + Sync>>,
    pub(crate) on_wait: OnceLock<Box<dyn WaitHook>>,
    /// Failures of the engine's operations.
    pub(crate) failures: Arc<Failures>,
}

/// While it lives, the calling thread counts as blocked.
pub(crate) struct Cover {
    spare: BlockingGuard<ReadyOp>,
    stand_in: Option<Blocked>,
}

impl Cover {
    /// True if the calling thread runs operations for an engine, so that another thread has to take its
    /// place.
    pub(crate) fn is_needed(&self) -> bool {
        self.spare.is_needed() || self.stand_in.is_some()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.permits_are_watched.load(Ordering::Relaxed) {
            permit_waiters::forget(self);
        }
        if self.has_no_workers() {
            stand_in::workerless_gone();
        }
    }
}

/// The options that an engine builder has collected.
pub(crate) struct CoreOptions {
    pub(crate) pool: Pool<ReadyOp>,
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) lease_timeout: Duration,
    pub(crate) quarantine_timeout: Duration,
    pub(crate) in_flight_limit: usize,
    pub(crate) runtime: Runtime,
    pub(crate) report_failures: bool,
    pub(crate) stack_size: usize,
    pub(crate) is_shared: bool,
}

impl Core {
    pub(crate) fn shared(options: CoreOptions) -> CoreRef {
        // Goes on in a forked child: thread-locals know engines by their numbers.
        estafette_sync::statics! {
            static NEXT: AtomicU64 = AtomicU64::new(1);
        }
        // The first engine finds out whether the kernel supports fences of other threads. Until then every
        // end of an operation fences itself.
        barrier::heavy();
        if options.pool.workers() > 0 {
            graph().share();
        } else {
            stand_in::workerless_made();
        }
        CoreRef::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            generation: Generation::current(),
            pool: options.pool,
            devices: options.devices,
            lease_timeout: options.lease_timeout,
            quarantine_timeout: options.quarantine_timeout,
            in_flight_limit: options.in_flight_limit,
            sharded_counter: ShardedCounter::new(),
            caller_runs: AtomicBool::new(false),
            detached: AtomicBool::new(false),
            notifier: Notifier::default(),
            idle: Notifier::default(),
            room: Notifier::default(),
            permit_waiters: Default::default(),
            permits_are_watched: AtomicBool::new(false),
            stand_ins: StandIns::default(),
            progress_looks: InspectionPace::default(),
            room_checks: Detector::default(),
            idle_checks: Detector::default(),
            timed_checks: Detector::default(),
            others_looks: InspectionPace::default(),
            closing: AtomicBool::new(false),
            #[cfg(feature = "links")]
            link_waiters: LockedWakers::default(),
            stack_size: options.stack_size,
            has_large_stacks: options.stack_size > stack::default_size(),
            is_shared: options.is_shared,
            runtime: options.runtime,
            on_lease_wait: OnceLock::new(),
            on_wait: OnceLock::new(),
            failures: Failures::new(options.report_failures),
        })
    }

    /// True if submissions are accepted: it was not inherited by this process, and not shut down.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.generation.is_current() && !self.closing.load(Ordering::Acquire)
    }

    /// Fails in a forked child of its process and after shutdown. Operations may still submit while the
    /// engine drains.
    #[inline]
    pub(crate) fn check_usable(&self) -> Result<(), Error> {
        self.generation.check()?;
        if self.closing.load(Ordering::Acquire) && context::current().is_none() {
            return Err(Error::Shutdown);
        }
        Ok(())
    }

    /// Refuses submissions, those that wait for room included, and ends waits for other processes.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        // In a forked child the notifiers may be locked for ever, and no other thread waits.
        if self.generation.is_current() {
            self.notifier.notify();
            self.room.notify();
            self.permit_waiters.iter().for_each(|waiters| _ = waiters.wake(|| usize::MAX));
            #[cfg(feature = "links")]
            self.link_waiters.wake();
        }
    }

    /// True if the calling code runs as an operation of this engine.
    pub(crate) fn is_current(&self) -> bool {
        context::current_with_core().is_some_and(|current| current.core == self.id)
    }

    /// A device that the engine was given, or one that the process's device table knows.
    pub(crate) fn device(&self, id: DLDevice) -> Option<Arc<dyn Device>> {
        let own = self.devices.iter().find(|device| device.id() == id);
        // Looking there loads the runtime that such a device belongs to, and no other.
        own.cloned().or_else(|| table::resolve(id).ok()?.device)
    }

    /// Runs an asynchronous body. The runtime is made at first use.
    #[cfg(not(estafette_shuttle))]
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
        self.runtime.spawn(task, self.stack_size)
    }

    /// Runs work of the engine, which goes on while the program blocks its own runtime.
    #[cfg(not(estafette_shuttle))]
    pub(crate) fn spawn_internal(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        self.runtime.spawn_internal(task, self.stack_size)
    }

    #[cfg(estafette_shuttle)]
    pub(crate) fn spawn_internal(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        self.spawn(task)
    }

    /// Calls `make`, which makes the future of an asynchronous body, where the runtime of such bodies is the
    /// current one.
    #[cfg(not(estafette_shuttle))]
    pub(crate) fn within_runtime<R>(&self, make: impl FnOnce() -> R) -> Result<R, Error> {
        self.runtime.within(make, self.stack_size)
    }

    #[cfg(estafette_shuttle)]
    pub(crate) fn within_runtime<R>(&self, make: impl FnOnce() -> R) -> Result<R, Error> {
        Ok(make())
    }

    /// Runs an asynchronous body as a task of the execution, which has no other runtime.
    #[cfg(estafette_shuttle)]
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
        estafette_sync::simulated::spawn(task);
        Ok(())
    }

    /// The number of operations in flight at which [`Core::room`] is notified: three quarters of the
    /// in-flight limit.
    pub(crate) fn enough_room(&self) -> usize {
        self.in_flight_limit - (self.in_flight_limit / 4).max(1)
    }

    /// True if the last handle is gone, and the last operation has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.detached.load(Ordering::Relaxed) && self.in_flight() == 0
    }

    /// Covers the calling thread, which is about to block. Where this thread works for an engine, another
    /// thread does its work meanwhile.
    pub(crate) fn cover(&self) -> Cover {
        Cover { spare: self.pool.blocking(), stand_in: Blocked::register() }
    }

    /// True if the calling thread runs operations of any kind: a worker of this engine, or a stand-in.
    pub(crate) fn runs_anything_here(&self) -> bool {
        self.pool.is_worker() || stand_in::is_one()
    }

    /// True if the calling thread may run, in its wait, operations that need the shared lock.
    pub(crate) fn may_run_bodies(&self) -> bool {
        !self.has_large_stacks && self.on_wait.get().is_none_or(|hook| hook.may_run_bodies())
    }

    /// True if the calling thread may sleep in a call that need not wait.
    pub(crate) fn may_sleep(&self) -> bool {
        self.on_wait.get().is_none_or(|hook| hook.may_sleep())
    }

    /// Fails when the wait hook ends the wait of the calling thread.
    pub(crate) fn check_interrupt(&self, needs: &dyn Fn(&[Current]) -> Option<usize>) -> Result<(), Error> {
        match self.on_wait.get() {
            Some(hook) if hook.concerns() && hook.ends(needs) => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }

    /// True if an operation that the calling thread has just run ends its wait.
    pub(crate) fn has_raised(&self) -> bool {
        self.on_wait.get().is_some_and(|hook| hook.has_raised())
    }

    /// Fails when an operation that the calling thread has just run ends its wait. The caller ends the wait.
    pub(crate) fn check_raised(&self) -> Result<(), Error> {
        match self.on_wait.get() {
            Some(hook) if hook.has_raised() => {
                hook.raises();
                Err(Error::Interrupted)
            }
            _ => Ok(()),
        }
    }

    /// True if [`check_interrupt`](Self::check_interrupt) may fail on the calling thread.
    pub(crate) fn may_be_interrupted(&self) -> bool {
        self.on_wait.get().is_some_and(|hook| hook.concerns())
    }

    /// Operations submitted and not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.sharded_counter.under_way()
    }

    #[inline]
    pub(crate) fn in_flight_limit(&self) -> usize {
        self.in_flight_limit
    }

    /// True if the engine has no worker, so that waiting threads must run everything.
    #[inline]
    pub(crate) fn has_no_workers(&self) -> bool {
        self.pool.workers() == 0
    }

    /// True if no thread of the pool takes an operation: there is none, or all are blocked.
    pub(crate) fn has_no_free_thread(&self) -> bool {
        self.has_no_workers() || self.pool.are_all_blocked()
    }

    /// True if something is ready, and no thread of the pool takes it.
    pub(crate) fn lacks_thread(&self) -> bool {
        self.has_no_free_thread() && self.pool.has_work()
    }

    /// Notifies a thread of the work that was pushed to the pool: a worker or, without workers, a waiting
    /// thread.
    #[inline]
    pub(crate) fn work_arrived(&self) {
        if !coalesced::is_held_back(self.id) {
            self.wake();
        }
    }

    #[inline]
    pub(crate) fn wake(&self) {
        if self.has_no_workers() {
            self.notifier.notify();
        } else {
            self.pool.notice();
        }
    }

    #[cold]
    fn notify_if_room(&self) {
        // As for the last operations in `notify_if_idle`.
        fence(Ordering::SeqCst);
        if self.in_flight() <= self.enough_room() {
            self.room.notify();
        }
    }

    /// The last engine handle is gone: only operations can submit from now on.
    pub(crate) fn detach(&self) {
        self.detached.store(true, Ordering::Relaxed);
        barrier::heavy();
        self.notify_if_idle();
    }

    #[cold]
    fn notify_if_idle(&self) {
        // Two threads that end the last two operations at once must not both see the other's as unfinished.
        fence(Ordering::SeqCst);
        if self.in_flight() > 0 {
            return;
        }
        self.idle.notify();
        if self.detached.load(Ordering::Relaxed) {
            if self.has_no_workers() {
                self.notifier.notify();
            }
            self.pool.release();
            self.runtime.close();
        }
    }
}

impl CoreRef {
    /// Notifies the threads that wait for room or for the end that an operation has ended. The last end
    /// closes a detached engine.
    #[inline(always)]
    pub(crate) fn notify_ended(&self) {
        self.notifier.notify();
        if self.idle.has_waiters() || self.detached.load(Ordering::Relaxed) {
            self.notify_if_idle();
        }
        if self.room.has_waiters() {
            self.notify_if_room();
        }
        // Wakers are foreign code, which may take long.
        self.notify_permit_futures();
    }

    /// Notifies the threads and futures that wait for permits.
    #[inline(always)]
    pub(crate) fn notify_permits(&self) {
        self.notifier.notify();
        self.notify_permit_futures();
    }

    #[inline(always)]
    fn notify_permit_futures(&self) {
        if self.permit_waiters.iter().any(PermitWaiters::has_waiters) {
            self.wake_permit_waiters();
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("id", &self.id)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
