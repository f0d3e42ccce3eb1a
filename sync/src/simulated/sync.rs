//! Shuttle's [`std::sync`], with timeouts that the clock of the execution ends, and with [`OnceLock`].

use std::fmt;
use std::sync::OnceLock as Place;
use std::time::Duration;

pub use shuttle::sync::*;

use super::clock::{self, Sleeper, Timer};

/// A condition variable whose timeouts end by the clock of the execution. A timeout wakes all that wait, as
/// `std` allows.
#[derive(Default)]
pub struct Condvar {
    /// Shared with timers, which may notify when this is gone.
    inner: Place<Arc<shuttle::sync::Condvar>>,
}

/// True if the time was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// As in `std`.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// As in `std`.
    pub const fn new() -> Self {
        Self { inner: Place::new() }
    }

    fn inner(&self) -> &Arc<shuttle::sync::Condvar> {
        self.inner.get_or_init(Arc::default)
    }

    /// As in `std`.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.inner().wait(guard)
    }

    /// As in `std`. In an execution whose clock nothing moves, it waits until it is notified.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let timer =
            if clock::moves() { Timer::after(timeout, Sleeper::Waits(self.inner().clone())) } else { None };
        let over = |timer: &Option<Timer>| WaitTimeoutResult(timer.as_ref().is_some_and(Timer::is_over));
        match self.inner().wait(guard) {
            Ok(guard) => Ok((guard, over(&timer))),
            Err(poisoned) => Err(PoisonError::new((poisoned.into_inner(), over(&timer)))),
        }
    }

    /// As in `std`.
    pub fn notify_one(&self) {
        self.inner().notify_one();
    }

    /// As in `std`.
    pub fn notify_all(&self) {
        self.inner().notify_all();
    }
}

debug_as!(_condition: Condvar, "Condvar");

/// A cell that is written once. A thread that finds it being written waits as a thread of the execution.
pub struct OnceLock<T> {
    writing: Mutex<()>,
    place: Place<T>,
}

impl<T> OnceLock<T> {
    /// As in `std`.
    pub const fn new() -> Self {
        Self { writing: Mutex::new(()), place: Place::new() }
    }

    /// As in `std`.
    pub fn get(&self) -> Option<&T> {
        // Another thread may be about to write it.
        shuttle::thread::sleep(Duration::ZERO);
        self.place.get()
    }

    /// As in `std`.
    ///
    /// # Errors
    /// Returns `value` if there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.place.set(value)
    }

    /// As in `std`.
    pub fn get_or_init(&self, value: impl FnOnce() -> T) -> &T {
        if let Some(known) = self.get() {
            return known;
        }
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // No thread of this execution is switched inside of the cell: `value` runs before it.
        match self.place.get() {
            Some(known) => known,
            None => {
                let value = value();
                self.place.get_or_init(|| value)
            }
        }
    }

    /// As in `std`.
    pub fn into_inner(self) -> Option<T> {
        self.place.into_inner()
    }

    /// As in `std`.
    pub fn take(&mut self) -> Option<T> {
        self.place.take()
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone> Clone for OnceLock<T> {
    fn clone(&self) -> Self {
        Self { writing: Mutex::new(()), place: self.place.clone() }
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> Self {
        Self { writing: Mutex::new(()), place: Place::from(value) }
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.place, f)
    }
}
