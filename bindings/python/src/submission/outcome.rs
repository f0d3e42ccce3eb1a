//! The end of an operation with a Python function: its result, and what was left on its queue.

use std::sync::Arc;

use estafette::bindings;
use estafette::devices::{DLDevice, DeviceError, Fence, FenceSet, Order, Queue};
use estafette::exchange::{Abi, ExportFlags, ManagedTensor, export};
use estafette::{Access, BodyError, BodyResult, Completion, DType, ExportOptions, Layout, Produced, Scope};
use estafette_sync::process::Generation;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyWeakrefReference};

use crate::asyncio::stopped_loop::{self, Begun};
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, Raised, raise};
use crate::exchange::import::{self, IMPORTED, Taken, Wanted};
use crate::exchange::peers;
use crate::interpreter::once::intern;
use crate::interpreter::{guard, interrupt};
use crate::submission::on::On;
use crate::submission::results::{self, Results};

/// The use of a function's result.
#[derive(Clone)]
pub enum Use {
    /// The function is called for its effect on the operands.
    Ignored,
    /// The result becomes the promised tensor, or goes to `Results` if it is no single array.
    Produced(Option<Arc<Results>>),
    /// The result goes to `Results`.
    Several(Arc<Results>),
}

/// A result, and the fences that must be done before the result is ready. Large, so callers pass it in a box.
pub struct DeferredResult {
    /// `None` for several results.
    produced: Option<Produced>,
    ready: FenceSet,
}

/// The result of a function, adopted from the library that made it.
pub fn take_result(value: &Bound<'_, PyAny>) -> PyResult<Produced> {
    take_one(value, false).map(|(produced, _)| produced)
}

/// As [`take_result`], of an operation that ends by `ending` and has this `scope`; what the result waits for
/// is left to a function's queue, or waited for.
pub fn take_deferred(
    value: &Bound<'_, PyAny>,
    ending: &Ending,
    scope: impl Fn() -> Option<Scope>,
) -> PyResult<Option<Box<DeferredResult>>> {
    let on_device = ending.queue.is_some();
    let (results, has_tensor) = match &ending.result {
        Use::Ignored => return Ok(None),
        Use::Produced(results) => (results.as_ref(), true),
        Use::Several(results) => (Some(results), false),
    };
    if let Some(results) = results {
        let mut ready = FenceSet::default();
        let filled = results.fill(value, |array| {
            if let Some(operand) = take_operand(&array, &scope)? {
                return Ok(operand);
            }
            let (produced, fences) = take_one(&array, on_device)?;
            ready.extend(fences);
            Ok(produced)
        })?;
        if filled {
            let produced = has_tensor.then(|| results::placeholder(value.py())).transpose()?;
            return Ok(Some(Box::new(DeferredResult { produced: produced.map(Produced::from), ready })));
        }
    }
    let (produced, ready) = take_one(value, on_device)?;
    Ok(Some(Box::new(DeferredResult { produced: Some(produced), ready })))
}

/// A result that is the function's own operand, in memory of the host, as the function's scope sees it. The
/// operations that make tensors of the results may not read that operand.
fn take_operand(value: &Bound<'_, PyAny>, scope: impl Fn() -> Option<Scope>) -> PyResult<Option<Produced>> {
    let Ok(tensor) = value.cast::<PyTensor>() else { return Ok(None) };
    let py = value.py();
    let tensor = tensor.get().tensor(py)?;
    let is_of_host = tensor.device().is_ok_and(|device| device.device_type.is_host_readable());
    match scope().filter(|scope| is_of_host && bindings::scope::access_of(scope, tensor).is_some()) {
        Some(scope) => {
            let managed = scope.export(tensor, &ExportOptions::from(Access::Read)).or_raise(py)?;
            Ok(Some(Produced::from(managed)))
        }
        None => Ok(None),
    }
}

