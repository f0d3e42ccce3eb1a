//! Methods that `Tensor` and `Operation` have in common with futures of `concurrent.futures`.
//!
//! `concurrent.futures.wait` and `as_completed` take any object with the attributes of a future that they
//! use: `_condition`, `_state` and `_waiters` (CPython: Lib/concurrent/futures/_base.py).
//! `asyncio.wrap_future` wants the class itself, which `future()` gives.

use std::time::{Duration, Instant};

use estafette::bindings::{self, Notice};
use estafette::{Error, Op, Tensor};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::seconds;
use crate::asyncio::stopped_loop;
use crate::classes::operation::PyOperation;
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, class, import_module, show_failed, to_py};
use crate::interpreter::courier::Courier;
use crate::interpreter::guard;
use crate::interpreter::kept::Kept;
use crate::interpreter::once::intern;
use crate::log::logger;

estafette_sync::per_process! {
    pub static CALLBACKS: Courier = Courier::new("estafette-callbacks", usize::MAX);
    /// For the waiters of `concurrent.futures`: a callback of the program may wait for them.
    pub static WAITS: Courier = Courier::new("estafette-waits", usize::MAX);
}

/// Waits until every callback was called, for at most `timeout`.
pub fn flush(py: Python<'_>, timeout: Duration) {
    let until = Instant::now() + timeout;
    // Settled futures hand their callbacks over, and a callback may make futures.
    while !Courier::are_idle(&WAITS, &CALLBACKS) && Instant::now() < until {
        for courier in [&*WAITS, &*CALLBACKS] {
            courier.flush(py, until.saturating_duration_since(Instant::now()));
        }
    }
}

