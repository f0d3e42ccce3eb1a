//! DLPack's capsules: the names say what is inside and whether it was consumed.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use estafette::bindings;
use estafette::exchange::{Abi, ManagedTensor};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

use crate::error::OrRaise;

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
/// With fences of both sides; the tensor comes first in its struct.
pub const FENCED: &CStr = c"dltensor_fenced";
const USED_LEGACY: &CStr = c"used_dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

/// Takes the tensor out of a capsule, which is marked as used before anything else can fail. Raises
/// `ValueError` for a capsule that was consumed before or has another name, or for a struct of another major
/// version (its deleter has been called).
pub fn consume(raw: &Bound<'_, PyCapsule>) -> PyResult<ManagedTensor> {
    let py = raw.py();
    let pointer = |name: &CStr| raw.is_valid_checked(Some(name)).then(|| raw.pointer_checked(Some(name)));
    let (pointer, used, abi) = if let Some(pointer) = pointer(VERSIONED) {
        (pointer?, USED_VERSIONED, Abi::Versioned)
    } else if let Some(pointer) = pointer(LEGACY) {
        (pointer?, USED_LEGACY, Abi::Legacy)
    } else {
        return Err(refuse(raw));
    };
    // SAFETY: the capsule is valid, and the name is static as it must be.
    if unsafe { ffi::PyCapsule_SetName(raw.as_ptr(), used.as_ptr()) } != 0 {
        return Err(PyErr::fetch(py));
    }
    let pointer = pointer.as_ptr().cast::<c_void>();
    // SAFETY: by DLPack's Python specification a capsule of this name owns a valid struct of this kind, and
    // renaming it has passed the ownership on to us; the capsule's destructor leaves used ones alone.
    unsafe { ManagedTensor::from_raw(pointer, abi) }.or_raise(py)
}

fn refuse(raw: &Bound<'_, PyCapsule>) -> PyErr {
    let name = match raw.name() {
        Err(error) => return error,
        Ok(None) => {
            return PyValueError::new_err(
                "the capsule has no name; DLPack's is `dltensor_versioned` or `dltensor`",
            );
        }
        // SAFETY: the name belongs to the capsule, which is alive, and is copied here.
        Ok(Some(name)) => unsafe { name.as_cstr() }.to_string_lossy().into_owned(),
    };
    PyValueError::new_err(match name.as_str() {
        "used_dltensor" | "used_dltensor_versioned" => {
            format!("the capsule was consumed before (it is named `{name}`); ask its producer for a new one")
        }
        _ => format!("the capsule is named `{name}`; DLPack's is `dltensor_versioned` or `dltensor`"),
    })
}

/// Puts a tensor into a fresh capsule, for a consumer to consume once.
pub fn wrap(py: Python<'_>, managed: ManagedTensor) -> PyResult<Bound<'_, PyCapsule>> {
    let name = if bindings::exchange::abi(&managed) == Abi::Versioned { VERSIONED } else { LEGACY };
    // SAFETY: the name says which struct it is.
    unsafe { wrap_raw(py, managed.into_raw(), name) }
}

/// As [`wrap`].
///
/// # Safety
/// `raw` is a struct of the kind that `name` says, which is given away.
pub unsafe fn wrap_raw<'py>(
    py: Python<'py>,
    raw: *mut c_void,
    name: &'static CStr,
) -> PyResult<Bound<'py, PyCapsule>> {
    let held = NonNull::new(raw).expect("a struct");
    // SAFETY: the destructor expects what such a capsule holds.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, held, name, Some(delete)) }
        // SAFETY: without a capsule the struct has no other owner.
        .inspect_err(|_| drop(unsafe { own(raw, name) }))
}

/// # Safety
/// `raw` is a struct of the kind that `name` says, and is the caller's.
unsafe fn own(raw: *mut c_void, name: &CStr) -> Option<ManagedTensor> {
    // SAFETY: as this function's contract says.
    unsafe { ManagedTensor::from_raw(raw, if name == LEGACY { Abi::Legacy } else { Abi::Versioned }) }.ok()
}

/// The destructor of a capsule that may not have been consumed. It leaves a pending exception alone: it sets
/// none, and what the end of a lease calls in Python is called by
/// [`guard::attach`](crate::interpreter::guard::attach).
unsafe extern "C" fn delete(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a live capsule, whose name is a text or NULL.
    unsafe {
        let name = ffi::PyCapsule_GetName(capsule);
        // The usual end: all names of consumed capsules begin with "used".
        if !name.is_null() && *name.cast::<u8>() == b'u' {
            return;
        }
    }
    for name in [VERSIONED, LEGACY, FENCED] {
        // SAFETY: Python calls this with a live capsule; a name that does not fit means consumed, hence not
        // ours.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) != 0 {
                let raw = ffi::PyCapsule_GetPointer(capsule, name.as_ptr());
                drop(own(raw, name));
                return;
            }
        }
    }
}
