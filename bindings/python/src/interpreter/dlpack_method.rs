//! `Tensor.__dlpack__` for the usual call: keywords only, and nothing asked for but a version at most.
//!
//! The general method reads its arguments one by one and compares their names as text. A call site passes the
//! same tuple of names each time, so its meaning is kept. `np.from_dlpack(tensor)` took 330 ns with that in
//! place of 425 (`2026-11-21-exchange.md`). A call that is not plain goes to the general method.

use std::ffi::c_int;
use std::ptr;

use estafette::Access;
use estafette_sync::panic::contain_panic;
use estafette_sync::sync::Mutex;
use pyo3::exceptions::PySystemError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::classes::tensor::PyTensor;
use crate::exchange::capsule;
use crate::exchange::export::{self, ExportRequest, From};
use crate::interpreter::once::PyOnce;

/// The method that knows everything.
static GENERAL: PyOnce<Py<PyAny>> = PyOnce::new();

struct Definition(ffi::PyMethodDef);

// SAFETY: constant; the pointers in it are to static text.
unsafe impl Sync for Definition {}

static DEFINITION: Definition = Definition(ffi::PyMethodDef {
    ml_name: c"__dlpack__".as_ptr(),
    ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: dlpack },
    ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
    ml_doc: c"__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n\
              Hands the tensor to a consumer under a read lease; the array API's protocol. Waits until it is ready."
        .as_ptr(),
});

/// Puts the method in front of the general one.
pub fn install(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<PyTensor>();
    let general = class.getattr("__dlpack__")?.unbind();
    GENERAL.get_or_init(py, || general);
    // SAFETY: the class is alive and the definition static; Python does not change it, though it asks for a
    // mutable pointer.
    let method = unsafe {
        let definition = (&raw const DEFINITION.0).cast_mut();
        Bound::from_owned_ptr_or_err(py, ffi::PyDescr_NewMethod(class.as_type_ptr(), definition))?
    };
    class.setattr("__dlpack__", method)
}

/// Arguments of `__dlpack__`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Argument {
    Stream,
    MaxVersion,
    DlDevice,
    Copy,
}

/// The most names that a plain call passes.
const NAMES_MAX: usize = 4;

/// Call sites whose names are kept. Few consumers are written; a new one takes the slot of an old one.
const KEPT: usize = 16;

#[derive(Clone, Copy)]
struct Meaning([Option<Argument>; NAMES_MAX]);

struct Names {
    /// Kept, so that its address stays unique.
    tuple: Py<PyAny>,
    meaning: Meaning,
}

estafette_sync::per_process! {
    static NAMES: Mutex<[Option<Names>; KEPT]> = Mutex::new([const { None }; KEPT]);
}

unsafe extern "C" fn dlpack(
    this: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    positional: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls this with its lock.
    let py = unsafe { Python::assume_attached() };
    let answer = contain_panic(|| {
        // SAFETY: Python lends an instance of the class, `positional` values and one for each of the names,
        // which may be NULL.
        unsafe {
            let this = Bound::from_borrowed_ptr(py, this);
            if positional == 0
                && let Some(names) = Bound::from_borrowed_ptr_or_opt(py, names)
                && let Some(capsule) = plain(&this, &names, values)?
            {
                return Ok(capsule.into_any());
            }
            general(&this, values, positional as usize, names)
        }
    });
    match answer {
        Ok(Ok(answer)) => answer.into_ptr(),
        Ok(Err(error)) => {
            error.restore(py);
            ptr::null_mut()
        }
        Err(_) => {
            PySystemError::new_err("the export of a tensor panicked").restore(py);
            ptr::null_mut()
        }
    }
}

