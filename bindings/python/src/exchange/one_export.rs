//! Producers that must not export an array while another export of it, or the deleter of an earlier one,
//! runs.
//!
//! JAX keeps the external references of an array on a device in a vector of its PJRT plugin. No lock guards
//! the vector, and an export adds to it without the Python lock (openxla/xla:
//! xla/pjrt/c/pjrt_c_api_wrapper_impl.cc, `PJRT_Buffer_{Increase,Decrease}ExternalReferenceCount`;
//! jax-ml/jax: jaxlib/dlpack.cc). A deleter that runs on another thread at that time corrupts the heap.
//!
//! So an import takes [a lock](ExportLock), and a deleter runs with the Python lock while no thread is within
//! an export, whether the program or this module began it. A thread that is within one has the function of
//! JAX that called jaxlib as its newest Python frame.

use std::cell::Cell;
use std::mem;
use std::time::Duration;

use estafette::exchange::ManagedTensor;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::exchange::array_interface;
use crate::interpreter::courier::Courier;
use crate::interpreter::guard;
use crate::interpreter::once::intern;

/// A pause before the next look. An export takes some microseconds.
const PAUSE: Duration = Duration::from_micros(20);
/// The module whose functions call jaxlib to export.
const MODULE: &str = "jax._src.dlpack";

estafette_sync::per_process! {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    /// Memory whose deleter is still to be called.
    static RELEASED: Mutex<Vec<ManagedTensor>> = Mutex::new(Vec::new());
    static RELEASES: Courier = Courier::new("estafette-release", usize::MAX);
}

thread_local! {
    /// True if this thread has the lock.
    static HAS_LOCK: Cell<bool> = const { Cell::new(false) };
}

/// While this lives, no other thread imports from such a producer.
pub struct ExportLock(());

impl ExportLock {
    /// Takes the lock, without the Python lock while another thread has it. `None` if this thread has it, as
    /// a finalizer that imports within an import does.
    pub fn take(py: Python<'_>) -> Option<Self> {
        if HAS_LOCK.get() {
            return None;
        }
        while TAKEN.swap(true, Ordering::Acquire) {
            guard::detach(py, || std::thread::sleep(PAUSE));
        }
        HAS_LOCK.set(true);
        // In a loop of imports the thread of the releases would get the Python lock in the midst of exports
        // alone.
        run_releases(py);
        Some(Self(()))
    }
}

impl Drop for ExportLock {
    fn drop(&mut self) {
        HAS_LOCK.set(false);
        TAKEN.store(false, Ordering::Release);
    }
}

/// `managed` with a deleter that runs while no thread is within an export: when the next array is imported,
/// or on a thread of its own.
pub fn released_alone(py: Python<'_>, managed: ManagedTensor) -> PyResult<ManagedTensor> {
    array_interface::released_by(py, managed, |managed| {
        let is_first = {
            let mut released = RELEASED.lock();
            released.push(managed);
            released.len() == 1
        };
        if is_first {
            RELEASES.send(Box::new(|py| {
                while !run_releases(py) {
                    guard::detach(py, || std::thread::sleep(PAUSE));
                }
            }));
        }
    })
}

/// Calls the deleters of what is released. False, and it calls none, if a thread is within an export.
fn run_releases(py: Python<'_>) -> bool {
    if RELEASED.lock().is_empty() {
        return true;
    }
    if is_exporting(py).unwrap_or(false) {
        return false;
    }
    let released = mem::take(&mut *RELEASED.lock());
    drop(released);
    true
}

/// True if a thread is within an export, or about to begin one. The answer holds until the calling thread
/// gives up the Python lock.
fn is_exporting(py: Python<'_>) -> PyResult<bool> {
    // A finalizer that the collector ran here might give up the lock.
    let _uncollected = Uncollected::begin(py);
    let frames = py.import("sys")?.call_method0(intern!(py, "_current_frames"))?.cast_into::<PyDict>()?;
    for (_, frame) in frames {
        let globals = frame.getattr(intern!(py, "f_globals"))?;
        let module = globals.cast::<PyDict>()?.get_item(intern!(py, "__name__"))?;
        if module.is_some_and(|module| module.cast::<PyString>().is_ok_and(|name| name == MODULE)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// While this lives, the garbage collector does not run.
struct Uncollected(bool);

impl Uncollected {
    fn begin(_py: Python<'_>) -> Self {
        // SAFETY: this thread has the Python lock.
        Self(unsafe { ffi::PyGC_Disable() } != 0)
    }
}

impl Drop for Uncollected {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: as above: it lives within a function that has the lock.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
