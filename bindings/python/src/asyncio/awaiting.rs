//! `await` on asyncio's event loops, for futures of the engine.
//!
//! An [`Awaiter`] is the iterator behind `__await__`. What is done already ends it in its first step, without
//! a turn of the loop. Otherwise:
//!
//! 1. The engine's future is polled on the loop's thread; pending, it keeps a waker, which is an
//!    [`AwaitWaker`].
//! 2. The awaiter makes an [`AsyncioFuture`], leaves it with the loop's [`Wakeups`] under a number, leaves
//!    that number in the waiter, and suspends the task on it.
//! 3. The engine wakes the waiter from any thread. The number goes to the loop's [`Inbox`]; the first one
//!    there makes the loop call `drain` by `call_soon_threadsafe`, all others until then cost no Python call.
//! 4. `drain` finishes the suspensions, which resumes their tasks there and then, and each polls again. With
//!    several to finish it has the loop call it once more, by `call_soon`.
//!
//! A wake-up that comes between 1 and 2 leaves a mark in the waiter, which makes the awaiter poll again
//! instead of suspending. Before each poll the waiter forgets its number: a driver other than asyncio may
//! resume a coroutine although its future was never finished, and a wake-up for the new poll must not go to
//! the old future.
//!
//! A suspended task is held by nothing but its future, and that by the loop, through the `Wakeups` that are
//! an attribute of it. The engine knows numbers only: a loop that is dropped takes its tasks along, however
//! long the work that they wait for takes.

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use estafette::Scope;
use estafette::bindings;
use estafette_sync::panic::contain_panic;
use estafette_sync::sync::{Mutex, OnceLock};
use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyWeakrefReference;

use crate::asyncio::asyncio_future::AsyncioFuture;
use crate::asyncio::{running_loop, stopped_loop};
use crate::classes::promise::WAITS;
use crate::error::show_failed;
use crate::interpreter::once::intern;
use crate::interpreter::{guard, interrupt};
use crate::submission::scope;

/// Turns the outcome of a future into Python, with the Python lock.
type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type AwaitFuture = Pin<Box<dyn Future<Output = Finish> + Send>>;

/// The iterator of `await`. Each `__await__` makes a new one.
#[pyclass(module = "estafette._estafette", name = "_Awaiter")]
pub struct Awaiter {
    state: AwaitState,
    waiter: Option<Arc<AwaitWaker>>,
    /// The future that the task is suspended on.
    suspended: Option<Py<AsyncioFuture>>,
    /// The list that keeps that future, and the future's number in the list.
    left: Option<(Py<Wakeups>, u64)>,
    /// The operation that it is polled as.
    scope: Option<Scope>,
    /// The method that made the awaiter, as long as nothing is submitted; `None` where a drop of the awaiter
    /// loses nothing.
    unawaited: Option<&'static str>,
}

enum AwaitState {
    Done(Option<PyResult<Py<PyAny>>>),
    Pending(Mutex<AwaitFuture>),
}

impl Awaiter {
    /// Ends in its first step.
    pub fn done(outcome: PyResult<Py<PyAny>>) -> Self {
        Self::new(AwaitState::Done(Some(outcome)))
    }

    /// Waits for `future`, which is not polled before the first step. `finish` turns its output into Python.
    pub fn pending<T: Send + 'static>(
        future: impl Future<Output = T> + Send + 'static,
        finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let work = async move {
            let output = future.await;
            Box::new(move |py: Python<'_>| finish(py, output)) as _
        };
        Self::new(AwaitState::Pending(Mutex::new(Box::pin(work))))
    }

    /// As [`pending`](Self::pending). In an operation `future` is polled now: that poll finds a wait of the
    /// operation for itself.
    pub fn polled<T: Send + 'static>(
        py: Python<'_>,
        mut future: impl Future<Output = T> + Send + Unpin + 'static,
        finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Self> {
        Ok(match scope::poll_within(py, &mut future)? {
            Some(output) => Self::done(finish(py, output)),
            None => Self::pending(future, finish),
        })
    }

    /// The awaiter is polled as the operation whose body the calling code belongs to.
    pub fn within(mut self, py: Python<'_>) -> PyResult<Self> {
        self.scope = scope::current_scope(py)?.map(|scope| scope.get().scope().clone());
        Ok(self)
    }

