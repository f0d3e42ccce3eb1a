//! Futures of other schedulers as promises: `eng.from_future(f)`.
//!
//! The operation behind such a tensor has no function to run: it begins at once and ends when the future
//! does, on the thread that reports the end. `estafette/_futures.py` knows how each kind of future is
//! listened to; it calls a [`Delivery`] with what has come of it. A future that is dropped without an end
//! drops its delivery too, and no result can come any more: the operation fails then, so that no waiter waits
//! for ever.

use std::sync::Arc;

use estafette::{Completion, Tensor, bindings};
use estafette_sync::process::ProcessBound;
use estafette_sync::sync::{Mutex, OnceLock};
use pyo3::prelude::*;

use crate::asyncio::stopped_loop::Begun;
use crate::classes::handle::EngineHandle;
use crate::classes::tensor::PyTensor;
use crate::error::Raised;
use crate::interpreter::{guard, interrupt};
use crate::submission::outcome::take_result;
use crate::submission::submission_args::SubmissionArgs;

/// The slot in which the operation leaves its completion for the future.
pub type CompletionSlot = Arc<Mutex<Option<Completion>>>;

pub fn take<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().take()
}

/// Submits an operation that leaves its completion in the slot, for the bringer of its result. Without
/// operands it is there when this returns. Raises those of a submission; `InFlightLimitError` where waiting
/// for room would stop an event loop.
pub fn receive(
    py: Python<'_>,
    engine: &EngineHandle,
    args: &SubmissionArgs,
) -> PyResult<(Tensor, CompletionSlot)> {
    let slot = CompletionSlot::default();
    let tensor = engine.promise(py, args, |op| {
        let left = Arc::clone(&slot);
        op.receive(move |end| *left.lock() = Some(end))
    })?;
    Ok((tensor, slot))
}

/// Ends the operation when listening has failed: the caller gets `error`, so there is nothing to report.
pub fn call_off(py: Python<'_>, slot: &CompletionSlot, error: &PyErr) {
    if let Some(completion) = take(slot) {
        let why = Raised::foreign(py, error.clone_ref(py));
        guard::detach(py, || completion.cancel(why));
    }
}

/// The callback that a future reports its end to: `delivery(value, error, cancelled)`. Only the first call
/// counts.
#[pyclass(frozen, module = "estafette._estafette", name = "_Delivery", weakref)]
pub struct Delivery {
    slot: ProcessBound<CompletionSlot>,
    begun: OnceLock<Begun>,
}

impl Delivery {
    pub fn new(slot: CompletionSlot) -> Self {
        Self { slot: ProcessBound::new(slot), begun: OnceLock::new() }
    }

    /// In a forked child the operation belongs to the parent process.
    fn taken(&self) -> Option<Completion> {
        take(self.slot.get().ok()?)
    }
}

#[pymethods]
impl Delivery {
    /// Raises what a signal handler has raised meanwhile.
    fn __call__(
        &self,
        value: &Bound<'_, PyAny>,
        error: Option<Bound<'_, PyAny>>,
        cancelled: bool,
    ) -> PyResult<()> {
        let py = value.py();
        let Some(completion) = self.taken() else { return Ok(()) };
        if error.is_none()
            && let Ok(tensor) = value.cast::<PyTensor>()
            && let Ok(tensor) = tensor.get().tensor(py).cloned()
        {
            // A pool of processes gives a promise, which no function of the program could have waited for.
            guard::detach(py, || {
                bindings::tensor::on_end(&tensor.clone(), move |_| completion.produce(Ok(tensor.into())));
            });
            return Ok(());
        }
        let outcome = match error {
            Some(error) => Err(PyErr::from_value(error)),
            None => take_result(value).inspect_err(|error| _ = interrupt::note(py, error)),
        };
        // The frames behind the exception are the future's, and stay as they are.
        let outcome = outcome.map_err(|error| Raised::foreign(py, error));
        // Completing may copy memory and hands on work, so it happens without the Python lock.
        guard::detach(py, || match outcome {
            Err(why) if cancelled => completion.cancel(why),
            outcome => completion.produce(outcome),
        });
        interrupt::take().map_or(Ok(()), Err)
    }

    /// The future is of this event loop, which runs on the calling thread.
    fn is_on(&self, event_loop: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(slot) = self.slot.get() {
            let thread = guard::ident(event_loop.py())?;
            self.begun.get_or_init(|| Begun::on(event_loop, thread, Arc::clone(slot)));
        }
        Ok(())
    }

    /// The event loop of the future is closed.
    fn lost(&self, py: Python<'_>) {
        let Some(completion) = self.taken() else { return };
        let lost = "the event loop of the future was closed before the future had a result";
        guard::detach(py, || completion.produce(Err(lost.into())));
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(completion) = self.taken() {
            completion.produce(Err("the future was dropped before it had a result".into()));
        }
    }
}
