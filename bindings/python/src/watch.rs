//! Looking at awaits that take long: an `await` held up by a lease goes on waiting, since some other task may return the
//! lease, but it does not wait in silence.

use std::time::Duration;

use pyo3::prelude::*;

use crate::engine::EngineHandle;
use crate::report;

/// Called by the event loop when an await has taken as long as a blocking wait would be held up by leases.
#[pyclass(frozen, module = "estafette._estafette", name = "_LongWait")]
pub struct LongWait {
    engine: EngineHandle,
    waited: Duration,
}

impl LongWait {
    pub fn new(engine: EngineHandle, waited: Duration) -> Self {
        Self { engine, waited }
    }
}

#[pymethods]
impl LongWait {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        // Views that nobody can reach any more still have their leases.
        py.import("gc")?.call_method0("collect")?;
        let diagnosis = self.engine.engine(py)?.diagnose();
        if !diagnosis.operations.iter().any(|op| matches!(op.status, estafette::Status::Held(_))) {
            return Ok(());
        }
        let text = report::diagnosis(py, &diagnosis)?;
        let logger = py.import("logging")?.call_method1("getLogger", ("estafette",))?;
        let message = "an await has taken %.1f s, and leases are held:\n%s";
        logger.call_method1("warning", (message, self.waited.as_secs_f64(), text))?;
        Ok(())
    }
}
