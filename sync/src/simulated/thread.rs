//! Shuttle's [`std::thread`], with timeouts that the clock of the execution ends, and threads that can be
//! refused.

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
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

/// Lets the system refuse one thread of this execution, after it has started `more`; with `None` it refuses
/// none.
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

    /// Has no effect: all threads of an execution have stacks of one size.
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

type Returned<T> = Arc<(Mutex<Option<T>>, Condvar)>;

/// As in `std`. Shuttle's own wakes the thread that has opened a scope when the last thread in it ends, even
/// if that thread waits for something else.
pub struct Scope<'scope, 'env: 'scope> {
    threads: RefCell<Vec<JoinHandle<()>>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

// SAFETY: the threads of an execution run on one thread of the system, and none is switched while the list is
// borrowed.
unsafe impl Sync for Scope<'_, '_> {}

debug_as!(_scope: Scope<'_, '_>, "Scope");

/// As in `std`.
pub fn scope<'env, F, T>(f: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let scope = Scope { threads: RefCell::default(), scope: PhantomData, env: PhantomData };
    let result = f(&scope);
    loop {
        let Some(thread) = scope.threads.borrow_mut().pop() else { return result };
        // A thread that panics fails the execution.
        let _ = thread.join();
    }
}

impl<'scope> Scope<'scope, '_> {
    /// As in `std`.
    pub fn spawn<F, T>(&'scope self, body: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let returned = Returned::<T>::default();
        let own = returned.clone();
        let body: Box<dyn FnOnce() + Send + 'scope> = Box::new(move || {
            let result = body();
            *own.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            own.1.notify_all();
        });
        // SAFETY: `scope` joins the thread before what the body borrows is gone. If it panics first, the
        // execution has failed, and none of its threads runs again.
        let body: Box<dyn FnOnce() + Send + 'static> = unsafe { std::mem::transmute(body) };
        self.threads.borrow_mut().push(shuttle::thread::spawn(body));
        ScopedJoinHandle { returned, scope: PhantomData }
    }
}

/// As in `std`.
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    returned: Returned<T>,
    scope: PhantomData<&'scope ()>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// As in `std`.
    ///
    /// # Errors
    /// Never: a thread that panics fails the execution.
    pub fn join(self) -> Result<T> {
        let mut returned = self.returned.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match returned.take() {
                Some(result) => return Ok(result),
                None => returned = self.returned.1.wait(returned).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}
