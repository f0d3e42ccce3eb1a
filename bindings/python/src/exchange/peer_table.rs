//! Taking tensors through the C exchange tables of other libraries, without a Python call.

use std::ffi::c_void;
use std::ptr;

use estafette::bindings::exchange::table;
use estafette::devices::DLDevice;
use estafette::exchange::{Abi, ManagedTensor};
use pyo3::exceptions::PySystemError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::error::OrRaise;
use crate::interpreter::once::intern;

/// A table that a library has published for one of its types; it lives as long as the process.
#[derive(Clone, Copy)]
pub struct PeerTable {
    table: &'static table::Table,
}

// SAFETY: a table is constant once it is published; its functions are called with the Python lock.
unsafe impl Send for PeerTable {}
// SAFETY: as above.
unsafe impl Sync for PeerTable {}

/// The table of a type, if it has one of a version that we understand. Whatever is wrong with it, there is
/// `__dlpack__`.
pub fn of(class: &Bound<'_, PyType>) -> Option<PeerTable> {
    let capsule = class.getattr_opt(intern!(class.py(), "__dlpack_c_exchange_api__")).ok()??;
    // SAFETY: asks whether it is a capsule of that name with a pointer in it before taking that out; by
    // DLPack's specification the pointer is a table that stays as it is.
    let found = unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), table::CAPSULE.as_ptr()) == 0 {
            return None;
        }
        table::understood(ffi::PyCapsule_GetPointer(capsule.as_ptr(), table::CAPSULE.as_ptr()).cast())
    };
    found.map(|table| PeerTable { table })
}

impl PeerTable {
    /// Takes the tensor behind `object`, an instance of the type that the table is of. Without
    /// synchronization.
    pub fn take(self, object: &Bound<'_, PyAny>) -> PyResult<ManagedTensor> {
        let py = object.py();
        let take = self.table.managed_tensor_from_py_object_no_sync.expect("asked for when it was found");
        let mut taken = ptr::null_mut();
        // SAFETY: the object is alive and of the table's type, and the Python lock is held. What it gives is
        // ours.
        let managed = unsafe {
            if take(object.as_ptr().cast::<c_void>(), &mut taken) != 0 || taken.is_null() {
                return Err(error_of(py, "tensor"));
            }
            ManagedTensor::from_raw(taken.cast(), Abi::Versioned)
        };
        managed.or_raise(py)
    }

    /// True if the library makes objects of tensors.
    pub fn makes_objects(self) -> bool {
        self.table.managed_tensor_to_py_object_no_sync.is_some()
    }

    /// Makes an object of the library of `managed`, where it [makes objects](Self::makes_objects). Without
    /// synchronization.
    pub fn make<'py>(self, py: Python<'py>, managed: ManagedTensor) -> PyResult<Bound<'py, PyAny>> {
        let make = self.table.managed_tensor_to_py_object_no_sync.expect("asked for when it was found");
        let mut made = ptr::null_mut();
        // SAFETY: the Python lock is held, and the struct is a versioned one, which the library adopts by
        // DLPack's specification. What it gives is a new reference.
        unsafe {
            if make(managed.into_raw().cast(), &mut made) != 0 || made.is_null() {
                return Err(error_of(py, "object"));
            }
            Ok(Bound::from_owned_ptr(py, made.cast()))
        }
    }

    /// The stream that the library works on right now; NULL where there is none.
    pub fn current_stream(self, py: Python<'_>, device: DLDevice) -> PyResult<*mut c_void> {
        let ask = self.table.current_work_stream.expect("asked for when it was found");
        let mut stream = ptr::null_mut();
        let kind = table::DLDeviceType(device.device_type.0 as u32);
        // SAFETY: the Python lock is held, and the answer has a place.
        if unsafe { ask(kind, device.device_id, &mut stream) } != 0 {
            return Err(error_of(py, "stream"));
        }
        Ok(stream)
    }
}

/// The error that a function of a table has raised, which gave no `what`.
fn error_of(py: Python<'_>, what: &str) -> PyErr {
    PyErr::take(py).unwrap_or_else(|| {
        PySystemError::new_err(format!("a C exchange table gave no {what} and no exception"))
    })
}
