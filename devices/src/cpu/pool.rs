use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use estafette_sync::essential::essential;
use estafette_sync::process::Generation;
use estafette_sync::stack;
use estafette_sync::sync::OnceLock;
use estafette_sync::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::{DeviceError, DeviceErrorKind};

use super::concurrency::Concurrency;
use super::deques::Worker as Deque;
use super::outside::{EXTERNAL_QUEUES_MAX, FreeDeques, SLOT, is_registered, register, with_deque};
use super::queues::Queues;
use super::sleep::{Sleep, WORKERS_MAX};
use super::workers::{self, Threads, WorkerContext};

/// A unit of work of a [`Pool`].
pub trait Job: Send + 'static + Sized {
    /// Does the work, on a worker. What is pushed to `pool` from here goes to the worker's own deque. A panic
    /// is logged, and the worker lives on.
    fn run(self, pool: &Pool<Self>);

    /// True if the job needs the pool's [`SharedLock`].
    fn needs_lock(&self) -> bool {
        false
    }

    /// A worker asks for the lock to run this job.
    fn waits_for_lock(&self) {}
}

/// A lock that jobs of a pool share, such as that of a language's interpreter.
pub trait SharedLock: fmt::Debug + Send + Sync {
    /// Takes the lock and calls `next` at least once, and again as long as that returns true. Each call runs
    /// a job. Before a call the lock may be released for threads that wait for it. After the last one it is
    /// not taken again: a job that needs no lock may be in hand.
    fn lock_while(&self, next: &mut dyn FnMut() -> bool);
}

/// Options of a [`Pool`].
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Worker threads. With 0, jobs run only in threads that call [`Pool::try_take`].
    pub workers: usize,
    /// The threads are called this and a number.
    pub name: String,
    /// The most spare threads that stand in for workers that block.
    pub spare_limit: usize,
    /// Bytes of stack that each thread has.
    pub stack_size: usize,
}

impl Default for PoolOptions {
    /// One worker per core, as many spare threads as that, and [stacks](stack::default_size) as the system
    /// gives them to threads.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            workers: cores,
            name: "estafette-worker".to_owned(),
            spare_limit: cores,
            stack_size: stack::default_size(),
        }
    }
}

/// A handle to a pool of worker threads. Clones are handles to the same pool.
///
/// When the last handle outside of the pool is dropped, the workers run what is queued, and leave. A pool
/// without workers drops what is queued instead. [`Pool::shutdown`] makes workers leave after their current
/// job, even while handles exist.
pub struct Pool<J: Job> {
    pub(super) shared: Arc<PoolState<J>>,
    /// True if this handle keeps the workers from leaving. Those that workers hold themselves do not.
    counted: AtomicBool,
}

/// The state that all handles and threads of a pool share.
pub(super) struct PoolState<J> {
    pub(super) queues: Queues<J>,
    pub(super) sleep: Sleep,
    pub(super) threads: Threads<J>,
    pub(super) lock: OnceLock<Arc<dyn SharedLock>>,
    /// See [`concurrency`](Self::concurrency); `None` without workers.
    concurrency: Option<Box<Concurrency>>,
    is_limited: AtomicBool,
    pub(super) external: FreeDeques<J>,
    pub(super) workers: usize,
    name: String,
    handles: AtomicUsize,
    shut_down: AtomicBool,
    pub(super) generation: Generation,
}

impl<J> PoolState<J> {
    /// The number of workers that run jobs, once they share a lock; before that every worker runs jobs. A
    /// worker that has not seen it yet runs a job beyond the limit, as workers do for jobs that are overdue.
    #[inline]
    pub(super) fn concurrency(&self) -> Option<&Concurrency> {
        self.concurrency.as_deref().filter(|_| self.is_limited.load(Ordering::Relaxed))
    }

    /// True if workers leave after their current job.
    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::SeqCst)
    }

    /// True if no outside handle is left, so that workers leave when there is nothing more to do.
    pub(super) fn is_abandoned(&self) -> bool {
        self.handles.load(Ordering::SeqCst) == 0
    }
}

