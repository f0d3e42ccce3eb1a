//! Blocking waits on the thread of an event loop.
//!
//! Such a wait stops the loop, so it is refused. In a notebook each cell stops the loop of its kernel anyway,
//! so a cell may wait, unless a function or a future that the engine has begun on that loop could then not go
//! on: the wait is refused, or ends with the same error once such a thing has begun.
//!
//! A wait ends with an error, too, where it needs the end of an operation that is brought to its end by an
//! event loop that the waiting thread ran and has stopped. A loop that another thread ran may run again. A
//! thread may wait in the place of one that stands still in its event loop meanwhile: for what an event loop
//! needs at once.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use estafette::Completion;
use estafette::bindings::{self, Current};
use estafette_sync::sync::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyWeakrefReference;

use crate::asyncio::running_loop;
use crate::error::raise;
use crate::interpreter::exit;
use crate::interpreter::guard;
use crate::interpreter::once::{intern, loaded};

estafette_sync::per_process! {
    static BEGUN: Mutex<OnLoops> =
        Mutex::new(OnLoops { all: BTreeMap::new(), last: 0, functions: BTreeSet::new() });
    /// The operations that are [sent off](SentOff), each with whether it was cancelled.
    static SENT_OFF: Mutex<BTreeMap<u64, bool>> = Mutex::new(BTreeMap::new());
}

thread_local! {
    /// The thread, as Python calls it, that stands still in an event loop until this one ends.
    static STANDS_FOR: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Says that `thread` stands still in its event loop until the calling thread ends: waits for what goes on
/// there alone are refused.
#[pyfunction(name = "_stand_for", signature = (thread, /))]
pub fn stand_for(thread: u64) {
    STANDS_FOR.set(Some(thread));
}

/// True if the calling thread waits for another one that runs an event loop.
pub fn stands_for_another() -> bool {
    STANDS_FOR.get().is_some()
}

/// Coroutines that event loops run for engines.
struct OnLoops {
    /// The oldest first.
    all: BTreeMap<u64, OnLoop>,
    /// The last number that was given.
    last: u64,
    /// The operations of asynchronous functions, with the numbers of these. A replay may have several.
    functions: BTreeSet<(u64, u64)>,
}

struct OnLoop {
    /// The loop's.
    address: usize,
    /// A weak reference.
    event_loop: Option<Py<PyAny>>,
    /// The thread that ran the loop, as Python calls it.
    thread: u64,
    completion: Arc<Mutex<Option<Completion>>>,
    /// The operation of an asynchronous function, and a weak reference to what ends it.
    function: Option<(u64, Py<PyAny>)>,
}

/// A function, or a future, that an event loop brings to its end for the engine.
pub struct Begun(u64);

impl Begun {
    /// `thread` runs the loop. The completion is taken out at the end.
    pub fn on(
        event_loop: &Bound<'_, PyAny>,
        thread: u64,
        completion: Arc<Mutex<Option<Completion>>>,
    ) -> Self {
        let weak = PyWeakrefReference::new(event_loop).ok().map(|weak| weak.into_any().unbind());
        let address = event_loop.as_ptr().addr();
        let new = OnLoop { address, event_loop: weak, thread, completion, function: None };
        let mut begun = BEGUN.lock();
        begun.last += 1;
        let number = begun.last;
        begun.all.insert(number, new);
        Self(number)
    }

    /// `done`, which ends the operation `op`, cancels the task of its function: see [`cancel`].
    pub fn ends_by(&self, op: u64, done: &Bound<'_, PyAny>) -> PyResult<()> {
        let weak = PyWeakrefReference::new(done)?.into_any().unbind();
        let mut begun = BEGUN.lock();
        if let Some(on_loop) = begun.all.get_mut(&self.0) {
            on_loop.function = Some((op, weak));
            begun.functions.insert((op, self.0));
        }
        Ok(())
    }
}

/// Cancels the tasks of the asynchronous functions of an operation that have begun; false where there are
/// none. The event loop of a task cancels it, at once if the calling thread runs the loop, so the end of the
/// operation says what has become of it.
pub fn cancel(py: Python<'_>, op: u64) -> PyResult<bool> {
    if let Some(is_cancelled) = SENT_OFF.lock().get_mut(&op) {
        *is_cancelled = true;
        return Ok(true);
    }
    let begun = BEGUN.lock();
    let found = begun.functions.range((op, 0)..=(op, u64::MAX)).filter_map(|(_, number)| {
        let on_loop = begun.all.get(number)?;
        Some((on_loop.event_loop.as_ref()?.clone_ref(py), on_loop.function.as_ref()?.1.clone_ref(py)))
    });
    let found: Vec<_> = found.collect();
    drop(begun);
    let mut is_cancelled = false;
    for (event_loop, done) in found {
        is_cancelled |= cancel_task(event_loop.bind(py), done.bind(py))?;
    }
    Ok(is_cancelled)
}

/// Takes weak references.
fn cancel_task(event_loop: &Bound<'_, PyAny>, done: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = done.py();
    let (event_loop, done) = (event_loop.call0()?, done.call0()?);
    if event_loop.is_none() || done.is_none() {
        return Ok(false);
    }
    let cancel = done.getattr(intern!(py, "cancel"))?;
    if running_loop::get(py)?.is_some_and(|running| running.is(&event_loop)) {
        return cancel.call0()?.is_truthy();
    }
    call_soon(&event_loop, cancel)
}

/// Has a loop call `function`, from any thread; false where the loop is closed.
pub fn call_soon(event_loop: &Bound<'_, PyAny>, function: Bound<'_, PyAny>) -> PyResult<bool> {
    let py = event_loop.py();
    match event_loop.call_method1(intern!(py, "call_soon_threadsafe"), (function,)) {
        Err(error)
            if error.is_instance_of::<PyRuntimeError>(py)
                && event_loop.call_method0(intern!(py, "is_closed"))?.is_truthy()? =>
        {
            Ok(false)
        }
        scheduled => scheduled.map(|_| true),
    }
}

/// An operation whose asynchronous function is on the way to its event loop: the thread that sends it off may
/// wait for the Python lock, and is dropped when it has done that.
pub struct SentOff(u64);

impl SentOff {
    pub fn new(op: u64) -> Self {
        SENT_OFF.lock().insert(op, false);
        Self(op)
    }
}

impl Drop for SentOff {
    fn drop(&mut self) {
        SENT_OFF.lock().remove(&self.0);
    }
}

/// True if an operation that was [sent off](SentOff) was cancelled meanwhile. From now on [`cancel`] finds
/// what ends it: called with the Python lock since [`Begun::ends_by`].
pub fn was_cancelled(op: u64) -> bool {
    SENT_OFF.lock().remove(&op).unwrap_or(false)
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut begun = BEGUN.lock();
        let over = begun.all.remove(&self.0);
        if let Some((op, _)) = over.as_ref().and_then(|over| over.function.as_ref()) {
            begun.functions.remove(&(*op, self.0));
        }
        drop(begun);
        drop(over);
    }
}

