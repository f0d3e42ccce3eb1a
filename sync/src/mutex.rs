//! A mutex and a condition variable without poison.
//!
//! A panic in foreign code under a lock is contained where that code is called, and the project's own code
//! leaves what a lock guards whole. So a lock is taken whether or not a thread has panicked under it.

use std::fmt;
use std::sync::{LockResult, PoisonError, TryLockError};

#[cfg(estafette_loom)]
use loom::sync as raw;
#[cfg(not(any(estafette_loom, estafette_shuttle)))]
use std::sync as raw;

#[cfg(estafette_shuttle)]
use crate::simulated::sync as raw;

use crate::time::{Duration, Instant};

pub use raw::{MutexGuard, WaitTimeoutResult};

/// Mutual exclusion. A thread that panics under the lock leaves it free.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(raw::Mutex<T>);

/// A condition variable for the [`Mutex`] of this module.
#[derive(Debug, Default)]
pub struct Condvar(raw::Condvar);

#[inline]
fn ignore_poison<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

impl<T> Mutex<T> {
    crate::const_fn! {
        /// A free lock around `value`.
        pub fn new(value: T) -> Self {
            Self(raw::Mutex::new(value))
        }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        ignore_poison(self.0.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        ignore_poison(self.0.lock())
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the value, which no other thread can reach.
    pub fn get_mut(&mut self) -> &mut T {
        ignore_poison(self.0.get_mut())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Condvar {
    crate::const_fn! {
        /// A condition variable that no thread waits for.
        pub fn new() -> Self {
            Self(raw::Condvar::new())
        }
    }

    /// Releases the lock, waits for a notification, and takes the lock again.
    #[inline]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        ignore_poison(self.0.wait(guard))
    }

    /// As [`wait`](Self::wait), for `timeout` at most.
    #[inline]
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        ignore_poison(self.0.wait_timeout(guard, timeout))
    }

    /// Waits while `condition` is true, until `deadline` at most, if there is one. Returns false if the
    /// condition was still true then.
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        deadline: Option<Instant>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        while condition(&mut guard) {
            guard = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.wait(guard),
                Some(Duration::ZERO) => return (guard, false),
                Some(left) => self.wait_timeout(guard, left).0,
            };
        }
        (guard, true)
    }

    /// Wakes one waiting thread.
    #[inline]
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes every waiting thread.
    #[inline]
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
