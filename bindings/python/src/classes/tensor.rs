//! The class `Tensor`.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use estafette::bindings::{self, with_inline_deleters};
use estafette::devices::DLDevice;
use estafette::remote::ShareOptions;
use estafette::tensor::TensorState;
use estafette::{Access, Tensor};
use estafette_sync::process::ProcessBound;
use estafette_sync::sync::Mutex;
use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyCapsule, PyDict, PyInt, PyIterator, PyMemoryView, PyString, PyTuple};

use crate::arguments::seconds;
use crate::asyncio::awaiting::Awaiter;
use crate::classes::access::PyAccess;
use crate::classes::exporter::Exporter;
use crate::classes::handle::EngineHandle;
use crate::classes::promise::{Ends, is_cancelled};
use crate::classes::remote::PyTicket;
use crate::error::{OrRaise, exchange_error, import_module};
use crate::exchange::buffer;
use crate::exchange::copy::copied;
use crate::exchange::elements::Elements;
use crate::exchange::export::{self, From};
use crate::exchange::fence;
use crate::exchange::protocols::Exports;
use crate::interpreter::guard;
use crate::interpreter::once::{imported, intern};
use crate::submission::results::{self, Results};

/// A promise of an n-dimensional array.
///
/// Code can query whether the tensor is ready, ``await`` it, pass it to operations, and pass it to any
/// library that speaks DLPack: ``np.from_dlpack(t)`` waits until the tensor is ready and reads its memory
/// without a copy, under a *read lease*: engine writes wait until the array is gone.
///
/// A tensor of one element is a number where Python asks for one: ``float(t)``, ``int(t)``, ``t.item()``,
/// ``if t:``. These wait for the value, under a read lease, and in a coroutine ``await t`` comes first.
#[pyclass(frozen, module = "estafette", name = "Tensor", weakref)]
pub struct PyTensor {
    tensor: DroppedInline,
    engine: EngineHandle,
    /// Of the promise of a call of which nothing is known but that it returns.
    results: Option<Arc<Results>>,
    /// An array of NumPy that no other code has, for the next function that gets one. See
    /// [`numpy_array`](crate::exchange::numpy_array).
    pub(crate) unused_array: Mutex<Option<Py<PyAny>>>,
}

/// A tensor whose drop keeps the Python lock, as drops of Python objects do, and holds no lock of the engine.
struct DroppedInline(ManuallyDrop<ProcessBound<Tensor>>);

impl Drop for DroppedInline {
    fn drop(&mut self) {
        // SAFETY: dropped here, once, and not used afterwards.
        with_inline_deleters(|| unsafe { ManuallyDrop::drop(&mut self.0) });
    }
}

impl PyTensor {
    pub fn new(tensor: Tensor, engine: EngineHandle) -> Self {
        Self::of_call(tensor, engine, None)
    }

    /// As an object that the collector of cycles does not look at: that takes a twentieth of the time of an
    /// import, and finds references in promises of calls alone.
    pub fn object(py: Python<'_>, tensor: Tensor, engine: EngineHandle) -> PyResult<Bound<'_, Self>> {
        let object = Bound::new(py, Self::new(tensor, engine))?;
        // SAFETY: an object of a class that the collector knows. It has nothing to traverse, now and later.
        unsafe { ffi::PyObject_GC_UnTrack(object.as_ptr().cast()) };
        Ok(object)
    }

    /// The promise of a call, whose result may turn out to be several.
    pub fn of_call(tensor: Tensor, engine: EngineHandle, results: Option<Arc<Results>>) -> Self {
        let tensor = DroppedInline(ManuallyDrop::new(ProcessBound::new(tensor)));
        Self { tensor, engine, results, unused_array: Mutex::new(None) }
    }

    /// Raises `ForkedError` in a forked child; `TypeError` for the promise of a call that has returned no
    /// single array.
    pub fn tensor(&self, py: Python<'_>) -> PyResult<&Tensor> {
        self.array(py, None)
    }

    /// As [`tensor`](Self::tensor), of the tensor of this number among the arguments of an operation.
    pub fn argument(&self, py: Python<'_>, at: usize) -> PyResult<&Tensor> {
        self.array(py, Some(at))
    }

    fn array(&self, py: Python<'_>, argument: Option<usize>) -> PyResult<&Tensor> {
        let tensor = self.ended(py)?;
        if self.structure().is_some() { Err(results::not_one_array(tensor, argument)) } else { Ok(tensor) }
    }

    /// The promise, of one array or of several.
    pub fn ended(&self, py: Python<'_>) -> PyResult<&Tensor> {
        self.tensor.0.get().or_raise(py)
    }

    /// The results of a call that has returned no single array.
    fn structure(&self) -> Option<&Arc<Results>> {
        self.results.as_ref().filter(|results| results.is_structured())
    }

    /// The value that a call has returned if it is no single array, with promises in place of arrays. Waits
    /// until that is known. Raises the failure of the call; `WouldBlockError` on an event loop's thread;
    /// those of a submission.
    fn unpacked<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.results.is_some() && self.structure().is_none() {
            export::until_known(py, self.ended(py)?)?;
        }
        self.structure().map(|results| results.unpack(py, &self.engine)).transpose()
    }