impl<J: Job> Pool<J> {
    /// Starts the workers.
    ///
    /// # Errors
    /// A thread could not be started; those already started leave again.
    pub fn new(options: PoolOptions) -> Result<Self, DeviceError> {
        let PoolOptions { workers, name, spare_limit, stack_size } = options;
        let threads = workers.checked_add(spare_limit).filter(|&threads| threads <= WORKERS_MAX);
        let threads = threads.ok_or_else(|| {
            let message = format!(
                "{workers} workers and {spare_limit} spare ones are more than the {WORKERS_MAX} threads that a pool may have"
            );
            DeviceError::invalid(message)
        })?;
        // Without workers no thread can block, and none needs a stand-in.
        let (queues, deques, lent) = Queues::new(if workers == 0 { 0 } else { threads }, EXTERNAL_QUEUES_MAX);
        let mut deques: Vec<_> = deques.into_iter().enumerate().collect();
        let spare = deques.split_off(workers);
        let shared = Arc::new(PoolState {
            queues,
            sleep: Sleep::default(),
            threads: Threads::new(spare, stack_size),
            concurrency: (workers > 0).then(|| Box::new(Concurrency::new(workers))),
            is_limited: AtomicBool::new(false),
            lock: OnceLock::new(),
            external: FreeDeques::new(lent),
            workers,
            name,
            handles: AtomicUsize::new(1),
            shut_down: AtomicBool::new(false),
            generation: Generation::current(),
        });
        let pool = Self { shared, counted: AtomicBool::new(true) };
        for (index, deque) in deques {
            pool.shared.start(index, deque).map_err(|error| {
                let message = format!("cannot start worker {index} of {workers}: {error}");
                DeviceError::new(DeviceErrorKind::Other, message)
            })?;
        }
        Ok(pool)
    }

    /// From now on jobs share `lock`: a worker that has it runs the next job that needs it without giving it
    /// up in between. The pool finds out how many threads run jobs at once with the best throughput, from one
    /// upwards, and lets the others sleep. Only the first call counts.
    pub fn share_lock(&self, lock: Arc<dyn SharedLock>) {
        self.shared.lock.get_or_init(|| lock);
        self.shared.is_limited.store(true, Ordering::Relaxed);
    }

    /// The lock of [`share_lock`](Self::share_lock).
    pub fn shared_lock(&self) -> Option<&Arc<dyn SharedLock>> {
        self.shared.lock.get()
    }

    /// As [`Pool::push_priority`], without waking a worker; see [`Pool::push_unnoticed`].
    pub fn push_priority_unnoticed(&self, job: J, priority: i32) {
        self.shared.queues.priorities.push(job, priority);
    }

    /// Queues a job that enqueues work on a device, without waking a worker; see [`Pool::push_unnoticed`]. Of
    /// such jobs the one with the least `number` runs first. No other job has that number.
    pub fn push_in_order_unnoticed(&self, job: J, number: u64) {
        self.shared.queues.in_order.push(number, job);
    }

    /// `job`, which would run now, or a job that was [queued in order](Self::push_in_order_unnoticed) in
    /// exchange for it, if that one comes first and `wanted` is true for it. `wanted` only classifies: it is
    /// called under a lock.
    #[inline]
    pub fn first_in_order(&self, job: J, number: u64, wanted: impl FnOnce(&J) -> bool) -> J {
        self.shared.queues.in_order.exchange(number, job, wanted)
    }

    /// Wakes a worker if that is needed for the jobs that were pushed unnoticed; it wakes the next one if
    /// there is more.
    #[inline]
    pub fn notice(&self) {
        // Without workers no thread sleeps.
        if self.shared.workers > 0 {
            self.shared.notify_of_push();
        }
    }

    /// Queues a job: on a worker of this pool in its own deque, else in the shared queue.
    pub fn push(&self, job: J) {
        self.push_unnoticed(job);
        self.notice();
    }

    /// Queues a job that goes before ordinary ones (positive, the highest first) or after them (negative). 0
    /// is [`Pool::push`]. Jobs of equal priority run in the order in which they were pushed.
    ///
    /// Priorities age: while jobs with a priority wait, of any 64 jobs that are taken from the pool at least
    /// one is an ordinary job, one of the oldest, if one waits; and at least one is that with a priority
    /// which has waited longest.
    pub fn push_priority(&self, job: J, priority: i32) {
        if priority == 0 {
            return self.push(job);
        }
        self.push_priority_unnoticed(job, priority);
        self.notice();
    }

    /// Takes the job that would run next, for a thread that wants to help. The caller runs it.
    pub fn try_take(&self) -> Option<J> {
        let queues = &self.shared.queues;
        let from_external = with_deque(&self.shared, |deque| queues.take_from_outside(Some(deque)));
        from_external.unwrap_or_else(|| queues.take_from_outside(None))
    }

    /// Takes the job that would run next if `wanted` is true for it and the place of no waiting job matters;
    /// a job that is not wanted goes in front of the others. For a thread that would help, and must not be in
    /// the way: a search through the queues, [`Pool::take_matching`], has jobs in hand that a worker would
    /// start meanwhile.
    pub fn take_next_if(&self, mut wanted: impl FnMut(&J) -> bool) -> Option<J> {
        if self.shared.queues.has_sorted() {
            return None;
        }
        let queues = &self.shared.queues;
        if let Some(job) = queues.in_order.pop_if(&mut wanted) {
            return Some(job);
        }
        let from_external = with_deque(&self.shared, |deque| queues.take_unsorted(Some(deque)));
        let job = from_external.unwrap_or_else(|| queues.take_unsorted(None))?;
        if wanted(&job) {
            return Some(job);
        }
        queues.put_back(job);
        self.notice();
        None
    }