    /// As [`within`](Self::within), for `method`, which submits: the awaiter warns where it is dropped and
    /// was never awaited, as coroutines do.
    pub fn submits(self, py: Python<'_>, method: &'static str) -> PyResult<Self> {
        let mut awaiter = self.within(py)?;
        awaiter.unawaited = Some(method);
        Ok(awaiter)
    }

    fn new(state: AwaitState) -> Self {
        Self { state, waiter: None, suspended: None, left: None, scope: None, unawaited: None }
    }

    fn step<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.unawaited = None;
        // Polls again at most once when the wake-up comes before the task is suspended; if that happens
        // again, the loop gets a turn first, as it would after a bare `yield`.
        for _ in 0..2 {
            let suspended = self.suspended.take().filter(|suspended| !suspended.get().is_over());
            if let (Some(suspended), Some(waiter)) = (&suspended, &self.waiter)
                && waiter.is_expecting()
            {
                // Resumed without a wake-up.
                return Ok(self.suspend_again(py, suspended.clone_ref(py)));
            }
            let outcome = match &mut self.state {
                AwaitState::Done(outcome) => Poll::Ready(outcome.take()),
                AwaitState::Pending(work) => {
                    let waiter = self.waiter.get_or_insert_with(Arc::default);
                    waiter.forget();
                    let waker = Waker::from(Arc::clone(waiter));
                    let work = work.get_mut();
                    let mut poll = || work.as_mut().poll(&mut Context::from_waker(&waker));
                    let polled = match &self.scope {
                        Some(scope) => bindings::scope::make_current(scope, poll),
                        None => poll(),
                    };
                    polled.map(|finish| Some(finish(py)))
                }
            };
            match outcome {
                Poll::Ready(outcome) => {
                    self.abandon();
                    let outcome = outcome.unwrap_or_else(|| {
                        Err(PyRuntimeError::new_err("cannot reuse an already awaited object"))
                    });
                    return Err(match outcome {
                        Ok(value) => PyStopIteration::new_err((value,)),
                        Err(error) => error,
                    });
                }
                Poll::Pending => {
                    if let Some(suspended) = suspended {
                        // The loop has its number and is about to finish it.
                        return Ok(self.suspend_again(py, suspended));
                    }
                    self.suspend(py)?;
                    if let Some(suspended) = &self.suspended {
                        return Ok(suspended.bind(py).clone().into_any());
                    }
                }
            }
        }
        Ok(py.None().into_bound(py))
    }

    /// Leaves an asyncio future to be finished by the wake-up, unless the wake-up was delivered already.
    fn suspend(&mut self, py: Python<'_>) -> PyResult<()> {
        let running = running_loop::get(py)?
            .ok_or_else(|| PyRuntimeError::new_err(
                    "`await` needs a running asyncio event loop, and other kinds of loops are not known; wait in a thread there: \
                     `await trio.to_thread.run_sync(t.wait)`"))?;
        let Some(waiter) = &self.waiter else { return Ok(()) };
        estafette::bindings::on_event_loop();
        let future = AsyncioFuture::new(&running)?;
        let wakeups = Wakeups::of(&running)?;
        let number = wakeups.get().register(future.clone_ref(py));
        let target = AwaitTarget { inbox: Arc::clone(&wakeups.get().inbox), number };
        let before = self.left.replace((wakeups, number));
        forget(before);
        if waiter.expect(target) {
            self.suspended = Some(future);
        }
        Ok(())
    }

    /// Yields an asyncio future that is not over once more.
    fn suspend_again<'py>(&mut self, py: Python<'py>, suspended: Py<AsyncioFuture>) -> Bound<'py, PyAny> {
        suspended.get().block();
        self.suspended.insert(suspended).bind(py).clone().into_any()
    }

    /// Ends the waiting, not the work.
    fn abandon(&mut self) {
        self.unawaited = None;
        self.state = AwaitState::Done(None);
        self.suspended = None;
        if let Some(waiter) = self.waiter.take() {
            waiter.forget();
        }
        forget(self.left.take());
    }
}

impl Drop for Awaiter {
    fn drop(&mut self) {
        if let Some(method) = self.unawaited {
            guard::attach(|py| warn_of_unawaited(py, method));
        }
        // The waker in the engine may outlive this by far; what it would wake must not.
        if let Some(waiter) = self.waiter.take() {
            waiter.forget();
        }
        forget(self.left.take());
    }
}

/// Warns that `method` was never awaited.
fn warn_of_unawaited(py: Python<'_>, method: &str) {
    let message = CString::new(format!("'{method}' was never awaited")).expect("names have no zeros");
    show_failed(py, PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &message, 1));
}

