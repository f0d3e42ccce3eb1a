//! `await` on asyncio's event loops, for futures of the engine.
//!
//! An [`Awaiter`] is the iterator behind `__await__`. What is done already ends it in its first step, without a turn of
//! the loop. Otherwise:
//!
//! 1. The engine's future is polled on the loop's thread; pending, it keeps a waker, which is a [`Waiter`].
//! 2. The awaiter makes one asyncio future, leaves it in the waiter, and suspends the task on it.
//! 3. The engine wakes the waiter from any thread. The asyncio future moves to the loop's [`Wakeups`]; the first one there
//!    makes the loop call `drain` by `call_soon_threadsafe`, all others until then cost no Python call.
//! 4. `drain` finishes the asyncio futures, which resumes their tasks, and each polls again.
//!
//! A wake-up that comes between 1 and 2 leaves a mark in the waiter, which makes the awaiter poll again instead of
//! suspending. Cancelling takes the asyncio future out of the waiter, so that nothing of Python stays behind in the engine.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use estafette_sync::sync::{Mutex, MutexGuard};
use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::engine::EngineHandle;
use crate::{gate, running_loop};

/// Turns the outcome of a future into Python, with the Python lock.
pub type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Work = Pin<Box<dyn Future<Output = Finish> + Send>>;

/// What `await` iterates over. Each `__await__` makes a new one.
#[pyclass(module = "estafette._estafette", name = "_Awaiter")]
pub struct Awaiter {
    state: State,
    waiter: Option<Arc<Waiter>>,
    /// Iterator of the asyncio future that the task is suspended on.
    suspended: Option<Py<PyAny>>,
    /// For looking at why a wait takes so long.
    engine: Option<EngineHandle>,
    timer: Option<Py<PyAny>>,
}

enum State {
    Done(Option<PyResult<Py<PyAny>>>),
    Pending(Mutex<Work>),
}

impl Awaiter {
    /// Ends in its first step.
    pub fn done(outcome: PyResult<Py<PyAny>>) -> Self {
        Self { state: State::Done(Some(outcome)), waiter: None, suspended: None, engine: None, timer: None }
    }

    /// Waits for `future`, which is not polled before the first step.
    pub fn pending(
        engine: Option<EngineHandle>,
        future: impl Future<Output = Finish> + Send + 'static,
    ) -> Self {
        let state = State::Pending(Mutex::new(Box::pin(future)));
        Self { state, waiter: None, suspended: None, engine, timer: None }
    }

    fn step<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // Polls again at most once when the wake-up comes before the task is suspended; if that happens again, the loop gets
        // a turn first, as it would after a bare `yield`.
        for _ in 0..2 {
            if let Some(suspended) = &self.suspended {
                // Yields the asyncio future once, then ends with its result, or raises.
                match suspended.bind(py).call_method0(intern!(py, "__next__")) {
                    Ok(future) => return Ok(future),
                    Err(error) if error.is_instance_of::<PyStopIteration>(py) => self.suspended = None,
                    Err(error) => {
                        self.abandon(py);
                        return Err(error);
                    }
                }
            }
            let outcome = match &mut self.state {
                State::Done(outcome) => Poll::Ready(outcome.take()),
                State::Pending(work) => {
                    let waiter = self.waiter.get_or_insert_with(Arc::default);
                    let waker = Waker::from(Arc::clone(waiter));
                    let work = work.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
                    work.as_mut().poll(&mut Context::from_waker(&waker)).map(|finish| Some(finish(py)))
                }
            };
            match outcome {
                Poll::Ready(outcome) => {
                    self.abandon(py);
                    let outcome = outcome.unwrap_or_else(|| {
                        Err(PyRuntimeError::new_err("cannot reuse an already awaited object"))
                    });
                    return Err(match outcome {
                        Ok(value) => PyStopIteration::new_err((value,)),
                        Err(error) => error,
                    });
                }
                Poll::Pending => {
                    self.suspend(py)?;
                    if let Some(suspended) = &self.suspended {
                        return suspended.bind(py).call_method0(intern!(py, "__next__"));
                    }
                }
            }
        }
        Ok(py.None().into_bound(py))
    }

    /// Leaves an asyncio future to be finished by the wake-up, unless that has come already.
    fn suspend(&mut self, py: Python<'_>) -> PyResult<()> {
        let running = running_loop::get(py)?
            .ok_or_else(|| PyRuntimeError::new_err("`await` needs a running asyncio event loop"))?;
        let future = running.call_method0(intern!(py, "create_future"))?;
        let Some(waiter) = &self.waiter else { return Ok(()) };
        let target = Target { wakeups: Wakeups::of(&running)?, future: future.clone().unbind() };
        if waiter.expect(target) {
            self.suspended = Some(future.call_method0(intern!(py, "__await__"))?.unbind());
        }
        if self.timer.is_none()
            && let Some(engine) = &self.engine
        {
            self.timer = Some(engine.watch_wait(&running)?);
        }
        Ok(())
    }

    /// Ends the waiting, not the work.
    fn abandon(&mut self, py: Python<'_>) {
        self.state = State::Done(None);
        self.suspended = None;
        if let Some(waiter) = self.waiter.take() {
            drop(waiter.forget());
        }
        if let Some(timer) = self.timer.take()
            && let Err(error) = timer.bind(py).call_method0(intern!(py, "cancel"))
        {
            error.write_unraisable(py, None);
        }
    }
}