/// One array, and the fences that it waits for.
fn take_one(value: &Bound<'_, PyAny>, on_device: bool) -> PyResult<(Produced, FenceSet)> {
    if let Ok(tensor) = value.cast::<PyTensor>() {
        let produced = Produced::from(tensor.get().tensor(value.py())?.clone());
        return Ok((produced, FenceSet::default()));
    }
    if let Some(number) = number(value)? {
        IMPORTED.fetch_add(1, Ordering::Relaxed);
        return Ok((Produced::from(number), FenceSet::default()));
    }
    let array = if is_numpy_scalar(value)? {
        Some(value.call_method0(intern!(value.py(), "__array__"))?)
    } else {
        None
    };
    let (array, wanted) = (array.as_ref().unwrap_or(value), Wanted::default());
    if let Some(memory) = import::take_numpy(array, &wanted) {
        IMPORTED.fetch_add(1, Ordering::Relaxed);
        return Ok((Produced::from(memory), FenceSet::default()));
    }
    let Taken { managed, immutable, mut ready } = import::take(array, &wanted)?;
    if !ready.is_empty() && !on_device {
        // A result is there when it is handed on.
        let waiting = std::mem::take(&mut ready);
        guard::detach(value.py(), || {
            waiting.into_iter().try_for_each(|fence| fence.wait_timeout(None).unwrap_or(Ok(())))
        })
        .map_err(|error| raise(value.py(), "DeviceError", error.to_string()))?;
    }
    IMPORTED.fetch_add(1, Ordering::Relaxed);
    let produced = if immutable { bindings::operation::immutable(managed) } else { Produced::from(managed) };
    Ok((produced, ready))
}

/// A number of Python as an array without dimensions, of the type that NumPy makes of it.
/// Raises `OverflowError` for an integer of more than 64 bits.
fn number(value: &Bound<'_, PyAny>) -> PyResult<Option<ManagedTensor>> {
    // Exactly these classes: NumPy's numbers are instances of them, and arrays of their own types.
    let (dtype, parts) = if value.is_exact_instance_of::<PyFloat>() {
        (DType::F64, [value.extract::<f64>()?.to_bits(), 0])
    } else if value.is_exact_instance_of::<PyInt>() {
        (DType::I64, [value.extract::<i64>()? as u64, 0])
    } else if value.is_exact_instance_of::<PyBool>() {
        (DType::BOOL, [u64::from_ne_bytes([u8::from(value.extract::<bool>()?), 0, 0, 0, 0, 0, 0, 0]), 0])
    } else if let Ok(value) = value.cast_exact::<PyComplex>() {
        (DType::C128, [value.real().to_bits(), value.imag().to_bits()])
    } else {
        return Ok(None);
    };
    let layout = Layout::contiguous(dtype, DLDevice::CPU, &[]).or_raise(value.py())?;
    // Atomic, as operations write it by the pointer.
    let memory = Arc::new(parts.map(AtomicU64::new));
    let (data, flags) = (Arc::as_ptr(&memory), ExportFlags::default());
    // SAFETY: the memory has room for any of these types, and stays until the deleter.
    Ok(Some(unsafe { export(&layout, data.cast_mut().cast(), flags, Abi::Versioned, move || drop(memory)) }))
}

/// True if it is what NumPy gives for an array without dimensions, such as `x.sum()`, which does not speak
/// DLPack.
fn is_numpy_scalar(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let known = peers::of(value);
    Ok(!known.speaks && known.peer().root == "numpy" && !value.hasattr(intern!(value.py(), "__dlpack__"))?)
}

/// The duty to complete. A plain function has it for itself; only a coroutine shares it.
pub struct PendingCompletion {
    completion: Option<Completion>,
    shared: Option<SharedPending>,
    pub ending: Ending,
}

impl PendingCompletion {
    pub fn new(completion: Completion, result: Use, on: Option<Arc<On>>) -> Self {
        let queue = on.as_ref().and_then(|_| completion.scope().queue());
        Self { completion: Some(completion), shared: None, ending: Ending { result, queue, _on: on } }
    }

    /// The operation, until the duty is shared.
    pub fn scope(&self) -> Option<Scope> {
        self.completion.as_ref().map(|completion| completion.scope().clone())
    }

