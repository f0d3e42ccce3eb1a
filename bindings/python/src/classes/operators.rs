//! `eng.operators`: the registry of operators as a mapping, and operators as functions of tensors.

use std::path::PathBuf;
use std::sync::Arc;

use estafette::bindings;
use estafette::operators::{Operator, OperatorCall, OperatorKind, Operators, Signature, operators};
use estafette::{Error, Tensor};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::{not_a_tensor, tensor_of};
use crate::classes::handle::EngineHandle;
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, to_py};
use crate::exchange::export::poll_once;
use crate::interpreter::guard;
use crate::submission::operator_function::{self, OperatorFunction};

/// The operators of this process, by name: functions that one library brings and any other has scheduled.
///
/// A mapping of names to `Operator`; what is called through it runs in this engine::
///
///     >>> @eng.operators.register("doc.scale", using=np.from_dlpack, inputs=1)
///     ... def scale(x, *, by=2):
///     ...     return x * by
///     >>> t = eng.from_dlpack(np.arange(3.0))
///     >>> np.from_dlpack(eng.operators["doc.scale"](t, by=10)).tolist()
///     [0.0, 10.0, 20.0]
///     >>> "doc.scale" in eng.operators, eng.operators["doc.scale"].kind
///     (True, 'allocating')
///     >>> eng.operators.unregister("doc.scale")
#[pyclass(frozen, mapping, module = "estafette", name = "Operators")]
pub struct PyOperators {
    engine: EngineHandle,
}

impl PyOperators {
    pub fn new(engine: EngineHandle) -> Self {
        Self { engine }
    }

    /// The operators of this process.
    /// Raises `ForkedError` where the engine is of a process that this one was forked from.
    fn of(&self, py: Python<'_>) -> PyResult<&'static Operators> {
        self.engine.engine(py).map(|_| operators())
    }
}

#[pymethods]
impl PyOperators {
    fn __getitem__(&self, py: Python<'_>, name: &str) -> PyResult<PyOperator> {
        Ok(PyOperator {
            operator: bindings::operators::get(self.of(py)?, name).or_raise(py)?,
            engine: self.engine.clone(),
        })
    }

    fn __contains__(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        match bindings::operators::get(self.of(py)?, name) {
            Ok(_) => Ok(true),
            Err(Error::NoOperator { .. }) => Ok(false),
            Err(error) => Err(to_py(py, &error)),
        }
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.of(py)?.list().or_raise(py)?.len())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let all = self.of(py)?.list().or_raise(py)?;
        PyTuple::new(py, all.iter().map(|operator| &*operator.name))?.call_method0("__iter__")
    }

