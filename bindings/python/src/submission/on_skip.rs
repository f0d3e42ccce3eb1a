//! The callback in place of a function whose operation is skipped.

use estafette::operation::OperationError;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::error::to_py;
use crate::interpreter::fastcall::copy_context;
use crate::interpreter::kept::Kept;
use crate::interpreter::once::intern;
use crate::interpreter::{guard, interrupt};
use crate::submission::function_kind::FunctionKind;

/// A function of the submitter, with the submitter's context.
pub struct OnSkip(Kept<(Py<PyAny>, Py<PyAny>)>);

impl OnSkip {
    /// Raises `TypeError` when it cannot be called, or its call would only give a coroutine or a generator.
    pub fn new(function: &Bound<'_, PyAny>) -> PyResult<Self> {
        let what = if !function.is_callable() {
            "is not callable"
        } else {
            match FunctionKind::of(function)? {
                FunctionKind::Plain => {
                    let context = copy_context(function.py())?;
                    return Ok(Self(Kept::new((function.clone().unbind(), context))));
                }
                FunctionKind::Async => "is an `async def` function, and is called on a worker",
                FunctionKind::Generator => "is a generator function, and a call of it would run nothing",
            }
        };
        Err(PyTypeError::new_err(format!("on_skip={} {what}", function.repr()?)))
    }

    /// Calls it; called by the engine on one of its workers, without the Python lock. With the guard closed
    /// the interpreter is going away, and no function of an operation is called any more.
    pub fn call(&self, cause: &OperationError) {
        let (function, context) = &*self.0;
        guard::attach(|py| {
            let error = to_py(py, &cause.clone().into());
            let value = error.value(py);
            let called = context.bind(py).call_method1(intern!(py, "run"), (function, value));
            // The operation fails by its cause, whatever is raised.
            if let Err(raised) = called
                && !raised.value(py).is(value)
                && !interrupt::note(py, &raised)
            {
                raised.write_unraisable(py, Some(function.bind(py)));
            }
        });
    }
}
