//! The loop of one thread of the pool.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::{Condvar, Mutex};
use estafette_sync::time::{Duration, Instant};
use estafette_sync::{hint, thread, thread_local};

use crate::log_panic::log_panic;

use super::deques::Worker as Deque;
use super::pool::{Job, Pool, PoolState, SharedLock};
use super::sleep::Parker;
use super::waiters::OVERDUE;

/// Rounds of looking for work with a busy pause between them, before yielding. A job that is pushed while a
/// worker spins starts in a fraction of a microsecond; waking a sleeper takes fifteen or more. (Models sleep
/// at once, since falling asleep is what they look at.)
const SPIN_ROUNDS: u32 = if cfg!(any(estafette_loom, estafette_shuttle)) { 1 } else { 32 };
/// Rounds with a yield between them, before sleeping. On two cores the submitting thread may need ours.
const YIELD_ROUNDS: u32 = if cfg!(any(estafette_loom, estafette_shuttle)) { 0 } else { 16 };
const SPIN_PAUSES: u32 = 16;

pub(super) struct WorkerContext<J: Job> {
    pub(super) shared: Arc<PoolState<J>>,
    pub(super) deque: Deque<J>,
    /// Nested blocking sections; only the outermost is covered.
    pub(super) blocking_depth: Cell<usize>,
    index: usize,
    parker: Arc<Parker>,
    ticks: Cell<u32>,
    /// True if this thread has a slot, where the pool limits how many run.
    has_slot: Cell<bool>,
}

thread_local! {
    /// The context of this thread, if it belongs to a pool.
    static CURRENT: RefCell<Option<Rc<dyn Any>>> = const { RefCell::new(None) };
}

/// The body of a thread that owns deque number `index`.
pub(super) fn run<J: Job>(shared: Arc<PoolState<J>>, index: usize, deque: Deque<J>) {
    let context = Rc::new(WorkerContext {
        shared,
        deque,
        blocking_depth: Cell::new(0),
        index,
        parker: Default::default(),
        ticks: Cell::new(0),
        has_slot: Cell::new(false),
    });
    CURRENT.with(|current| *current.borrow_mut() = Some(context.clone()));
    let pool = Pool::uncounted(context.shared.clone());
    let mut next = context.next();
    while let Some(job) = next {
        next = match context.shared.lock.get() {
            Some(lock) if job.needs_lock() => context.run_with_lock(lock.as_ref(), job, &pool),
            _ => {
                context.run(job, &pool);
                None
            }
        };
        next = next.or_else(|| context.next());
    }
    drop(pool);
    CURRENT.with(|current| current.borrow_mut().take());
    context.shared.share(&context.deque);
    // Workers without a slot may have gone to sleep again while jobs were left.
    context.shared.sleep.notify_all();
    context.shared.threads.note_thread_end();
}

/// Calls `f` with the context of this thread if the thread works for the pool `shared`.
pub(super) fn with_context<J: Job, R>(
    shared: &Arc<PoolState<J>>,
    f: impl FnOnce(&WorkerContext<J>) -> R,
) -> Option<R> {
    with_own_context(|context| Arc::ptr_eq(&context.shared, shared).then(|| f(context))).flatten()
}

/// Calls `f` with the context of this thread if the thread works for any pool of such jobs.
pub(super) fn with_own_context<J: Job, R>(f: impl FnOnce(&WorkerContext<J>) -> R) -> Option<R> {
    let in_context = |current: &RefCell<Option<Rc<dyn Any>>>| {
        // Borrowed while `f` runs: it may look here again, and only the ends of a thread change what is here.
        let current = current.borrow();
        Some(f(current.as_ref()?.downcast_ref::<WorkerContext<J>>()?))
    };
    CURRENT.try_with(in_context).ok().flatten()
}

