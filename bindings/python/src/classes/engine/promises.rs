//! Tensors that another scheduler will deliver: `from_future`, `from_mxnet`.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::PyEngine;
use super::import::imported;
use crate::classes::tensor::PyTensor;
use crate::error::import_module;
use crate::exchange::from_future;
use crate::exchange::mxnet;
use crate::submission::submission_args::{self, ResultOptions};

#[pymethods]
impl PyEngine {
    /// A promise of what a future of another scheduler will deliver: an array, or anything else that speaks
    /// DLPack, adopted as the result of `call` is. Returns at once; operations on the tensor wait for the
    /// future.
    ///
    /// future: what has ``add_done_callback`` (`concurrent.futures`, Dask, PyTorch), on any thread and
    ///     without blocking one; an asyncio future or task, while its loop runs; a coroutine or another
    ///     awaitable, which becomes a task of the running loop. Without such a loop it raises `RuntimeError`.
    ///     Where its result is a promise, as from a pool of processes, that is waited for too.
    /// alias_of, like, copy: as in `call`.
    ///
    /// The wait for the future is an operation in flight, called `name`: it has a permit, `wait_all` and
    /// `shutdown` wait for it, and `diagnose` lists it. If the future fails, so does the operation, with the
    /// exception as ``__cause__``; a cancelled future raises `CancelledError`. A future that is dropped
    /// before it has a result fails it too, unless a callback of the tensor keeps the future. Giving up a
    /// wait for the tensor cancels nothing.
    ///
    ///     >>> from concurrent.futures import ThreadPoolExecutor
    ///     >>> with ThreadPoolExecutor() as pool:
    ///     ...     t = eng.from_future(pool.submit(np.arange, 3))
    ///     ...     doubled = eng.call(lambda x: x * 2, t, using=np.from_dlpack)
    ///     ...     np.from_dlpack(doubled).tolist()
    ///     [0, 2, 4]
    ///
    /// On an event loop::
    ///
    ///     >>> async def fetch():
    ///     ...     await asyncio.sleep(0)
    ///     ...     return np.ones(2)
    ///     >>> async def main():
    ///     ...     t = eng.from_future(fetch())
    ///     ...     return np.from_dlpack(await t).tolist()
    ///     >>> asyncio.run(main())
    ///     [1.0, 1.0]
    #[pyo3(signature = (future, /, *, alias_of = None, like = None, copy = None, name = None))]
    #[allow(clippy::wrong_self_convention, reason = "named after `from_dlpack`")]
    fn from_future<'py>(
        &self,
        future: &Bound<'py, PyAny>,
        alias_of: Option<&Bound<'py, PyAny>>,
        like: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
        name: Option<String>,
    ) -> PyResult<Bound<'py, PyTensor>> {
        let py = future.py();
        self.engine(py)?;
        if let Ok(tensor) = future.cast::<PyTensor>() {
            // It is a promise already.
            if alias_of.is_some() || like.is_some() || copy == Some(true) {
                return Err(PyTypeError::new_err(
                    "an estafette.Tensor is a promise already; `from_dlpack` copies one, and `alias_of` and `like` are for others' \
                     futures",
                ));
            }
            return Ok(tensor.clone());
        }
        let source = import_module(py, "estafette._futures")?.getattr("source")?.call1((future,))?;
        let (called, listen): (String, Bound<'_, PyAny>) = source.extract()?;
        let args = submission_args::of_delivery(
            Arc::new(name.unwrap_or(called)),
            &ResultOptions { alias_of, like, copy, outputs: None },
        )?;
        let (tensor, slot) = from_future::receive(py, &self.handle, &args)?;
        let delivery = from_future::Delivery::new(Arc::clone(&slot));
        listen.call1((delivery,)).inspect_err(|error| from_future::call_off(py, &slot, error))?;
        self.object(py, tensor)
    }

    /// A promise of the memory of an array of MXNet 1.9, without a copy, and without waiting for MXNet's
    /// engine: the tensor is ready when the writes are done that MXNet was asked for before this call.
    /// Operations chain on it meanwhile.
    ///
    /// The other way round, MXNet's engine waits for us: what it is asked for afterwards begins to write the
    /// array when the tensor, and every view of it, is gone. With ``write=True`` operations may write the
    /// tensor, and MXNet's readers wait as well.
    ///
    /// The wait for MXNet is an operation in flight, called `name`, as with `from_future`. If an operation of
    /// MXNet failed before, so does it.
    ///
    ///     >>> import mxnet as mx                                       # doctest: +SKIP
    ///     >>> x = mx.nd.ones((1000, 1000))                             # doctest: +SKIP
    ///     >>> t = eng.from_mxnet(mx.nd.dot(x, x))                      # doctest: +SKIP
    ///     >>> y = eng.call(np.sqrt, t, using=np.from_dlpack)           # doctest: +SKIP
    #[pyo3(signature = (array, /, *, write = false, name = None))]
    #[allow(clippy::wrong_self_convention, reason = "beside `from_dlpack`")]
    fn from_mxnet<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        write: bool,
        name: Option<String>,
    ) -> PyResult<Bound<'py, PyTensor>> {
        let py = array.py();
        self.engine(py)?;
        let parts = import_module(py, "estafette._mxnet")?.getattr("parts")?.call1((array,))?;
        let (handle, functions): (usize, [usize; 5]) = parts.extract()?;
        let args = submission_args::of_delivery(
            Arc::new(name.unwrap_or_else(|| "mxnet".into())),
            &ResultOptions::default(),
        )?;
        let (tensor, slot) = from_future::receive(py, &self.handle, &args)?;
        mxnet::push(py, handle, functions, slot, write)?;
        imported(py);
        self.object(py, tensor)
    }
}
