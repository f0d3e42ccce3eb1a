//! Shuttle's [`std::thread`], with timeouts that the clock of the execution ends, and threads that can be refused.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use shuttle::scheduler::TaskId;
pub use shuttle::thread::*;
use shuttle_engine::runtime::execution::ExecutionState;

pub use super::local::LocalKey;

use super::clock::{self, Sleeper, Timer};
use super::sync::{Condvar, Mutex, PoisonError};
use super::time::Instant;

/// As in `std`. In an execution whose clock nothing moves it is a switch.
pub fn sleep(duration: Duration) {
    if !clock::moves() {
        return shuttle::thread::sleep(duration);
    }
    let (end, place, condvar) = (Instant::now() + duration, Mutex::new(()), Condvar::new());
    let mut guard = place.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        guard = condvar.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// As in `std`. In an execution whose clock nothing moves, it parks.
pub fn park_timeout(timeout: Duration) {
    let timer = if clock::moves() { Timer::after(timeout, Sleeper::Parked(current())) } else { None };
    park();
    drop(timer);
}

/// Marks a thread that lives as long as the process: the execution does not wait for its end.
pub fn daemon<T>(thread: JoinHandle<T>) -> JoinHandle<T> {
    let task = TaskId::from(usize::from(thread.thread().id()));
    ExecutionState::with(|state| state.detach(task));
    thread
}

thread_local! {
    /// Threads that will be started before one is refused.
    static UNTIL_REFUSED: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Lets the system refuse one thread of this execution, after it has started `more`; with `None` it refuses none.
pub fn refuse_one_after(more: Option<u32>) {
    UNTIL_REFUSED.set(more);
}

/// As in `std`.
#[derive(Debug, Default)]
pub struct Builder(shuttle::thread::Builder);

impl Builder {
    /// As in `std`.
    pub fn new() -> Self {
        Self::default()
    }

    /// As in `std`.
    pub fn name(self, name: String) -> Self {
        Self(self.0.name(name))
    }

    /// The size is noted by nobody: all threads of an execution have stacks of one size.
    pub fn stack_size(self, _bytes: usize) -> Self {
        self
    }

    /// As in `std`.
    ///
    /// # Errors
    /// When [`refuse_one_after`] says so.
    pub fn spawn<F, T>(self, body: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        match UNTIL_REFUSED.get() {
            Some(0) => {
                UNTIL_REFUSED.set(None);
                return Err(io::Error::other("the simulation refuses this thread"));
            }
            Some(more) => UNTIL_REFUSED.set(Some(more - 1)),
            None => {}
        }
        self.0.spawn(body)
    }
}
