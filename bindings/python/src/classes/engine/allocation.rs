//! Tensors and variables that the engine creates: `empty`, `zeros`, `var`.

use estafette::DType;
use estafette::devices::DLDevice;
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
pub enum Shared {
    No,
    ForReading,
    ForWriting,
}

impl<'a, 'py> FromPyObject<'a, 'py> for Shared {
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
    fn shared_zeros(
        &self,
        py: Python<'_>,
        shape: &[i64],
        dtype: DType,
        shared: Shared,
    ) -> PyResult<PyTensor> {
        prepare_queues(py, true)?;
        let engine = self.engine(py)?;
        let tensor = match shared {
            Shared::ForWriting => engine.zeros_shared_for_writing(shape, dtype),
            Shared::No | Shared::ForReading => engine.zeros_shared(shape, dtype),
        };
        Ok(self.wrap(tensor.or_raise(py)?))
    }
}

#[pymethods]
impl PyEngine {
    /// Returns a tensor of the given shape and element type, for operations to fill: in host memory, or in
    /// memory of `device`, for example ``"sycl:cpu"``. With `shared`, other processes can be shown the memory, which is on the host or a
    /// CUDA device, else `NotSharedError`; with ``"write"``, on the host alone, another process can also be lent it for writing
    /// (`Link.send`).
    #[pyo3(
        signature = (shape, dtype, *, device = None, shared = Shared::No),
        text_signature = "($self, shape, dtype, *, device=None, shared=False)"
    )]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
        shared: Shared,
    ) -> PyResult<PyTensor> {
        let (shape, dtype) = (parse_shape(shape)?, parse_dtype(dtype)?);
        let engine = self.engine(py)?;
        let tensor = match device.map(kinds::parse_device).transpose()? {
            Some(device) if shared == Shared::ForWriting && device != DLDevice::CPU => {
                let message = format!("memory on {device} cannot be lent to other processes for writing");
                return Err(raise(py, "InvalidError", message));
            }
            Some(device) if shared == Shared::ForReading && device != DLDevice::CPU => {
                prepare_queues(py, true)?;
                kinds::device_of(py, device)?;
                guard::detach(py, || engine.empty_shared_on(device, &shape, dtype))
            }
            _ if shared != Shared::No => return self.shared_zeros(py, &shape, dtype, shared),
            None | Some(DLDevice::CPU) => engine.zeros(&shape, dtype),
            Some(device) => {
                kinds::device_of(py, device)?;
                guard::detach(py, || engine.empty_on(device, &shape, dtype))
            }
        };
        Ok(self.wrap(tensor.or_raise(py)?))
    }

    /// Returns a tensor of zeros in host memory. `shared` is as for `empty`.
    #[pyo3(
        signature = (shape, dtype, *, shared = Shared::No),
        text_signature = "($self, shape, dtype, *, shared=False)"
    )]
    fn zeros(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        shared: Shared,
    ) -> PyResult<PyTensor> {
        let (shape, dtype) = (parse_shape(shape)?, parse_dtype(dtype)?);
        if shared != Shared::No {
            return self.shared_zeros(py, &shape, dtype, shared);
        }
        Ok(self.wrap(self.engine(py)?.zeros(&shape, dtype).or_raise(py)?))
    }

    /// Returns a variable: an object without memory that operations are ordered by.
    fn var(&self, py: Python<'_>) -> PyResult<PyVariable> {
        Ok(PyVariable { variable: ProcessBound::new(self.engine(py)?.var()) })
    }
}
