//! What the engine's watchdog finds, in Python's log.

use pyo3::prelude::*;

use crate::interpreter::guard;

/// Says what has been stalled for too long; called on the engine's watchdog.
pub fn tell_stall(stall: estafette::wait::Stall<'_>) {
    let text = stall.to_string();
    guard::attach(|py| {
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