impl<J: Job> WorkerContext<J> {
    /// The next job; sleeps until there is one. `None` when it is time to leave.
    fn next(&self) -> Option<J> {
        self.ticks.set(self.ticks.get().wrapping_add(1));
        self.rest_if_surplus();
        if self.shared.is_shut_down() {
            self.release_slot();
            return None;
        }
        self.take().or_else(|| self.search())
    }

    fn run(&self, job: J, pool: &Pool<J>) {
        let start = self.shared.concurrency().map(|concurrency| concurrency.starts());
        log_panic("a job", || job.run(pool));
        start.into_iter().for_each(|start| self.ended(start));
    }

    /// Runs `job`, and the next ones as long as they need the lock too. Returns a job that is still to be
    /// run.
    fn run_with_lock(&self, lock: &dyn SharedLock, job: J, pool: &Pool<J>) -> Option<J> {
        job.waits_for_lock();
        let mut next = Some(job);
        lock.lock_while(&mut || {
            next.take().into_iter().for_each(|job| self.run(job, pool));
            next = self.next_at_once();
            next.as_ref().is_some_and(J::needs_lock)
        });
        next
    }

    /// The next job, if there is one and this thread need not rest.
    fn next_at_once(&self) -> Option<J> {
        self.ticks.set(self.ticks.get().wrapping_add(1));
        if self.is_surplus() || self.shared.is_shut_down() { None } else { self.take() }
    }

    fn ended(&self, start: u64) {
        let Some(concurrency) = self.shared.concurrency() else { return };
        if concurrency.ends(start) {
            self.shared.sleep.notify();
        }
        if concurrency.release_if_exceeded() {
            self.has_slot.set(false);
        }
    }

    /// The thread is about to block, to rest or to end.
    pub(super) fn release_slot(&self) {
        if self.has_slot.take() {
            self.shared.release_slot();
        }
    }

    /// The thread goes on after it was blocked, whatever the limit is.
    pub(super) fn take_slot(&self) {
        if let Some(concurrency) = self.shared.concurrency()
            && !self.has_slot.replace(true)
        {
            concurrency.exceed();
        }
    }

    /// Looks for a job in turns, sleeps when there is none, and begins again.
    fn search(&self) -> Option<J> {
        let shared = &self.shared;
        let has_work = || shared.wants_a_thread();
        shared.sleep.start_searching();
        loop {
            self.stand_by();
            for round in 0..SPIN_ROUNDS + YIELD_ROUNDS {
                if let Some(job) = self.take_unless_shut_down() {
                    shared.sleep.stop_searching(has_work);
                    return Some(job);
                }
                if self.must_leave() {
                    shared.sleep.stop_searching(has_work);
                    return None;
                }
                if shared.concurrency().is_some_and(|concurrency| !concurrency.has_room()) {
                    break;
                }
                pause(round);
            }
            if self.is_surplus() {
                // A wake-up that reached this thread may have been meant for a job: it is passed on.
                shared.sleep.stop_searching(has_work);
                self.rest_if_surplus();
                shared.sleep.start_searching();
                continue;
            }
            let stay_awake = || has_work() || self.must_leave();
            let has_jobs = || shared.queues.has_work();
            match shared.concurrency().filter(|it| has_jobs() && it.begin_watch()) {
                None => shared.sleep.sleep(&self.parker, stay_awake),
                Some(concurrency) => {
                    let sleep = |time| {
                        shared.sleep.sleep_for(&self.parker, time, stay_awake);
                    };
                    if concurrency.watch(sleep) && has_jobs() {
                        self.take_slot();
                    }
                    concurrency.end_watch();
                }
            }
            if cfg!(estafette_loom) {
                // Or this thread could stay awake for ever while another one has a job in hand.
                thread::yield_now();
            }
        }
    }