/// A handle of the engine that ends.
pub trait Ends {
    fn is_done(&self, py: Python<'_>) -> bool;
    /// The outcome, if it is known; a failure stays unretrieved, as with the callback.
    fn outcome(&self, py: Python<'_>) -> Option<Result<(), Error>>;
    /// Calls back on any thread, under no lock.
    fn on_end(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) -> Notice;
}

impl Ends for Tensor {
    fn is_done(&self, py: Python<'_>) -> bool {
        // A driver is queried without the Python lock.
        bindings::tensor::known_ready(self) == Some(true)
            || guard::detach(py, || self.is_ready() || bindings::tensor::outcome(self).is_some())
    }

    fn outcome(&self, py: Python<'_>) -> Option<Result<(), Error>> {
        guard::detach(py, || bindings::tensor::outcome(self))
    }

    fn on_end(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) -> Notice {
        bindings::tensor::on_end(self, callback)
    }
}

impl Ends for Op {
    fn is_done(&self, _py: Python<'_>) -> bool {
        self.is_done()
    }

    fn outcome(&self, _py: Python<'_>) -> Option<Result<(), Error>> {
        bindings::operation::outcome(self)
    }

    fn on_end(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) -> Notice {
        bindings::operation::on_end(self, callback)
    }
}

pub fn is_cancelled(handle: &impl Ends, py: Python<'_>) -> bool {
    matches!(handle.outcome(py), Some(Err(Error::Cancelled(_))))
}

pub fn is_failed(handle: &impl Ends, py: Python<'_>) -> bool {
    matches!(handle.outcome(py), Some(Err(error)) if !matches!(error, Error::Cancelled(_)))
}

/// The failure of a promise. The failure stays unretrieved until [`retrieve`](Self::retrieve).
#[pyclass(frozen, module = "estafette", name = "_Failure")]
pub struct PyFailure(Error);

#[pymethods]
impl PyFailure {
    #[getter]
    fn cancelled(&self) -> bool {
        matches!(self.0, Error::Cancelled(_))
    }

    /// A new exception.
    fn error<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        to_py(py, &self.0).into_value(py).into_bound(py).into_any()
    }

    fn retrieve(&self) {
        bindings::retrieve(&self.0);
    }
}

/// A callback that is due.
#[pyclass(frozen, module = "estafette", name = "_Notice")]
pub struct PyNotice(Notice);

#[pymethods]
impl PyNotice {
    /// Drops the callback.
    fn withdraw(&self, py: Python<'_>) {
        guard::detach(py, || self.0.withdraw());
    }
}

/// Calls `callback(promise)` once: now if the promise of `handle` is done, else soon after its end, on the
/// thread of callbacks.
pub fn add_done_callback(
    handle: &impl Ends,
    promise: Bound<'_, PyAny>,
    callback: Bound<'_, PyAny>,
) -> PyResult<()> {
    if !callback.is_callable() {
        return Err(PyTypeError::new_err(format!("{} is not callable", callback.repr()?)));
    }
    let module = callback.getattr_opt(intern!(promise.py(), "__module__"))?;
    if module.is_some_and(|module| module.eq("asyncio.tasks").unwrap_or(false)) {
        // `asyncio.wait` takes what has this method for a future of asyncio, and would never wake up.
        return Err(PyTypeError::new_err(
            "`asyncio.wait` waits for futures of asyncio alone: pass `asyncio.ensure_future(promise)`",
        ));
    }
    if handle.is_done(promise.py()) {
        // Ctrl-C during the callback must reach the caller.
        return match callback.call1((&promise,)) {
            Err(error) if error.is_instance_of::<PyException>(promise.py()) => log(&error, &promise),
            called => called.map(drop),
        };
    }
    notify(&CALLBACKS, handle, promise, callback, |callback, promise, _outcome| {
        callback.call1((promise,)).map(drop)
    });
    Ok(())
}

/// Calls `callback(promise, failure)` once, with how the version that is current now has failed, or None: now
/// if the promise of `handle` is done, else soon after its end, on a thread that runs no callbacks of users.
/// Returns what withdraws a callback that is due.
pub fn on_end(
    handle: &impl Ends,
    promise: Bound<'_, PyAny>,
    callback: Bound<'_, PyAny>,
) -> PyResult<Option<PyNotice>> {
    let call = |callback: &Bound<'_, PyAny>, promise: &Bound<'_, PyAny>, outcome: Result<(), Error>| {
        callback.call1((promise, outcome.err().map(PyFailure))).map(drop)
    };
    match handle.outcome(promise.py()) {
        Some(outcome) => call(&callback, &promise, outcome).map(|()| None),
        None => Ok(Some(PyNotice(notify(&WAITS, handle, promise, callback, call)))),
    }
}

/// Calls `call` with the outcome of `handle` on the thread of `courier`, soon after its end.
fn notify(
    courier: &'static Courier,
    handle: &impl Ends,
    promise: Bound<'_, PyAny>,
    callback: Bound<'_, PyAny>,
    call: impl FnOnce(&Bound<'_, PyAny>, &Bound<'_, PyAny>, Result<(), Error>) -> PyResult<()> + Send + 'static,
) -> Notice {
    let kept = Kept::new((callback.unbind(), promise.unbind()));
    let expected = courier.expect();
    handle.on_end(move |outcome| {
        let _expected = expected;
        courier.send(Box::new(move |py| {
            let (callback, promise) = &*kept;
            let promise = promise.bind(py);
            if let Err(error) = call(callback.bind(py), promise, outcome) {
                // A handler of the user's may fail.
                show_failed(py, log(&error, promise));
            }
        }));
    })
}

/// Calls `function`, which logs what it raises, on the thread of callbacks.
#[pyfunction(name = "_call_back")]
pub fn call_back(function: Py<PyAny>) {
    let kept = Kept::new(function);
    CALLBACKS.send(Box::new(move |py| {
        show_failed(py, kept.call0(py));
    }));
}

/// Logs what a callback has raised, in the manner of `concurrent.futures`.
fn log(error: &PyErr, promise: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = promise.py();
    let options = PyDict::new(py);
    // With its traceback, which `value` lacks.
    options.set_item(intern!(py, "exc_info"), error.clone_ref(py).into_value(py))?;
    logger(py)?
        .call_method("error", ("the callback of %r raised an exception", promise), Some(&options))
        .map(drop)
}

/// Blocks until one of `promises`, tensors and operations, is done. Returns those that are. Failures stay
/// unretrieved. Raises `WouldBlockError` on the thread of an event loop; `TimeoutError`, and what else ends a
/// wait.
#[pyfunction(name = "_wait_any")]
pub fn wait_any<'py>(
    py: Python<'py>,
    promises: Vec<Bound<'py, PyAny>>,
    timeout: Option<f64>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let timeout = seconds("timeout", timeout)?;
    let (mut ops, mut tensors) = (Vec::new(), Vec::new());
    // In the order of `estafette::bindings::wait_any`: operations, and then tensors.
    let (mut ordered, mut of_tensors) = (Vec::new(), Vec::new());
    for promise in promises {
        match promise.cast::<PyOperation>() {
            Ok(operation) => {
                ops.push(operation.get().ended(py)?.clone());
                ordered.push(promise);
            }
            Err(_) => {
                tensors.push(promise.cast::<PyTensor>()?.get().ended(py)?.clone());
                of_tensors.push(promise);
            }
        }
    }
    ordered.append(&mut of_tensors);
    let pick = |places: Vec<usize>| places.into_iter().map(|place| ordered[place].clone()).collect();
    let done =
        ops.iter().map(|op| op.is_done()).chain(tensors.iter().map(|tensor| Ends::is_done(tensor, py)));
    let done: Vec<usize> = done.enumerate().filter_map(|(place, is_done)| is_done.then_some(place)).collect();
    if !done.is_empty() {
        return Ok(pick(done));
    }
    if timeout != Some(Duration::ZERO) {
        stopped_loop::check(py, "a promise")?;
    }
    guard::detach(py, || estafette::bindings::wait_any(&ops, &tensors, timeout)).or_raise(py).map(pick)
}

