//! SYCL in Python: queues of dpctl, and arrays whose memory is USM.
//!
//! dpctl is never imported here. A queue is anything with `addressof_ref` and `sycl_context` (a
//! `dpctl.SyclQueue`), or the capsule of one; what is behind it is used through dpctl's C interface, which is
//! in the process as soon as there is one.
//!
//! | part | what it has |
//! |---|---|
//! | `array` | The SYCL USM array interface |
//! | `peers` | Libraries of SYCL |
//! | `submission_mutex` | Serializes functions that enqueue on one foreign queue |

pub(crate) mod array;
mod peers;
mod submission_mutex;

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use estafette::devices::sycl::{self, SyclDevice, SyclQueue, SyclRuntime};
use estafette::devices::{DLDevice, Device, DeviceError, DeviceType, FenceSet, Queue, table};
use estafette::exchange::ManagedTensor;
use estafette::lease::Consumer;
use estafette::{Tensor, Variable};
use estafette_sync::platform::library::file_name;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::error::{exchange_error, package_folders};
use crate::exchange::peers::Peer;
use crate::interpreter::guard;
use crate::interpreter::once::{PyOnce, intern};
use crate::kinds::{Kind, Place};

/// The devices of SYCL's runtime, whose memory is unified shared memory.
pub struct Sycl;

impl Kind for Sycl {
    fn covers(&self, device: DLDevice) -> bool {
        device.device_type == DeviceType::ONE_API
    }

    fn module(&self) -> Option<&'static str> {
        Some("estafette._kinds.sycl")
    }

    fn peers(&self) -> &'static [Peer] {
        peers::PEERS
    }

    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        suggest(py)
    }

    fn device_names(&self) -> &'static [&'static str] {
        &["\"oneapi:<number>\"", "\"sycl:cpu\""]
    }

    /// `"oneapi:0"`, and `"sycl"`, `"sycl:cpu"` or `"sycl:gpu"` for the first one (of that kind).
    fn parse_device(&self, py: Python<'_>, text: &str) -> PyResult<Option<DLDevice>> {
        let (family, which) = text.split_once(':').unwrap_or((text, ""));
        if !matches!(family, "sycl" | "oneapi") {
            return Ok(None);
        }
        if let Ok(number) = which.parse() {
            return Ok(Some(DLDevice::new(DeviceType::ONE_API, number)));
        }
        suggest(py)?;
        let runtime = guard::detach(py, SyclRuntime::get)
            .map_err(|error| PyValueError::new_err(format!("device {text}: {error}")))?;
        let fits = |name: &str| which.is_empty() || name.ends_with(&format!(":{which})"));
        let found = runtime.devices().iter().find(|device| fits(device.name()));
        match found {
            Some(device) => Ok(Some(device.id())),
            None => Err(PyValueError::new_err(format!("device {text}: there is no such device"))),
        }
    }

    fn has_numbers_of_ours(&self) -> bool {
        true
    }

    fn queue_name(&self) -> Option<&'static str> {
        Some("a SYCL queue (dpctl.SyclQueue)")
    }

    fn consumer(
        &self,
        _tensor: &Tensor,
        device: DLDevice,
        stream: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Consumer>> {
        Ok(queue_on(stream, Some(device))?.map(|queue| Consumer::Queue(queue)))
    }

    fn queue_of(&self, object: &Bound<'_, PyAny>) -> PyResult<Option<Arc<dyn Queue>>> {
        Ok(queue_on(object, None)?.map(|queue| queue as Arc<dyn Queue>))
    }

    /// Work of SYCL's libraries goes to a queue that they agree on, not to one of the engine: the one that
    /// dpctl and dpnp use by default, which dpctl keeps for the whole process. It keeps none of a registered
    /// context.
    fn queue_for_functions<'py>(&self, py: Python<'py>, device: DLDevice) -> PyResult<Option<Place<'py>>> {
        suggest(py)?;
        guard::detach(py, || table::resolve(device))
            .map_err(|error| exchange_error(py, error.to_string()))?;
        let none = || {
            let message =
                format!("on={device}: of a registered context name the queue, for example a dpctl.SyclQueue");
            PyValueError::new_err(message)
        };
        if device.device_id >= table::FIRST_REGISTERED {
            return Err(none());
        }
        let theirs = py.import("dpctl")?.call_method0("get_devices")?.get_item(device.device_id)?;
        let manager = py.import("dpctl._sycl_queue_manager")?;
        let owner = manager.call_method1("get_device_cached_queue", (theirs,))?;
        let queue = queue_on(&owner, Some(device))?.ok_or_else(none)?;
        Ok(Some((queue, Some(owner))))
    }

    fn submission_mutex(&self, queue: &dyn Queue) -> Option<Variable> {
        submission_mutex::on(queue)
    }

    fn import_array(
        &self,
        object: &Bound<'_, PyAny>,
        _peer: &Peer,
    ) -> PyResult<Option<(ManagedTensor, FenceSet)>> {
        array::is_all_there_is(object)?.then(|| array::take(object)).transpose()
    }

    /// A barrier on the queue that the array names, after what its library has enqueued there so far. The
    /// array's protocol methods do not order anything (a stream of `None` means "no synchronization" there),
    /// so this does.
    fn acquire(
        &self,
        object: &Bound<'_, PyAny>,
        (device, _data): (DLDevice, *mut u8),
        _stream: Option<usize>,
    ) -> PyResult<FenceSet> {
        let py = object.py();
        let queue = match object.getattr_opt(intern!(py, "sycl_queue"))? {
            Some(queue) => Some(queue),
            None => match object.getattr_opt(intern!(py, "__sycl_usm_array_interface__"))? {
                Some(interface) => Some(interface.get_item("syclobj")?),
                None => None,
            },
        };
        let queue = queue.map(|queue| queue_on(&queue, Some(device))).transpose()?.flatten();
        let queue = queue.ok_or_else(|| {
            let message = format!("memory on {device} from an array that names no queue cannot be ordered");
            exchange_error(py, message)
        })?;
        let fence = queue.record().map_err(|error| exchange_error(py, error.to_string()))?;
        Ok(fence.into())
    }

    fn context_name(&self) -> Option<&'static str> {
        Some("dpctl.SyclContext")
    }

    fn context_of(&self, object: &Bound<'_, PyAny>) -> PyResult<Option<NonNull<c_void>>> {
        pointer_of(object, false)
    }
}

