//! Threads that run ready operations while they wait, and the caller-runs policy: in an engine without
//! workers only threads that wait or submit run operations, and [stand-ins](crate::wait::stand_in) of those
//! that must not.
//!
//! The policy is methods of the core. An object for it was tried, and each of its methods had one caller. A
//! module of `wait` that asks `has_no_workers` itself chooses how far it searches or who is notified; it runs
//! nothing by that.

use estafette_devices::cpu::{Job, Pool};
use estafette_sync::essential::is_essential_thread;
use estafette_sync::sync::atomic::Ordering;
use estafette_sync::time::{Duration, Instant};

use crate::core::context;
use crate::core::core_ref::CoreRef;
use crate::core::engine_core::Core;
use crate::core::notifier::Notifier;
use crate::core::operation::{OpGranted, OpKind, ReadyOp};
use crate::exchange::{callback, is_releasing};
use crate::operation::run;

/// Ready operations that a thread without workers leaves for a later wait. With more ready operations, the
/// thread runs these and all further ones as it submits them. The value is half of what the deque of a thread
/// holds before it grows, and shrinks again.
const BACKLOG: usize = 32;

/// For so long a thread without workers keeps a lock of the program for further operations, unless it waits
/// for all of them. A caller that waits for something looks for it in between.
const TURN: Duration = Duration::from_micros(100);

impl Core {
    /// Runs a ready operation that any thread may run, whether or not the caller needs it, and operations
    /// that it makes ready in turn, for a while.
    pub(crate) fn help_any(&self) -> bool {
        self.help_any_after(|| ())
    }

    /// As [`help_any`](Self::help_any), and calls `before` first if there is such an operation.
    pub(crate) fn help_any_after(&self, before: impl FnOnce()) -> bool {
        let (mut begun, mut left) = (None, run::INLINE_MAX);
        let goes_on = || {
            left -= 1;
            left > 0 && begun.get_or_insert_with(Instant::now).elapsed() < TURN
        };
        self.help_with_what(|pool, mine| pool.take_next_matching(|job| mine(&job.0)), before, goes_on)
    }

    /// As [`help_any_after`](Self::help_any_after), but takes only operations that workers would take next,
    /// and no worker-only operation. Keeps a lock of the program as long as there are some: a thread that
    /// waits for that lock asks for it only after it has seen no release for a while.
    pub(crate) fn help_in_passing_after(&self, before: impl FnOnce()) -> bool {
        let take = |pool: &Pool<ReadyOp>, mine: &dyn Fn(&OpGranted) -> bool| {
            if self.has_no_workers() { pool.try_take() } else { pool.take_next_if(|job| mine(&job.0)) }
        };
        self.help_with_what(take, before, || !self.has_raised())
    }

    fn help_with_what(
        &self,
        take: impl Fn(&Pool<ReadyOp>, &dyn Fn(&OpGranted) -> bool) -> Option<ReadyOp>,
        before: impl FnOnce(),
        mut goes_on: impl FnMut() -> bool,
    ) -> bool {
        let Some(_helping) = context::begin_help() else { return false };
        let mine = |op: &OpGranted| self.is_for_waiters(op);
        let mut job = take(&self.pool, &mine);
        let found = job.is_some();
        if found {
            before();
        }
        if let Some(lock) = self.pool.shared_lock().filter(|_| job.as_ref().is_some_and(Job::needs_lock)) {
            // As a worker does: the lock is taken once for several.
            lock.lock_while(&mut || {
                job.take().into_iter().for_each(|job| job.run(&self.pool));
                job = if goes_on() { take(&self.pool, &mine) } else { None };
                job.as_ref().is_some_and(Job::needs_lock)
            });
        }
        job.into_iter().for_each(|job| run::execute_while(job.0, mine));
        found
    }

    /// True if a thread that waits may run `op` in passing: any operation without workers, else one that any
    /// thread may run.
    pub(crate) fn is_for_waiters(&self, op: &OpGranted) -> bool {
        self.has_no_workers() || op.payload().kind == OpKind::Work
    }

    /// The notifier that a wait of the whole engine sleeps on: without workers the one that also reports
    /// work.
    pub(crate) fn notifier_or<'a>(&'a self, with_workers: &'a Notifier) -> &'a Notifier {
        if self.has_no_workers() { &self.notifier } else { with_workers }
    }

    /// True if the calling thread may run any ready operation while it waits for everything. Inside an
    /// operation of another engine it may do so only without workers, since a spare worker covers the worker
    /// of that operation.
    pub(crate) fn helps_with_everything(&self) -> bool {
        context::may_help() && (self.has_no_workers() || context::current().is_none())
    }

    /// Without workers, runs what is ready, and what that makes ready in turn. Returns whether something was
    /// ready.
    pub(crate) fn run_ready(&self) -> bool {
        let found = self.has_no_workers() && self.help_any();
        while found && self.help_any() {}
        found
    }

    /// True if the calling thread runs ready operations of this engine, since the engine has no worker.
    pub(crate) fn helps_without_workers(&self) -> bool {
        self.has_no_workers() && context::may_help()
    }

    /// Caller-runs policy: with no workers and `BACKLOG` ready operations, the submitting thread runs `op` at
    /// once. Running `op` is then cheaper than queueing it. Of operations that need a shared lock it runs the
    /// whole backlog, in the order of submission, as their code is then in the caches.
    #[inline(always)]
    pub(crate) fn runs_at_once(&self, op: &OpGranted) -> bool {
        self.has_no_workers()
            && op.payload().priority == 0
            && ((self.is_caller_running() && op.payload().kind != OpKind::NeedsLock)
                || self.pool.backlog() >= BACKLOG)
            && context::current().is_none()
            && context::may_help()
    }

    /// From now on, until a thread waits, a thread without workers runs every ready operation as it submits
    /// it. An operation that stays ready for long holds up its successors, and these hold up theirs, until
    /// such operations reach the in-flight limit.
    #[cold]
    pub(crate) fn begin_caller_runs(&self) {
        self.caller_runs.store(true, Ordering::Relaxed);
        while self.help_any() {}
    }

    /// True if [`begin_caller_runs`](Self::begin_caller_runs) was called, and no thread has waited since.
    #[inline(always)]
    pub(crate) fn is_caller_running(&self) -> bool {
        self.caller_runs.load(Ordering::Relaxed)
    }

    /// A thread waits, and runs what it needs: ends the caller-runs policy.
    pub(crate) fn end_caller_runs(&self) {
        if self.is_caller_running() {
            self.caller_runs.store(false, Ordering::Relaxed);
        }
    }
}

impl CoreRef {
    /// The last handle is about to go. Without workers nothing else would ever run what is ready. What is
    /// ready may wait for the body or the callback that drops the handle, or need the thread that does: then
    /// a stand-in runs it.
    pub(crate) fn run_rest(&self) {
        let is_needed = || {
            context::current().is_some() || callback::is_running() || is_releasing() || is_essential_thread()
        };
        if self.has_no_workers() && !std::thread::panicking() && !is_needed() {
            self.run_ready();
        }
        if self.has_no_workers() && self.in_flight() > 0 {
            self.stand_ins.want_to_the_end(self);
        }
    }
}