    /// As [`Pool::take_matching`], and cheaper where most jobs are wanted and none has a priority: a job that
    /// is not wanted may change its place among those of no priority.
    pub fn take_next_matching(&self, mut wanted: impl FnMut(&J) -> bool) -> Option<J> {
        let job = self.take_next_if(&mut wanted);
        job.or_else(|| if self.has_work() { self.take_matching(wanted) } else { None })
    }

    /// Takes the first job for which `wanted` is true and leaves the others in order. Costs a look at every
    /// job that is in front of it.
    ///
    /// `wanted` only classifies: it is called under a lock and must not use this pool.
    pub fn take_matching(&self, wanted: impl FnMut(&J) -> bool) -> Option<J> {
        let mut wanted = Some(wanted);
        let mut take =
            |own: Option<&_>| wanted.take().and_then(|wanted| self.shared.queues.take_matching(own, wanted));
        let job = workers::with_context(&self.shared, |context| take(Some(&context.deque)))
            .unwrap_or_else(|| take(None));
        if self.has_work() {
            // A worker may have looked while the jobs were in hand.
            self.shared.notify();
        }
        job
    }

    /// Jobs pushed by the calling thread, which is no worker, and not taken yet.
    #[inline]
    pub fn backlog(&self) -> usize {
        with_deque(&self.shared, Deque::len).unwrap_or(0)
    }

    /// True if a job waits.
    pub fn has_work(&self) -> bool {
        self.shared.queues.has_work()
    }

    /// True if a job with a priority waits. One load.
    #[inline]
    pub fn has_priorities(&self) -> bool {
        !self.shared.queues.priorities.is_empty()
    }

    /// The number of workers that the pool was made with.
    pub fn workers(&self) -> usize {
        self.shared.workers
    }

    /// The greatest number of threads that run jobs at once, as long as none of them blocks: the number of
    /// workers, or fewer where jobs share a lock.
    #[inline]
    pub fn at_once(&self) -> usize {
        self.shared.concurrency().map_or(self.shared.workers, Concurrency::limit)
    }

    /// True if the calling thread is a worker of this pool.
    pub fn is_worker(&self) -> bool {
        workers::with_context(&self.shared, |_| ()).is_some()
    }

    /// Called by a worker, of this pool or another one, that is about to block: a spare thread of its pool,
    /// if the limit allows one, takes its role until the guard is dropped, and its queued jobs can be stolen.
    /// A thread that has a [slot](Self::take_slot) of this pool releases it meanwhile. On another thread that
    /// runs no job, and inside of another blocking section of the same thread, it does nothing.
    pub fn blocking(&self) -> BlockingGuard<J> {
        // A worker of one pool may have a slot of another one.
        let slot = (SLOT.get() == self.shared.address()).then(|| {
            SLOT.set(0);
            self.shared.release_slot();
            self.shared.clone()
        });
        let entered = workers::with_own_context(|context: &WorkerContext<J>| {
            if context.shared.generation.is_inherited() {
                // A forked child has none of the pool's threads.
                return None;
            }
            let depth = context.blocking_depth.get();
            context.blocking_depth.set(depth + 1);
            if depth == 0 {
                context.release_slot();
            }
            Some((context.shared.clone(), depth == 0))
        });
        let entered = entered.flatten();
        if let Some((shared, true)) = &entered
            && let Some((index, deque)) = shared.threads.block()
            && let Err(error) = shared.start(index, deque)
        {
            shared.threads.not_started();
            tracing::warn!(%error, "cannot start a spare worker; a blocked one is not covered");
        }
        BlockingGuard { shared: entered.map(|(shared, _)| shared), slot, not_send: PhantomData }
    }

    /// True if all threads of the pool are blocked ([`Pool::blocking`]), and the limit allows no further
    /// spare one: then no thread of the pool takes a job until one of them returns.
    pub fn are_all_blocked(&self) -> bool {
        self.shared.threads.are_all_blocked()
    }

