//! Errors of the engine as Python exceptions. The classes are in `estafette/_errors.py`.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use estafette::devices::{DeviceError, DeviceErrorKind};
use estafette::lease::LeaseHeld;
use estafette::operation::OperationError;
use estafette::{BodyError, Error};
use estafette_sync::sync::Mutex;
use pyo3::PyErrArguments;
use pyo3::exceptions::{PyBaseException, PyKeyboardInterrupt, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTraceback, PyTuple, PyType};

use crate::classes::report;
use crate::interpreter::guard;
use crate::interpreter::interrupt;
use crate::interpreter::once::PyOnce;

/// Shows an error that no caller gets, by `sys.unraisablehook`.
pub fn show_failed<T>(py: Python<'_>, result: PyResult<T>) {
    if let Err(error) = result {
        error.write_unraisable(py, None);
    }
}

const SHUTTING_DOWN: &str = "the Python interpreter is shutting down";

/// An exception raised by the Python function of an operation.
pub struct Raised {
    text: String,
    /// The same for other processes, if the exception is a `PeerDiedError`.
    death: Option<DeviceError>,
    kept: Arc<RaisedException>,
}

/// An exception, and what it had when the operation failed: who raises it again changes both.
struct RaisedException {
    value: Py<PyBaseException>,
    traceback: Option<Py<PyTraceback>>,
    context: Option<Py<PyAny>>,
}

estafette_sync::per_process! {
    /// Values that failures keep, and some that are gone.
    static KEPT: Mutex<Vec<Weak<RaisedException>>> = Mutex::new(Vec::new());
}

/// The exceptions that failures keep, each with its traceback and its context at the failure.
#[pyfunction(name = "_kept_errors")]
pub fn kept_errors(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyTuple>>> {
    let kept: Vec<_> = KEPT.lock().iter().filter_map(Weak::upgrade).collect();
    kept.iter().map(|kept| (&kept.value, &kept.traceback, &kept.context).into_pyobject(py)).collect()
}

impl Raised {
    /// Takes an exception out of the body that raised it, without the views in its frames.
    pub fn body_error(py: Python<'_>, error: PyErr) -> BodyError {
        // With its traceback, which an error has apart from its value.
        let value = error.into_value(py).into_bound(py).into_any();
        let taken_out = crate::submission::body::helper(py, "taken_out");
        show_failed(py, taken_out.and_then(|taken_out| taken_out.call1((&value,))));
        Box::new(Self::new(py, PyErr::from_value(value)))
    }

    /// Adopts an exception that has other owners, as it is.
    pub fn foreign(py: Python<'_>, error: PyErr) -> BodyError {
        Box::new(Self::new(py, error))
    }

    fn new(py: Python<'_>, error: PyErr) -> Self {
        let value = error.into_value(py);
        let bound = value.bind(py);
        let kind = bound.get_type().name().map_or_else(|_| "exception".into(), |name| name.to_string());
        let text = match root_text(bound) {
            Ok(text) if text.is_empty() => kind,
            Ok(text) => format!("{kind}: {text}"),
            Err(_) => kind,
        };
        let traceback = bound.getattr("__traceback__").ok().and_then(|traceback| traceback.extract().ok());
        let context =
            bound.getattr("__context__").ok().filter(|context| !context.is_none()).map(Bound::unbind);
        let kept = Arc::new(RaisedException { value, traceback, context });
        let is_first = {
            let mut list = KEPT.lock();
            if list.len() == list.capacity() {
                list.retain(|kept| kept.strong_count() > 0);
            }
            list.push(Arc::downgrade(&kept));
            list.len() == 1
        };
        // The module looks at the list with each full garbage collection.
        if is_first {
            show_failed(py, py.import("estafette._failures"));
        }
        Self { death: death(kept.value.bind(py), &text), text, kept }
    }
}

fn death(error: &Bound<'_, PyBaseException>, text: &str) -> Option<DeviceError> {
    let class = class(error.py(), "PeerDiedError").ok()?;
    if !error.is_instance(&class).ok()? {
        return None;
    }
    let death = DeviceError::new(DeviceErrorKind::PeerDied, text);
    match error.getattr("process").ok().and_then(|process| process.extract().ok()) {
        Some(process) => Some(death.with_process(process)),
        None => Some(death),
    }
}

/// The text of an exception. Of the failure of an operation that failed by that of another one which it
/// waited for, and so on, the text of the first one.
fn root_text(error: &Bound<'_, PyBaseException>) -> PyResult<String> {
    let failure = class(error.py(), "OperationError")?;
    let (mut root, mut seen) = (error.clone(), HashSet::from([error.as_ptr()]));
    while root.is_instance(&failure)?
        && let Ok(cause) = root.getattr("__cause__")?.cast_into::<PyBaseException>()
        && cause.is_instance(&failure)?
        // `raise error from error` makes a cycle.
        && seen.insert(cause.as_ptr())
    {
        root = cause;
    }
    let between = seen.len() - 1;
    let text = root.str()?.to_string();
    let by = if between == 1 { "operation" } else { "operations" };
    Ok(if between == 0 { text } else { format!("{text}, by way of {between} more {by} that waited for it") })
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raised({})", self.text)
    }
}

