//! Tensors and variables that the engine creates: `empty`, `zeros`, `var`.

use estafette::DType;
use estafette::devices::DLDevice;
use estafette::engine::Memory;
use estafette_sync::process::ProcessBound;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::PyEngine;
use crate::arguments::{parse_dtype, parse_shape};
use crate::classes::remote::prepare_queues;
use crate::classes::tensor::PyTensor;
use crate::classes::variable::PyVariable;
use crate::error::{OrRaise, raise};
use crate::interpreter::guard;
use crate::kinds;

/// The argument `shared`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    No,
    ForReading,
    ForWriting,
}

impl<'a, 'py> FromPyObject<'a, 'py> for Sharing {
    type Error = PyErr;

    fn extract(shared: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if shared.extract::<&str>().is_ok_and(|shared| shared == "write") {
            return Ok(Self::ForWriting);
        }
        match shared.extract::<bool>() {
            Ok(shared) => Ok(if shared { Self::ForReading } else { Self::No }),
            Err(_) => Err(PyTypeError::new_err("shared is a bool or \"write\"")),
        }
    }
}

impl PyEngine {
    fn allocate(
        &self,
        py: Python<'_>,
        shape: &[i64],
        dtype: DType,
        device: DLDevice,
        shared: Sharing,
    ) -> PyResult<PyTensor> {
        let engine = self.engine(py)?;
        let memory = match shared {
            Sharing::No => Memory::On(device),
            Sharing::ForReading => Memory::Shared(device),
            Sharing::ForWriting if device == DLDevice::CPU => Memory::SharedForWriting,
            Sharing::ForWriting => {
                let message = format!("memory on {device} cannot be lent to other processes for writing");
                return Err(raise(py, "InvalidError", message));
            }
        };
        if shared != Sharing::No {
            prepare_queues(py, true)?;
        }
        let tensor = if device == DLDevice::CPU {
            engine.empty(shape, dtype, memory)
        } else {
            kinds::device_of(py, device)?;
            guard::detach(py, || engine.empty(shape, dtype, memory))
        };
        Ok(self.wrap(tensor.or_raise(py)?))
    }
}

#[pymethods]
impl PyEngine {
    /// Returns a tensor of the given shape and element type, for operations to fill: in host memory, or in
    /// memory of `device`, for example ``"sycl:cpu"``. With `shared`, other processes can be shown the
    /// memory, which is on the host or a CUDA device, else `NotSharedError`; with ``"write"``, on the host
    /// alone, another process can also be lent it for writing (`Link.send`).
    #[pyo3(
        signature = (shape, dtype, *, device = None, shared = Sharing::No),
        text_signature = "($self, shape, dtype, *, device=None, shared=False)"
    )]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
        shared: Sharing,
    ) -> PyResult<PyTensor> {
        let (shape, dtype) = (parse_shape(shape)?, parse_dtype(dtype)?);
        let device = device.map(kinds::parse_device).transpose()?.unwrap_or(DLDevice::CPU);
        self.allocate(py, &shape, dtype, device, shared)
    }

    /// Returns a tensor of zeros in host memory. `shared` is as for `empty`.
    #[pyo3(
        signature = (shape, dtype, *, shared = Sharing::No),
        text_signature = "($self, shape, dtype, *, shared=False)"
    )]
    fn zeros(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        shared: Sharing,
    ) -> PyResult<PyTensor> {
        let (shape, dtype) = (parse_shape(shape)?, parse_dtype(dtype)?);
        self.allocate(py, &shape, dtype, DLDevice::CPU, shared)
    }

    /// Returns a variable: an object without memory that operations are ordered by.
    fn var(&self, py: Python<'_>) -> PyResult<PyVariable> {
        Ok(PyVariable { variable: ProcessBound::new(self.engine(py)?.var()) })
    }
}
