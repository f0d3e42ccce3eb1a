//! The class `Engine`.

use std::sync::Arc;
use std::time::Duration;

use estafette::devices::{DLDevice, Frontier};
use estafette::exchange::{ManagedTensor, reaper};
use estafette::{Access, Completion, Engine, Tensor, journal};
use estafette_sync::sync::OnceLock;
use estafette_sync::sync::atomic::Ordering;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::access::PyAccess;
use crate::arrow;
use crate::awaiting::Awaiter;
use crate::body::{self, Body, would_block};
use crate::copy::copied;
use crate::error::{OrRaise, raise};
use crate::export::{EXPORTED, poll_once, until_defined};
use crate::handle::{EngineHandle, Shared};
use crate::import::{self, IMPORTED, Taken, Wanted, parse_device};
use crate::operation::PyOperation;
use crate::operators::PyOperators;
use crate::order::{self, Operands, Order, ResultOptions, parse_like, tensors_of};
use crate::process::{self, Own};
use crate::report;
use crate::tensor::{PyTensor, not_a_tensor, parse_dtype, parse_shape, seconds};
use crate::variable::PyVariable;
use crate::{
    call_sites, future, gate, interrupt, mxnet, peers, promise, running_loop, stream, thread_state, watch,
};

/// A loop that imports and drops keeps the Python lock nearly all the time, and deleters need it: when more releases than this
/// are due, an import stands aside for them, so that memory cannot pile up.
const BACKLOG_MAX: u64 = 128;

/// Imports between looks at the backlog.
const BACKLOG_LOOK: u64 = 128;

/// How long an import stands aside; releases that wait for unfinished work do not count on it.
const BACKLOG_WAIT: Duration = Duration::from_millis(20);

/// As the engine's own default; known here because the long waits of event loops are watched here.
const LEASE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Schedules operations in the order that their data demands.
///
/// The results are the same as if the operations had run one by one in the order of submission. As a context manager, it
/// waits at the end of the block until everything submitted has ended::
///
///     >>> with est.Engine(workers=2) as eng:
///     ...     x = eng.from_dlpack(np.arange(3.0))
///     ...     y = eng.call(np.square, x, using=np.from_dlpack)
///     ...     eng.submit(lambda y: np.add(y, 1, out=y), writes=[y], using=np.from_dlpack)
///     ...     np.from_dlpack(y).tolist()
///     <estafette.Operation ...>
///     [1.0, 2.0, 5.0]
///
/// workers: threads for operations; default one per core.
/// window: operations in flight before a submission waits; default 4,096.
/// lease_timeout: seconds that a wait is held up by leases alone before it raises `LeaseHeldError`; default 30.
/// watchdog: seconds after which whatever is stalled is logged once, with its line of `diagnose()`, by the logger
///     ``estafette`` of `logging`; default None, never.
#[pyclass(frozen, module = "estafette", name = "Engine", weakref)]
pub struct PyEngine {
    handle: EngineHandle,
    workers: usize,
}

impl PyEngine {
    fn engine(&self, py: Python<'_>) -> PyResult<&Engine> {
        self.handle.engine(py)
    }

    fn wrap(&self, tensor: Tensor) -> PyTensor {
        PyTensor::new(tensor, self.handle.clone())
    }

    /// Submits without waiting where it can; where it must wait for room, without the Python lock.
    fn submit_now(&self, py: Python<'_>, order: &Order, body: Body) -> PyResult<estafette::Op> {
        let engine = self.engine(py)?;
        let first = body.clone_ref(py);
        let tried = body::within(py, || {
            poll_once(order.operation(engine).run_external_async(move |end: Completion| first.start(end)))
        })?;
        match tried {
            Some(outcome) => {
                body.drop_attached(py);
                outcome.or_raise(py)
            }
            None => {
                self.handle.may_wait(py)?;
                gate::detach(py, || order.operation(engine).run_external(move |end| body.start(end)))
                    .or_raise(py)
            }
        }
    }

