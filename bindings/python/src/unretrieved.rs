//! Failures that nothing has looked at: how they are reported, and what the end of an engine raises.

use estafette::bindings;
use estafette::engine::ShutdownReport;
use estafette::operation::OperationError;
use estafette::{Engine, Error};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::classes::report;
use crate::error::{import_module, show_failed, to_py};
use crate::interpreter::guard;

/// The treatment of unretrieved failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failures {
    /// Each is reported, and the end of the engine raises them.
    Raise,
    /// Each is reported, at the latest at the end of the engine.
    Log,
    /// Nothing.
    Ignore,
}

impl Failures {
    /// Raises `TypeError` and `ValueError` for what is none of the names.
    pub fn parse(name: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(name) = name else { return Ok(Self::Raise) };
        let wanted = "failures is \"raise\", \"log\" or \"ignore\"";
        match name.extract::<String>().as_deref() {
            Ok("raise") => Ok(Self::Raise),
            Ok("log") => Ok(Self::Log),
            Ok("ignore") => Ok(Self::Ignore),
            Ok(other) => Err(PyValueError::new_err(format!("{wanted}, not {other:?}"))),
            Err(_) => Err(PyTypeError::new_err(format!("{wanted}, not {}", name.repr()?))),
        }
    }
}

/// Called by the engine when the last handle of a failure has gone, on any thread, with the Python lock or
/// without.
pub fn reporter(failure: &OperationError) {
    // A closed guard means that the interpreter's exit has reported all failures. A body that it interrupts
    // is inside still.
    if guard::is_closed() {
        return;
    }
    guard::attach(|py| {
        // A handler of the user's may fail.
        show_failed(py, report(py, exception(py, failure)));
    });
}

/// In asyncio's manner: to the logger, and to `sys.unraisablehook`.
fn report(py: Python<'_>, error: PyErr) -> PyResult<()> {
    let unretrieved = import_module(py, "estafette._failures")?.call_method1("log", (error.value(py),));
    // The error was raised nowhere: the traceback that the hook prints is that of the body.
    let traceback = error.cause(py).and_then(|cause| cause.traceback(py));
    error.set_traceback(py, traceback);
    error.write_unraisable(py, unretrieved.as_ref().ok());
    unretrieved.map(drop)
}

fn exception(py: Python<'_>, failure: &OperationError) -> PyErr {
    to_py(py, &Error::Failed(failure.clone()))
}

/// At the end of an engine: raises what nothing has looked at, or reports it when that is wanted, or when
/// something else is being raised. Raises the failure, or an `ExceptionGroup` of several.
pub fn conclude(
    py: Python<'_>,
    engine: &Engine,
    wanted: Failures,
    raising: bool,
    ended: Option<&ShutdownReport>,
) -> PyResult<()> {
    let unretrieved = engine.unretrieved();
    if unretrieved.count() == 0 {
        return Ok(());
    }
    if raising || wanted != Failures::Raise {
        bindings::report(&unretrieved);
        return Ok(());
    }
    let errors: Vec<PyErr> = unretrieved.failures().iter().map(|failure| exception(py, failure)).collect();
    if errors.is_empty() {
        // Each of those that are not listed was reported.
        return Ok(());
    }
    let omitted = unretrieved.count() - errors.len() as u64;
    let errors: Vec<_> = errors.into_iter().map(|error| error.into_value(py)).collect();
    let ended = ended.map(|ended| report::shutdown(py, ended)).transpose()?;
    let arguments = (errors, omitted, ended);
    Err(PyErr::from_value(import_module(py, "estafette._failures")?.call_method1("raised", arguments)?))
}
