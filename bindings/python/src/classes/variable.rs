//! The class `Variable`.

use estafette::Variable;
use pyo3::prelude::*;

use crate::interpreter::process::Own;

/// Something whose order is kept and that has no memory: a file, a counter, a device setting. Use it in the `reads` and
/// `writes` of `submit`; the function does not get it as an argument.
#[pyclass(frozen, module = "estafette", name = "Variable", weakref)]
pub struct PyVariable {
    pub(crate) variable: Own<Variable>,
}

#[pymethods]
impl PyVariable {
    /// Identity, as in diagnoses.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.variable.get(py)?.id())
    }

    /// Number of writes that have finished.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.variable.get(py)?.version())
    }

    fn __repr__(&self) -> String {
        match self.variable.try_get() {
            Some(variable) => format!("<estafette.Variable {}>", variable.id()),
            None => "<estafette.Variable of the parent process>".into(),
        }
    }
}