    fn call_now(&self, py: Python<'_>, order: &Order, body: Body) -> PyResult<Tensor> {
        let engine = self.engine(py)?;
        let first = body.clone_ref(py);
        let tried = body::within(py, || {
            poll_once(order.promise(engine).produce_external_async(move |end: Completion| first.start(end)))
        })?;
        match tried {
            Some(outcome) => {
                body.drop_attached(py);
                outcome.or_raise(py)
            }
            None => {
                self.handle.may_wait(py)?;
                gate::detach(py, || order.promise(engine).produce_external(move |end| body.start(end)))
                    .or_raise(py)
            }
        }
    }

    /// Submits an operation that leaves its completion in `slot`, for whoever brings its result.
    fn receive_now(&self, py: Python<'_>, order: &Order, slot: &future::Slot) -> PyResult<Tensor> {
        let engine = self.engine(py)?;
        let leave = |slot: &future::Slot| {
            let slot = Arc::clone(slot);
            move |end: Completion| *slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(end)
        };
        match body::within(py, || poll_once(order.promise(engine).receive_async(leave(slot))))? {
            Some(outcome) => outcome.or_raise(py),
            None => {
                self.handle.may_wait(py)?;
                gate::detach(py, || order.promise(engine).receive(leave(slot))).or_raise(py)
            }
        }
    }

    /// Waits for everything in flight, then cancels what only leases hold up.
    fn drain(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Py<PyAny>> {
        let engine = self.engine(py)?;
        let at_once = timeout.is_some_and(|timeout| timeout.is_zero());
        if !at_once && engine.stats().in_flight > 0 && running_loop::get(py)?.is_some() {
            return Err(would_block(py, "the engine"));
        }
        let report = gate::detach(py, || match timeout {
            Some(timeout) => engine.shutdown_timeout(timeout),
            None => {
                // Ends early, with an error, only when leases hold up all that is left.
                let _ = engine.wait_all(None);
                engine.shutdown_timeout(Duration::ZERO)
            }
        });
        match interrupt::take() {
            Some(raised) => Err(raised),
            None => report::shutdown(py, &report),
        }
    }
}

#[pymethods]
impl PyEngine {
    #[new]
    #[pyo3(signature = (workers = None, *, window = None, lease_timeout = None, watchdog = None))]
    fn new(
        py: Python<'_>,
        workers: Option<usize>,
        window: Option<usize>,
        lease_timeout: Option<f64>,
        watchdog: Option<f64>,
    ) -> PyResult<Self> {
        let mut builder = Engine::builder();
        let workers = match workers {
            Some(0) => {
                return Err(PyValueError::new_err(
                    "workers must be at least 1: Python functions never run on a thread that waits",
                ));
            }
            Some(workers) => workers,
            None => std::thread::available_parallelism().map_or(1, |cores| cores.get()),
        };
        builder = builder.workers(workers);
        if let Some(window) = window {
            builder = builder.window(window);
        }
        if let Some(limit) = seconds(watchdog)? {
            builder = builder.on_stall(limit, watch::tell_stall);
        }
        let lease_timeout = seconds(lease_timeout)?.unwrap_or(LEASE_TIMEOUT_DEFAULT);
        let engine = builder.lease_timeout(lease_timeout).build().or_raise(py)?;
        process::has_engine();
        reaper().on_start(thread_state::prepare);
        engine.on_lease_wait(collect_garbage);
        engine.on_wait(interrupt::asked);
        let shared = Shared { engine: Own::new(engine), lease_timeout };
        Ok(Self { handle: EngineHandle { shared: Arc::new(shared) }, workers })
    }

    /// Worker threads.
    #[getter]
    fn workers(&self) -> usize {
        self.workers
    }

    /// The operators of this process, by name; what is called through here runs in this engine.
    #[getter]
    fn operators(&self) -> PyOperators {
        PyOperators::new(self.handle.clone())
    }

