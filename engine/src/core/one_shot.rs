//! A value set once, for any number of waiters: threads that block and tasks that await.

use std::task::{Context, Poll, Waker};

use estafette_devices::log_panic;
use estafette_sync::process::Generation;
use estafette_sync::sync::{Condvar, Mutex, MutexGuard};
use estafette_sync::time::Instant;

use crate::core::error::{Error, OperationError};
use crate::core::wakers::{WakerKey, Wakers};

/// The outcome of a readiness query.
pub(crate) type ReadyOneShot = OneShot<Result<(), Error>>;

/// A value that a one-shot delivers.
pub(crate) trait Delivered {
    /// The program gets this value: a failure in the value is retrieved.
    fn retrieve(&self);
}

impl Delivered for () {
    fn retrieve(&self) {}
}

impl Delivered for Result<(), OperationError> {
    fn retrieve(&self) {
        if let Err(failure) = self {
            failure.fate().retrieve();
        }
    }
}

impl Delivered for Result<(), Error> {
    fn retrieve(&self) {
        if let Err(error) = self {
            error.retrieve();
        }
    }
}

/// A value that is set at most once. The first value stands, and every waiter gets a clone.
///
/// Wakers are called after the lock is released, since they are foreign code.
pub(crate) struct OneShot<V> {
    inner: Mutex<OneShotState<V>>,
    changed: Condvar,
    generation: Generation,
}

struct OneShotState<V> {
    value: Option<V>,
    wakers: Wakers,
    sleepers: usize,
}

impl<V: Clone + Delivered> OneShot<V> {
    pub(crate) fn new() -> Self {
        Self {
            inner: Mutex::new(OneShotState { value: None, wakers: Wakers::default(), sleepers: 0 }),
            changed: Condvar::new(),
            generation: Generation::current(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, OneShotState<V>> {
        // A panic under this lock is impossible: nothing foreign runs under it.
        self.inner.lock()
    }

    /// Sets the value. Returns false when the value was already set.
    pub(crate) fn set(&self, value: V) -> bool {
        let mut inner = self.lock();
        if inner.value.is_some() {
            return false;
        }
        inner.value = Some(value);
        let wakers = inner.wakers.take();
        let sleepers = inner.sleepers;
        drop(inner);
        if sleepers > 0 {
            self.changed.notify_all();
        }
        wakers.wake();
        true
    }

    /// The value for the program, if the value is set. From now on a failure in the value is retrieved, as
    /// with the following functions.
    pub(crate) fn get(&self) -> Option<V> {
        self.lock().value.clone().map(retrieved)
    }

    pub(crate) fn has_value(&self) -> bool {
        self.lock().value.is_some()
    }

    /// The value if the value is set. A failure in the value stays unretrieved.
    pub(crate) fn glance(&self) -> Option<V> {
        self.lock().value.clone()
    }

    /// Polls for the value with the future's `key`. The future [takes its waker out](Self::forget) when it is
    /// dropped.
    pub(crate) fn poll(&self, cx: &mut Context<'_>, key: &mut WakerKey) -> Poll<V> {
        self.peek(cx, key).map(retrieved)
    }

    /// As [`poll`](Self::poll), for a one-shot that one future alone polls and owns.
    pub(crate) fn poll_alone(&self, cx: &mut Context<'_>) -> Poll<V> {
        self.poll(cx, &mut WakerKey::alone())
    }

    /// As [`poll`](Self::poll), for the engine's own use: a failure in the value stays unretrieved.
    pub(crate) fn peek(&self, cx: &mut Context<'_>, key: &mut WakerKey) -> Poll<V> {
        {
            let inner = self.lock();
            if let Some(value) = &inner.value {
                return Poll::Ready(value.clone());
            }
            if inner.wakers.has(key, cx.waker()) {
                return Poll::Pending;
            }
        }
        // Cloning and dropping a waker is foreign code.
        let waker = cx.waker().clone();
        let mut inner = self.lock();
        if let Some(value) = inner.value.clone() {
            drop(inner);
            return Poll::Ready(value);
        }
        let replaced = inner.wakers.put(key, waker);
        drop(inner);
        drop(replaced);
        Poll::Pending
    }

    /// As [`peek`](Self::peek), without the value.
    pub(crate) fn is_set(&self, cx: &mut Context<'_>, key: &mut WakerKey) -> bool {
        self.peek(cx, key).is_ready()
    }

    /// Removes the waker of a future that no longer waits.
    pub(crate) fn forget(&self, key: &mut WakerKey) {
        let Some(key) = key.take_used(self.generation) else { return };
        let removed = self.lock().wakers.remove(&key);
        drop(removed);
    }

    /// Blocks the thread until the value is set or `deadline` has passed.
    pub(crate) fn wait_until(&self, deadline: Option<Instant>) -> Option<V> {
        let mut inner = self.lock();
        inner.sleepers += 1;
        (inner, _) = self.changed.wait_while(inner, deadline, |inner| inner.value.is_none());
        let value = inner.value.clone();
        inner.sleepers -= 1;
        drop(inner);
        value.map(retrieved)
    }
}

/// A value on its way to the program.
fn retrieved<V: Delivered>(value: V) -> V {
    value.retrieve();
    value
}

/// Wakes a task. Wakers are foreign code: a waker that panics must not keep other tasks from being woken, nor
/// the engine from continuing.
pub(crate) fn wake(waker: Waker) {
    log_panic("a waker", || waker.wake());
}

impl<V> std::fmt::Debug for OneShot<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OneShot").finish_non_exhaustive()
    }
}
