//! What all handles of one engine share.

use std::future::Future;
use std::sync::Arc;

use estafette_devices::cpu::{BlockingGuard, Pool};
use estafette_devices::{DLDevice, Device, table};
use estafette_graph::Graph;
use estafette_sync::barrier;
use estafette_sync::sharded_counter::ShardedCounter;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use estafette_sync::sync::{Mutex, OnceLock};
use estafette_sync::thread;
use estafette_sync::time::{Duration, Instant};

use crate::core::coalesced;
use crate::core::context;
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::core::notifier::Notifier;
use crate::core::operation::{Kind, OpGranted, OpGraph};
#[cfg(not(estafette_shuttle))]
use crate::core::own_runtime;
use crate::core::unretrieved::Failures;
use crate::exchange::{callback, foreign_fence, fork};
use crate::operation::run::{self, ReadyOp};
use crate::trace::hooks::WaitNoted;
use crate::wait::deadlock::{self, Checks, Detector};
use crate::wait::inspect::Pace;
use crate::wait::stand_in::{self, Blocked, StandInSet, StandIns, others_without_workers};
use crate::wait::wait_for::{self, On};

/// The process's graph. All engines share the graph, so tensors of one engine are ordered correctly in
/// operations of another. Each operation runs in the pool of the engine that it was submitted to.
#[inline]
pub(crate) fn graph() -> &'static OpGraph {
    estafette_sync::statics! {
        static GRAPH: OnceLock<OpGraph> = OnceLock::new();
    }
    GRAPH.get_or_init(Graph::immortal)
}

/// Called now and then during a wait, on the waiting thread, if the hook concerns this thread.
pub(crate) struct WaitHook {
    pub(crate) concerns: Box<dyn Fn() -> bool + Send + Sync>,
    /// True if the wait shall end.
    pub(crate) ends: Box<dyn Fn() -> bool + Send + Sync>,
}

/// Shared by the handles of one engine and by its operations in flight; never by a thread.
pub(crate) struct Core {
    pub(crate) id: u64,
    pub(crate) pool: Pool<ReadyOp>,
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) lease_timeout: Duration,
    pub(crate) quarantine_timeout: Duration,
    /// Operations that may be in flight before a submission waits.
    in_flight_limit: usize,
    /// Counts the operations in flight.
    pub(crate) sharded_counter: ShardedCounter,
    /// Caller-runs policy: a thread runs what it submits at once (only without workers).
    flowing: AtomicBool,
    /// The last engine handle is gone. The thread that ends the last operation closes the engine.
    detached: AtomicBool,
    /// Notified when an operation has ended, and when work has arrived that a waiting thread could run.
    pub(crate) notifier: Notifier,
    /// Notified when nothing is in flight, so that a wait for that does not wake with each end of an
    /// operation.
    idle: Notifier,
    /// Notified when a quarter of the in-flight limit is free. A submission that waited for a single permit
    /// would sleep and wake with each end of an operation.
    room: Notifier,
    pub(crate) stand_ins: StandIns,
    /// Paces the inspections of threads that wait for room or for everything to end: can anything still move?
    progress_looks: Pace,
    /// For waits for room, for waits for everything to end, and for those of them that have a deadline.
    room_checks: Detector,
    idle_checks: Detector,
    timed_checks: Detector,
    /// Paces the inspections of what other engines, without workers, have to run.
    others_looks: Pace,
    pub(crate) closing: AtomicBool,
    /// Bytes of stack of each thread that runs bodies.
    pub(crate) stack_size: usize,
    /// For asynchronous bodies; made at first use, gone when closed.
    runtime: Mutex<Option<Runtime>>,
    /// True once the warning was logged that a submission blocks this runtime.
    blocked_runtime: AtomicBool,
    /// Called once per wait that only leases hold up: a garbage-collected language collects here.
    pub(crate) on_lease_wait: OnceLock<Box<dyn Fn() + Send + Sync>>,
    pub(crate) on_wait: OnceLock<WaitHook>,
    /// Failures of the engine's operations.
    pub(crate) failures: Arc<Failures>,
    /// The fork generation that the engine was made in.
    generation: u32,
}

