//! Tensors and variables that the engine creates: `empty`, `zeros`, `var`.

use estafette::devices::DLDevice;
use estafette_sync::process::ProcessBound;
use pyo3::prelude::*;

use super::PyEngine;
use crate::arguments::{parse_dtype, parse_shape};
use crate::classes::remote::prepare_queues;
use crate::classes::tensor::PyTensor;
use crate::classes::variable::PyVariable;
use crate::error::{OrRaise, raise};
use crate::interpreter::guard;
use crate::kinds;

#[pymethods]
impl PyEngine {
    /// Returns a tensor of the given shape and element type, for operations to fill: in host memory, or in
    /// memory of `device`, for example ``"sycl:cpu"``. With `shared`, other processes can be shown the memory, which is on the host.
    #[pyo3(signature = (shape, dtype, *, device = None, shared = false))]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
        shared: bool,
    ) -> PyResult<PyTensor> {
        let (shape, dtype) = (parse_shape(shape)?, parse_dtype(dtype)?);
        let engine = self.engine(py)?;
        if shared {
            prepare_queues(py, true)?;
        }
        let tensor = match device.map(kinds::parse_device).transpose()? {
            Some(device) if shared && device != DLDevice::CPU => {
                let message = format!("memory on {device} cannot be shared with other processes");
                return Err(raise(py, "InvalidError", message));
            }
            _ if shared => engine.zeros_shared(&shape, dtype),
            None | Some(DLDevice::CPU) => engine.empty(&shape, dtype),
            Some(device) => {
                kinds::device_of(py, device)?;
                guard::detach(py, || engine.empty_on(device, &shape, dtype))
            }
        };
        Ok(self.wrap(tensor.or_raise(py)?))
    }

    /// Returns a tensor of zeros in host memory. With `shared`, other processes can be shown the memory.
    #[pyo3(signature = (shape, dtype, *, shared = false))]
    fn zeros(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
        shared: bool,
    ) -> PyResult<PyTensor> {
        let (engine, shape, dtype) = (self.engine(py)?, parse_shape(shape)?, parse_dtype(dtype)?);
        let tensor = if shared {
            prepare_queues(py, true)?;
            engine.zeros_shared(&shape, dtype)
        } else {
            engine.zeros(&shape, dtype)
        };
        Ok(self.wrap(tensor.or_raise(py)?))
    }

    /// Returns a variable: an object without memory that operations are ordered by.
    fn var(&self, py: Python<'_>) -> PyResult<PyVariable> {
        Ok(PyVariable { variable: ProcessBound::new(self.engine(py)?.var()) })
    }
}
