//! The object that a task is suspended on: a future in asyncio's sense, as far as tasks need one.
//!
//! asyncio's own future would do, and costs a turn of the loop more: finishing it has the loop call the
//! task's wake-up in its next turn. Here the wake-up is called where the future is finished, which is in a
//! callback of the loop already, in the context that the task has asked for.

use estafette_sync::sync::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::interpreter::once::{imported, intern};

/// Belongs to one event loop, and is touched on its thread only.
#[pyclass(frozen, module = "estafette._estafette", name = "_AsyncioFuture")]
pub struct AsyncioFuture {
    event_loop: Py<PyAny>,
    /// Nothing of Python happens under this lock.
    inner: Mutex<FutureState>,
}

struct FutureState {
    /// Set by the awaitable that yields the future to a task, cleared by the task: so asyncio distinguishes
    /// `await` from a bare `yield`.
    blocking: bool,
    end: AsyncioState,
    /// The message of its cancellation.
    message: Option<Py<PyAny>>,
    callbacks: Vec<Callback>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AsyncioState {
    Pending,
    Finished,
    Cancelled,
}

struct Callback {
    function: Py<PyAny>,
    context: Option<Py<PyAny>>,
}

impl AsyncioFuture {
    /// Ready to be yielded to a task of `event_loop`.
    pub fn new(event_loop: &Bound<'_, PyAny>) -> PyResult<Py<Self>> {
        let inner =
            FutureState { blocking: true, end: AsyncioState::Pending, message: None, callbacks: Vec::new() };
        Py::new(event_loop.py(), Self { event_loop: event_loop.clone().unbind(), inner: Mutex::new(inner) })
    }

    /// True if no task waits for the future any more.
    pub fn is_over(&self) -> bool {
        self.inner.lock().end != AsyncioState::Pending
    }

    /// To be yielded again.
    pub fn block(&self) {
        self.inner.lock().blocking = true;
    }

    fn over(&self, end: AsyncioState) -> Option<Vec<Callback>> {
        let mut inner = self.inner.lock();
        if inner.end != AsyncioState::Pending {
            return None;
        }
        inner.end = end;
        Some(std::mem::take(&mut inner.callbacks))
    }

    /// Resumes the task that is suspended on the future, within this call. Called by the loop. Raises what a
    /// callback raises, after all of them were called: tasks let only `KeyboardInterrupt` and `SystemExit`
    /// out.
    pub fn finish(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let mut outcome = Ok(());
        for Callback { function, context } in this.get().over(AsyncioState::Finished).unwrap_or_default() {
            let called = match context {
                Some(context) => context.bind(py).call_method1(intern!(py, "run"), (function, this)),
                None => function.bind(py).call1((this,)),
            };
            outcome = outcome.and(called.map(drop));
        }
        outcome
    }
}

#[pymethods]
impl AsyncioFuture {
    #[getter(_asyncio_future_blocking)]
    fn blocking(&self) -> bool {
        self.inner.lock().blocking
    }

    #[setter(_asyncio_future_blocking)]
    fn set_blocking(&self, blocking: bool) {
        self.inner.lock().blocking = blocking;
    }

    fn get_loop(&self, py: Python<'_>) -> Py<PyAny> {
        self.event_loop.clone_ref(py)
    }

    #[pyo3(signature = (function, /, *, context = None))]
    fn add_done_callback(
        this: &Bound<'_, Self>,
        function: Bound<'_, PyAny>,
        context: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let callback = Callback { function: function.unbind(), context: context.map(Bound::unbind) };
        let mut inner = this.get().inner.lock();
        if inner.end == AsyncioState::Pending {
            inner.callbacks.push(callback);
            return Ok(());
        }
        drop(inner);
        call_soon(this, callback)
    }

    /// Removes a callback; returns how often it was registered.
    fn remove_done_callback(&self, py: Python<'_>, function: &Bound<'_, PyAny>) -> PyResult<usize> {
        // A comparison runs code of the program, which may raise, or end the future.
        let callbacks = self
            .inner
            .lock()
            .callbacks
            .iter()
            .map(|callback| callback.function.clone_ref(py))
            .collect::<Vec<_>>();
        let mut equal = Vec::new();
        for callback in callbacks {
            if callback.bind(py).eq(function)? {
                equal.push(callback);
            }
        }
        let is_equal = |callback: &mut Callback| equal.iter().any(|equal| equal.is(&callback.function));
        let removed: Vec<_> = self.inner.lock().callbacks.extract_if(.., is_equal).collect();
        Ok(removed.len())
    }

    /// Ends the waiting; the task hears of it in the next turn, as with any future of asyncio.
    #[pyo3(signature = (msg = None))]
    fn cancel(this: &Bound<'_, Self>, msg: Option<Bound<'_, PyAny>>) -> PyResult<bool> {
        let Some(callbacks) = this.get().over(AsyncioState::Cancelled) else { return Ok(false) };
        this.get().inner.lock().message = msg.map(Bound::unbind);
        callbacks.into_iter().try_for_each(|callback| call_soon(this, callback))?;
        Ok(true)
    }

    fn done(&self) -> bool {
        self.is_over()
    }

    fn cancelled(&self) -> bool {
        self.inner.lock().end == AsyncioState::Cancelled
    }

    /// The result, for which the task asks when it is woken.
    fn result(&self, py: Python<'_>) -> PyResult<()> {
        let (end, message) = {
            let inner = self.inner.lock();
            (inner.end, inner.message.as_ref().map(|message| message.clone_ref(py)))
        };
        match end {
            AsyncioState::Finished => Ok(()),
            AsyncioState::Cancelled => {
                let class = imported!(py, "asyncio", "CancelledError")?;
                let error = match message {
                    Some(message) => class.call1((message,)),
                    None => class.call0(),
                };
                Err(PyErr::from_value(error?))
            }
            AsyncioState::Pending => Err(PyRuntimeError::new_err("this wait is not over")),
        }
    }

    fn exception(&self, py: Python<'_>) -> PyResult<()> {
        self.result(py)
    }

    fn __iter__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "this future is for the task that it was yielded to; await the tensor instead",
        ))
    }

    fn __repr__(&self) -> &'static str {
        match self.inner.lock().end {
            AsyncioState::Pending => "<estafette wait, pending>",
            AsyncioState::Finished => "<estafette wait, finished>",
            AsyncioState::Cancelled => "<estafette wait, cancelled>",
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)?;
        let Some(inner) = self.inner.try_lock() else { return Ok(()) };
        visit.call(&inner.message)?;
        for callback in &inner.callbacks {
            visit.call(&callback.function)?;
            visit.call(&callback.context)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let mut inner = self.inner.lock();
        let cleared = (std::mem::take(&mut inner.callbacks), inner.message.take());
        drop(inner);
        drop(cleared);
    }
}

fn call_soon(this: &Bound<'_, AsyncioFuture>, callback: Callback) -> PyResult<()> {
    let py = this.py();
    let arguments = PyDict::new(py);
    if let Some(context) = callback.context {
        arguments.set_item(intern!(py, "context"), context)?;
    }
    let event_loop = this.get().event_loop.bind(py);
    event_loop.call_method(intern!(py, "call_soon"), (callback.function, this), Some(&arguments)).map(drop)
}