/// Ready operations that a thread without workers leaves for a later wait. With more ready operations, the
/// thread runs these and all further ones as it submits them. The value is half of what the deque of a thread
/// holds before it grows, and shrinks again.
const BACKLOG: usize = 32;

/// How often a thread yields before it falls asleep because the in-flight limit is reached, or because
/// something is in flight. A yield takes about a microsecond when no other thread wants the processor.
const PATIENCE: u32 = 64;

enum Runtime {
    Given(tokio::runtime::Handle),
    /// Present until dropped.
    #[cfg_attr(estafette_shuttle, expect(dead_code, reason = "an execution of a model has tasks of its own"))]
    Own(Option<tokio::runtime::Runtime>),
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Self::Own(runtime) = self
            && let Some(runtime) = runtime.take()
        {
            // The last handle may be dropped inside asynchronous code, where waiting for the runtime would
            // panic.
            runtime.shutdown_background();
        }
    }
}

/// While it lives, the calling thread counts as blocked.
pub(crate) struct Cover {
    _spare: Option<BlockingGuard<ReadyOp>>,
    _stand_in: Option<Blocked>,
}

impl Drop for Core {
    fn drop(&mut self) {
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
    pub(crate) runtime: Option<tokio::runtime::Handle>,
    pub(crate) report_failures: bool,
    pub(crate) stack_size: usize,
}

impl Core {
    pub(crate) fn shared(options: CoreOptions) -> CoreRef {
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
            pool: options.pool,
            devices: options.devices,
            lease_timeout: options.lease_timeout,
            quarantine_timeout: options.quarantine_timeout,
            in_flight_limit: options.in_flight_limit,
            sharded_counter: ShardedCounter::new(),
            flowing: AtomicBool::new(false),
            detached: AtomicBool::new(false),
            notifier: Notifier::default(),
            idle: Notifier::default(),
            room: Notifier::default(),
            stand_ins: StandIns::default(),
            progress_looks: Pace::default(),
            room_checks: Detector::default(),
            idle_checks: Detector::default(),
            timed_checks: Detector::default(),
            others_looks: Pace::default(),
            closing: AtomicBool::new(false),
            stack_size: options.stack_size,
            runtime: Mutex::new(options.runtime.map(Runtime::Given)),
            blocked_runtime: AtomicBool::new(false),
            on_lease_wait: OnceLock::new(),
            on_wait: OnceLock::new(),
            failures: Failures::new(options.report_failures),
            generation: fork::generation(),
        })
    }

    /// Fails in a process that was forked from one with an engine: the reactor, the reaper and the graph's
    /// locks were left in an unknown state by threads that do not exist here, so a new engine would not help.
    pub(crate) fn check_process() -> Result<(), Error> {
        estafette_sync::statics! {
            static FIRST: OnceLock<u32> = OnceLock::new();
        }
        if *FIRST.get_or_init(fork::generation) != fork::generation() {
            return Err(Error::Forked);
        }
        fork::engine_is_made();
        Ok(())
    }

    /// Fails in a forked child: the engine's threads do not exist there, and its locks may be held forever.
    #[inline(always)]
    pub(crate) fn check_fork(&self) -> Result<(), Error> {
        if self.generation == fork::generation() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Whether submissions are accepted: neither a forked child nor shut down.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.generation == fork::generation() && !self.closing.load(Ordering::Acquire)
    }

    /// Fails in a forked child and after shutdown. Operations may still submit while the engine drains.
    #[inline]
    pub(crate) fn check_usable(&self) -> Result<(), Error> {
        self.check_fork()?;
        if self.closing.load(Ordering::Acquire) && context::current().is_none() {
            return Err(Error::Shutdown);
        }
        Ok(())
    }

    /// A device that the engine was given, or one that the process's device table knows.
    pub(crate) fn device(&self, id: DLDevice) -> Option<Arc<dyn Device>> {
        let own = self.devices.iter().find(|device| device.id() == id);
        // Looking there loads the runtime that such a device belongs to, and no other.
        own.cloned().or_else(|| table::resolve(id).ok()?.device)
    }

    /// Logs once that the calling thread, which waits for room, may be the only one that could poll this
    /// engine's asynchronous bodies. It may also have entered the runtime while another thread runs it, so
    /// this is no error.
    fn warn_of_a_blocked_runtime(&self) {
        let Ok(here) = tokio::runtime::Handle::try_current() else { return };
        let runtime = self.runtime.lock();
        let blocks = match &*runtime {
            Some(Runtime::Given(given)) => given.id() == here.id(),
            Some(Runtime::Own(_)) | None => false,
        };
        drop(runtime);
        if blocks
            && here.runtime_flavor() == tokio::runtime::RuntimeFlavor::CurrentThread
            && !self.blocked_runtime.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "a submission waits for room on the thread of the runtime that runs this engine's asynchronous bodies: if these are \
                 in the way it waits for ever; submit with `permit().await` there, or give the engine a runtime with more threads"
            );
        }
    }

    /// Runs an asynchronous body. The runtime is made at first use.
    #[cfg(not(estafette_shuttle))]
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
        let mut runtime = self.runtime.lock();
        if runtime.is_none() {
            drop(runtime);
            let own = Runtime::Own(Some(own_runtime::start(self.stack_size)?));
            runtime = self.runtime.lock();
            if runtime.is_none() {
                *runtime = Some(own);
            }
        }
        let handle = match &*runtime {
            Some(Runtime::Given(handle)) => handle.clone(),
            Some(Runtime::Own(Some(runtime))) => runtime.handle().clone(),
            Some(Runtime::Own(None)) | None => return Err(Error::Shutdown),
        };
        // Spawning may drop the task, which is foreign code.
        drop(runtime);
        drop(handle.spawn(task));
        Ok(())
    }

    /// Runs an asynchronous body as a task of the execution, which has no other runtime.
    #[cfg(estafette_shuttle)]
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
        estafette_sync::simulated::spawn(task);
        Ok(())
    }

    /// How many operations may be in flight when [`Core::room`] is notified: three quarters of the in-flight
    /// limit.
    fn enough_room(&self) -> usize {
        self.in_flight_limit - (self.in_flight_limit / 4).max(1)
    }

    /// Whether the last handle is gone, and the last operation has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.detached.load(Ordering::Relaxed) && self.in_flight() == 0
    }

    /// Covers the calling thread, which is about to block. Where this thread works for an engine, another
    /// thread takes over its work meanwhile.
    pub(crate) fn cover(&self) -> Cover {
        Cover { _spare: self.pool.is_worker().then(|| self.pool.blocking()), _stand_in: Blocked::enter() }
    }

    /// Whether the calling thread runs operations of any kind: a worker of this engine, or a stand-in.
    pub(crate) fn runs_anything_here(&self) -> bool {
        self.pool.is_worker() || stand_in::is_one()
    }

    /// Fails when the wait hook ends the wait.
    pub(crate) fn check_interrupt(&self) -> Result<(), Error> {
        match self.on_wait.get() {
            Some(hook) if (hook.concerns)() && (hook.ends)() => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }

    /// Whether [`check_interrupt`](Self::check_interrupt) may fail on the calling thread.
    pub(crate) fn may_be_interrupted(&self) -> bool {
        self.on_wait.get().is_some_and(|hook| (hook.concerns)())
    }

    /// Operations submitted and not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.sharded_counter.under_way()
    }

    #[inline]
    pub(crate) fn in_flight_limit(&self) -> usize {
        self.in_flight_limit
    }

    /// Runs a ready operation that any thread may run, whether or not the caller needs it, and operations
    /// that it makes ready in turn, for a while.
    pub(crate) fn help_any(&self) -> bool {
        self.help_any_after(|| ())
    }

    /// As [`help_any`](Self::help_any), and calls `before` first if there is such an operation.
    fn help_any_after(&self, before: impl FnOnce()) -> bool {
        self.help_with_what(|pool, mine| pool.take_next_matching(|job| mine(&job.0)), before)
    }

    /// As [`help_any_after`](Self::help_any_after), but takes only the operation that workers would take
    /// next, and no worker-only operation.
    fn help_in_passing_after(&self, before: impl FnOnce()) -> bool {
        let take = |pool: &Pool<ReadyOp>, mine: &dyn Fn(&OpGranted) -> bool| {
            if self.has_no_workers() { pool.try_take() } else { pool.take_next_if(|job| mine(&job.0)) }
        };
        self.help_with_what(take, before)
    }

    fn help_with_what(
        &self,
        take: impl FnOnce(&Pool<ReadyOp>, &dyn Fn(&OpGranted) -> bool) -> Option<ReadyOp>,
        before: impl FnOnce(),
    ) -> bool {
        let Some(_helping) = context::begin_help() else { return false };
        // A thread without workers must run everything.
        let mine = |op: &OpGranted| self.has_no_workers() || op.payload().kind == Kind::Work;
        let job = take(&self.pool, &mine);
        let found = job.is_some();
        if let Some(job) = job {
            before();
            run::execute_while(job.0, mine);
        }
        found
    }

    /// Caller-runs policy: with no workers and `BACKLOG` ready operations, the submitting thread runs `op` at
    /// once. Running `op` is then cheaper than queueing it.
    #[inline(always)]
    pub(crate) fn runs_at_once(&self, op: &OpGranted) -> bool {
        self.has_no_workers()
            && op.payload().priority == 0
            && (self.is_caller_running() || self.pool.backlog() >= BACKLOG)
            && context::current().is_none()
            && context::may_help()
    }

    /// From now on, until a thread waits, a thread without workers runs every ready operation as it submits
    /// it. An operation that stays ready for long holds up its successors, and these hold up theirs, until
    /// such operations reach the in-flight limit.
    #[cold]
    pub(crate) fn begin_caller_runs(&self) {
        self.flowing.store(true, Ordering::Relaxed);
        while self.help_any() {}
    }

    /// Whether [`begin_caller_runs`](Self::begin_caller_runs) was called, and no thread has waited since.
    #[inline(always)]
    pub(crate) fn is_caller_running(&self) -> bool {
        self.flowing.load(Ordering::Relaxed)
    }

    /// A thread waits, and runs what it needs: ends the caller-runs policy.
    pub(crate) fn end_caller_runs(&self) {
        if self.is_caller_running() {
            self.flowing.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the engine has no worker, so that waiting threads must run everything.
    #[inline]
    pub(crate) fn has_no_workers(&self) -> bool {
        self.pool.workers() == 0
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
            let runtime = self.runtime.lock().take();
            drop(runtime);
        }
    }
}

