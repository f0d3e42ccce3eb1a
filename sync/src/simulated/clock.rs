//! The clock of one execution, its timers, and the thread that moves it.
//!
//! All of it belongs to the thread of the system that the execution runs on, so plain cells hold it. Nothing
//! is borrowed while a thread of the execution may be switched.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::Condvar;
use shuttle::thread::Thread;

/// The time that each reading of the clock takes, so that a loop that waits for a time by reading the clock
/// ends.
const READ_TIME: Duration = Duration::from_micros(1);

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static TIMERS: RefCell<BTreeMap<Key, Sleeper>> = const { RefCell::new(BTreeMap::new()) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static MOVES: Cell<bool> = const { Cell::new(false) };
    static IDLE: Cell<bool> = const { Cell::new(false) };
}

type Key = (Duration, u64);

/// Threads that sleep until a time: one, or all that wait on a condition.
#[derive(Clone)]
pub(super) enum Sleeper {
    Parked(Thread),
    Waits(Arc<Condvar>),
}

impl Sleeper {
    fn wake(self) {
        match self {
            Self::Parked(thread) => thread.unpark(),
            Self::Waits(condvar) => condvar.notify_all(),
        }
    }
}

/// Begins an execution: the clock is at zero, and no timer is set.
pub fn reset() {
    NOW.set(Duration::ZERO);
    NEXT.set(0);
    TIMERS.with_borrow_mut(BTreeMap::clear);
    MOVES.set(false);
    IDLE.set(false);
}

/// Time since the execution began, without moving the clock.
pub fn elapsed() -> Duration {
    NOW.get()
}

/// Reads the clock, which moves it.
pub(super) fn read() -> Duration {
    NOW.set(NOW.get() + READ_TIME);
    NOW.get()
}

/// True if [`start`] has been called, so that a thread moves the clock of this execution.
pub(super) fn moves() -> bool {
    MOVES.get()
}

/// The scheduler's word that no other thread can go on.
pub(super) fn set_idle(idle: bool) {
    IDLE.set(idle);
}

/// Wakes a sleeper at a time, again and again until it is dropped: one that was only about to sleep may miss
/// the first call.
pub(super) struct Timer(Key);

impl Timer {
    /// Sets a timer; `None` when the time is beyond what a clock can say.
    pub(super) fn after(timeout: Duration, sleeper: Sleeper) -> Option<Self> {
        let key = (NOW.get().checked_add(timeout)?, NEXT.get());
        NEXT.set(NEXT.get() + 1);
        TIMERS.with_borrow_mut(|timers| timers.insert(key, sleeper));
        Some(Self(key))
    }

    pub(super) fn is_over(&self) -> bool {
        NOW.get() >= self.0.0
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // The handle that it holds has no destructor that calls anything.
        TIMERS.with_borrow_mut(|timers| timers.remove(&self.0));
    }
}

/// Starts the thread that moves the clock, for as long as the execution lasts. It must be the second one of
/// the execution: the first thing that the first one does.
///
/// When no thread can go on and no timer is set, it ends, and with it the execution as a deadlock. When the
/// clock passes `limit` it panics: something waits that nothing ends. `describe` says what is known then.
pub fn start(limit: Duration, describe: impl Fn() -> String + Send + 'static) {
    MOVES.set(true);
    drop(super::thread::daemon(shuttle::thread::spawn(move || run(limit, &describe))));
}

fn run(limit: Duration, describe: &dyn Fn() -> String) {
    loop {
        shuttle::thread::yield_now();
        let next = TIMERS.with_borrow(|timers| timers.first_key_value().map(|(key, _)| key.0));
        let Some(next) = next else {
            if IDLE.get() {
                // Without this thread shuttle sees the deadlock, and names the threads.
                println!("{}", describe());
                return;
            }
            continue;
        };
        if !IDLE.get() && next > NOW.get() + EARLY {
            // Time passes while others run, but not hours.
            continue;
        }
        NOW.set(NOW.get().max(next));
        assert!(
            NOW.get() < limit,
            "hang: after {limit:?} of simulated time something still waits\n{}",
            describe()
        );
        let due: Vec<Sleeper> = TIMERS.with_borrow(|timers| {
            timers.range(..=(NOW.get(), u64::MAX)).map(|(_, sleeper)| sleeper.clone()).collect()
        });
        due.into_iter().for_each(Sleeper::wake);
    }
}

/// The greatest step of the clock while threads can go on: more than the pauses of threads that look now and
/// then, less than the timeouts of leases.
const EARLY: Duration = Duration::from_millis(50);
