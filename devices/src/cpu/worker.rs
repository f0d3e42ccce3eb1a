//! The loop of one thread of the pool.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crossbeam::deque::Worker as Deque;
use estafette_sync::thread_local;
use estafette_sync::{hint, thread};

use crate::guarded::guarded;

use super::pool::{Job, Pool, Shared};
use super::sleep::Parker;

/// Rounds of looking for work with a busy pause between them, before yielding. A job that is pushed while a worker
/// spins starts in a fraction of a microsecond; waking a sleeper takes fifteen or more. (Models sleep at once, since
/// falling asleep is what they look at.)
const SPIN_ROUNDS: u32 = if cfg!(estafette_shuttle) { 1 } else { 32 };
/// Rounds with a yield between them, before sleeping. On two cores the submitting thread may need ours.
const YIELD_ROUNDS: u32 = if cfg!(estafette_shuttle) { 0 } else { 16 };
/// Busy pauses in one round of spinning.
const SPIN_PAUSES: u32 = 16;

/// What a thread of a pool has of its own.
pub(super) struct Context<J: Job> {
    pub(super) shared: Arc<Shared<J>>,
    pub(super) deque: Deque<J>,
    /// Nested blocking sections; only the outermost is covered.
    pub(super) blocking_depth: Cell<usize>,
    index: usize,
    parker: Arc<Parker>,
    ticks: Cell<u32>,
}

thread_local! {
    /// The context of this thread, if it belongs to a pool.
    static CURRENT: RefCell<Option<Rc<dyn Any>>> = const { RefCell::new(None) };
}

/// The body of a thread that owns deque number `index`.
pub(super) fn run<J: Job>(shared: Arc<Shared<J>>, index: usize, deque: Deque<J>) {
    let context = Rc::new(Context {
        shared,
        deque,
        blocking_depth: Cell::new(0),
        index,
        parker: Default::default(),
        ticks: Cell::new(0),
    });
    CURRENT.with(|current| *current.borrow_mut() = Some(context.clone()));
    let pool = Pool::uncounted(context.shared.clone());
    while let Some(job) = context.next() {
        guarded("a job", || job.run(&pool));
    }
    drop(pool);
    CURRENT.with(|current| current.borrow_mut().take());
    context.hand_over();
    context.shared.crew.leave();
}

/// Calls `f` with the context of this thread if the thread works for the pool `shared`.
pub(super) fn with_context<J: Job, R>(
    shared: &Arc<Shared<J>>,
    f: impl FnOnce(&Context<J>) -> R,
) -> Option<R> {
    let in_context = |current: &RefCell<Option<Rc<dyn Any>>>| {
        // Borrowed while `f` runs: it may look here again, and only the ends of a thread change what is here.
        let current = current.borrow();
        let context = current.as_ref()?.downcast_ref::<Context<J>>()?;
        Arc::ptr_eq(&context.shared, shared).then(|| f(context))
    };
    CURRENT.try_with(in_context).ok().flatten()
}

impl<J: Job> Context<J> {
    /// The next job; sleeps until there is one. `None` when it is time to leave.
    fn next(&self) -> Option<J> {
        self.ticks.set(self.ticks.get().wrapping_add(1));
        self.rest_if_surplus();
        if self.shared.is_shut_down() {
            return None;
        }
        self.take().or_else(|| self.search())
    }

    /// Looks for a job in turns, sleeps when there is none, and begins again.
    fn search(&self) -> Option<J> {
        let shared = &self.shared;
        let has_work = || shared.queues.has_work();
        shared.sleep.start_searching();
        loop {
            for round in 0..SPIN_ROUNDS + YIELD_ROUNDS {
                if let Some(job) = self.take_unless_shut_down() {
                    shared.sleep.stop_searching(has_work);
                    return Some(job);
                }
                if self.must_leave() {
                    shared.sleep.stop_searching(has_work);
                    return None;
                }
                pause(round);
            }
            if self.is_spare() && shared.crew.has_surplus() {
                // A wake-up that reached this thread may have been meant for a job: it is passed on.
                shared.sleep.stop_searching(has_work);
                self.rest_if_surplus();
                shared.sleep.start_searching();
                continue;
            }
            shared.sleep.sleep(&self.parker, || has_work() || shared.is_shut_down() || shared.is_abandoned());
        }
    }

    fn take(&self) -> Option<J> {
        self.shared.queues.take(self.index, &self.deque, self.ticks.get())
    }

    fn take_unless_shut_down(&self) -> Option<J> {
        if self.shared.is_shut_down() { None } else { self.take() }
    }

    /// Whether there is nothing left for this thread to do, ever.
    fn must_leave(&self) -> bool {
        self.shared.is_shut_down() || (self.shared.is_abandoned() && !self.shared.queues.has_work())
    }

    fn is_spare(&self) -> bool {
        self.index >= self.shared.workers
    }

    /// A spare thread whose worker is back rests. Its jobs go to everybody first, since a resting thread runs none.
    fn rest_if_surplus(&self) {
        let crew = &self.shared.crew;
        if self.is_spare() && crew.has_surplus() {
            self.hand_over();
            crew.rest(|| self.shared.is_shut_down() || self.shared.is_abandoned());
        }
    }

    /// Gives the jobs of the own deque to everybody.
    fn hand_over(&self) {
        self.shared.share(&self.deque);
    }
}

fn pause(round: u32) {
    if round < SPIN_ROUNDS {
        (0..SPIN_PAUSES).for_each(|_| hint::spin_loop());
    } else {
        thread::yield_now();
    }
}