/// Names to the loader the folder of the package dpctl of this environment, without importing it. Once, and
/// only if the library is not in the process yet.
fn suggest(py: Python<'_>) -> PyResult<()> {
    static DONE: PyOnce<()> = PyOnce::new();
    DONE.get_or_try_init(py, || {
        if SyclRuntime::is_loaded() {
            return Ok(());
        }
        for folder in package_folders(py, "dpctl")? {
            sycl::suggest_library(folder.join(file_name("DPCTLSyclInterface")));
        }
        Ok(())
    })
    .copied()
}

/// The number of the first device of `context`, a live context, if the device table knows it.
fn device_of_context(py: Python<'_>, context: NonNull<c_void>) -> PyResult<Option<DLDevice>> {
    suggest(py)?;
    let entries = guard::detach(py, || table::entries_of(DeviceType::ONE_API));
    let found = entries.iter().find(|entry| {
        let device = entry.device.as_ref().and_then(sycl_device);
        // SAFETY: the object is alive and vouches for its pointer.
        device.is_some_and(|device| unsafe { device.is_of_context(context) })
    });
    Ok(found.map(|entry| entry.id))
}

/// The device as one of SYCL's.
fn sycl_device(device: &Arc<dyn Device>) -> Option<&SyclDevice> {
    let device: &dyn std::any::Any = &**device;
    device.downcast_ref()
}

/// The pointer to the `sycl::queue` of a `dpctl.SyclQueue` or of its capsule, or else that to the
/// `sycl::context` of a `dpctl.SyclContext` or of its capsule; `None` for anything else.
fn pointer_of(object: &Bound<'_, PyAny>, is_queue: bool) -> PyResult<Option<NonNull<c_void>>> {
    let py = object.py();
    if let Ok(capsule) = object.cast::<PyCapsule>() {
        let is_context = capsule.pointer_checked(Some(c"SyclContextRef"));
        if !is_queue {
            let message = "this capsule holds no SYCL context (`SyclContextRef`)";
            return is_context.map(Some).map_err(|_| PyTypeError::new_err(message));
        }
        if is_context.is_ok() {
            return Ok(None);
        }
        let message = "this capsule holds no SYCL queue (`SyclQueueRef`)";
        let pointer = capsule.pointer_checked(Some(c"SyclQueueRef"));
        return pointer.map(Some).map_err(|_| PyTypeError::new_err(message));
    }
    // Queues alone have a context.
    if object.hasattr(intern!(py, "sycl_context"))? != is_queue {
        return Ok(None);
    }
    let Some(address) = object.getattr_opt(intern!(py, "addressof_ref"))? else { return Ok(None) };
    Ok(NonNull::new(ptr::with_exposed_provenance_mut(address.call0()?.extract::<usize>()?)))
}

/// A foreign queue as one of `device`, acquired now; `None` if the object is no queue.
/// Raises `ValueError` for a queue of another context or device.
fn queue_on(object: &Bound<'_, PyAny>, device: Option<DLDevice>) -> PyResult<Option<Arc<SyclQueue>>> {
    let py = object.py();
    let Some(pointer) = pointer_of(object, true)? else { return Ok(None) };
    suggest(py)?;
    let invalid = |error: DeviceError| PyValueError::new_err(error.to_string());
    let mut entries = guard::detach(py, || table::entries_of(DeviceType::ONE_API));
    entries.retain(|entry| device.is_none_or(|device| device == entry.id));
    let mut refused = None;
    for entry in entries {
        let Some(device) = entry.device.as_ref().and_then(sycl_device) else { continue };
        // SAFETY: the object is alive and vouches for its pointer.
        match unsafe { device.foreign_queue(pointer) } {
            Ok(queue) => return Ok(Some(queue)),
            Err(error) => refused = Some(error),
        }
    }
    Err(invalid(refused.unwrap_or_else(|| {
        let message = "the queue is of a context that the device table does not know; register it";
        DeviceError::new(estafette::devices::DeviceErrorKind::Invalid, message)
    })))
}
