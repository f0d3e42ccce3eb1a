//! Several results of one function: each array becomes a promise, in the structure in which the function has returned them.
//!
//! An operation runs the function and leaves the arrays here. One operation for each array makes a tensor of it, as the result of a
//! call becomes one. Where the caller has declared the structure these operations are submitted at once; otherwise
//! when the caller unpacks the promise of the call. Such a promise is defined by a [placeholder] meanwhile.

use std::sync::Arc;
use std::{mem, slice};

use estafette::bindings::wait_any;
use estafette::devices::DLDevice;
use estafette::exchange::{Abi, ExportFlags, ManagedTensor, export};
use estafette::{BodyResult, Completion, DType, Layout, Produced, Tensor};
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::classes::handle::EngineHandle;
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, import_module};
use crate::exchange::from_future::{self, Slot};
use crate::exchange::peers;
use crate::interpreter::guard;
use crate::interpreter::kept::Kept;
use crate::submission::scope;
use crate::submission::submission_args::SubmissionArgs;

/// The results of one call.
pub struct Results {
    /// What the operations ask for that make tensors of the arrays.
    args: SubmissionArgs,
    /// Takes the arrays out of what the function returns, where the caller has declared the structure.
    take: Option<Kept<Py<PyAny>>>,
    /// Whether the function has returned no single array.
    structured: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    arrays: Vec<Option<Produced>>,
    /// Promises of the arrays, from the first attempt to unpack on until one has succeeded.
    promises: Vec<Tensor>,
    /// Makes the structure of the promises.
    build: Option<Kept<Py<PyAny>>>,
    /// The structure, once the promise was unpacked.
    built: Option<Kept<Py<PyAny>>>,
}