    /// The result of ``await``: the tensor, or the value that the call has returned.
    pub(super) fn awaited(this: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        match this.get().structure() {
            Some(results) => results.unpack(this.py(), &this.get().engine).map(Bound::unbind),
            None => Ok(this.clone().into_any().unbind()),
        }
    }

    /// The number that a call has returned, if it is no array.
    /// Raises `TypeError` for what is neither; as [`unpacked`](Self::unpacked).
    fn number_returned<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.unpacked(py)?;
        // SAFETY: a live object.
        let is_number = |value: &Bound<'py, PyAny>| unsafe { ffi::PyNumber_Check(value.as_ptr()) != 0 };
        match value {
            Some(value) if !is_number(&value) => Err(results::not_one_array(self.ended(py)?, None)),
            value => Ok(value),
        }
    }

    /// The only element, or the number that a call has returned. Raises `several` for a tensor of so many
    /// elements; as [`number_returned`](Self::number_returned) and [`Elements`].
    fn number<'py>(
        &self,
        py: Python<'py>,
        several: impl FnOnce(usize) -> PyErr,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(number) = self.number_returned(py)? {
            return Ok(number);
        }
        let elements = self.with_source(py, |from| Elements::of(py, from))?;
        match elements.len() {
            1 => elements.number(py, 0),
            count => Err(several(count)),
        }
    }

    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }
}

impl Exports for PyTensor {
    fn with_source<R>(&self, py: Python<'_>, f: impl FnOnce(From<'_>) -> PyResult<R>) -> PyResult<R> {
        f(From::Tensor(self.tensor(py)?, Access::Read, &self.engine))
    }
}

crate::classes::promise::future_methods!(PyTensor);

#[pymethods]
impl PyTensor {
    /// Names the tensor in reports of traces, also of those that begin later.
    fn call_in_report(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.tensor(py)?.call_in_report(name);
        Ok(())
    }

