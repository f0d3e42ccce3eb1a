//! Several results of one function: each array becomes a promise, in the structure in which the function has
//! returned them.
//!
//! An operation runs the function and leaves the arrays here. One operation for each array makes a tensor of
//! it, as the result of a call becomes one. Where the caller has declared the structure these operations are
//! submitted at once; otherwise when the function has returned, and they end before the operation of the call
//! does: arrays that are views of its operands are copied while it keeps writers out, and are gone
//! afterwards, so that no lease is left. The promise of such a call is defined by a [placeholder].

use std::mem;
use std::sync::{Arc, Weak};

use estafette::devices::{DLDevice, Fence};
use estafette::exchange::{Abi, ExportFlags, ManagedTensor, export};
use estafette::{BodyError, BodyResult, Completion, DType, Layout, Produced, Tensor, bindings};
use estafette_report::shown::shown;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList, PyString, PyTuple};

use crate::classes::handle::{EngineHandle, EngineState};
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, import_module};
use crate::exchange::buffer_import;
use crate::exchange::from_future::{self, CompletionSlot};
use crate::exchange::peers;
use crate::interpreter::interrupt;
use crate::interpreter::kept::Kept;
use crate::submission::scope;
use crate::submission::submission_args::SubmissionArgs;

/// The results of one call.
pub struct Results {
    /// The arguments of the operations that make tensors of the arrays.
    args: SubmissionArgs,
    /// Takes the arrays out of what the function returns, where the caller has declared the structure.
    take: Option<Kept<Py<PyAny>>>,
    /// The engine of the promise, where the structure is unknown. Once that is gone, the promise cannot be
    /// unpacked.
    engine: Weak<EngineState>,
    /// True if the function has returned no single array, and the promises of its arrays are defined.
    structured: AtomicBool,
    state: Mutex<ResultsState>,
}

#[derive(Default)]
struct ResultsState {
    arrays: Vec<Option<Produced>>,
    /// The function has returned no single array.
    is_filled: bool,
    /// Completions of the operations that make tensors of the arrays, until the function's operation ends.
    ends: Vec<Option<Completion>>,
    /// Promises of the arrays, until the structure was made of them.
    promises: Vec<Tensor>,
    /// Makes the structure of the promises.
    build: Option<Kept<Py<PyAny>>>,
    /// The exception of the first attempt to make it.
    refused: Option<Kept<PyErr>>,
    /// The structure.
    built: Option<Kept<Py<PyAny>>>,
}

impl Results {
    /// The results of a function that may return anything.
    pub fn unknown(args: SubmissionArgs, engine: &EngineHandle) -> Self {
        let engine = Arc::downgrade(&engine.shared);
        Self { args, take: None, engine, structured: AtomicBool::new(false), state: Mutex::default() }
    }

    /// The results of a function, which `take` takes apart.
    pub fn declared(args: SubmissionArgs, take: Py<PyAny>) -> Self {
        let (engine, structured, state) = (Weak::new(), AtomicBool::new(false), Mutex::default());
        Self { args, take: Some(Kept::new(take)), engine, structured, state }
    }

    /// True if the function has returned no single array.
    pub fn is_structured(&self) -> bool {
        self.structured.load(Ordering::Acquire)
    }

