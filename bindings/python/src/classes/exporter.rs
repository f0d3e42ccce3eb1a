//! The class `Exporter`: what a tensor is exported through for another access than reading.

use std::ffi::c_int;

use estafette::{Access, Tensor};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::classes::tensor::PyTensor;
use crate::exchange::buffer;
use crate::exchange::export::{self, From, Request};
use crate::exchange::fence;

/// A tensor on its way to a library, with the access that it shall have. Each export takes a lease of its own.
#[pyclass(frozen, module = "estafette", name = "Exporter")]
pub struct Exporter {
    /// The tensor that is exported.
    #[pyo3(get)]
    tensor: Py<PyTensor>,
    access: Access,
}

impl Exporter {
    pub fn new(tensor: &Bound<'_, PyTensor>, access: Access) -> Self {
        Self { tensor: tensor.clone().unbind(), access }
    }

    /// The tensor, and the access that its exports have.
    pub fn parts(&self, py: Python<'_>) -> PyResult<(&Tensor, Access)> {
        Ok((self.tensor.get().tensor(py)?, self.access))
    }
}

#[pymethods]
impl Exporter {
    /// Hands the tensor out; the array API's protocol. Waits until it is free for this access.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let request = Request { stream, max_version: export::version(max_version)?, dl_device, copy };
        let tensor = self.tensor.get();
        export::export_from(py, tensor.engine(), From::Tensor(tensor.tensor(py)?, self.access), &request)
    }

    /// As `Tensor.__dlpack_fence__`, with this access. An alias has no fences: `BufferError`.
    #[pyo3(signature = (*, max_version = None, dl_device = None, copy = None))]
    fn __dlpack_fence__<'py>(
        &self,
        py: Python<'py>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let (tensor, access) = self.parts(py)?;
        fence::export(py, tensor, access, export::version(max_version)?, dl_device, copy)
    }

    /// Where the data is, for the array API's protocol.
    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        export::device(py, self.tensor.get().tensor(py)?)
    }

    /// ``memoryview(t.for_write())``: the memory with this access, until the last view of it is released.
    unsafe fn __getbuffer__(this: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (py, exporter) = (this.py(), this.clone());
        let (tensor, access) = exporter.get().parts(py)?;
        // SAFETY: Python's view, which it releases below.
        unsafe { buffer::fill(this.into_any(), From::Tensor(tensor, access), view, flags) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python's view, which was filled above.
        unsafe { buffer::release(view) };
    }

    /// For NumPy, where a buffer will not do, as `Tensor.__array__`.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        this: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let tensor = this.get().parts(this.py())?.0;
        buffer::to_numpy(this.as_any(), || tensor.dtype().ok(), dtype, copy)
    }

    /// ``"write"`` or ``"alias"``.
    #[getter]
    fn access(&self) -> String {
        self.access.to_string()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<estafette.Exporter for {} of {}>", self.access, self.tensor.bind(py).repr()?))
    }
}