impl std::error::Error for Raised {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.death.as_ref().map(|death| death as _)
    }
}

/// The class of that name in `estafette._errors`.
pub fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    static CLASSES: PyOnce<Py<PyDict>> = PyOnce::new();
    // A copy: the interpreter empties modules at its end, while finalizers still run.
    let classes =
        CLASSES.get_or_try_init(py, || Ok(py.import("estafette._errors")?.dict().copy()?.unbind()))?;
    Ok(classes.bind(py).as_any().get_item(name)?.cast_into()?)
}

/// Raises `ShutdownError` where the interpreter is on its way out, and imports nothing any more.
pub fn import_module<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyModule>> {
    py.import(name).map_err(|error| if guard::is_closed() { shutting_down(py) } else { error })
}

/// The folders of a package of this environment, which is not imported; none without it.
pub fn package_folders(py: Python<'_>, name: &str) -> PyResult<Vec<PathBuf>> {
    let spec = import_module(py, "importlib.util")?.call_method1("find_spec", (name,))?;
    if spec.is_none() {
        return Ok(Vec::new());
    }
    spec.getattr("submodule_search_locations")?.try_iter()?.map(|folder| folder?.extract()).collect()
}

/// The error of a call that needs more of the interpreter than is left.
pub fn shutting_down(py: Python<'_>) -> PyErr {
    raise(py, "ShutdownError", SHUTTING_DOWN)
}

/// An exception of the class of that name.
pub fn raise(py: Python<'_>, name: &str, message: impl Into<String>) -> PyErr {
    raise_with(py, name, (message.into(),))
}

fn raise_with(py: Python<'_>, name: &str, arguments: impl PyErrArguments + 'static) -> PyErr {
    class(py, name).map_or_else(|error| error, |class| PyErr::from_type(class, arguments))
}

/// An `ExchangeError`, which is a `BufferError`.
pub fn exchange_error(py: Python<'_>, message: impl Into<String>) -> PyErr {
    raise(py, "ExchangeError", message)
}