    /// From here on this handle keeps no worker, as if it had been dropped.
    pub fn release(&self) {
        let counted = self.counted.swap(false, Ordering::SeqCst);
        if counted && self.shared.handles.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.shared.wake_all();
        }
    }

    /// Workers leave after their current job. What is queued stays, for [`Pool::try_take`].
    pub fn shutdown(&self) {
        self.shared.shut_down.store(true, Ordering::SeqCst);
        self.shared.wake_all();
    }

    /// Waits until every thread of the pool has left, after [`Pool::shutdown`]. False if `timeout` passed
    /// first, and at once on a worker of this pool, which cannot wait for itself.
    pub fn join(&self, timeout: Option<Duration>) -> bool {
        !self.is_worker() && self.shared.threads.join(timeout)
    }

    /// A handle that does not keep the workers, for a worker.
    pub(super) fn uncounted(shared: Arc<PoolState<J>>) -> Self {
        Self { shared, counted: AtomicBool::new(false) }
    }

    /// As [`Pool::push`], without waking a worker. [`Pool::notice`] has to follow, once for any number of
    /// jobs.
    pub fn push_unnoticed(&self, job: J) {
        let mut job = Some(job);
        let mut push = |deque: &Deque<J>| job.take().into_iter().for_each(|job| deque.push(job));
        if workers::with_context(&self.shared, |context| push(&context.deque)).is_some() {
            return;
        }
        if with_deque(&self.shared, &mut push).is_none() && !is_registered(&self.shared) {
            register(&self.shared);
            with_deque(&self.shared, push);
        }
        job.into_iter().for_each(|job| self.shared.queues.push(job));
    }
}

impl<J: Job> PoolState<J> {
    fn start(self: &Arc<Self>, index: usize, deque: Deque<J>) -> std::io::Result<()> {
        let shared = self.clone();
        let name = format!("{}-{index}", shared.name);
        let thread = name.clone();
        self.threads.start(name, move || essential(&thread, || workers::run(shared, index, deque)))
    }
}

impl<J> PoolState<J> {
    /// Jobs were pushed: wakes a worker, if one is of use and the jobs are not left to a thread that waits.
    fn notify_of_push(self: &Arc<Self>) {
        // A thread that has a slot looks for its jobs, and wakes a worker for others, before it releases the
        // slot.
        let is_left = |concurrency: &Concurrency| concurrency.pushed(SLOT.get() != self.address());
        if !self.concurrency().is_some_and(is_left) {
            self.notify();
        }
    }

    /// Wakes a worker, if one is of use.
    pub(super) fn notify(&self) {
        if let Some(concurrency) = self.concurrency() {
            if !concurrency.wants_a_thread() {
                return;
            }
            concurrency.waiters.none_is_left();
        }
        self.sleep.notify();
    }

    /// True if a worker that sleeps, or is about to, is of use.
    pub(super) fn wants_a_thread(&self) -> bool {
        self.queues.has_work() && self.concurrency().is_none_or(|concurrency| concurrency.wants_a_thread())
    }

    /// Identifies the pool while it lives.
    pub(super) fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// Moves what is in `deque` to the shared queue.
    pub(super) fn share(&self, deque: &Deque<J>) {
        if self.queues.share(deque) {
            self.notify();
        }
    }

    fn wake_all(&self) {
        // A forked child has no workers to wake, and a thread of the parent may have held these locks for
        // ever.
        if self.generation.is_inherited() {
            return;
        }
        self.sleep.notify_all();
        self.threads.wake_all();
    }
}

impl<J: Job> Clone for Pool<J> {
    fn clone(&self) -> Self {
        self.shared.handles.fetch_add(1, Ordering::SeqCst);
        Self { shared: self.shared.clone(), counted: AtomicBool::new(true) }
    }
}

impl<J: Job> Drop for Pool<J> {
    fn drop(&mut self) {
        self.release();
    }
}

debug_as!([J: Job] pool: Pool<J>, "Pool({:?}, {} workers)", pool.shared.name, pool.shared.workers);

/// While it lives, a spare thread covers the worker that called [`Pool::blocking`]. It stays on that thread.
#[must_use = "the worker counts as blocked while the guard lives"]
pub struct BlockingGuard<J: Job> {
    /// The pool that the thread is a worker of.
    shared: Option<Arc<PoolState<J>>>,
    /// The pool that the thread had a slot of.
    slot: Option<Arc<PoolState<J>>>,
    not_send: PhantomData<*const ()>,
}

impl<J: Job> BlockingGuard<J> {
    /// True if the thread works for a pool, as a worker or with a slot.
    pub fn is_needed(&self) -> bool {
        self.shared.is_some() || self.slot.is_some()
    }
}

impl<J: Job> Drop for BlockingGuard<J> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.concurrency().into_iter().for_each(Concurrency::exceed);
            SLOT.set(slot.address());
        }
        // In a forked child the locks may be held for ever.
        let Some(shared) = self.shared.take().filter(|shared| !shared.generation.is_inherited()) else {
            return;
        };
        workers::with_context(&shared, |context| {
            let depth = context.blocking_depth.get() - 1;
            context.blocking_depth.set(depth);
            if depth == 0 {
                shared.threads.unblock();
                context.take_slot();
            }
        });
    }
}

debug_as!([J: Job] guard: BlockingGuard<J>, "BlockingGuard(needed: {})", guard.is_needed());
