//! The class `Operation`: a handle on what was submitted.

use std::time::Duration;

use estafette::{Op, bindings};
use estafette_report::shown::shown;
use estafette_sync::process::ProcessBound;
use pyo3::prelude::*;

use crate::arguments::seconds;
use crate::asyncio::awaiting::Awaiter;
use crate::asyncio::stopped_loop;
use crate::classes::handle::EngineHandle;
use crate::error::{self, OrRaise};
use crate::interpreter::guard;

/// A submitted operation: can be awaited, waited for and cancelled. Releasing it changes nothing for the
/// operation; a failure that nothing has looked at is reported then, or when the last tensor that it concerns
/// goes.
#[pyclass(frozen, module = "estafette", name = "Operation", weakref)]
pub struct PyOperation {
    op: ProcessBound<Op>,
    /// An operation keeps its engine.
    _engine: EngineHandle,
}

impl PyOperation {
    pub fn new(op: Op, engine: EngineHandle) -> Self {
        Self { op: ProcessBound::new(op), _engine: engine }
    }

    pub fn ended(&self, py: Python<'_>) -> PyResult<&Op> {
        self.op.get().or_raise(py)
    }

    /// The result of ``await``.
    fn awaited(this: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Ok(this.py().None())
    }
}

crate::classes::promise::future_methods!(PyOperation);

#[pymethods]
impl PyOperation {
    /// The name given at submission.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.op.get().or_raise(py)?.name().to_string())
    }

    /// Identity, as in errors and diagnoses.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.op.get().or_raise(py)?.id())
    }

    /// True if the operation has ended, well or not.
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.op.get().or_raise(py)?.is_done())
    }

    /// Cancels the operation if it has not begun; says whether it was. Its outputs then raise
    /// `CancelledError`; memory that it would have changed is untouched.
    ///
    /// An ``async def`` function that has begun is cancelled as asyncio cancels a task: ``CancelledError`` of
    /// asyncio is raised where it awaits, from any thread, and True says that this was asked for. The
    /// operation is cancelled if the task ends so; the function may have changed memory before. A plain
    /// function that runs is not interrupted.
    ///
    ///     >>> t = eng.zeros(1, "int8")
    ///     >>> held = np.from_dlpack(t)
    ///     >>> op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack, name="late")
    ///     >>> op.cancel()
    ///     True
    ///     >>> op.wait()
    ///     Traceback (most recent call last):
    ///     estafette.CancelledError: operation `late` (op ...) was cancelled: cancelled before it began
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        let op = self.op.get().or_raise(py)?;
        if guard::detach(py, || op.cancel()) {
            return Ok(true);
        }
        if op.is_done() { Ok(false) } else { stopped_loop::cancel(py, op.id()) }
    }

    /// Blocks until the operation has ended, at most `timeout` seconds. Raises `OperationError` when it
    /// failed, and `LeaseHeldError` as `Tensor.wait` does: at once where it waits for a lease that this very
    /// thread has taken.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let op = self.op.get().or_raise(py)?;
        let timeout = seconds("timeout", timeout)?;
        if op.is_done() || timeout.is_some_and(|timeout| timeout.is_zero()) {
            return op.wait_timeout(Some(Duration::ZERO)).or_raise(py);
        }
        stopped_loop::check(py, format_args!("operation `{}`", shown(op.name())))?;
        let waited = guard::detach(py, || op.wait_timeout(timeout));
        error::or_say_why(py, waited, || bindings::op_waits_for(op))
    }

    /// ``await op`` waits until the operation has ended. Raises `OperationError` when it failed.
    fn __await__(&self, py: Python<'_>) -> PyResult<Awaiter> {
        let op = self.op.get().or_raise(py)?.clone();
        Awaiter::polled(py, op, |py, outcome| outcome.or_raise(py).map(|()| py.None()))
    }

    fn __repr__(&self) -> String {
        match self.op.get() {
            Ok(op) => {
                let state = if op.is_done() { "done" } else { "in flight" };
                format!("<estafette.Operation {} `{}`, {state}>", op.id(), shown(op.name()))
            }
            Err(_) => "<estafette.Operation of the parent process>".into(),
        }
    }
}
