//! Call sites of leases: the line of Python code that takes one, and what becomes of its memory there.
//!
//! Off, a lease has the text that its owner is known by, and costs nothing more. On, it has file, line and
//! function as well, and the type of the object behind it where that passes through our hands. It is for the
//! whole process: a library that takes a lease knows no engine.

use std::sync::Arc;

use estafette::Lease;
use estafette::bindings;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use pyo3::prelude::*;
use pyo3::types::PyType;

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
        && let Some(name) = name_of(&object.get_type())
    {
        bindings::lease::note_object(lease, name);
    }
}

/// Types whose names are kept. Programs exchange few kinds of objects; a new one takes the slot of an old
/// one.
const KEPT: usize = 32;

/// One slot each: a type and its name.
type Names = [Option<(Py<PyType>, Arc<str>)>; KEPT];

estafette_sync::per_process! {
    static NAMES: Mutex<Names> = Mutex::new([const { None }; KEPT]);
}

/// The full name of a type.
fn name_of(kind: &Bound<'_, PyType>) -> Option<Arc<str>> {
    // Type objects are aligned to 16 bytes, and some hundred bytes long.
    let slot = kind.as_ptr().addr() / 16;
    let slot = (slot ^ (slot / 64)) % KEPT;
    if let Some((known, name)) = &NAMES.lock()[slot]
        && known.as_ptr() == kind.as_ptr()
    {
        return Some(Arc::clone(name));
    }
    let name: Arc<str> = kind.fully_qualified_name().ok()?.to_string_lossy().into();
    let new = (kind.clone().unbind(), Arc::clone(&name));
    let old = NAMES.lock()[slot].replace(new);
    drop(old);
    Some(name)
}