impl CoreRef {
    /// The checks of a submission that waits for room.
    pub(crate) fn checks_of_room(&self) -> Checks<'_> {
        let notifier = if self.has_no_workers() { &self.notifier } else { &self.room };
        Checks::new(&self.room_checks, notifier, self.lease_timeout)
    }

    /// Waits until there may be a permit. Runs ready operations where the engine has no worker to do it.
    ///
    /// `checks` are the submission's own.
    pub(crate) fn wait_for_room(
        &self,
        in_flight: usize,
        limit: usize,
        checks: &mut Checks<'_>,
    ) -> Result<(), Error> {
        callback::check()?;
        coalesced::wake_held_back();
        if self.has_no_workers() && self.help_any_after(|| checks.hand_over()) {
            // Once at it, for the next submissions as well.
            while self.in_flight() > limit / 2 && self.help_any() {}
            if context::current().is_none() {
                self.begin_caller_runs();
            }
            return Ok(());
        }
        // The threads that run the operations are most likely awake, and a sleep costs them and this thread
        // more than a few yields.
        for _ in 0..PATIENCE {
            thread::yield_now();
            if self.in_flight() < limit - limit / 4 || (self.helps_without_workers() && self.pool.has_work())
            {
                return Ok(());
            }
        }
        let _noted = WaitNoted::for_any("in-flight limit");
        let _blocked = wait_for::enter(|| On::AnyOther);
        let _cover = self.cover();
        if checks.are_new() {
            self.want_others(&mut checks.stand_ins);
        }
        // Inside of an operation the limit differs from that of the notifier. And where nothing has moved for
        // a while, a single permit counts.
        let exactly = context::current().is_some() || self.has_no_workers() || checks.are_in_vain();
        let enough = if exactly { limit - 1 } else { self.enough_room() };
        let mut listening = if exactly { self.notifier.listen() } else { self.room.listen() };
        let before = self.in_flight();
        if before <= enough || (self.helps_without_workers() && self.pool.has_work()) {
            return Ok(());
        }
        let wake = checks.next().or_else(|| self.may_be_interrupted().then(|| checks.later()));
        context::blocking(|| listening.wait_until(wake));
        self.check_interrupt()?;
        if self.in_flight() < before {
            checks.start_over();
            return Ok(());
        }
        self.warn_of_a_blocked_runtime();
        if checks.are_due()
            && !self.is_moved_by(&mut checks.stand_ins)
            && let Some(checked) = self.progress_looks.look(|| checks.check_room(self, in_flight))
        {
            checked?;
        }
        checks.back_off(self);
        Ok(())
    }

    /// Waits until nothing is in flight; false when `deadline` came first.
    pub(crate) fn wait_idle(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        if context::current_with_core().is_some_and(|current| current.core == self.id) {
            return Err(Error::WouldDeadlock("waiting for all operations inside one of them".into()));
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Ok(self.in_flight() == 0);
        }
        if self.in_flight() > 0 {
            callback::check()?;
        }
        self.end_caller_runs();
        coalesced::wake_held_back();
        let _noted = (self.in_flight() > 0).then(|| WaitNoted::for_any("wait_all")).flatten();
        let _blocked = wait_for::enter(|| On::AnyOther);
        let _cover = self.cover();
        // The wait is for everything in flight, so helping with any ready operation is allowed. Inside an
        // operation of another engine, helping is allowed only without workers, since a spare worker covers
        // the worker of that operation. A helped operation may take any time, so a wait with a deadline does
        // not help.
        let helps = deadline.is_none()
            && context::may_help()
            && (self.has_no_workers() || context::current().is_none());
        let notifier = if self.has_no_workers() { &self.notifier } else { &self.idle };
        let detector = if deadline.is_some() { &self.timed_checks } else { &self.idle_checks };
        let mut checks = Checks::new(detector, notifier, self.lease_timeout);
        if self.in_flight() > 0 {
            if self.has_no_workers() && !helps {
                checks.stand_ins.want(self);
            }
            self.want_others(&mut checks.stand_ins);
        }
        loop {
            let mut patience = 0;
            while patience < PATIENCE && self.in_flight() > 0 {
                if helps && self.help_in_passing_after(|| checks.hand_over()) {
                    checks.start_over();
                    patience = 0;
                } else {
                    patience += 1;
                    thread::yield_now();
                }
            }
            let mut listening = notifier.listen();
            if self.in_flight() == 0 {
                return Ok(true);
            }
            if helps && self.has_no_workers() && self.pool.has_work() {
                continue;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            let before = self.in_flight();
            let wake = checks.next().or_else(|| self.may_be_interrupted().then(|| checks.later()));
            context::blocking(|| listening.wait_until(wake.into_iter().chain(deadline).min()));
            self.check_interrupt()?;
            if self.in_flight() == before
                && checks.are_due()
                && !self.is_moved_by(&mut checks.stand_ins)
                && deadline.is_none()
                && let Some(checked) = self.progress_looks.look(|| checks.check_idle(self))
            {
                checked?;
            }
            checks.back_off(self);
        }
    }

    /// Called when nothing has moved for a while. Requests stand-ins for what other engines and blocked
    /// threads leave undone. Returns whether there is something to run, so that the engine does not stand
    /// still.
    fn is_moved_by(&self, stand_ins: &mut StandInSet) -> bool {
        foreign_fence::stand_in_for_queries();
        self.want_others(stand_ins);
        let has_work = self.pool.has_work();
        if has_work && ((self.has_no_workers() && !self.helps_without_workers()) || self.pool.is_stuck()) {
            stand_ins.want(self);
        }
        has_work
    }

    /// Whether the calling thread runs ready operations of this engine, since the engine has no worker.
    fn helps_without_workers(&self) -> bool {
        self.has_no_workers() && context::may_help()
    }

    /// Requests stand-ins of other engines, without workers, that something in flight in this engine waits
    /// for.
    fn want_others(&self, stand_ins: &mut StandInSet) {
        if others_without_workers(self.has_no_workers())
            && let Some(others) = self.others_looks.look(|| deadlock::without_workers(self))
        {
            for core in &others {
                stand_ins.want(core);
            }
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
