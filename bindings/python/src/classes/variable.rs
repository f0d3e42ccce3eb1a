//! The class `Variable`.

use estafette::Variable;
use estafette::bindings;
use estafette_sync::process::ProcessBound;
use pyo3::prelude::*;

use crate::error::OrRaise;

/// Something whose order is kept and that has no memory: a file, a counter, a device setting. Use it in the
/// `reads` and `writes` of `submit`; the function does not get it as an argument.
#[pyclass(frozen, module = "estafette", name = "Variable", weakref)]
pub struct PyVariable {
    pub(crate) variable: ProcessBound<Variable>,
}

#[pymethods]
impl PyVariable {
    /// Identity, as in diagnoses.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(bindings::operation::variable_id(self.variable.get().or_raise(py)?))
    }

    /// Number of writes that have finished.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.variable.get().or_raise(py)?.version())
    }

    fn __repr__(&self) -> String {
        match self.variable.get() {
            Ok(variable) => format!("<estafette.Variable {}>", bindings::operation::variable_id(variable)),
            Err(_) => "<estafette.Variable of the parent process>".into(),
        }
    }
}