    /// The arrays in what the function has returned, which `keep` adopts; `None` for one array.
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
        *self.state.lock() = ResultsState { arrays, is_filled: true, build, ..ResultsState::default() };
        if self.take.is_none() {
            self.promise(py)?;
        }
        Ok(true)
    }

    /// Makes promises of the arrays, and the structure of them. The arrays are delivered by
    /// [`end`](Self::end).
    fn promise(&self, py: Python<'_>) -> PyResult<()> {
        let Some(shared) = self.engine.upgrade() else {
            let unused = mem::take(&mut *self.state.lock());
            drop(unused);
            return Ok(());
        };
        let engine = EngineHandle { shared };
        let core = engine.engine(py)?;
        let count = self.state.lock().arrays.len();
        for _ in 0..count {
            let slot = CompletionSlot::default();
            let left = Arc::clone(&slot);
            // With a variable in common, one would wait for the other.
            let args = SubmissionArgs { own: OnceLock::new(), ..self.args.clone() };
            let receive = || {
                bindings::operation::receive_always(args.promise(core), move |end| *left.lock() = Some(end))
            };
            let promise = scope::within(py, receive)?.or_raise(py)?;
            let mut state = self.state.lock();
            state.promises.push(promise);
            state.ends.push(from_future::take(&slot));
        }
        if let Err(refused) = self.build(py, &engine) {
            interrupt::note(py, &refused);
            self.state.lock().refused = Some(Kept::new(refused));
        }
        Ok(())
    }

    /// Ends the operations that make tensors of the arrays, where the function has returned no single array:
    /// its own operation is about to end, with `fence` behind what it has left on its queue, or with an
    /// error.
    pub fn end(&self, fence: Option<&Fence>, error: Option<&BodyError>) {
        if self.take.is_some() {
            return;
        }
        let mut state = self.state.lock();
        if !state.is_filled {
            return;
        }
        let arrays = mem::take(&mut state.arrays);
        let ends = mem::take(&mut state.ends);
        drop(state);
        for (end, array) in std::iter::zip(ends, arrays) {
            let Some(end) = end else { continue };
            if let Some(error) = error {
                // The failure is the one of the call, and reported once.
                end.cancel(error.to_string().into());
                continue;
            }
            let produced = array.ok_or_else(|| NO_RESULT.into());
            match fence {
                Some(fence) => bindings::operation::produce_after(end, fence, produced),
                None => end.produce(produced),
            }
        }
        self.structured.store(error.is_none(), Ordering::Release);
    }

    /// The body of the operation that makes a tensor of the array at `at`, of results whose structure was
    /// declared.
    pub fn deliver(self: &Arc<Self>, at: usize) -> impl FnOnce(Completion) + Send + 'static {
        let results = Arc::clone(self);
        move |end: Completion| end.produce(results.array(at))
    }

    fn array(&self, at: usize) -> BodyResult<Produced> {
        let array = self.state.lock().arrays.get_mut(at).and_then(Option::take);
        array.ok_or_else(|| NO_RESULT.into())
    }

    /// The value that the function has returned, with promises in place of arrays: the same at every call,
    /// from whatever threads. Raises what making the structure raises; a later call makes it of the same
    /// promises.
    pub fn unpack<'py>(&self, py: Python<'py>, engine: &EngineHandle) -> PyResult<Bound<'py, PyAny>> {
        let refused = self.state.lock().refused.take();
        match refused {
            Some(refused) => Err(refused.clone_ref(py)),
            None => self.build(py, engine),
        }
    }

    /// Shows the garbage collector what only the promise keeps: the structure may refer to what has the
    /// promise. The operation of the call, until it ends, and other threads are unknown to the collector.
    pub fn traverse(self: &Arc<Self>, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(state) = self.state.try_lock().filter(|_| Arc::strong_count(self) == 1) else {
            return Ok(());
        };
        [&state.build, &state.built].into_iter().flatten().try_for_each(|kept| visit.call(&**kept))
    }

    /// Drops the structure and what makes it. The promise cannot be unpacked from then on.
    pub fn clear(&self) {
        let kept = self.state.try_lock().map(|mut state| (state.build.take(), state.built.take()));
        drop(kept);
    }

    fn build<'py>(&self, py: Python<'py>, engine: &EngineHandle) -> PyResult<Bound<'py, PyAny>> {
        let (promises, build) = {
            let state = self.state.lock();
            if let Some(built) = &state.built {
                return Ok(built.bind(py).clone());
            }
            (state.promises.clone(), state.build.as_ref().map(|build| build.clone_ref(py)))
        };
        let tensors: Vec<_> =
            promises.into_iter().map(|tensor| PyTensor::new(tensor, engine.clone())).collect();
        let build = build.ok_or_else(|| PyTypeError::new_err("the result is one array"))?;
        let built = build.bind(py).call1((PyList::new(py, tensors)?,))?;
        let mut state = self.state.lock();
        if let Some(built) = &state.built {
            return Ok(built.bind(py).clone());
        }
        state.built = Some(Kept::new(built.clone().unbind()));
        let old = (mem::take(&mut state.promises), state.build.take());
        drop(state);
        drop(old);
        Ok(built)
    }
}

const NO_RESULT: &str = "the function gave no such result";

/// True if a value is one array for sure, as a capsule is, of whatever library, and memory other than
/// `bytes`.
fn is_single(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let may_be_other = value.is_none()
        || value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyTuple>()
        || value.is_instance_of::<PyList>()
        || value.is_instance_of::<PyDict>();
    let is_known = || {
        let known = peers::of(value);
        known.speaks && !known.peer().root.is_empty()
    };
    let is_memory = || buffer_import::has_buffer(value) && !value.is_instance_of::<PyBytes>();
    Ok(!may_be_other && (value.is_instance_of::<PyCapsule>() || is_known() || is_memory()))
}

/// The placeholder that defines the promise of a call whose function has returned no single array. No library
/// takes elements of this type.
pub fn placeholder(py: Python<'_>) -> PyResult<ManagedTensor> {
    let layout = Layout::contiguous(PLACEHOLDER, DLDevice::CPU, &[0]).or_raise(py)?;
    let flags = ExportFlags { read_only: true, is_copied: false };
    // SAFETY: there is no memory to describe.
    Ok(unsafe { export(&layout, std::ptr::null_mut(), flags, Abi::Versioned, || ()) })
}

const PLACEHOLDER: DType = DType::new(3, 8);

/// Raises `TypeError` for the promise of a call whose function has returned no single array.
pub fn refuse_placeholder(py: Python<'_>, tensor: &Tensor) -> PyResult<()> {
    if tensor.dtype().or_raise(py)? == PLACEHOLDER { Err(not_one_array(tensor, None)) } else { Ok(()) }
}

/// The error for using the promise of several results as an array: as the argument that is the tensor of this
/// number, if it is one.
pub fn not_one_array(promise: &Tensor, argument: Option<usize>) -> PyErr {
    let operation = format!("operation `{}`", shown(bindings::producer(promise).unwrap_or("?")));
    let unpack = "unpack the promise (`a, b = t`, `t[\"name\"]`, `t.result()`)";
    PyTypeError::new_err(match argument {
        Some(at) => format!(
            "tensor {at} among the arguments is the promise of {operation}, which has returned no single array: {unpack} and pass what \
             is in it, or declare `outputs=...` or `like=...` for that operation"
        ),
        None => format!("{operation} has returned no single array: {unpack}, or declare `outputs=...`"),
    })
}