/// Takes an asyncio future back that no task waits for any more.
fn forget(left: Option<(Py<Wakeups>, u64)>) {
    if let Some((wakeups, number)) = left {
        drop(wakeups.get().take_back(number));
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
        self.abandon();
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

    fn close(&mut self) {
        self.abandon();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.suspended)?;
        if let Some((wakeups, _)) = &self.left {
            visit.call(wakeups)?;
        }
        Ok(())
    }

    fn __clear__(&mut self) {
        self.suspended = None;
        forget(self.left.take());
    }
}

/// The engine's end of an `await`: a waker.
#[derive(Default)]
struct AwaitWaker {
    slot: Mutex<WakerSlot>,
}

#[derive(Default)]
enum WakerSlot {
    /// No task is suspended yet.
    #[default]
    Idle,
    /// Woken while no task was suspended: a task that is about to suspend must poll again instead.
    Woken,
    Expected(AwaitTarget),
}

/// An asyncio future, by the number that its loop keeps it under.
struct AwaitTarget {
    inbox: Arc<Inbox>,
    number: u64,
}

impl AwaitWaker {
    /// False when the wake-up has come in between.
    fn expect(&self, target: AwaitTarget) -> bool {
        let mut slot = self.slot.lock();
        let woken = matches!(*slot, WakerSlot::Woken);
        *slot = if woken { WakerSlot::Idle } else { WakerSlot::Expected(target) };
        !woken
    }

    /// True if an asyncio future waits for the wake-up.
    fn is_expecting(&self) -> bool {
        matches!(*self.slot.lock(), WakerSlot::Expected(_))
    }

    fn forget(&self) {
        *self.slot.lock() = WakerSlot::Idle;
    }
}

impl Wake for AwaitWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut slot = self.slot.lock();
        let after = if matches!(*slot, WakerSlot::Expected(_)) { WakerSlot::Idle } else { WakerSlot::Woken };
        let before = std::mem::replace(&mut *slot, after);
        drop(slot);
        if let WakerSlot::Expected(target) = before {
            target.inbox.push(target.number);
        }
    }
}

/// The futures of one event loop that are woken, so that any number of wake-ups costs one call into Python.
struct Inbox {
    /// A weak reference to the loop's `Wakeups`: the engine must not keep what a loop keeps.
    wakeups: OnceLock<Py<PyAny>>,
    /// While there are any, the loop has a call of `drain` to make.
    woken: Mutex<VecDeque<u64>>,
}

impl Inbox {
    /// From any thread, holding no lock of the engine's.
    fn push(self: &Arc<Self>, number: u64) {
        let mut woken = self.woken.lock();
        woken.push_back(number);
        let first = woken.len() == 1;
        drop(woken);
        if first && guard::attach(|py| self.call_drain(py)).is_none() {
            self.woken.lock().clear();
        }
    }

    /// Has the loop call `drain`. Code of the loop runs for that, so that anything may be raised: what a
    /// signal handler raises, or a `RecursionError`. Then a thread tries again that handles no signals and
    /// has all of its stack left.
    fn call_drain(self: &Arc<Self>, py: Python<'_>) {
        let Err(error) = self.try_call_drain(py) else { return };
        interrupt::raise_later(py, &error);
        let inbox = Arc::clone(self);
        WAITS.send(Box::new(move |py| match contain_panic(|| inbox.try_call_drain(py)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                inbox.woken.lock().clear();
                error.write_unraisable(py, None);
            }
            Err(panic) => tracing::error!(panic, "the wake-up of an event loop panicked"),
        }));
    }

    fn try_call_drain(&self, py: Python<'_>) -> PyResult<()> {
        // A panic of the loop's code leaves no call, which later wake-ups would take for one to come.
        let unsent = Unsent(self);
        let sent = self.call_soon(py);
        std::mem::forget(unsent);
        sent
    }

    fn call_soon(&self, py: Python<'_>) -> PyResult<()> {
        if let Some((event_loop, wakeups)) = self.event_loop(py)?
            && stopped_loop::call_soon(&event_loop, wakeups.getattr(intern!(py, "drain"))?)?
        {
            return Ok(());
        }
        // A loop that is closed or gone resumes no task: its owner has decided that.
        self.woken.lock().clear();
        Ok(())
    }

    /// The loop, if it is still there.
    fn event_loop<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, Wakeups>)>> {
        let Some(reference) = self.wakeups.get() else { return Ok(None) };
        let Ok(wakeups) = reference.bind(py).call0()?.cast_into::<Wakeups>() else { return Ok(None) };
        let event_loop = wakeups.get().event_loop.bind(py).call0()?;
        Ok(if event_loop.is_none() { None } else { Some((event_loop, wakeups)) })
    }
}