    /// A promise of the memory behind `x`, without a copy. `x` is anything that speaks DLPack, or a raw capsule.
    ///
    /// Memory that overlaps tensors already known is ordered with them. A tensor of Estafette's own comes back as it is. An
    /// object with ``__estafette_promise__`` is not waited for: the tensor is ready when its promise is done.
    ///
    /// device: where the data shall be; default where it is.
    /// copy: True always copies, False never does, None only if it must.
    /// freed_on: the CUDA stream in whose order the allocator of `x` gives its memory out again, a handle or an object with
    /// ``__cuda_stream__``, which is kept: for PyTorch and CuPy the stream that was current when the memory was *allocated*. The
    /// caller vouches for it. The memory then goes back as soon as that stream waits for its last use, instead of when that is over.
    ///
    ///     >>> x = np.zeros(4, "float32")
    ///     >>> t = eng.from_dlpack(x)
    ///     >>> t.shape, t.dtype, t.data_ptr == x.ctypes.data
    ///     ((4,), 'float32', True)
    #[pyo3(signature = (x, /, *, device = None, copy = None, freed_on = None))]
    #[allow(clippy::wrong_self_convention, reason = "the array API's name")]
    fn from_dlpack<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        device: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
        freed_on: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTensor>> {
        let py = x.py();
        let engine = self.engine(py)?;
        let wanted = Wanted { device: device.map(parse_device).transpose()?, copy };
        if let Ok(tensor) = x.cast::<PyTensor>() {
            if freed_on.is_some() {
                return Err(PyValueError::new_err(
                    "freed_on: the memory of a tensor of Estafette's own knows its way",
                ));
            }
            return self.own(tensor, &wanted);
        }
        if let Some(promise) = promise::pending(x, engine)?.filter(|_| freed_on.is_none()) {
            let tensor = promise::import(x, engine, promise)?;
            imported(py);
            let copies = wanted.device.is_some() || copy == Some(true);
            let tensor = if copies {
                let to = wanted.home(tensor.device().ok());
                copied(py, &self.handle, &tensor, to)?
            } else {
                tensor
            };
            return Bound::new(py, self.wrap(tensor));
        }
        let Taken { managed, immutable, ready } = import::take(x, &wanted)?;
        let made_a_copy = managed.is_copied();
        let home = freed_on.map(|stream| stream::home(managed.device(), stream)).transpose()?;
        // SAFETY: the producer vouches for the memory: that is what DLPack's protocol means. On the host its content is ready
        // when `__dlpack__` has returned. For the home, the caller does.
        let tensor = unsafe {
            match home {
                None => engine.import_ordered(managed, ready, immutable),
                Some(home) => engine.import_homing(managed, ready, immutable, home),
            }
        };
        let tensor = tensor.or_raise(py)?;
        imported(py);
        if journal::is_open() {
            journal::imported_from(&tensor, peers::of(x).peer().root);
        }
        if let Some(lease) = tensor.imported_under() {
            call_sites::note_object(&lease, x);
        }
        let moved = wanted.device.is_some_and(|wanted| tensor.device().is_ok_and(|device| device != wanted));
        let copies = moved || copy == Some(true) && !made_a_copy;
        let tensor = if copies {
            let to = wanted.home(tensor.device().ok());
            copied(py, &self.handle, &tensor, to)?
        } else {
            tensor
        };
        Bound::new(py, self.wrap(tensor))
    }

    /// A promise of what a future of another scheduler will deliver: an array, or anything else that speaks DLPack, taken
    /// over as the result of `call` is. Returns at once; operations on the tensor wait for the future.
    ///
    /// future: what has ``add_done_callback`` (`concurrent.futures`, Dask, PyTorch), on any thread and without blocking one;
    ///     an asyncio future or task, while its loop runs; a coroutine or another awaitable, which becomes a task of the
    ///     running loop. Without such a loop it raises `RuntimeError`.
    /// alias_of, like, copy: as in `call`.
    ///
    /// The wait for the future is an operation in flight, called `name`: it has a place in the window, `wait_all` and
    /// `shutdown` wait for it, and `diagnose` lists it. If the future fails, so does the operation, with the exception as
    /// ``__cause__``; a cancelled future raises `CancelledError`. Giving up a wait for the tensor cancels nothing.
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
        let source = py.import("estafette._futures")?.getattr("source")?.call1((future,))?;
        let (called, listen): (String, Bound<'_, PyAny>) = source.extract()?;
        let order = Order {
            operands: Operands::default(),
            name: name.unwrap_or(called),
            priority: 0,
            alias_of: tensors_of(alias_of)?,
            like: like.map(parse_like).transpose()?,
            copy,
            queue: None,
            own: OnceLock::new(),
        };
        let slot = future::Slot::default();
        let tensor = self.receive_now(py, &order, &slot)?;
        // If listening fails, the delivery ends the operation as it goes.
        listen.call1((future::Delivery::new(slot),))?;
        Bound::new(py, self.wrap(tensor))
    }

