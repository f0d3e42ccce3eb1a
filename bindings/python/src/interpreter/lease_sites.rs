//! Call sites of leases: the line of Python code that takes one, and what becomes of its memory there.
//!
//! Off, a lease has the text that its owner is known by, and costs nothing more. On, it has file, line and
//! function as well, and the type of the object behind it where that passes through our hands. It is for the
//! whole process: a library that takes a lease knows no engine.

use estafette::Lease;
use estafette::bindings;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use pyo3::prelude::*;

use crate::exchange::peers;

static RECORDED: AtomicBool = AtomicBool::new(false);

/// True if they are recorded.
pub fn are_recorded() -> bool {
    RECORDED.load(Ordering::Relaxed)
}

/// Switches on or off that leases taken from now on note the file, line and function that take them, and the
/// type of the object that they are for where that is known. Returns the former setting. Off, as it is at
/// first, taking a lease costs less.
///
/// See `Diagnosis` and `Lease` for where it is shown.
///
///     >>> before = est.record_call_sites()
///     >>> t = eng.zeros(3, "float32")
///     >>> array = np.from_dlpack(t)
///     >>> op = eng.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack, name="fill")
///     >>> (waiting,) = [op for op in eng.diagnose().operations if op.name == "fill"]
///     >>> lease = waiting.blocked_by[0].lease
///     >>> lease.access, lease.line, lease.function
///     ('read', 1, '<module>')
///     >>> est.record_call_sites(before)
///     True
#[pyfunction(signature = (on = true, /))]
pub fn record_call_sites(on: bool) -> bool {
    RECORDED.swap(on, Ordering::Relaxed)
}

/// Notes what has become of leased memory, and in a trace whose it is.
pub fn note_object(lease: &Lease, object: &Bound<'_, PyAny>) {
    if bindings::is_trace_open() {
        let library = peers::of(object).peer().root;
        if !library.is_empty() {
            bindings::lease::note_library(lease, library);
        }
    }
    if are_recorded()
        && let Ok(name) = object.get_type().fully_qualified_name()
    {
        bindings::lease::note_object(lease, name.to_string_lossy());
    }
}