    /// Returns True if it is known how the current version ends, with or without a failure: as `done`. Never
    /// waits, and runs nothing in an engine without workers. A version that was cancelled has failed at once,
    /// while earlier operations may still use the memory.
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(Ends::is_done(self.ended(py)?, py))
    }

    /// Returns True if the tensor has its memory and shape. Never waits.
    fn is_defined(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(bindings::tensor::is_defined(self.ended(py)?))
    }

    /// Blocks until the version current at this call is finished, at most `timeout` seconds.
    ///
    /// On a thread with a running event loop, the tensor must be ready; use ``await`` there. A wait that only
    /// leases hold up raises `LeaseHeldError` after the engine's `lease_timeout`. If the waiting thread has
    /// taken one of these leases, the wait raises at once, whatever `timeout` is: the thread cannot return
    /// its lease while it waits.
    ///
    ///     >>> def fails(_):
    ///     ...     raise ValueError("no data")
    ///     >>> t = eng.zeros(1, "int8")
    ///     >>> op = eng.submit(fails, writes=[t], name="load")
    ///     >>> t.wait()
    ///     Traceback (most recent call last):
    ///     estafette.OperationError: operation `load` (op ...) failed: ValueError: no data
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        export::until_ready(py, self.ended(py)?, seconds("timeout", timeout)?)
    }

    /// As `wait`, and returns the tensor, under the name that JAX's arrays have for it.
    ///
    ///     >>> eng.zeros(2, "int8").block_until_ready().shape
    ///     (2,)
    #[pyo3(signature = (timeout = None))]
    fn block_until_ready<'py>(this: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, Self>> {
        this.get().wait(this.py(), timeout)?;
        Ok(this.clone())
    }

    /// ``await t`` waits for the version that is current at this call, and returns `t`. A ready tensor costs
    /// no turn of the event loop. Cancelling the task cancels the wait, not the work. Like every other
    /// ``await`` of this package, raises `LeaseHeldError` when leases alone have held up the wait for the
    /// engine's `lease_timeout`, or up to an eighth longer.
    fn __await__(this: &Bound<'_, Self>) -> PyResult<Awaiter> {
        let py = this.py();
        let tensor = this.get().ended(py)?;
        if export::is_ready(py, tensor) {
            let outcome = tensor.wait_timeout(Duration::ZERO).or_raise(py);
            return Ok(Awaiter::done(outcome.and_then(|()| Self::awaited(this))));
        }
        let (ready, result) = (tensor.ready(), this.clone().unbind());
        Awaiter::polled(py, ready, move |py, outcome| {
            outcome.or_raise(py).and_then(|()| Self::awaited(result.bind(py)))
        })
    }

    /// ``await t.writable()`` waits until the memory may be overwritten (no unfinished write, no reader, no
    /// lease), and returns `t`.
    fn writable(this: &Bound<'_, Self>) -> PyResult<Awaiter> {
        let py = this.py();
        let (writable, result) = (this.get().tensor(py)?.writable(), this.clone().unbind());
        Awaiter::polled(py, writable, |py, outcome| outcome.or_raise(py).map(|()| result.into_any()))
    }

    /// The tensor for a consumer that knows `dlpack_fence.h`: a capsule named ``dltensor_fenced``, with a
    /// fence that is done when the data may be read. Never waits. The read lease lasts until the consumer has
    /// called the deleter and its own fences are done. `BufferError` where `__dlpack__` has to be called
    /// instead.
    #[pyo3(signature = (*, max_version = None, dl_device = None, copy = None))]
    fn __dlpack_fence__<'py>(
        &self,
        py: Python<'py>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let max_version = export::version(max_version)?;
        fence::export(py, self.tensor(py)?, Access::Read, max_version, dl_device, copy)
    }

    /// Ends the leases of exports into captures of CUDA graphs, and returns how many leases it ended. Call
    /// this method when no such graph will be launched again.
    fn end_captures(&self, py: Python<'_>) -> PyResult<usize> {
        let tensor = self.tensor(py)?;
        Ok(guard::detach(py, || bindings::lease::end_captures(tensor)))
    }

    /// Number of dimensions.
    #[getter]
    fn ndim(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.tensor(py)?.shape().or_raise(py)?.len())
    }

    /// Number of elements.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(self.tensor(py)?.shape().or_raise(py)?.iter().product())
    }

    /// Bytes of one element; elements of less than a byte are rounded up.
    #[getter]
    fn itemsize(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.tensor(py)?.dtype().or_raise(py)?.itemsize())
    }

    /// Bytes of all elements, without the gaps between them.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.tensor(py)?.layout().or_raise(py)?.byte_len())
    }

    /// Distance of neighbours in each dimension, in elements, as in DLPack and PyTorch; NumPy's strides are
    /// in bytes. Raises `NotDefinedError` while the tensor has no memory yet.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor(py)?.layout().or_raise(py)?.strides())
    }

    /// Address of the first element. Code may read the memory only in an operation or under a lease.
    #[getter]
    fn data_ptr(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.tensor(py)?.data_ptr().or_raise(py)? as usize)
    }

    /// True if the owner of the memory forbids writing it.
    #[getter]
    fn read_only(&self, py: Python<'_>) -> PyResult<bool> {
        self.tensor(py)?.is_read_only().or_raise(py)
    }

    /// Number of finished writes to the tensor's memory.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.tensor(py)?.version())
    }

    /// NumPy's array interface (version 3). Only tensors in host memory, in row-major order, have this
    /// attribute. The interface names a ``memoryview`` and no address, so the read lease lasts as long as
    /// that ``memoryview``. Waits until the tensor is ready.
    #[getter]
    fn __array_interface__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        buffer::array_interface(this.as_any(), this.get().tensor(this.py())?)
    }

    /// Iterates over the elements of a tensor with one dimension, as Python numbers. The iterator has a read
    /// lease, which ends with the iteration. Waits until the tensor is ready. For rows, iterate over
    /// ``np.from_dlpack(t)``.
    fn __iter__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyIterator>> {
        let py = this.py();
        if let Some(results) = this.get().unpacked(py)? {
            return results.try_iter();
        }
        let tensor = this.get().tensor(py)?;
        export::until_defined(py, tensor)?;
        match tensor.shape().or_raise(py)?.len() {
            1 => {
                let view = PyMemoryView::from(this.as_any())?;
                // Some formats are refused for each element, and not for the iterator.
                let first = if view.len()? > 0 { view.get_item(0).map(drop) } else { Ok(()) };
                first.and_then(|()| view.try_iter()).map_err(|error| {
                    if !error.is_instance_of::<PyNotImplementedError>(py) {
                        return error;
                    }
                    match tensor.dtype().or_raise(py) {
                        Ok(dtype) => not_iterated(format_args!("of {dtype}")),
                        Err(error) => error,
                    }
                })
            }
            ndim => Err(not_iterated(format_args!("with {ndim} dimensions"))),
        }
    }

    /// ``t["loss"]`` and ``t[0]``: one of the results of a call that returns several. Waits until they are
    /// known.
    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.unpacked(key.py())? {
            Some(results) => results.get_item(key),
            None => Err(PyTypeError::new_err("elements are taken with a library: `np.from_dlpack(t)[...]`")),
        }
    }

    /// Returns a promise of the data in host memory (``cpu:0``): `t` itself if its data is on the host
    /// already, otherwise a copy, made by an operation. Raises `BufferError` for memory that the host cannot
    /// read.
    fn to_host<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (py, engine) = (this.py(), &this.get().engine);
        let tensor = this.get().tensor(py)?;
        match tensor.device() {
            Ok(DLDevice::CPU) => Ok(this.clone()),
            Ok(device) if !export::can_go_to_host(device) => {
                Err(exchange_error(py, format!("the host cannot read memory on {device}")))
            }
            // The device of an undefined tensor is unknown, so the operation reads the device.
            _ => Bound::new(py, Self::new(copied(py, engine, tensor, DLDevice::CPU)?, engine.clone())),
        }
    }

    /// Returns an object to pass to a library that writes: ``np.from_dlpack(t.for_write())`` takes a *write
    /// lease*. The lease is exclusive, and lasts until the array is gone.
    ///
    ///     >>> t = eng.zeros(3, "int64")
    ///     >>> x = np.from_dlpack(t.for_write())
    ///     >>> x[:] = 5
    ///     >>> del x
    ///     >>> np.from_dlpack(t).tolist()
    ///     [5, 5, 5]
    fn for_write(this: &Bound<'_, Self>) -> Exporter {
        Exporter::new(this, Access::Write)
    }

    /// Returns an object to pass to a library that uses the memory *untracked*: an export takes no lease and
    /// waits for nothing. For programs that order the accesses by other means.
    fn alias(this: &Bound<'_, Self>) -> Exporter {
        Exporter::new(this, Access::Alias)
    }

    /// Returns a scoped read lease: ``with t.read() as view`` or ``async with t.read() as view``. With
    /// `using`, for example ``np.from_dlpack``, `view` is the result of `using`; default that of the engine.
    /// The plain `View` of an engine with a `using` is ``using=lambda view: view``.
    ///
    ///     >>> t = eng.from_dlpack(np.arange(3))
    ///     >>> with t.read(using=np.from_dlpack) as view:
    ///     ...     int(view.sum())
    ///     3
    #[pyo3(signature = (using = None))]
    fn read(this: &Bound<'_, Self>, using: Option<Bound<'_, PyAny>>) -> PyAccess {
        PyAccess::one(this, Access::Read, using)
    }

    /// Returns a scoped write lease, with the arguments of `read`.
    #[pyo3(signature = (using = None))]
    fn write(this: &Bound<'_, Self>, using: Option<Bound<'_, PyAny>>) -> PyAccess {
        PyAccess::one(this, Access::Write, using)
    }

    /// Returns a ticket for the current version, ready or not, which another process gives to
    /// `Engine.from_ticket`. Later writes wait until the ticket is gone, and what was made with it. Never
    /// waits.
    ///
    /// once: makes a ticket for one use, which nothing has to keep: later writes wait until it was used, and
    ///     what was made with it is gone.
    ///
    /// copy: as for `Link.send`.
    ///
    /// reach: an address of this machine, ``"host"`` or ``"host:port"``, where processes on other machines
    /// reach this one: the ticket is good there too, and gives a copy, which NIXL makes. Both processes need
    /// the package ``nixl-cu12``. See the page on other processes.
    ///
    /// deadline: with `reach`, seconds of silence after which a process on another machine takes this one for
    /// dead, and is suspected itself; the least is 2.
    #[pyo3(signature = (*, once = false, copy = None, reach = None, deadline = 10.0))]
    fn ticket(
        &self,
        py: Python<'_>,
        once: bool,
        copy: Option<bool>,
        reach: Option<String>,
        deadline: f64,
    ) -> PyResult<PyTicket> {
        let deadline = seconds("deadline", Some(deadline))?.unwrap_or(Duration::MAX);
        PyTicket::of(py, self.tensor(py)?, &ShareOptions { once, copy, reach, deadline })
    }

    /// No bytes of a tensor could say how long its memory is to be kept. What queues of `multiprocessing`
    /// pickle is taken from them once: `estafette/_processes.py`.
    #[pyo3(signature = (_protocol, /))]
    fn __reduce_ex__(&self, _protocol: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        Err(PyTypeError::new_err(
            "an estafette.Tensor is not pickled: pickle `t.ticket()` for another process on this machine, send `t` by a link, \
             `link.send(t)`, or put it into a queue of multiprocessing, imported before the engine is made; for a copy pickle \
             `np.from_dlpack(t)`",
        ))
    }

    /// Declares the current version good after a failure or cancellation that left the data intact. Raises
    /// `ConflictError` while a write is unfinished, which a cancelled one is until its turn:
    /// ``await t.writable()`` first, or wait for the operation that the error names.
    fn clear_error(&self, py: Python<'_>) -> PyResult<()> {
        let tensor = self.tensor(py)?;
        guard::detach(py, || tensor.clear_error()).or_raise(py)
    }

    /// Length of the first dimension. Raises `NotDefinedError` while the tensor has no shape yet.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        if let Some(results) = self.structure() {
            return results.unpack(py, &self.engine)?.len();
        }
        let shape = self.tensor(py)?.shape().or_raise(py)?;
        let first =
            shape.first().ok_or_else(|| PyTypeError::new_err("a tensor without dimensions has no length"))?;
        // A shape has no negative entries.
        Ok(*first as usize)
    }

    /// Returns the only element as a number of Python, or the number that a call has returned. Waits until
    /// the tensor is ready, takes a read lease meanwhile, and copies from a device. Raises ``ValueError`` for
    /// more elements or none.
    ///
    ///     >>> loss = eng.call(np.mean, eng.from_dlpack(np.arange(4.0)))
    ///     >>> loss.item(), f"{float(loss):.3f}", bool(eng.call(np.any, loss))
    ///     (1.5, '1.500', True)
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.number(py, |count| {
            let message =
                format!("a tensor of {count} elements is no single number; `t.tolist()` has them all");
            PyValueError::new_err(message)
        })
    }

    /// Returns the elements as numbers of Python, in a list, or in nested ones, as arrays of NumPy do. Waits
    /// as `item`.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.number_returned(py)? {
            Some(number) => Ok(number),
            None => self.with_source(py, |from| Elements::of(py, from))?.list(py, 0, 0),
        }
    }

    /// The truth of the only element, or of the value that a call has returned. Waits as `item`.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        if let Some(value) = self.unpacked(py)? {
            return value.is_truthy();
        }
        let number = self.number(py, |count| {
            let which = if count == 0 { "without elements" } else { "with more than one element" };
            PyValueError::new_err(format!(
                "the truth value of a tensor {which} is ambiguous: `np.from_dlpack(t).any()` or `.all()` says which is meant"
            ))
        });
        number?.is_truthy()
    }

    /// The integer part of the only element. Waits as `item`.
    fn __int__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<PyInt>().call1((self.number(py, |count| no_number("int", count))?,))
    }

    /// The only element as a float. Waits as `item`.
    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        self.number(py, |count| no_number("float", count))?.extract()
    }

    /// For an empty `spec` the text of the tensor, else the only element in this format. Waits as `item`.
    fn __format__<'py>(this: &Bound<'py, Self>, spec: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        if spec.is_empty()? {
            return this.str().map(Bound::into_any);
        }
        let py = this.py();
        this.get()
            .number(py, |count| no_number("text", count))?
            .call_method1(intern!(py, "__format__"), (spec,))
    }

    /// The only element of a tensor of integers without dimensions. Waits as `item`.
    fn __index__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let number = self.number(py, |count| no_number("int", count))?;
        // As in NumPy: `bytes` of a tensor with dimensions are those of its buffer.
        let has_dimensions = self.tensor(py)?.shape().is_ok_and(|shape| !shape.is_empty());
        if has_dimensions || !number.is_instance_of::<PyInt>() || number.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err("only a tensor of integers without dimensions is an index"));
        }
        py.get_type::<PyInt>().call1((number,))
    }

    fn _repr_html_<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        import_module(this.py(), "estafette._html")?.call_method1("tensor", (this,))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.results.as_ref().map_or(Ok(()), |results| results.traverse(&visit))
    }

    fn __clear__(&self) {
        if let Some(results) = &self.results {
            results.clear();
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Ok(tensor) = self.tensor.0.get() else {
            return "<estafette.Tensor of the parent process>".into();
        };
        if self.structure().is_some() {
            return "<estafette.Tensor of no single array, ready>".into();
        }
        let what = match (tensor.dtype(), tensor.shape()) {
            (Ok(dtype), Ok(shape)) => format!("{dtype}{:?}", shape.as_slice()),
            _ => "no shape yet".to_string(),
        };
        let place = tensor.device().map_or_else(|_| String::new(), |device| format!(", {device}"));
        let state = match tensor.state() {
            TensorState::Ready => "ready",
            _ if is_cancelled(tensor, py) => "cancelled",
            TensorState::Undefined | TensorState::Pending => "pending",
            TensorState::Failed(_) => "failed",
            _ => "unknown",
        };
        format!("<estafette.Tensor {what}{place}, {state}>")
    }
}

fn not_iterated(which: std::fmt::Arguments<'_>) -> PyErr {
    PyTypeError::new_err(format!(
        "a tensor {which} is not iterated over: take it with a library, `np.from_dlpack(t)`"
    ))
}

fn no_number(kind: &str, count: usize) -> PyErr {
    PyTypeError::new_err(format!(
        "only a tensor of one element is converted to {kind}, and this one has {count}"
    ))
}

/// The `Device` of a tensor.
pub fn device_object(py: Python<'_>, tensor: &Tensor) -> PyResult<Py<PyAny>> {
    let device = tensor.device().or_raise(py)?;
    let class = imported!(py, "estafette._reports", "Device")?;
    Ok(class.call1((device.device_type.0, device.device_id))?.unbind())
}
