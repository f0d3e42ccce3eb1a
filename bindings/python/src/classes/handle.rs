//! The state that the objects of one engine share.

use std::sync::Arc;

use estafette::operation::{OpBuilder, Tensors};
use estafette::{Engine, Error, Tensor};
use estafette_sync::process::ProcessBound;
use pyo3::prelude::*;

use crate::asyncio::stopped_loop;
use crate::error::{OrRaise, raise};
use crate::exchange::export::poll_once;
use crate::interpreter::{exit, guard};
use crate::submission::submission_args::SubmissionArgs;
use crate::submission::{scope, using};
use crate::unretrieved::Failures;

#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) shared: Arc<EngineState>,
}

pub(crate) struct EngineState {
    pub(crate) engine: ProcessBound<Engine>,
    /// The treatment of unretrieved failures.
    pub(crate) failures: Failures,
    /// The converter of tensors to arrays for functions whose submission names nothing.
    pub(crate) using: using::Default,
    /// True if the exit waits for the engine on its behalf.
    pub(crate) is_watched: bool,
}

impl Drop for EngineState {
    /// No object of the engine is left, and the exit waits for what is in flight all the same.
    fn drop(&mut self) {
        if self.is_watched
            && let Ok(engine) = self.engine.get()
            && engine.stats().in_flight > 0
        {
            exit::detach(engine);
        }
    }
}

impl EngineHandle {
    pub fn engine(&self, py: Python<'_>) -> PyResult<&Engine> {
        guard::name_thread(py);
        self.shared.engine.get().or_raise(py)
    }

    /// Submits by `attempt`, which gives nothing where it would have to wait for room; then by `wait`,
    /// without the Python lock. Raises those of the submission; `InFlightLimitError` where waiting would stop
    /// an event loop.
    pub fn submit<T: Send>(
        &self,
        py: Python<'_>,
        attempt: impl FnOnce() -> Option<Result<T, Error>>,
        wait: impl FnOnce() -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        if let Some(outcome) = scope::within(py, attempt)? {
            return outcome.or_raise(py);
        }
        self.may_wait(py)?;
        guard::detach(py, wait).or_raise(py)
    }

    /// As [`submit`](Self::submit), of the promise that `args` describes. `submit` is called again where it
    /// would have to wait for room.
    pub fn promise(
        &self,
        py: Python<'_>,
        args: &SubmissionArgs,
        submit: impl Fn(OpBuilder<'_, Tensors>) -> Result<Tensor, Error> + Sync,
    ) -> PyResult<Tensor> {
        let engine = self.engine(py)?;
        let attempt = || poll_once(async { submit(args.promise(engine).permit().await?) });
        self.submit(py, attempt, || submit(args.promise(engine)))
    }

    /// Makes sure of room for an operation, where the thread cannot wait for it.
    /// Raises `InFlightLimitError` on an event loop's thread.
    pub fn check_room(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.engine(py)?;
        let is_full = || {
            let stats = engine.stats();
            stats.in_flight >= stats.in_flight_limit
        };
        if stopped_loop::may_block(py)? || !is_full() { Ok(()) } else { self.may_wait(py) }
    }

    /// The in-flight limit makes a submission wait, which an event loop cannot.
    /// Raises `InFlightLimitError` on an event loop's thread.
    pub fn may_wait(&self, py: Python<'_>) -> PyResult<()> {
        if stopped_loop::may_block(py)? {
            return Ok(());
        }
        let stats = self.engine(py)?.stats();
        let full = Error::InFlightLimit { in_flight: stats.in_flight, limit: stats.in_flight_limit };
        let message = format!(
            "{full}; waiting for room would stop the event loop: write `await eng.submit_async(...)` or `call_async`"
        );
        Err(raise(py, "InFlightLimitError", message))
    }
}
