//! The call of a plain function, in the context of its submitter.

use std::{mem, ptr, slice};

use estafette::Scope;
use estafette_sync::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::classes::exporter::Exporter;
use crate::classes::tensor::PyTensor;
use crate::error::show_failed;
use crate::exchange::conversions;
use crate::exchange::numpy_array::{self, Lent};
use crate::interpreter::{call_site, fastcall};
use crate::submission::body::helper;
use crate::submission::scope::{self, OperationScope};

/// The scope of the plain function that the process was forked in, in the child. The function holds it for as
/// long as it runs.
static FORKED_IN: AtomicPtr<ffi::PyObject> = AtomicPtr::new(ptr::null_mut());

/// Notes in a forked child what it was forked in.
pub fn note_fork(py: Python<'_>) -> PyResult<()> {
    let scope = scope::current_scope(py)?;
    FORKED_IN.store(scope.map_or(ptr::null_mut(), |scope| scope.as_ptr()), Ordering::Relaxed);
    Ok(())
}

/// True if functions are called by `call_in_span`.
static IN_SPANS: AtomicBool = AtomicBool::new(false);

/// Says whether functions of operations are called in the spans that `estafette/_spans.py` makes.
#[pyfunction(name = "_run_in_spans", signature = (on, /))]
pub fn run_in_spans(on: bool) {
    IN_SPANS.store(on, Ordering::Relaxed);
}

/// A function, and what it is called with. Called in a context of its own.
#[pyclass(frozen, module = "estafette._estafette", name = "_PlainCall")]
pub struct PlainCall {
    pub scope: Py<OperationScope>,
    pub function: Py<PyAny>,
    pub using: Option<Py<PyAny>>,
    /// The function's arguments, with `Tensor` objects where it gets arrays.
    pub arguments: Py<PyTuple>,
}

#[pymethods]
impl PlainCall {
    pub fn __call__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        scope::make_current(self.scope.bind(py))?;
        let outcome = self.call(py);
        if FORKED_IN.load(Ordering::Relaxed) == self.scope.as_ptr() {
            let error = outcome.as_ref().err().map(|error| error.clone_ref(py));
            // `end_child` does not return.
            helper(py, "end_child")?.call1((error,))?;
        }
        outcome
    }
}

impl PlainCall {
    fn call<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // Taken back when the arguments are dropped.
        let mut lent = Vec::new();
        let arguments = self.arguments.bind(py).iter();
        let mut arguments: Vec<_> = match &self.using {
            None => {
                check_arrays(self.arguments.bind(py))?;
                arguments.collect()
            }
            Some(using) => call_site::converting(py, || {
                let (using, scope) = (using.bind(py), self.scope.get().scope());
                let mut tensors = 0;
                arguments
                    .map(|argument| with_array(using, scope, argument, &mut lent, &mut tensors))
                    .collect::<PyResult<_>>()
            })?,
        };
        let function = self.function.bind(py);
        if IN_SPANS.load(Ordering::Relaxed) {
            arguments.insert(0, function.clone());
            return fastcall::call(&helper(py, "call_in_span")?, &arguments);
        }
        fastcall::call(function, &arguments)
    }
}

/// Raises `TypeError` if a tensor among `arguments`, which are ready, is the promise of several results or of
/// a number. One that was known to be such has been refused at the submission.
pub fn check_arrays(arguments: &Bound<'_, PyTuple>) -> PyResult<()> {
    let arguments = arguments.iter();
    let mut tensors =
        arguments.filter_map(|argument| argument.cast_into_exact::<PyTensor>().ok()).enumerate();
    tensors.try_for_each(|(at, tensor)| tensor.get().argument(tensor.py(), at).map(drop))
}

/// The array that a function gets in place of a tensor, of which there were so many `tensors` before.
/// Operators get an `Exporter` of their operands.
fn with_array<'a, 'py>(
    using: &Bound<'py, PyAny>,
    scope: &'a Scope,
    argument: Bound<'py, PyAny>,
    lent: &mut Vec<Lent<'a, 'py>>,
    tensors: &mut usize,
) -> PyResult<Bound<'py, PyAny>> {
    if let Ok(tensor) = argument.cast_exact::<PyTensor>() {
        let at = mem::replace(tensors, *tensors + 1);
        tensor.get().argument(tensor.py(), at)?;
        if let Some((array, view)) = numpy_array::lend(using, scope, tensor)? {
            lent.push(view);
            return Ok(array);
        }
        if let Some(array) = conversions::convert(using, scope, tensor.get())? {
            return Ok(array);
        }
    } else if !argument.is_exact_instance_of::<Exporter>() {
        return Ok(argument);
    }
    fastcall::call(using, slice::from_ref(&argument)).map_err(|error| name_type(error, using, &argument))
}

/// The error of a library that takes no tensors of this type, with the name of the type.
#[cold]
fn name_type(error: PyErr, using: &Bound<'_, PyAny>, argument: &Bound<'_, PyAny>) -> PyErr {
    let py = using.py();
    let named = helper(py, "name_type").and_then(|name| name.call1((error.value(py), using, argument)));
    show_failed(py, named);
    error
}