impl Results {
    /// Of a function that may return anything.
    pub fn unknown(args: SubmissionArgs) -> Self {
        Self { args, take: None, structured: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Of a function whose results `take` takes apart.
    pub fn declared(args: SubmissionArgs, take: Py<PyAny>) -> Self {
        Self { take: Some(Kept::new(take)), ..Self::unknown(args) }
    }

    /// Whether the function has returned no single array.
    pub fn is_structured(&self) -> bool {
        self.structured.load(Ordering::Acquire)
    }

    /// The arrays in what the function has returned, which `keep` takes over; `None` for one array.
    /// Raises `TypeError` for other results than declared; those of `keep`.
    pub fn fill<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        keep: impl FnMut(Bound<'py, PyAny>) -> PyResult<Produced>,
    ) -> PyResult<bool> {
        let py = value.py();
        let (arrays, build) = match &self.take {
            Some(take) => (take.bind(py).call1((value,))?, None),
            None if is_single(value)? => return Ok(false),
            None => {
                let unpacked = import_module(py, "estafette._calls")?.call_method1("unpacked", (value,))?;
                if unpacked.is_none() {
                    return Ok(false);
                }
                let (arrays, build): (Bound<'_, PyAny>, Py<PyAny>) = unpacked.extract()?;
                (arrays, Some(Kept::new(build)))
            }
        };
        let arrays =
            arrays.cast::<PyList>()?.iter().map(keep).map(|kept| kept.map(Some)).collect::<PyResult<_>>()?;
        *self.state.lock() = State { arrays, build, ..State::default() };
        self.structured.store(true, Ordering::Release);
        Ok(true)
    }

    /// The body of the operation that makes a tensor of the array at `at`, of results whose structure was declared.
    pub fn deliver(self: &Arc<Self>, at: usize) -> impl FnOnce(Completion) + Send + 'static {
        let results = Arc::clone(self);
        move |end: Completion| end.produce(results.array(at))
    }

    fn array(&self, at: usize) -> BodyResult<Produced> {
        let array = self.state.lock().arrays.get_mut(at).and_then(Option::take);
        array.ok_or_else(|| "the function gave no such result".into())
    }

    /// Tensors of the `count` arrays, of which `promises` are the first ones. All are defined when this returns.
    /// Raises what ends a wait for another thread that makes some of them.
    fn tensors(
        &self,
        py: Python<'_>,
        engine: &EngineHandle,
        count: usize,
        mut promises: Vec<Tensor>,
    ) -> PyResult<Vec<Tensor>> {
        let core = engine.engine(py)?;
        let mut ends = Vec::new();
        for at in promises.len()..count {
            let slot = Slot::default();
            let left = Arc::clone(&slot);
            // With a variable in common, one would wait for the other.
            let args = SubmissionArgs { own: OnceLock::new(), ..self.args.clone() };
            let receive = || args.promise(core).receive_always(move |end| *left.lock() = Some(end));
            promises.push(scope::within(py, receive)?.or_raise(py)?);
            ends.extend(from_future::take(&slot).map(|end| (at, end)));
        }
        self.state.lock().promises.clone_from(&promises);
        // Completing may copy memory.
        guard::detach(py, || {
            ends.into_iter().for_each(|(at, end)| end.produce(self.array(at)));
            // Another thread may be about to complete the first ones.
            let undefined = promises.iter().filter(|promise| !promise.is_defined());
            undefined.map(slice::from_ref).try_for_each(|promise| wait_any(&[], promise, None))
        })
        .or_raise(py)?;
        Ok(promises)
    }

    /// What the function has returned, with promises in place of arrays: the same at every call, from whatever threads.
    /// Raises what making the structure raises; a later call makes it of the same promises.
    pub fn unpack<'py>(&self, py: Python<'py>, engine: &EngineHandle) -> PyResult<Bound<'py, PyAny>> {
        // The Python lock is kept until every array has a promise: no other thread makes one of the same array.
        let (count, promises, build) = {
            let state = self.state.lock();
            if let Some(built) = &state.built {
                return Ok(built.bind(py).clone());
            }
            let build = state.build.as_ref().map(|build| build.clone_ref(py));
            (state.arrays.len(), state.promises.clone(), build)
        };
        let tensors = self.tensors(py, engine, count, promises)?.into_iter();
        let tensors: Vec<_> = tensors.map(|tensor| PyTensor::new(tensor, engine.clone())).collect();
        let build = build.ok_or_else(|| PyTypeError::new_err("the result is one array"))?;
        let built = build.bind(py).call1((PyList::new(py, tensors)?,))?;
        let mut state = self.state.lock();
        if let Some(built) = &state.built {
            return Ok(built.bind(py).clone());
        }
        let unpacked = State { built: Some(Kept::new(built.clone().unbind())), ..State::default() };
        let old = mem::replace(&mut *state, unpacked);
        drop((state, old));
        Ok(built)
    }
}

/// Whether a value is no structure for sure.
fn is_single(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let may_be_other = value.is_none()
        || value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyTuple>()
        || value.is_instance_of::<PyList>()
        || value.is_instance_of::<PyDict>();
    Ok(!may_be_other && !peers::of(value).peer().root.is_empty())
}

/// What defines the promise of a call whose function has returned no single array. No library takes elements of this type.
pub fn placeholder(py: Python<'_>) -> PyResult<ManagedTensor> {
    let layout = Layout::contiguous(PLACEHOLDER, DLDevice::CPU, &[0]).or_raise(py)?;
    let flags = ExportFlags { read_only: true, is_copied: false };
    // SAFETY: there is no memory to describe.
    Ok(unsafe { export(&layout, std::ptr::null_mut(), flags, Abi::Versioned, || ()) })
}

const PLACEHOLDER: DType = DType::new(3, 8);

/// Raises `TypeError` for the promise of a call whose function has returned no single array.
pub fn refuse_placeholder(py: Python<'_>, tensor: &Tensor) -> PyResult<()> {
    if tensor.dtype().or_raise(py)? == PLACEHOLDER { Err(not_one_array()) } else { Ok(()) }
}

/// The error for using several results as an array.
pub fn not_one_array() -> PyErr {
    PyTypeError::new_err(
        "the function has returned no single array: unpack the promise (`a, b = t`, `t[\"name\"]`, `t.result()`), or declare `outputs=...`",
    )
}