    /// A promise of the memory of an array of MXNet 1.9, without a copy, and without waiting for MXNet's engine: the tensor is
    /// ready when the writes are done that MXNet was asked for before this call. Operations chain on it meanwhile.
    ///
    /// The other way round, MXNet's engine waits for us: what it is asked for afterwards begins to write the array when the
    /// tensor, and every view of it, is gone. With ``write=True`` operations may write the tensor, and MXNet's readers wait as
    /// well.
    ///
    /// The wait for MXNet is an operation in flight, called `name`, as with `from_future`. If an operation of MXNet failed
    /// before, so does it.
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
        let parts = py.import("estafette._mxnet")?.getattr("parts")?.call1((array,))?;
        let (handle, functions): (usize, [usize; 5]) = parts.extract()?;
        let order = Order {
            operands: Operands::default(),
            name: name.unwrap_or_else(|| "mxnet".into()),
            priority: 0,
            alias_of: Vec::new(),
            like: None,
            copy: None,
            queue: None,
            own: OnceLock::new(),
        };
        let slot = future::Slot::default();
        let tensor = self.receive_now(py, &order, &slot)?;
        mxnet::push(py, handle, functions, slot, write)?;
        imported(py);
        Bound::new(py, self.wrap(tensor))
    }

    /// A promise of the memory behind an Arrow array, without a copy: anything with ``__arrow_c_device_array__`` or
    /// ``__arrow_c_array__`` (an array of pyarrow, polars, nanoarrow, ...), or a pair of their capsules.
    ///
    /// The tensor has one dimension and is read-only, as Arrow's memory never changes. The array must be of integers or
    /// floats and have no nulls: `InvalidTensorError` names what a tensor cannot have.
    #[pyo3(signature = (x, /))]
    #[allow(clippy::wrong_self_convention, reason = "beside `from_dlpack`")]
    fn from_arrow(&self, x: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let py = x.py();
        let engine = self.engine(py)?;
        let (format, array) = arrow::take(x)?;
        // SAFETY: the producer vouches for the array, and for its event on the device that it names: that is what Arrow's
        // interface means.
        let tensor = unsafe { engine.import_arrow(&format, array) }.or_raise(py)?;
        imported(py);
        Ok(self.wrap(tensor))
    }

