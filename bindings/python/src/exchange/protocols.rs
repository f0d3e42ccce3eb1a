//! The protocol methods by which other libraries take the memory of a `Tensor`, an `Exporter` or a `View`.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "PyO3's code around the unsafe methods, which in a macro counts as this file's"
)]

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::classes::access::PyView;
use crate::classes::exporter::Exporter;
use crate::classes::tensor::{PyTensor, device_object};
use crate::error::OrRaise;
use crate::exchange::export::{self, ExportRequest, From};
use crate::exchange::{arrow, buffer, dtype};

/// An object whose memory is exported.
pub trait Exports {
    /// Runs `f` with what the memory is exported from. Raises `ForkedError` in a forked child; `TypeError`
    /// for the promise of several results; `ConflictError` after the block of a view.
    fn with_source<R>(&self, py: Python<'_>, f: impl FnOnce(From<'_>) -> PyResult<R>) -> PyResult<R>;
}

macro_rules! export_methods {
    ($class:ty) => {
        #[pymethods]
        impl $class {
            /// Hands the memory out; the array API's protocol. Waits until the memory is free for this
            /// access.
            #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
            fn __dlpack__<'py>(
                &self,
                py: Python<'py>,
                stream: Option<&Bound<'py, PyAny>>,
                max_version: Option<&Bound<'py, PyAny>>,
                dl_device: Option<(i32, i32)>,
                copy: Option<bool>,
            ) -> PyResult<Bound<'py, PyCapsule>> {
                let request =
                    ExportRequest { stream, max_version: export::version(max_version)?, dl_device, copy };
                self.with_source(py, |from| export::export(py, from, &request))
            }

            /// Device of the data as a ``(type, id)`` pair; the array API's protocol. Waits until the tensor
            /// is defined.
            fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
                self.with_source(py, |from| export::device(py, from.tensor()))
            }

            /// ``memoryview(t)``: the memory with this access, until the last view of it is released.
            unsafe fn __getbuffer__(
                this: Bound<'_, Self>,
                view: *mut ffi::Py_buffer,
                flags: c_int,
            ) -> PyResult<()> {
                let owner = this.clone().into_any();
                // SAFETY: Python's view, which it releases below.
                this.get().with_source(this.py(), |from| unsafe { buffer::fill(owner, from, view, flags) })
            }

            unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
                // SAFETY: Python's view, which was filled above.
                unsafe { buffer::release(view) };
            }

            /// ``np.asarray(t, dtype)``, for elements that Python's buffers lack: an array with a lease, or a
            /// copy.
            #[pyo3(signature = (dtype = None, copy = None))]
            fn __array__<'py>(
                this: &Bound<'py, Self>,
                dtype: Option<Bound<'py, PyAny>>,
                copy: Option<bool>,
            ) -> PyResult<Bound<'py, PyAny>> {
                let to_numpy = |from: From<'_>| buffer::to_numpy(this.as_any(), from.tensor(), dtype, copy);
                this.get().with_source(this.py(), to_numpy)
            }
        }
    };
}

export_methods!(PyTensor);
export_methods!(Exporter);
export_methods!(PyView);

macro_rules! array_methods {
    ($class:ty) => {
        #[pymethods]
        impl $class {
            /// Exports the memory by Arrow's C device interface (``pyarrow.array(t)``), without a copy, as an
            /// array that is never written. Waits until the tensor is ready.
            ///
            /// Returns capsules of the schema and of the array. The tensor must have one dimension, no gaps,
            /// and integers, or floats of 16 to 64 bits; any other tensor raises `InvalidTensorError`. The
            /// method ignores the type in `requested_schema`, as the interface allows: the consumer casts.
            #[pyo3(signature = (requested_schema = None, **kwargs))]
            fn __arrow_c_device_array__<'py>(
                &self,
                py: Python<'py>,
                requested_schema: Option<&Bound<'py, PyAny>>,
                kwargs: Option<&Bound<'py, PyDict>>,
            ) -> PyResult<Bound<'py, PyTuple>> {
                let _ = requested_schema;
                self.with_source(py, |from| arrow::device_array(py, from, kwargs))
            }

            /// As `__arrow_c_device_array__`, for consumers of Arrow that know host memory alone.
            #[pyo3(signature = (requested_schema = None))]
            fn __arrow_c_array__<'py>(
                &self,
                py: Python<'py>,
                requested_schema: Option<&Bound<'py, PyAny>>,
            ) -> PyResult<Bound<'py, PyTuple>> {
                let _ = requested_schema;
                self.with_source(py, |from| arrow::array(py, from))
            }

            /// Length of each dimension, in elements. Raises `NotDefinedError` while the tensor has no shape
            /// yet.
            #[getter]
            fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
                self.with_source(py, |from| PyTuple::new(py, from.tensor().shape().or_raise(py)?))
            }

            /// Element type: a `DType`, which is equal to NumPy's name of the type, ``"float32"``.
            #[getter]
            fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.with_source(py, |from| dtype::object(py, from.tensor().dtype().or_raise(py)?))
            }

            /// The ``numpy.dtype`` of the elements. NumPy and JAX read this attribute to find the type of an
            /// argument. Raises `AttributeError` if NumPy has no such type.
            #[getter]
            fn __numpy_dtype__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.with_source(py, |from| dtype::numpy(py, from.tensor().dtype().or_raise(py)?))
            }

            /// Device of the data: a ``(type, id)`` pair in DLPack's numbers that prints as ``cpu:0``.
            #[getter]
            fn device(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
                self.with_source(py, |from| device_object(py, from.tensor()))
            }
        }
    };
}

array_methods!(PyTensor);
array_methods!(PyView);
