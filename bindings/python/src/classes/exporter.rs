//! The class `Exporter`: what a tensor is exported through for another access than reading.

use estafette::Access;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::classes::tensor::PyTensor;
use crate::exchange::export::{self, From};
use crate::exchange::fence;
use crate::exchange::protocols::Exports;

/// A tensor on its way to a library, with the access that it shall have. Each export takes a lease of its
/// own.
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
}

impl Exports for Exporter {
    fn with_source<R>(&self, py: Python<'_>, f: impl FnOnce(From<'_>) -> PyResult<R>) -> PyResult<R> {
        let tensor = self.tensor.get();
        f(From::Tensor(tensor.tensor(py)?, self.access, tensor.engine()))
    }
}

#[pymethods]
impl Exporter {
    /// As `Tensor.__dlpack_fence__`, with this access. An alias has no fences: `BufferError`.
    #[pyo3(signature = (*, max_version = None, dl_device = None, copy = None))]
    fn __dlpack_fence__<'py>(
        &self,
        py: Python<'py>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let tensor = self.tensor.get().tensor(py)?;
        fence::export(py, tensor, self.access, export::version(max_version)?, dl_device, copy)
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