    /// For a task, which ends the operation unless it is ended here.
    pub fn share(&mut self) -> SharedPending {
        let completion = &mut self.completion;
        let shared = self.shared.get_or_insert_with(|| SharedPending {
            completion: Arc::new(Mutex::new(completion.take())),
            ending: self.ending.clone(),
        });
        shared.clone()
    }

    pub fn end(&mut self, outcome: BodyResult<Option<Box<DeferredResult>>>) {
        match (self.completion.take(), &self.shared) {
            (Some(completion), _) => self.ending.end(completion, outcome),
            (None, Some(shared)) => shared.end(outcome),
            (None, None) => {}
        }
    }
}

/// The end of a function's operation.
#[derive(Clone)]
pub struct Ending {
    pub result: Use,
    /// The queue of the function.
    queue: Option<Arc<dyn Queue>>,
    /// Keeps a foreign queue until the end is marked there.
    _on: Option<Arc<On>>,
}

impl Ending {
    /// The fence of what a function has left on its queue, which its result is behind.
    fn left_on(queue: &dyn Queue, deferred: Option<&DeferredResult>) -> Result<Fence, DeviceError> {
        for fence in deferred.iter().flat_map(|deferred| &deferred.ready) {
            if queue.order_after(fence)? == Order::Host {
                fence.wait_timeout(None).unwrap_or(Ok(()))?;
            }
        }
        queue.record()
    }

    fn end(&self, completion: Completion, outcome: BodyResult<Option<Box<DeferredResult>>>) {
        let deferred = outcome.as_ref().ok().and_then(|deferred| deferred.as_deref());
        let fence = self.queue.as_ref().map(|queue| Self::left_on(&**queue, deferred));
        let (fence, outcome) = match fence {
            None => (None, outcome),
            Some(Ok(fence)) => (Some(fence), outcome),
            // Enqueued work runs on, and its end can never be known.
            Some(Err(error)) => {
                (Some(estafette::bindings::lost(error.clone())), outcome.and(Err(error.into())))
            }
        };
        if let Use::Produced(Some(results)) = &self.result {
            // Results that are views of operands are copied while this operation has these.
            bindings::scope::make_current(completion.scope(), || {
                results.end(fence.as_ref(), outcome.as_ref().err())
            });
        }
        match (&self.result, outcome, &fence) {
            (Use::Ignored | Use::Several(_), outcome, None) => completion.complete(outcome.map(drop)),
            // The operands must not be used before the enqueued work is done, even if the function then
            // failed.
            (Use::Ignored | Use::Several(_), outcome, Some(fence)) => {
                completion.complete_after(fence, outcome.map(drop));
            }
            (Use::Produced(_), outcome, fence) => {
                let produced = outcome.and_then(|deferred| {
                    deferred
                        .and_then(|deferred| deferred.produced)
                        .ok_or_else(|| "the function gave no result".into())
                });
                match fence {
                    None => completion.produce(produced),
                    Some(fence) => bindings::operation::produce_after(completion, fence, produced),
                }
            }
        }
    }
}

/// The duty to complete, shared by those of whom one will.
#[derive(Clone)]
pub struct SharedPending {
    completion: Arc<Mutex<Option<Completion>>>,
    ending: Ending,
}

impl SharedPending {
    fn has_ended(&self) -> bool {
        self.completion.lock().is_none()
    }

    /// The operation, until its end.
    fn scope(&self) -> Option<Scope> {
        self.completion.lock().as_ref().map(|completion| completion.scope().clone())
    }

    /// Ends the operation as cancelled, behind what it has left on its queue. A function that was cancelled
    /// has returned nothing.
    fn cancel(&self, why: BodyError) {
        let taken = self.completion.lock().take();
        if let Some(completion) = taken {
            completion.cancel(why);
        }
    }

    fn end(&self, outcome: BodyResult<Option<Box<DeferredResult>>>) {
        let taken = self.completion.lock().take();
        if let Some(completion) = taken {
            self.ending.end(completion, outcome);
        }
    }
}