    /// Sleeps while jobs are left to the threads that wait for them, until one of them is overdue. A thread
    /// that pushes a job in this moment may take this worker for one that searches; that job then waits until
    /// it is overdue.
    fn stand_by(&self) {
        let Some(concurrency) = self.shared.concurrency() else { return };
        let look = || {
            let is_over = self.shared.sleep.sleep_for(&self.parker, OVERDUE, || self.must_leave());
            is_over.then(|| concurrency.pushes())
        };
        concurrency.waiters.stand_by(look, || self.shared.queues.has_work(), concurrency.pushes());
    }

    fn take(&self) -> Option<J> {
        let Some(concurrency) = self.shared.concurrency() else { return self.take_with_slot() };
        if !self.has_slot.get() && !concurrency.acquire() {
            return None;
        }
        self.has_slot.set(true);
        let job = self.take_with_slot();
        if job.is_none() {
            concurrency.starves();
            self.has_slot.set(false);
            // The search looks once more before the thread sleeps.
            concurrency.release();
        }
        job
    }

    fn take_with_slot(&self) -> Option<J> {
        let concurrency = self.shared.concurrency();
        let breadth_first = concurrency.is_some_and(|concurrency| concurrency.is_breadth_first());
        self.shared.queues.take(self.index, &self.deque, self.ticks.get(), breadth_first)
    }

    fn take_unless_shut_down(&self) -> Option<J> {
        if self.shared.is_shut_down() { None } else { self.take() }
    }

    /// True if there is nothing left for this thread to do, ever.
    fn must_leave(&self) -> bool {
        self.shared.is_shut_down() || (self.shared.is_abandoned() && !self.shared.queues.has_work())
    }

    /// True if this thread stands in for a worker that may be back.
    fn is_surplus(&self) -> bool {
        self.index >= self.shared.workers && self.shared.threads.has_surplus()
    }

    /// A spare thread whose worker is back rests. Its jobs go to the shared queue first, since a resting
    /// thread runs none.
    fn rest_if_surplus(&self) {
        if self.is_surplus() {
            self.release_slot();
            self.shared.share(&self.deque);
            self.shared.threads.rest(|| self.shared.is_shut_down() || self.shared.is_abandoned());
        }
    }
}

fn pause(round: u32) {
    if cfg!(estafette_loom) {
        // Loom lets others go on first when a thread yields: no other thread would go on while this one falls
        // asleep.
    } else if round < SPIN_ROUNDS {
        (0..SPIN_PAUSES).for_each(|_| hint::spin_loop());
    } else {
        thread::yield_now();
    }
}

// The threads of a pool, and the spare ones that stand in for workers that block.
//
// A worker that is about to block says so. Then one spare thread takes its role until it is back: as many
// spare threads are active as workers are blocked, up to the limit. Spare threads are started when first
// needed and rest afterwards, so blocking often costs a wake-up and not a thread. When a blocked worker comes
// back, the spare thread that looks next retires; until its current job ends there is one thread more than
// configured.

#[derive(Debug)]
pub(super) struct Threads<J> {
    counts: Mutex<ThreadCounts<J>>,
    /// A resting spare thread is wanted, or all threads leave.
    called: Condvar,
    left: Condvar,
    /// More spare threads are active than workers are blocked: a hint to look, read without the lock.
    surplus: AtomicBool,
    stack_size: usize,
}

/// The counts and lists of the threads, behind one lock.
#[derive(Debug)]
struct ThreadCounts<J> {
    /// Threads that have been started and have not left.
    alive: usize,
    handles: Vec<thread::JoinHandle<()>>,
    /// Deques that no thread owns yet, with their numbers.
    unowned: Vec<(usize, Deque<J>)>,
    blocked: usize,
    /// Spare threads that stand in for one of them.
    standing_in: usize,
    resting: usize,
    /// Resting threads that have been called and have not answered yet.
    calls: usize,
}

impl<J> Threads<J> {
    /// No threads yet. `deques` are those of the spare threads.
    pub(super) fn new(deques: Vec<(usize, Deque<J>)>, stack_size: usize) -> Self {
        let counts = ThreadCounts {
            alive: 0,
            handles: Vec::new(),
            unowned: deques,
            blocked: 0,
            standing_in: 0,
            resting: 0,
            calls: 0,
        };
        Self {
            counts: Mutex::new(counts),
            called: Condvar::new(),
            left: Condvar::new(),
            surplus: AtomicBool::new(false),
            stack_size,
        }
    }

