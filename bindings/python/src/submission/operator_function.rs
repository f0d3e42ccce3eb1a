//! Python functions as operators.

use std::sync::Arc;

use estafette::bindings::{self, Implementation, Invocation};
use estafette::devices::{DLDevice, Queue};
use estafette::operators::OperatorKind;
use estafette::{DType, Error, Produced, Tensor};
use estafette_sync::process::ProcessBound;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::classes::handle::{EngineHandle, EngineState};
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, Raised, finalizing, import_module};
use crate::interpreter::kept::Kept;
use crate::interpreter::{exit, guard, interrupt};
use crate::submission::body;
use crate::submission::function_kind::{FunctionKind, never_runs};
use crate::submission::outcome::take_result;
use crate::submission::submission_args::{name_of, parse_like};
use crate::unretrieved::Failures;

/// A Python function, and how it is called.
pub struct OperatorFunction {
    parts: Kept<FunctionParts>,
}

struct FunctionParts {
    function: Py<PyAny>,
    using: Option<Py<PyAny>>,
    infer: Option<Py<PyAny>>,
}

impl OperatorFunction {
    /// Raises `TypeError` for what cannot be called, and for `async def` functions: their event loop is
    /// unknown.
    pub fn new(
        function: &Bound<'_, PyAny>,
        using: Option<Bound<'_, PyAny>>,
        infer: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        for callable in [Some(function), using.as_ref(), infer.as_ref()].into_iter().flatten() {
            if !callable.is_callable() {
                return Err(PyTypeError::new_err(format!("{} is not callable", callable.repr()?)));
            }
            match FunctionKind::of(callable)? {
                FunctionKind::Plain => {}
                FunctionKind::Generator => {
                    return Err(never_runs(&format!("{} is a generator function", callable.repr()?)));
                }
                FunctionKind::Async => {
                    let message =
                        format!("{} is asynchronous: operators are plain functions", callable.repr()?);
                    return Err(PyTypeError::new_err(message));
                }
            }
        }
        let parts = FunctionParts {
            function: function.clone().unbind(),
            using: using.map(Bound::unbind),
            infer: infer.map(Bound::unbind),
        };
        Ok(Self { parts: Kept::new(parts) })
    }
}

impl Implementation for OperatorFunction {
    fn start(&self, invocation: Invocation) {
        let parts = &*self.parts;
        let outcome = guard::attach(|py| {
            parts.run(py, &invocation).map_err(|error| {
                interrupt::note(py, &error);
                Raised::body_error(py, error)
            })
        });
        // Without the Python lock, as finishing may copy memory and hands on work; by then the views are
        // gone.
        invocation.finish(outcome.unwrap_or_else(|| Err(finalizing())));
    }

    fn takes_a_lock(&self) -> bool {
        true
    }

    fn can_enqueue_on(&self, _queue: &dyn Queue) -> bool {
        false
    }
}

impl FunctionParts {
    fn run(&self, py: Python<'_>, call: &Invocation) -> PyResult<Vec<Produced>> {
        let engine = call.engine();
        let handle = exit::known(&engine).unwrap_or_else(|| {
            // The engine of another language, or one that no object of Python has any more. The tensors that
            // it is for end no engine.
            let (engine, failures) = (ProcessBound::new(engine.clone()), Failures::Log);
            let shared = EngineState { engine, failures, using: None, is_watched: false };
            EngineHandle { shared: Arc::new(shared) }
        });
        let object = |tensor: &Tensor| Bound::new(py, PyTensor::new(tensor.clone(), handle.clone()));
        let inputs = call.inputs().iter().map(object).collect::<PyResult<Vec<_>>>()?;
        let mut arguments: Vec<Bound<'_, PyAny>> =
            inputs.iter().map(|input| input.as_any().clone()).collect();
        let attributes = decode(py, call)?;
        let outputs = call.operator().signature.outputs;
        let mut fresh = Vec::new();
        if let Some(infer) = &self.infer {
            let described = infer.bind(py).call(PyTuple::new(py, &inputs)?, Some(&attributes))?;
            for (at, (dtype, shape)) in described_outputs(&described, outputs)?.into_iter().enumerate() {
                match call.outputs().get(at) {
                    Some(given) => check_fit(py, call, at, given, dtype, &shape)?,
                    None => fresh.push(fresh_output(call, &shape, dtype).or_raise(py)?),
                }
            }
        }
        for given in call.outputs() {
            arguments.push(object(given)?.into_any());
        }
        for made in &fresh {
            // The tensor has no other handle, so the lease is granted at once.
            arguments.push(object(made)?.call_method0("for_write")?);
        }
        drop(inputs);
        let function = with_attributes(self.function.bind(py), &attributes)?;
        let using = self.using.as_ref().map(|using| using.bind(py));
        let value = body::run_plain(call.scope(), &function, using, PyTuple::new(py, arguments)?)?;
        match call.operator().signature.kind {
            OperatorKind::Allocating if outputs == 1 => Ok(vec![take_result(&value)?]),
            OperatorKind::Allocating => {
                // An array is no sequence of results, though it can be iterated over. The engine counts them.
                if !value.is_instance_of::<PyList>() && !value.is_instance_of::<PyTuple>() {
                    let take = import_module(py, "estafette._calls")?.getattr("_take_sequence")?;
                    take.call1((outputs, &value))?;
                }
                value.try_iter()?.map(|item| take_result(&item?)).collect()
            }
            OperatorKind::Destination | OperatorKind::Inferred => {
                Ok(fresh.into_iter().map(Produced::from).collect())
            }
        }
    }
}

