//! Copies, each of which is an operation: ordered like any other, and seen in a diagnosis.

use estafette::devices::DLDevice;
use estafette::{Error, Tensor};
use pyo3::prelude::*;

use crate::asyncio::stopped_loop;
use crate::classes::handle::EngineHandle;
use crate::error::{OrRaise, to_py};
use crate::exchange::export::{is_ready, poll_once};
use crate::interpreter::guard;
use crate::submission::scope;

/// The promise of a copy in memory of the device `to`; `None`: where
/// [`Engine::copy`](estafette::Engine::copy) makes it. Raises `InFlightLimitError` where waiting for room
/// would stop an event loop; `ShutdownError`.
pub fn copied(
    py: Python<'_>,
    handle: &EngineHandle,
    tensor: &Tensor,
    to: impl Into<Option<DLDevice>>,
) -> PyResult<Tensor> {
    submit(py, handle, tensor, to.into())?.or_raise(py)
}

/// As [`copied`], for a consumer that takes the copy now: `waits` says whether it needs the content to be
/// there. `None` when the engine takes no more operations. Raises as [`copied`]; the failure of the tensor;
/// `WouldBlockError` on an event loop's thread.
pub fn copied_now(
    py: Python<'_>,
    handle: &EngineHandle,
    tensor: &Tensor,
    to: DLDevice,
    waits: bool,
) -> PyResult<Option<Tensor>> {
    if waits && !is_ready(py, tensor) {
        stopped_loop::check(py, "the tensor")?;
    }
    let copy = match submit(py, handle, tensor, to.into())? {
        Ok(copy) => copy,
        Err(Error::Shutdown) => return Ok(None),
        Err(error) => return Err(to_py(py, &error)),
    };
    if waits {
        guard::detach(py, || copy.wait()).or_raise(py)?;
    }
    Ok(Some(copy))
}

fn submit(
    py: Python<'_>,
    handle: &EngineHandle,
    tensor: &Tensor,
    to: Option<DLDevice>,
) -> PyResult<Result<Tensor, Error>> {
    let engine = handle.engine(py)?;
    // A device may make a stream for it.
    match scope::within(py, || guard::detach(py, || poll_once(engine.copy_async(tensor, to))))? {
        Some(outcome) => Ok(outcome),
        None => {
            handle.may_wait(py)?;
            Ok(guard::detach(py, || engine.copy(tensor, to)))
        }
    }
}