impl Drop for Awaiter {
    fn drop(&mut self) {
        // The waker in the engine may outlive this by far; what it would wake must not.
        if let Some(waiter) = self.waiter.take() {
            drop(waiter.forget());
        }
    }
}

#[pymethods]
impl Awaiter {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __await__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.step(py)
    }

    fn send<'py>(&mut self, py: Python<'py>, _value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.step(py)
    }

    #[pyo3(signature = (kind, value = None, traceback = None))]
    fn throw(
        &mut self,
        py: Python<'_>,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.abandon(py);
        let error = match value {
            Some(value) if value.is_instance_of::<pyo3::exceptions::PyBaseException>() => value,
            Some(value) => kind.call1((value,))?,
            None if kind.is_instance_of::<pyo3::types::PyType>() => kind.call0()?,
            None => kind,
        };
        if let Some(traceback) = traceback {
            error.call_method1(intern!(py, "with_traceback"), (traceback,))?;
        }
        Err(PyErr::from_value(error))
    }

    fn close(&mut self, py: Python<'_>) {
        self.abandon(py);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.suspended)?;
        visit.call(&self.timer)
    }

    fn __clear__(&mut self) {
        self.suspended = None;
        self.timer = None;
    }
}

/// The engine's end of an `await`: a waker.
#[derive(Default)]
struct Waiter {
    slot: Mutex<Slot>,
}

#[derive(Default)]
enum Slot {
    /// Nobody is suspended yet.
    #[default]
    Idle,
    /// Woken while nobody was suspended: whoever is about to must poll again instead.
    Woken,
    Expected(Target),
}

struct Target {
    wakeups: Py<Wakeups>,
    future: Py<PyAny>,
}

impl Waiter {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// False when the wake-up has come in between.
    fn expect(&self, target: Target) -> bool {
        let mut slot = self.slot();
        let woken = matches!(*slot, Slot::Woken);
        let before = std::mem::replace(&mut *slot, if woken { Slot::Idle } else { Slot::Expected(target) });
        drop(slot);
        // What was there may be the last reference to Python objects, and those go without a lock held.
        drop(before);
        !woken
    }

    fn forget(&self) -> Slot {
        std::mem::take(&mut *self.slot())
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut slot = self.slot();
        let after = if matches!(*slot, Slot::Expected(_)) { Slot::Idle } else { Slot::Woken };
        let before = std::mem::replace(&mut *slot, after);
        drop(slot);
        if let Slot::Expected(target) = before {
            target.wakeups.get().push(&target.wakeups, target.future);
        }
    }
}

/// The asyncio futures of one event loop that are to be finished, so that any number of wake-ups costs one call into
/// Python.
#[pyclass(frozen, module = "estafette._estafette", name = "_Wakeups")]
pub struct Wakeups {
    /// A weak reference: the loop's entry in the registry must not keep the loop.
    event_loop: Py<PyAny>,
    futures: Mutex<Vec<Py<PyAny>>>,
}

impl Wakeups {
    /// The one of this event loop.
    fn of(event_loop: &Bound<'_, PyAny>) -> PyResult<Py<Self>> {
        static LOOPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = event_loop.py();
        let weakref = py.import("weakref")?;
        let loops = LOOPS
            .get_or_try_init(py, || weakref.call_method0("WeakKeyDictionary").map(Bound::unbind))?
            .bind(py);
        if let Ok(known) = loops.get_item(event_loop) {
            return Ok(known.cast_into::<Self>()?.unbind());
        }
        let reference = weakref.call_method1(intern!(py, "ref"), (event_loop,))?.unbind();
        let made = Bound::new(py, Self { event_loop: reference, futures: Mutex::new(Vec::new()) })?;
        loops.set_item(event_loop, &made)?;
        Ok(made.unbind())
    }

    /// From any thread, holding no lock.
    fn push(&self, this: &Py<Self>, future: Py<PyAny>) {
        let mut futures = self.futures.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        futures.push(future);
        let first = futures.len() == 1;
        drop(futures);
        if first {
            // A loop that was closed wakes nobody; that its tasks are never resumed is its owner's doing.
            let _ = gate::attach(|py| self.call_drain(py, this));
        }
    }

    fn call_drain(&self, py: Python<'_>, this: &Py<Self>) -> PyResult<()> {
        let event_loop = self.event_loop.bind(py).call0()?;
        if event_loop.is_none() || event_loop.call_method0(intern!(py, "is_closed"))?.is_truthy()? {
            drop(self.take());
            return Ok(());
        }
        let called =
            event_loop.call_method1(intern!(py, "call_soon_threadsafe"), (this.bind(py).getattr("drain")?,));
        if called.is_err() {
            drop(self.take());
        }
        called.map(drop)
    }

    fn take(&self) -> Vec<Py<PyAny>> {
        std::mem::take(&mut *self.futures.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

#[pymethods]
impl Wakeups {
    /// Finishes the futures; called by the loop on its own thread.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        for future in self.take() {
            let future = future.bind(py);
            if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
                future.call_method1(intern!(py, "set_result"), (py.None(),))?;
            }
        }
        Ok(())
    }
}