    /// Registers a Python function under a name that is not taken; without a function, gives a decorator.
    /// Returns the function.
    ///
    /// ``fn(*inputs, **attributes)`` gets each input through `using`, and its result becomes the operator's.
    /// It is called on any worker, perhaps several at once, with attributes as `Operator` says.
    ///
    /// inputs: how many; default any number.
    /// outputs: how many, from 1 to 65,536. With more than one, the function returns a list or a tuple of
    ///     them, and a call gives as many promises.
    /// destination: the function is ``fn(*inputs, *outputs, **attributes)``, and writes to outputs that its
    ///     caller passes.
    /// infer: ``infer(*inputs, **attributes)`` says what the outputs will look like, and the engine makes
    ///     them for a function that writes to them as with `destination`, on the device of the first input.
    ///     It gets `Tensor` objects and gives a ``(shape, dtype)`` pair, or a sequence of them.
    #[pyo3(signature = (name, r#fn = None, *, using = None, inputs = None, outputs = 1, destination = false, infer = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn register<'py>(
        this: &Bound<'py, Self>,
        name: &str,
        r#fn: Option<Bound<'py, PyAny>>,
        using: Option<Bound<'py, PyAny>>,
        inputs: Option<usize>,
        outputs: usize,
        destination: bool,
        infer: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let Some(function) = r#fn else {
            let options = PyDict::new(py);
            options.set_item("using", using)?;
            options.set_item("inputs", inputs)?;
            options.set_item("outputs", outputs)?;
            options.set_item("destination", destination)?;
            options.set_item("infer", infer)?;
            let partial = py.import("functools")?.getattr("partial")?;
            return partial.call((this.getattr("register")?, name), Some(&options));
        };
        let kind = match (destination, &infer) {
            (true, Some(_)) => {
                return Err(PyTypeError::new_err("an operator has `destination` or `infer`, not both"));
            }
            (true, None) => OperatorKind::Destination,
            (false, Some(_)) => OperatorKind::Inferred,
            (false, None) => OperatorKind::Allocating,
        };
        // As in `submit`: a program may write to an array that it reads as well.
        let signature = Signature { kind, inputs, outputs, in_place: true };
        let origin = operator_function::origin(&function)?;
        let function_of = OperatorFunction::new(&function, using, infer)?;
        bindings::operators::register(this.get().of(py)?, name, signature, origin, function_of)
            .or_raise(py)?;
        Ok(function)
    }

    /// Loads a shared library of operators in C, and gives their names. The library exports
    /// `estafette_operators`, as the C header says; its operators are registered all, or none.
    fn load(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<String>> {
        let operators = self.of(py)?;
        // SAFETY: that the library is what it says is the caller's promise, as with every extension that
        // Python loads.
        guard::detach(py, || unsafe { operators.load(path) }).or_raise(py)
    }

    /// Takes an operator out of the registry. Calls under way still end.
    fn unregister(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let operators = self.of(py)?;
        guard::detach(py, || operators.unregister(name)).or_raise(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let all = self.of(py)?.list().or_raise(py)?;
        let names: Vec<&str> = all.iter().map(|operator| &*operator.name).collect();
        let names = if names.is_empty() { "none yet".into() } else { names.join(", ") };
        Ok(format!("<estafette.Operators: {names}>"))
    }
}

/// A function with a name: ``op(*inputs, out=None, **attributes)``.
///
/// A call returns at once: with promises of the results (one, or a tuple of several), or with `out`, a tensor
/// or a sequence of them that the operator writes to. Inputs are `Tensor` objects; what they wait for, the
/// call waits for, in the graph.
///
/// Attributes are plain data (None, booleans, numbers, text, and lists and tuples of these, at most 64 in one
/// another), so that operators of all languages take the same: a function in C gets them as text, what is no
/// text as JSON writes it (with ``NaN`` and ``Infinity``), a Python function as they are, but for lists,
/// which become tuples. What callers in other languages pass is text, of which a Python function gets what
/// reads like a number or other plain data as that.
///
/// Raises `TypeError` for other data, and `ValueError` for what has no text.
#[pyclass(frozen, module = "estafette", name = "Operator")]
pub struct PyOperator {
    operator: Arc<Operator>,
    engine: EngineHandle,
}

#[pymethods]
impl PyOperator {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.operator.name
    }

    /// The side that decides where results go: ``"destination"``, the caller; ``"inferred"``, the operator
    /// says what they look like and the engine makes them; ``"allocating"``, the operator.
    #[getter]
    fn kind(&self) -> String {
        self.operator.signature.kind.to_string()
    }

    /// The number of inputs; None for any number.
    #[getter]
    fn inputs(&self) -> Option<usize> {
        self.operator.signature.inputs
    }

    /// The number of outputs.
    #[getter]
    fn outputs(&self) -> usize {
        self.operator.signature.outputs
    }

    /// Its origin: a language, the path of a library, the full name of a Python function.
    #[getter]
    fn origin(&self) -> &str {
        &self.operator.origin
    }

    #[pyo3(signature = (*inputs, out = None, **attributes))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyTuple>,
        out: Option<Bound<'py, PyAny>>,
        attributes: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let inputs = tensors_in(inputs.as_any())?;
        let mut call = bindings::operators::call(self.engine.engine(py)?.clone(), Arc::clone(&self.operator));
        call = call.inputs(&inputs.iter().collect::<Vec<_>>());
        if let Some(attributes) = attributes {
            for (key, value, is_text) in operator_function::encode(attributes)? {
                call = if is_text {
                    bindings::operators::text_attribute(call, key, value)
                } else {
                    call.attribute(key, value)
                };
            }
        }
        match out {
            None => self.produce(py, &call),
            Some(out) => {
                let outputs = match out.cast::<PyTensor>() {
                    Ok(tensor) => vec![tensor.get().tensor(py)?.clone()],
                    Err(_) => tensors_in(&out)?,
                };
                self.write(py, &call, &outputs.iter().collect::<Vec<_>>())?;
                Ok(out)
            }
        }
    }

    fn __repr__(&self) -> String {
        let signature = self.operator.signature;
        let inputs = signature.inputs.map_or_else(|| "any number of".into(), |count| count.to_string());
        format!(
            "<estafette.Operator {}, {}, {inputs} inputs, {} outputs, from {}>",
            self.operator.name, signature.kind, signature.outputs, self.operator.origin
        )
    }
}

impl PyOperator {
    fn write(&self, py: Python<'_>, call: &OperatorCall, outputs: &[&Tensor]) -> PyResult<()> {
        let attempt = || poll_once(call.clone().run_into_async(outputs));
        self.engine.submit(py, attempt, || call.clone().run_into(outputs)).map(drop)
    }

    fn produce<'py>(&self, py: Python<'py>, call: &OperatorCall) -> PyResult<Bound<'py, PyAny>> {
        let wrap = |tensor| PyTensor::new(tensor, self.engine.clone());
        let attempt = || poll_once(call.clone().produce_async());
        let mut tensors = self.engine.submit(py, attempt, || call.clone().produce())?;
        if self.operator.signature.outputs > 1 {
            return Ok(PyTuple::new(py, tensors.into_iter().map(wrap))?.into_any());
        }
        let tensor = tensors.pop().ok_or_else(|| PyTypeError::new_err("no result"))?;
        Ok(Bound::new(py, wrap(tensor))?.into_any())
    }
}

fn tensors_in(sequence: &Bound<'_, PyAny>) -> PyResult<Vec<Tensor>> {
    let iterator = sequence.try_iter().map_err(|_| not_a_tensor(sequence))?;
    iterator.map(|item| tensor_of(&item?)).collect()
}