/// Raises `WouldDeadlockError` where something goes on only on a loop that this thread ran and has stopped,
/// and the wait of this thread `needs` its end.
fn check_stopped(py: Python<'_>, needs: &dyn Fn(&[Current]) -> Option<usize>) -> PyResult<()> {
    let stands_for = STANDS_FOR.get();
    let here = match stands_for {
        Some(thread) => thread,
        None => guard::ident(py)?,
    };
    let mut loops = BTreeMap::new();
    for on_loop in BEGUN.lock().all.values().filter(|on_loop| on_loop.thread == here) {
        if let (Some(event_loop), Some(completion)) = (&on_loop.event_loop, &*on_loop.completion.lock()) {
            let (_, scopes) =
                loops.entry(on_loop.address).or_insert_with(|| (event_loop.clone_ref(py), Vec::new()));
            scopes.push(completion.scope().clone());
        }
    }
    let (mut stopped, mut resuming) = (Vec::new(), Vec::new());
    for (event_loop, scopes) in loops.into_values() {
        let event_loop = event_loop.bind(py).call0()?;
        if event_loop.is_none()
            || stands_for.is_none() && event_loop.call_method0(intern!(py, "is_running"))?.is_truthy()?
        {
            continue;
        }
        for scope in scopes {
            if let Some(operation) = bindings::scope::current(&scope) {
                stopped.push(operation);
                resuming.push((scope.id(), event_loop.clone()));
            }
        }
    }
    if stopped.is_empty() {
        return Ok(());
    }
    let Some((operation, event_loop)) = needs(&stopped).map(|place| &resuming[place]) else { return Ok(()) };
    let message = format!(
        "operation {operation} resumes when {} runs, which this thread has stopped; run the loop, or close it, before you wait",
        event_loop.repr()?
    );
    Err(raise(py, "WouldDeadlockError", message))
}

/// Called before a wait for `what`.
/// Raises `WouldBlockError` where the wait would stop an event loop that must go on.
pub fn check(py: Python<'_>, what: impl Display) -> PyResult<()> {
    if may_block(py)? { Ok(()) } else { Err(would_block(py, what)) }
}

/// Called during a wait, which `needs` the end of some operations. The exit waits for all that ends, whatever
/// else does not. Raises `WouldBlockError` where the wait stops the loop of a notebook, and something has
/// begun on that loop; `WouldDeadlockError`.
pub fn check_again(py: Python<'_>, needs: &dyn Fn(&[Current]) -> Option<usize>) -> PyResult<()> {
    if !exit::waits() {
        check_stopped(py, needs)?;
    }
    match running_loop::get(py)? {
        Some(running) if is_needed(&running) && is_notebook(py)? => {
            Err(would_block(py, "what a cell waits for"))
        }
        _ => Ok(()),
    }
}

/// True if this thread may wait.
#[pyfunction(name = "_may_block")]
pub fn may_block(py: Python<'_>) -> PyResult<bool> {
    match running_loop::get(py)? {
        None => Ok(true),
        Some(running) => Ok(is_notebook(py)? && !is_needed(&running)),
    }
}

/// True if the engine has begun something on this loop that has not ended.
fn is_needed(event_loop: &Bound<'_, PyAny>) -> bool {
    let address = event_loop.as_ptr().addr();
    BEGUN.lock().all.values().any(|on_loop| on_loop.address == address)
}

/// True if this thread is that of a notebook's cells.
fn is_notebook(py: Python<'_>) -> PyResult<bool> {
    let Some(ipython) = loaded(py, intern!(py, "IPython"))? else { return Ok(false) };
    // Another thread may be in the middle of importing it.
    let Some(get_shell) = ipython.getattr_opt(intern!(py, "get_ipython"))? else { return Ok(false) };
    Ok(guard::is_main(py) && get_shell.call0()?.hasattr(intern!(py, "kernel"))?)
}

fn would_block(py: Python<'_>, what: impl Display) -> PyErr {
    let message = format!(
        "{what} is not ready, and waiting for it here would stop the running event loop; use `await`"
    );
    raise(py, "WouldBlockError", message)
}