    pub(super) fn start(&self, name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.counts.lock().alive += 1;
        match thread::Builder::new().name(name).stack_size(self.stack_size).spawn(body) {
            Ok(handle) => {
                self.counts.lock().handles.push(handle);
                Ok(())
            }
            Err(error) => {
                self.note_thread_end();
                Err(error)
            }
        }
    }

    /// The calling thread is about to end.
    pub(super) fn note_thread_end(&self) {
        self.counts.lock().alive -= 1;
        self.left.notify_all();
    }

    /// A worker is about to block. Returns the deque on which a spare thread has to be started; `None` where
    /// a resting one was called, or the limit is reached.
    pub(super) fn block(&self) -> Option<(usize, Deque<J>)> {
        let mut counts = self.counts.lock();
        counts.blocked += 1;
        let mut unowned = None;
        if counts.standing_in >= counts.blocked {
            // A spare thread that has not retired yet goes on for this one.
        } else if counts.resting > counts.calls {
            counts.calls += 1;
            counts.standing_in += 1;
            self.called.notify_one();
        } else {
            unowned = counts.unowned.pop();
            counts.standing_in += usize::from(unowned.is_some());
        }
        self.note_surplus(&counts);
        unowned
    }

    /// The thread for which [`block`](Self::block) has asked could not be started. (Its deque is gone with
    /// it: empty, and one spare less.)
    pub(super) fn not_started(&self) {
        let mut counts = self.counts.lock();
        counts.standing_in -= 1;
        self.note_surplus(&counts);
    }

    pub(super) fn unblock(&self) {
        let mut counts = self.counts.lock();
        counts.blocked -= 1;
        self.note_surplus(&counts);
    }

    /// True if every thread that does not rest is inside of a blocking section, so that no thread takes a
    /// job.
    pub(super) fn are_all_blocked(&self) -> bool {
        let counts = self.counts.lock();
        counts.blocked > 0 && counts.alive - counts.resting <= counts.blocked
    }

    /// True if a spare thread should ask for [`Threads::rest`]. One load.
    pub(super) fn has_surplus(&self) -> bool {
        self.surplus.load(Ordering::Relaxed)
    }

    /// A spare thread retires if it is one too many, until it is called or `leaving` is true.
    pub(super) fn rest(&self, leaving: impl Fn() -> bool) {
        let mut counts = self.counts.lock();
        if counts.standing_in <= counts.blocked {
            return;
        }
        counts.standing_in -= 1;
        counts.resting += 1;
        self.note_surplus(&counts);
        while counts.calls == 0 && !leaving() {
            counts = self.called.wait(counts);
        }
        counts.resting -= 1;
        if counts.calls > 0 {
            counts.calls -= 1;
        } else {
            // Leaving: the thread goes through its loop once more as if it stood in.
            counts.standing_in += 1;
        }
    }

    /// The conditions under which spare threads rest have changed.
    pub(super) fn wake_all(&self) {
        drop(self.counts.lock());
        self.called.notify_all();
    }

    /// Waits until no thread is left; false if `timeout` passed first.
    pub(super) fn join(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (mut counts, have_left) =
            self.left.wait_while(self.counts.lock(), deadline, |counts| counts.alive > 0);
        if !have_left {
            return false;
        }
        let handles = std::mem::take(&mut counts.handles);
        drop(counts);
        // Each thread has left its loop and is ending. A panic was logged where it happened.
        handles.into_iter().for_each(|handle| drop(handle.join()));
        true
    }

    fn note_surplus(&self, counts: &ThreadCounts<J>) {
        self.surplus.store(counts.standing_in > counts.blocked, Ordering::Relaxed);
    }
}