/// Gives up what is woken, for which no call of `drain` comes.
struct Unsent<'a>(&'a Inbox);

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        self.0.woken.lock().clear();
    }
}

/// The futures that the tasks of one event loop are suspended on. An attribute of the loop, which it goes
/// with.
#[pyclass(frozen, module = "estafette._estafette", name = "_Wakeups", weakref)]
pub struct Wakeups {
    /// A weak reference, so that a loop that is released is collected at once.
    event_loop: Py<PyAny>,
    inbox: Arc<Inbox>,
    /// Touched with the Python lock only.
    numbered: Mutex<Numbered>,
}

#[derive(Default)]
struct Numbered {
    next: u64,
    suspended: HashMap<u64, Py<AsyncioFuture>>,
}

impl Wakeups {
    /// The one of this event loop.
    fn of(event_loop: &Bound<'_, PyAny>) -> PyResult<Py<Self>> {
        let py = event_loop.py();
        let attribute = intern!(py, "_estafette_wakeups");
        if let Some(known) = event_loop.getattr_opt(attribute)? {
            return Ok(known.cast_into::<Self>()?.unbind());
        }
        let weak = |object| PyWeakrefReference::new(object).map(|weak| weak.into_any().unbind());
        let inbox = Arc::new(Inbox { wakeups: OnceLock::new(), woken: Mutex::default() });
        let made = Self {
            event_loop: weak(event_loop)?,
            inbox: Arc::clone(&inbox),
            numbered: Mutex::new(Numbered::default()),
        };
        let made = Bound::new(py, made)?;
        let reference = weak(made.as_any())?;
        inbox.wakeups.get_or_init(|| reference);
        event_loop.setattr(attribute, &made)?;
        Ok(made.unbind())
    }

    /// Keeps an asyncio future; returns its number.
    fn register(&self, on: Py<AsyncioFuture>) -> u64 {
        let mut numbered = self.numbered.lock();
        let number = numbered.next;
        numbered.next += 1;
        numbered.suspended.insert(number, on);
        number
    }

    /// Removes an asyncio future, if the list still has it. The caller drops the future where no lock is
    /// held.
    fn take_back(&self, number: u64) -> Option<Py<AsyncioFuture>> {
        self.numbered.lock().suspended.remove(&number)
    }
}

#[pymethods]
impl Wakeups {
    /// Resumes the tasks; called by the loop on its own thread. A task may run the loop itself
    /// (`nest_asyncio`) and wait there for another one, so what is woken besides the first has a second call
    /// to be resumed by.
    fn drain(this: &Bound<'_, Self>) -> PyResult<()> {
        let (py, wakeups) = (this.py(), this.get());
        let pop = || {
            let mut woken = wakeups.inbox.woken.lock();
            (woken.pop_front(), woken.len())
        };
        let (mut next, mut left) = pop();
        let call_again = || {
            let event_loop = wakeups.event_loop.bind(py).call0()?;
            let drain = this.getattr(intern!(py, "drain"))?;
            event_loop.call_method1(intern!(py, "call_soon"), (drain,)).map(drop)
        };
        let mut outcome = if left > 0 { call_again() } else { Ok(()) };
        if outcome.is_err() {
            // Nothing may be left for a call that may not come.
            left = usize::MAX;
        }
        while let Some(number) = next {
            if let Some(suspended) = wakeups.take_back(number) {
                outcome = outcome.and(AsyncioFuture::finish(suspended.bind(py)));
            }
            // Tasks that are woken meanwhile are left to the next turn of the loop.
            next = if left > 0 { pop().0 } else { None };
            left = left.saturating_sub(1);
        }
        outcome
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Nothing of Python is touched under this lock, so it is free whenever garbage is collected.
        let Some(numbered) = self.numbered.try_lock() else { return Ok(()) };
        numbered.suspended.values().try_for_each(|suspended| visit.call(suspended))
    }

    fn __clear__(&self) {
        let suspended = std::mem::take(&mut self.numbered.lock().suspended);
        drop(suspended);
    }
}