/// The export, if the call is a plain one.
///
/// # Safety
/// `values` has a live object for each of `names`, a tuple.
unsafe fn plain<'py>(
    this: &Bound<'py, PyAny>,
    names: &Bound<'py, PyAny>,
    values: *const *mut ffi::PyObject,
) -> PyResult<Option<Bound<'py, PyCapsule>>> {
    let py = this.py();
    let Some(meaning) = meaning_of(names) else { return Ok(None) };
    let mut versioned = false;
    for (index, argument) in meaning.0.into_iter().enumerate() {
        let Some(argument) = argument else { break };
        // SAFETY: as this function's contract says; one name has been found for each index.
        let value = unsafe { *values.add(index) };
        // SAFETY: None and False live for ever.
        let (none, no) = unsafe { (ffi::Py_None(), ffi::Py_False()) };
        match argument {
            _ if value == none => {}
            Argument::Copy if value == no => {}
            // SAFETY: a live object.
            Argument::MaxVersion if unsafe { is_versioned(value) } => versioned = true,
            _ => return Ok(None),
        }
    }
    // SAFETY: the method is called on instances of its class only, which Python checks.
    let tensor = unsafe { this.cast_unchecked::<PyTensor>() }.get();
    let from = From::Tensor(tensor.tensor(py)?, Access::Read, tensor.engine());
    let max_version = versioned.then_some((1, 0));
    let request = ExportRequest { stream: None, max_version, dl_device: None, copy: None };
    // The request asks for no copy.
    capsule::wrap(py, export::export_plain(py, from, &request)?).map(Some)
}

/// True if it is a pair of integers that says 1.0 or newer.
///
/// # Safety
/// `version` is a live object.
unsafe fn is_versioned(version: *mut ffi::PyObject) -> bool {
    // SAFETY: each step asks what the next one needs.
    unsafe {
        if ffi::PyTuple_CheckExact(version) == 0 || ffi::PyTuple_Size(version) != 2 {
            return false;
        }
        let (major, minor) = (ffi::PyTuple_GetItem(version, 0), ffi::PyTuple_GetItem(version, 1));
        if ffi::PyLong_CheckExact(major) == 0 || ffi::PyLong_CheckExact(minor) == 0 {
            return false;
        }
        let mut overflow: c_int = 0;
        // The general method refuses versions that do not fit.
        (1..1 << 16).contains(&ffi::PyLong_AsLongAndOverflow(major, &mut overflow))
            && (0..1 << 16).contains(&ffi::PyLong_AsLongAndOverflow(minor, &mut overflow))
    }
}

/// The meaning of the names; `None` for too many or unknown ones.
fn meaning_of(names: &Bound<'_, PyAny>) -> Option<Meaning> {
    let slot = (names.as_ptr() as usize >> 4) % KEPT;
    let kept = NAMES.lock()[slot]
        .as_ref()
        .filter(|kept| kept.tuple.as_ptr() == names.as_ptr())
        .map(|kept| kept.meaning);
    kept.or_else(|| {
        let tuple = names.cast::<PyTuple>().ok()?;
        let mut meaning = Meaning([None; NAMES_MAX]);
        for (index, name) in tuple.iter().enumerate() {
            let argument = match name.extract::<&str>().ok()? {
                "stream" => Argument::Stream,
                "max_version" => Argument::MaxVersion,
                "dl_device" => Argument::DlDevice,
                "copy" => Argument::Copy,
                _ => return None,
            };
            *meaning.0.get_mut(index)? = Some(argument);
        }
        let names = Names { tuple: tuple.clone().into_any().unbind(), meaning };
        let old = NAMES.lock()[slot].replace(names);
        drop(old);
        Some(meaning)
    })
}

/// Calls the general method with the same arguments.
///
/// # Safety
/// `values` has `positional` live objects, and one for each of `names`, which is NULL or a tuple.
unsafe fn general<'py>(
    this: &Bound<'py, PyAny>,
    values: *const *mut ffi::PyObject,
    positional: usize,
    names: *mut ffi::PyObject,
) -> PyResult<Bound<'py, PyAny>> {
    let py = this.py();
    // SAFETY: by contract of this function.
    let value = |index: usize| unsafe { Bound::from_borrowed_ptr(py, *values.add(index)) };
    let arguments = std::iter::once(this.clone()).chain((0..positional).map(value));
    let arguments = PyTuple::new(py, arguments.collect::<Vec<_>>())?;
    let keywords = PyDict::new(py);
    // SAFETY: by contract of this function.
    if let Some(names) = unsafe { Bound::from_borrowed_ptr_or_opt(py, names) } {
        for (index, name) in names.cast_into::<PyTuple>()?.iter().enumerate() {
            keywords.set_item(name, value(positional + index))?;
        }
    }
    let general = GENERAL.get(py).ok_or_else(|| PySystemError::new_err("no method was replaced"))?;
    general.bind(py).call(arguments, Some(&keywords))
}