/// Called by the event loop with the finished task of an asynchronous body.
#[pyclass(frozen, module = "estafette._estafette", name = "_TaskDone", weakref)]
pub struct TaskDone {
    completion: SharedPending,
    begun: Begun,
    task: Mutex<BodyTask>,
    generation: Generation,
}

/// The task of an asynchronous body.
#[derive(Default)]
struct BodyTask {
    /// A weak reference: the task has its callbacks. `None` until the event loop has made it.
    reference: Option<Py<PyAny>>,
    is_cancelled: bool,
}

impl TaskDone {
    pub fn new<'py>(
        completion: SharedPending,
        event_loop: &Bound<'py, PyAny>,
        thread: u64,
    ) -> PyResult<Bound<'py, Self>> {
        let begun = Begun::on(event_loop, thread, Arc::clone(&completion.completion));
        let op = completion.scope().map(|scope| scope.id());
        let (task, generation) = (Mutex::default(), Generation::current());
        let done = Self { completion, begun, task, generation };
        let done = Bound::new(event_loop.py(), done)?;
        if let Some(op) = op {
            done.get().begun.ends_by(op, done.as_any())?;
            done.get().task.lock().is_cancelled = stopped_loop::was_cancelled(op);
        }
        Ok(done)
    }
}

impl Drop for TaskDone {
    fn drop(&mut self) {
        if self.generation.is_inherited() {
            // The operation is the parent's.
            return std::mem::forget(self.completion.clone());
        }
        if self.completion.has_ended() {
            return;
        }
        guard::attach(|py| self.lost(py));
    }
}

#[pymethods]
impl TaskDone {
    /// Raises what a signal handler has raised meanwhile.
    fn __call__(&self, task: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = task.py();
        let cancelled =
            task.call_method0(intern!(py, "cancelled")).and_then(|cancelled| cancelled.is_truthy());
        let outcome = task.call_method0(intern!(py, "result")).and_then(|value| {
            take_deferred(&value, &self.completion.ending, || self.completion.scope())
                .inspect_err(|error| _ = interrupt::note(py, error))
        });
        let outcome = outcome.map_err(|error| Raised::body_error(py, error));
        guard::detach(py, || match outcome {
            Err(why) if cancelled.unwrap_or(false) => self.completion.cancel(why),
            outcome => self.completion.end(outcome),
        });
        interrupt::take().map_or(Ok(()), Err)
    }

    /// `task` runs the function, on the event loop of the calling thread.
    fn runs_in(&self, task: &Bound<'_, PyAny>) -> PyResult<()> {
        // Without a reference the task ends by itself.
        let reference = PyWeakrefReference::new(task).ok().map(|weak| weak.into_any().unbind());
        let is_cancelled = {
            let mut kept = self.task.lock();
            kept.reference = reference;
            kept.is_cancelled
        };
        if is_cancelled {
            task.call_method0(intern!(task.py(), "cancel"))?;
        }
        Ok(())
    }

    /// Cancels the task, on the thread of its event loop. Returns whether the task, or the call that makes
    /// it, had not ended.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        let reference = {
            let mut kept = self.task.lock();
            kept.is_cancelled = true;
            kept.reference.as_ref().map(|reference| reference.clone_ref(py))
        };
        let Some(reference) = reference else { return Ok(!self.completion.has_ended()) };
        let task = reference.bind(py).call0()?;
        if task.is_none() { Ok(false) } else { task.call_method0(intern!(py, "cancel"))?.is_truthy() }
    }

    /// The function has raised `error`, and the task may never call.
    fn failed(&self, error: Bound<'_, PyAny>) {
        let py = error.py();
        let why = Raised::body_error(py, PyErr::from_value(error));
        guard::detach(py, || self.completion.end(Err(why)));
    }

    /// The task is gone, or its event loop is closed.
    fn lost(&self, py: Python<'_>) {
        let lost = "the task of its `async def` function was dropped before it had ended, as one is whose event loop is closed";
        guard::detach(py, || self.completion.end(Err(lost.into())));
    }
}