/// `exception(timeout)`, from the outcome of a wait: the failure of an operation is returned, other errors
/// are raised. Raises `TimeoutError`, `CancelledError`, and what else ends a wait.
pub fn exception(py: Python<'_>, waited: PyResult<()>) -> PyResult<Option<Py<PyAny>>> {
    let Err(error) = waited else { return Ok(None) };
    let failed = error.value(py).is_instance(class(py, "OperationError")?.as_any())?;
    let cancelled = error.value(py).is_instance(class(py, "CancelledError")?.as_any())?;
    if failed && !cancelled { Ok(Some(error.into_value(py).into_any())) } else { Err(error) }
}

/// A function of `estafette/_promises.py`, called with the promise.
pub fn helper<'py>(promise: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    import_module(promise.py(), "estafette._promises")?.call_method1(name, (promise,))
}

/// The methods of futures, for a class with `ended`, `wait` and `awaited`.
macro_rules! future_methods {
    ($class:ty) => {
        #[pymethods]
        impl $class {
            /// Returns True if it is known how the promise ends, with or without a failure. Never waits, and
            /// runs nothing in an engine without workers.
            fn done(&self, py: Python<'_>) -> PyResult<bool> {
                Ok(crate::classes::promise::Ends::is_done(self.ended(py)?, py))
            }

            /// Returns True if the operation was cancelled. Never waits.
            fn cancelled(&self, py: Python<'_>) -> PyResult<bool> {
                Ok(crate::classes::promise::is_cancelled(self.ended(py)?, py))
            }

            /// Waits as `wait` does, and returns what ``await`` gives.
            #[pyo3(signature = (timeout = None))]
            fn result(this: &Bound<'_, Self>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
                this.get().wait(this.py(), timeout)?;
                Self::awaited(this)
            }

            /// Waits as `wait` does, and returns the `OperationError` of a failure, or None. Raises
            /// `CancelledError` for a cancelled operation, and ``TimeoutError`` when time is up.
            #[pyo3(signature = (timeout = None))]
            fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
                crate::classes::promise::exception(py, self.wait(py, timeout))
            }

            /// Calls ``fn(self)`` once when the promise is done: at once if it is, else on a thread of the
            /// package that calls one callback after the other. What the function raises is logged.
            /// ``self.result()`` in the function waits for a later write of the tensor, if there is one; the
            /// future that `future` returns keeps the end of its version.
            #[pyo3(signature = (r#fn, /))]
            fn add_done_callback(this: &Bound<'_, Self>, r#fn: Bound<'_, PyAny>) -> PyResult<()> {
                crate::classes::promise::add_done_callback(
                    this.get().ended(this.py())?,
                    this.clone().into_any(),
                    r#fn,
                )
            }

            /// Calls ``fn(self, failure)`` now if the promise is done, else at the end of the current
            /// version, on a thread that runs no callbacks of users.
            #[pyo3(signature = (r#fn, /))]
            fn _on_end(
                this: &Bound<'_, Self>,
                r#fn: Bound<'_, PyAny>,
            ) -> PyResult<Option<crate::classes::promise::PyNotice>> {
                crate::classes::promise::on_end(this.get().ended(this.py())?, this.clone().into_any(), r#fn)
            }

            /// The result of ``await`` for a promise that is done.
            #[pyo3(name = "_awaited")]
            fn awaited_now(this: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
                Self::awaited(this)
            }

            /// Returns a `concurrent.futures.Future` that ends as the current version of the promise does,
            /// for `asyncio.wrap_future` and other code that wants an instance of that class. It is cancelled
            /// if the operation was.
            fn future<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
                crate::classes::promise::helper(this.as_any(), "future")
            }

            #[getter]
            fn _state<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
                crate::classes::promise::helper(this.as_any(), "state")
            }

            /// True if the operation failed and was not cancelled; the failure stays unretrieved.
            fn _failed(&self, py: Python<'_>) -> PyResult<bool> {
                Ok(crate::classes::promise::is_failed(self.ended(py)?, py))
            }

            #[getter]
            fn _condition<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                crate::error::import_module(py, "estafette._promises")?.getattr("ENDS")
            }

            #[getter]
            fn _waiters<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
                crate::classes::promise::helper(this.as_any(), "Waiters")
            }
        }
    };
}

pub(crate) use future_methods;