/// The exception for an error of the engine: a new object each time, so that tracebacks do not pile up in
/// one.
pub fn to_py(py: Python<'_>, error: &Error) -> PyErr {
    let name = match error {
        Error::Failed(failure) => return operation(py, "OperationError", failure),
        Error::Cancelled(failure) => return operation(py, "CancelledError", failure),
        Error::Interrupted => return interrupt::take().unwrap_or_else(|| PyKeyboardInterrupt::new_err(())),
        Error::Timeout(_) => return PyTimeoutError::new_err(error.to_string()),
        Error::LeaseHeld(held) => return lease_held(py, error, held).unwrap_or_else(|error| error),
        Error::Invalid(_) => "InvalidError",
        Error::InvalidTensor(_) => "InvalidTensorError",
        Error::NotShared(_) => "NotSharedError",
        Error::Device(device) if device.kind() == DeviceErrorKind::PeerDied => {
            return raise_with(py, "PeerDiedError", (error.to_string(), device.process()));
        }
        Error::Device(error) if error.kind() == DeviceErrorKind::OutOfMemory => "OutOfMemoryError",
        Error::Device(_) => "DeviceError",
        Error::Conflict(_) => "ConflictError",
        Error::WouldDeadlock(_) => "WouldDeadlockError",
        Error::NotDefined(_) => "NotDefinedError",
        Error::NoOperator { .. } => "NoOperatorError",
        Error::InFlightLimit { .. } => "InFlightLimitError",
        Error::Shutdown => "ShutdownError",
        Error::Forked => "ForkedError",
        _ => "EstafetteError",
    };
    raise(py, name, error.to_string())
}

/// As [`OrRaise::or_raise`]. The error of a wait whose time is up also has what `blocker` says, which is
/// called without the Python lock.
pub fn or_say_why(
    py: Python<'_>,
    waited: Result<(), Error>,
    blocker: impl FnOnce() -> Option<String> + Send,
) -> PyResult<()> {
    let error = match waited {
        Err(error @ Error::Timeout(_)) => error,
        waited => return waited.or_raise(py),
    };
    if let Some(raised) = interrupt::take() {
        return Err(raised);
    }
    let blocker = guard::detach(py, blocker);
    Err(PyTimeoutError::new_err(
        blocker.map_or_else(|| error.to_string(), |blocker| format!("{error}: {blocker}")),
    ))
}

fn lease_held(py: Python<'_>, error: &Error, held: &LeaseHeld) -> PyResult<PyErr> {
    let leases = held.held.iter().map(|lease| report::lease(py, lease)).collect::<PyResult<Vec<_>>>()?;
    let arguments = (error.to_string(), held.leases.clone(), PyTuple::new(py, leases)?.unbind());
    Ok(PyErr::from_type(class(py, "LeaseHeldError")?, arguments))
}

fn operation(py: Python<'_>, name: &str, failure: &OperationError) -> PyErr {
    let cause = std::error::Error::source(failure).and_then(|source| {
        if let Some(raised) = source.downcast_ref::<Raised>() {
            Some(PyErr::from_value(raised.kept.value.clone_ref(py).into_bound(py).into_any()))
        } else if let Some(source) = source.downcast_ref::<Error>() {
            Some(to_py(py, source))
        } else {
            source.downcast_ref().map(|source: &DeviceError| to_py(py, &Error::Device(source.clone())))
        }
    });
    let is_death = |error: &&Bound<'_, PyBaseException>| {
        name == "OperationError"
            && class(py, "PeerDiedError").and_then(|class| error.is_instance(&class)).unwrap_or(false)
    };
    let (operation, message) = (failure.operation().to_string(), failure.message().to_string());
    let (id, text) = (failure.id(), failure.to_string());
    let error = match cause.as_ref().map(|cause| cause.value(py)).filter(is_death) {
        Some(death) => {
            let process = death.getattr("process").ok().map(Bound::unbind);
            raise_with(py, "PeerDiedOperationError", (operation, id, message, text, process))
        }
        None => raise_with(py, name, (operation, id, message, text)),
    };
    if cause.is_some() {
        error.set_cause(py, cause);
    }
    error
}

/// `?` for results of the engine.
pub trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Into<Error>> OrRaise<T> for Result<T, E> {
    #[inline]
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        // An error that a signal handler has raised comes first, whatever became of the call.
        match interrupt::take() {
            Some(raised) => Err(raised),
            None => self.map_err(|error| to_py(py, &error.into())),
        }
    }
}

/// The reason why a body did not run at all.
pub fn finalizing() -> BodyError {
    debug_assert!(guard::is_closed(), "only a closed guard turns bodies away");
    SHUTTING_DOWN.into()
}