/// Memory for an inferred output, on the device of the first input as for operators of other languages.
fn fresh_output(call: &Invocation, shape: &[i64], dtype: DType) -> Result<Tensor, Error> {
    let device = call.inputs().first().and_then(|input| input.device().ok());
    call.engine().empty(shape, dtype, device.unwrap_or(DLDevice::CPU))
}

/// The function with the options of a call.
fn with_attributes<'py>(
    function: &Bound<'py, PyAny>,
    attributes: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    if attributes.is_empty() {
        return Ok(function.clone());
    }
    function.py().import("functools")?.getattr("partial")?.call((function,), Some(attributes))
}

/// The result of `infer`: a pair for one output, else a sequence of pairs.
fn described_outputs(described: &Bound<'_, PyAny>, outputs: usize) -> PyResult<Vec<(DType, Vec<i64>)>> {
    if outputs == 1 {
        return Ok(vec![parse_like(described)?]);
    }
    let pairs = described.try_iter()?.map(|pair| parse_like(&pair?)).collect::<PyResult<Vec<_>>>()?;
    if pairs.len() != outputs {
        return Err(PyValueError::new_err(format!(
            "`infer` described {} outputs, not {outputs}",
            pairs.len()
        )));
    }
    Ok(pairs)
}

fn check_fit(
    py: Python<'_>,
    call: &Invocation,
    at: usize,
    given: &Tensor,
    dtype: DType,
    shape: &[i64],
) -> PyResult<()> {
    let (is_dtype, is_shape) = (given.dtype().or_raise(py)?, given.shape().or_raise(py)?);
    if is_dtype == dtype && is_shape.as_slice() == shape {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "output {at} of operator `{}` is {dtype} {shape:?}, but was given {is_dtype} {:?} to write",
        &*call.operator().name,
        is_shape.as_slice()
    )))
}

/// The options of a call as text, for operators of any language, each with whether it was text before.
/// Raises `TypeError` for what is no plain data, and `ValueError` for what has no text.
pub fn encode(attributes: &Bound<'_, PyDict>) -> PyResult<Vec<(String, String, bool)>> {
    import_module(attributes.py(), "estafette._operators")?.getattr("encode")?.call1((attributes,))?.extract()
}

/// The options of a call as Python has them.
fn decode<'py>(py: Python<'py>, call: &Invocation) -> PyResult<Bound<'py, PyDict>> {
    let texts: Vec<(&str, &str, bool)> = bindings::operators::typed_attributes(call.attributes()).collect();
    Ok(import_module(py, "estafette._operators")?.getattr("decode")?.call1((texts,))?.cast_into()?)
}

/// The origin of a function.
pub fn origin(function: &Bound<'_, PyAny>) -> PyResult<String> {
    let name = name_of(function)?;
    let module = function.getattr("__module__").and_then(|module| module.extract::<String>());
    Ok(module.map_or_else(|_| name.clone(), |module| format!("{module}.{name}")))
}
