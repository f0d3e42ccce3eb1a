//! Looking at awaits that take long: an `await` held up by a lease goes on waiting, since some other task may return the
//! lease, but it does not wait in silence.

use std::time::Duration;

use pyo3::prelude::*;

use crate::awaiting::Wakeups;
use crate::handle::EngineHandle;
use crate::{gate, report};

/// Called by the event loop when an await has taken as long as a blocking wait would be held up by leases.
#[pyclass(frozen, module = "estafette._estafette", name = "_LongWaits")]
pub struct LongWaits {
    /// A weak reference: a timer must not keep what the loop keeps.
    wakeups: Py<PyAny>,
}

impl LongWaits {
    pub fn new(wakeups: Py<PyAny>) -> Self {
        Self { wakeups }
    }
}

#[pymethods]
impl LongWaits {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        match self.wakeups.bind(py).call0()?.cast::<Wakeups>() {
            Ok(wakeups) => wakeups.get().look(py),
            Err(_) => Ok(()),
        }
    }
}

/// Says what has been stalled for too long; called on the engine's watchdog.
pub fn tell_stall(op: &estafette::Waiting) {
    let text = op.to_string();
    gate::attach(|py| {
        let told = py
            .import("logging")
            .and_then(|logging| logging.call_method1("getLogger", ("estafette",)))
            .and_then(|logger| logger.call_method1("warning", ("stalled: %s", &text)));
        if let Err(error) = told {
            // A handler of the user's that fails is reported as `logging` itself would.
            error.write_unraisable(py, None);
        }
    });
}

/// Says which leases are held in the engines that somebody has waited for so long.
pub fn tell_why(py: Python<'_>, mut waits: Vec<(Duration, EngineHandle)>) -> PyResult<()> {
    if waits.is_empty() {
        return Ok(());
    }
    // One diagnosis of an engine tells of all its waits.
    waits.sort_by_key(|(waited, engine)| (engine.identity(), std::cmp::Reverse(*waited)));
    waits.dedup_by_key(|(_, engine)| engine.identity());
    // Views that nobody can reach any more still have their leases.
    py.import("gc")?.call_method0("collect")?;
    for (waited, engine) in waits {
        let diagnosis = engine.engine(py)?.diagnose();
        if !diagnosis.operations.iter().any(|op| matches!(op.status, estafette::Status::Held(_))) {
            continue;
        }
        let text = report::diagnosis(py, &diagnosis)?;
        let logger = py.import("logging")?.call_method1("getLogger", ("estafette",))?;
        let message = "an await has taken %.1f s, and leases are held:\n%s";
        logger.call_method1("warning", (message, waited.as_secs_f64(), text))?;
    }
    Ok(())
}