    /// A tensor of the given shape and element type, for operations to fill: in host memory, or in that of `device`, for example
    /// ``"sycl:cpu"``.
    #[pyo3(signature = (shape, dtype, *, device = None))]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyTensor> {
        let (shape, dtype) = (parse_shape(shape)?, parse_dtype(dtype)?);
        let engine = self.engine(py)?;
        let tensor = match device.map(parse_device).transpose()? {
            None | Some(DLDevice::CPU) => engine.empty(&shape, dtype),
            Some(device) => {
                stream::device_of(py, device)?;
                engine.empty_on(device, &shape, dtype)
            }
        };
        Ok(self.wrap(tensor.or_raise(py)?))
    }

    /// A tensor of zeros in host memory.
    fn zeros(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
    ) -> PyResult<PyTensor> {
        let tensor = self.engine(py)?.zeros(&parse_shape(shape)?, parse_dtype(dtype)?).or_raise(py)?;
        Ok(self.wrap(tensor))
    }

    /// A variable without memory, for order alone.
    fn var(&self, py: Python<'_>) -> PyResult<PyVariable> {
        Ok(PyVariable { variable: Own::new(self.engine(py)?.var()) })
    }

    /// Submits an operation: ``fn(*reads, *writes)``, each passed through `using` first, for example ``np.from_dlpack``.
    ///
    /// Returns at once. The function runs when everything submitted before on its operands has come far enough: reads see
    /// what earlier writes left, writes have the memory to themselves. A tensor in both lists is updated in place. What
    /// the function returns is ignored; what it raises is raised again to whoever waits for the operation or for what it
    /// writes. An ``async def`` function runs as a task on the event loop of the submitter.
    ///
    ///     >>> y = eng.zeros(3, "int64")
    ///     >>> op = eng.submit(lambda y: y.fill(7), writes=[y], using=np.from_dlpack, name="fill")
    ///     >>> op.wait()
    ///     >>> op.name, np.from_dlpack(y).tolist()
    ///     ('fill', [7, 7, 7])
    #[pyo3(signature = (r#fn, reads = None, writes = None, using = None, name = None, on = None, priority = 0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn submit(
        &self,
        r#fn: &Bound<'_, PyAny>,
        reads: Option<&Bound<'_, PyAny>>,
        writes: Option<&Bound<'_, PyAny>>,
        using: Option<&Bound<'_, PyAny>>,
        name: Option<String>,
        on: Option<&Bound<'_, PyAny>>,
        priority: i32,
    ) -> PyResult<PyOperation> {
        let py = r#fn.py();
        let (order, body) = order::of_submit(r#fn, reads, writes, using, name, on, priority)?;
        let op = self.submit_now(py, &order, body)?;
        Ok(PyOperation::new(op, self.handle.clone()))
    }

    /// As `submit`, but waits for room in the window without stopping the event loop: ``op = await eng.submit_async(...)``.
    #[pyo3(signature = (r#fn, reads = None, writes = None, using = None, name = None, on = None, priority = 0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn submit_async(
        &self,
        r#fn: &Bound<'_, PyAny>,
        reads: Option<&Bound<'_, PyAny>>,
        writes: Option<&Bound<'_, PyAny>>,
        using: Option<&Bound<'_, PyAny>>,
        name: Option<String>,
        on: Option<&Bound<'_, PyAny>>,
        priority: i32,
    ) -> PyResult<Awaiter> {
        let py = r#fn.py();
        let (order, body) = order::of_submit(r#fn, reads, writes, using, name, on, priority)?;
        let (engine, handle) = (self.engine(py)?.clone(), self.handle.clone());
        Ok(Awaiter::pending(Some(handle.clone()), async move {
            let outcome = order.operation(&engine).run_external_async(move |end| body.start(end)).await;
            Box::new(move |py: Python<'_>| {
                Ok(Py::new(py, PyOperation::new(outcome.or_raise(py)?, handle))?.into_any())
            }) as _
        }))
    }

    /// Submits an operation whose result becomes a new tensor, and returns the promise of it at once.
    ///
    /// `fn(*tensors)` gets each tensor through `using`; what it returns (anything that speaks DLPack) becomes the promise's
    /// memory, without a copy. A result that overlaps memory already known is copied, unless `alias_of` names the tensors
    /// that it is a view of; with ``copy=False`` that is a failure instead, and ``copy=True`` always copies. `like`, a
    /// ``(shape, dtype)`` pair or something with these two attributes, declares shape and dtype, so that they are known at
    /// once. An ``async def`` function runs as a task on the event loop of the submitter.
    ///
    ///     >>> a = eng.from_dlpack(np.eye(2))
    ///     >>> b = eng.call(np.add, a, a, using=np.from_dlpack, like=((2, 2), "float64"))
    ///     >>> b.shape                       # declared, so it is known before it is there
    ///     (2, 2)
    ///     >>> np.from_dlpack(b).tolist()
    ///     [[2.0, 0.0], [0.0, 2.0]]
    #[pyo3(signature = (r#fn, *tensors, using = None, alias_of = None, like = None, copy = None, name = None, on = None, priority = 0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn call(
        &self,
        r#fn: &Bound<'_, PyAny>,
        tensors: &Bound<'_, PyTuple>,
        using: Option<&Bound<'_, PyAny>>,
        alias_of: Option<&Bound<'_, PyAny>>,
        like: Option<&Bound<'_, PyAny>>,
        copy: Option<bool>,
        name: Option<String>,
        on: Option<&Bound<'_, PyAny>>,
        priority: i32,
    ) -> PyResult<PyTensor> {
        let py = r#fn.py();
        let result = ResultOptions { alias_of, like, copy };
        let (order, body) = order::of_call(r#fn, tensors, using, &result, name, on, priority)?;
        Ok(self.wrap(self.call_now(py, &order, body)?))
    }

    /// As `call`, but waits for room in the window without stopping the event loop: ``z = await eng.call_async(...)``
    /// gives the promise.
    #[pyo3(signature = (r#fn, *tensors, using = None, alias_of = None, like = None, copy = None, name = None, on = None, priority = 0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python method")]
    fn call_async(
        &self,
        r#fn: &Bound<'_, PyAny>,
        tensors: &Bound<'_, PyTuple>,
        using: Option<&Bound<'_, PyAny>>,
        alias_of: Option<&Bound<'_, PyAny>>,
        like: Option<&Bound<'_, PyAny>>,
        copy: Option<bool>,
        name: Option<String>,
        on: Option<&Bound<'_, PyAny>>,
        priority: i32,
    ) -> PyResult<Awaiter> {
        let py = r#fn.py();
        let result = ResultOptions { alias_of, like, copy };
        let (order, body) = order::of_call(r#fn, tensors, using, &result, name, on, priority)?;
        let (engine, handle) = (self.engine(py)?.clone(), self.handle.clone());
        Ok(Awaiter::pending(Some(handle.clone()), async move {
            let outcome = order.promise(&engine).produce_external_async(move |end| body.start(end)).await;
            Box::new(move |py: Python<'_>| {
                Ok(Py::new(py, PyTensor::new(outcome.or_raise(py)?, handle))?.into_any())
            }) as _
        }))
    }

    /// Scoped leases of several tensors, taken all at once: ``with eng.access(reads=[a], writes=[b]) as (x, y)``, or
    /// ``async with``. The block gets a view of each, or what `using` makes of it; reads first.
    ///
    ///     >>> a, b = eng.from_dlpack(np.arange(3.0)), eng.zeros(3, "float64")
    ///     >>> with eng.access(reads=[a], writes=[b], using=np.from_dlpack) as (x, y):
    ///     ...     y[:] = x + 1
    ///     ...     del x, y                  # what outlives the block keeps its lease
    ///     >>> np.from_dlpack(b).tolist()
    ///     [1.0, 2.0, 3.0]
    #[pyo3(signature = (reads = None, writes = None, using = None))]
    fn access(
        &self,
        py: Python<'_>,
        reads: Option<&Bound<'_, PyAny>>,
        writes: Option<&Bound<'_, PyAny>>,
        using: Option<Bound<'_, PyAny>>,
    ) -> PyResult<PyAccess> {
        self.engine(py)?;
        let mut wanted = Vec::new();
        for (list, access) in [(reads, Access::Read), (writes, Access::Write)] {
            let Some(list) = list else { continue };
            for item in list.try_iter()? {
                let item = item?;
                let tensor = item.cast::<PyTensor>().map_err(|_| not_a_tensor(&item))?;
                wanted.push((tensor.clone().unbind(), access));
            }
        }
        Ok(PyAccess::new(self.handle.clone(), wanted, using))
    }

    /// Blocks until everything submitted to this engine has ended, at most `timeout` seconds. Failures of operations are
    /// not raised here but at their outputs.
    #[pyo3(signature = (timeout = None))]
    fn wait_all(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let engine = self.engine(py)?;
        let timeout = seconds(timeout)?;
        if engine.stats().in_flight == 0 {
            return Ok(());
        }
        if running_loop::get(py)?.is_some() {
            return Err(would_block(py, "the engine"));
        }
        gate::detach(py, || engine.wait_all(timeout)).or_raise(py)
    }

    /// Who waits for whom, right now: print it, or look at its fields.
    fn diagnose(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let engine = self.engine(py)?;
        let diagnosis = gate::detach(py, || engine.diagnose());
        report::diagnosis(py, &diagnosis)
    }

    /// Counters, and what is running, ready and stalled right now.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let engine = self.engine(py)?;
        let (stats, live) = gate::detach(py, || (engine.stats(), engine.live()));
        let (imported, exported) = (IMPORTED.load(Ordering::Relaxed), EXPORTED.load(Ordering::Relaxed));
        report::stats(py, &stats, &live, imported, exported)
    }

    /// Refuses new submissions and waits until everything in flight has ended, at most `timeout` seconds; then what only
    /// leases hold up is cancelled, and reported with the leases. Without a timeout it waits as long as something runs,
    /// and for leases as long as `lease_timeout` says.
    #[pyo3(signature = (timeout = None))]
    fn shutdown(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.drain(py, seconds(timeout)?)
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let report = self.drain(py, None)?;
        let lifecycle = py.import("estafette._lifecycle")?;
        lifecycle.call_method1("warn_of_leases", (report,)).map(drop)
    }

    fn __aenter__(this: Bound<'_, Self>) -> Awaiter {
        Awaiter::done(Ok(this.into_any().unbind()))
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(
        this: &Bound<'py, Self>,
        _exception: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let lease_timeout = this.get().handle.shared.lease_timeout.as_secs_f64();
        this.py().import("estafette._lifecycle")?.call_method1("leave", (this, lease_timeout))
    }

    /// Refuses new submissions and gives an awaitable of the end of everything in flight, leases or not.
    fn _drained(&self, py: Python<'_>) -> PyResult<Awaiter> {
        let engine = self.engine(py)?.clone();
        Ok(Awaiter::pending(None, async move {
            engine.shutdown().await;
            Box::new(|py: Python<'_>| Ok(py.None())) as _
        }))
    }

    fn __repr__(&self) -> String {
        match self.handle.shared.engine.try_get() {
            Some(engine) => {
                format!(
                    "<estafette.Engine, {} workers, {} in flight>",
                    self.workers,
                    engine.stats().in_flight
                )
            }
            None => "<estafette.Engine of the parent process>".into(),
        }
    }
}

impl PyEngine {
    /// An import of a tensor of ours: itself, or a copy.
    fn own<'py>(&self, tensor: &Bound<'py, PyTensor>, wanted: &Wanted) -> PyResult<Bound<'py, PyTensor>> {
        let (py, inner) = (tensor.py(), tensor.get().tensor(tensor.py())?);
        let mut copies = wanted.copy == Some(true);
        if let Some(device) = wanted.device {
            until_defined(py, inner)?;
            let is = inner.device().or_raise(py)?;
            if is != device && !wanted.can_be_moved_from(is) {
                let message = format!("this tensor is on {is}, and is not moved to {device}");
                return Err(raise(py, "ExchangeError", message));
            }
            copies |= is != device;
        }
        if !copies {
            return Ok(tensor.clone());
        }
        Bound::new(py, self.wrap(copied(py, &self.handle, inner, wanted.home(inner.device().ok()))?))
    }

    /// Takes over a tensor that nobody vouches for: what nothing but a legacy struct says may not be written.
    pub fn adopt<'py>(&self, py: Python<'py>, managed: ManagedTensor) -> PyResult<Bound<'py, PyTensor>> {
        let immutable = managed.version().is_none();
        let device = managed.device();
        let mut ready = Frontier::default();
        if stream::has_default_stream(device)
            && let Some(device) = stream::device_of(py, device)?
        {
            // What is given to our exchange table is ordered before the stream that it says is ours, by now.
            ready.insert(device.default_queue().record().map_err(estafette::Error::from).or_raise(py)?);
        }
        // SAFETY: whoever gives a DLPack struct away vouches for its memory; on the host its content is ready by then.
        let tensor = unsafe { self.engine(py)?.import_ordered(managed, ready, immutable) };
        IMPORTED.fetch_add(1, Ordering::Relaxed);
        Bound::new(py, self.wrap(tensor.or_raise(py)?))
    }
}

/// What a wait does that only leases hold up: views that nobody can reach any more still have theirs.
fn collect_garbage() {
    let collected = gate::attach(|py| py.import("gc").and_then(|gc| gc.call_method0("collect")).map(drop));
    if let Some(Err(error)) = collected {
        gate::attach(|py| error.write_unraisable(py, None));
    }
}

/// Counts an import, and stands aside when too many releases are due.
fn imported(py: Python<'_>) {
    let imported = IMPORTED.fetch_add(1, Ordering::Relaxed);
    if imported % BACKLOG_LOOK == BACKLOG_LOOK - 1 && reaper().stats().pending > BACKLOG_MAX {
        py.detach(|| reaper().flush(BACKLOG_WAIT));
    }
}
