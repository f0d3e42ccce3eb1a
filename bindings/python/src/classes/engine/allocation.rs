//! Tensors and variables that the engine creates: `empty`, `zeros`, `var`.

use estafette::devices::DLDevice;
use estafette_sync::process::ProcessBound;
use pyo3::prelude::*;

use super::PyEngine;
use crate::arguments::{parse_dtype, parse_shape};
use crate::classes::tensor::PyTensor;
use crate::classes::variable::PyVariable;
use crate::error::OrRaise;
use crate::interpreter::guard;
use crate::kinds;

#[pymethods]
impl PyEngine {
    /// Returns a tensor of the given shape and element type, for operations to fill: in host memory, or in
    /// memory of `device`, for example ``"sycl:cpu"``.
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
        let tensor = match device.map(kinds::parse_device).transpose()? {
            None | Some(DLDevice::CPU) => engine.empty(&shape, dtype),
            Some(device) => {
                kinds::device_of(py, device)?;
                guard::detach(py, || engine.empty_on(device, &shape, dtype))
            }
        };
        Ok(self.wrap(tensor.or_raise(py)?))
    }

    /// Returns a tensor of zeros in host memory.
    fn zeros(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: &Bound<'_, PyAny>,
    ) -> PyResult<PyTensor> {
        let tensor = self.engine(py)?.zeros(&parse_shape(shape)?, parse_dtype(dtype)?).or_raise(py)?;
        Ok(self.wrap(tensor))
    }

    /// Returns a variable: an object without memory that operations are ordered by.
    fn var(&self, py: Python<'_>) -> PyResult<PyVariable> {
        Ok(PyVariable { variable: ProcessBound::new(self.engine(py)?.var()) })
    }
}
