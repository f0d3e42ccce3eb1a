//! Calls that CPython has a faster form of than the stable interface of 3.11 knows.
//!
//! The extension is built once for every Python from 3.11 on, and may link only to what that promises.
//! `PyObject_VectorcallMethod` joined the promise in 3.12, `PyContextVar_Get` and `PyFrame_GetLasti` have not yet, but
//! every CPython from 3.11 on exports all of them under the same signature. So they are looked up when first needed, and
//! where one is missing the slower form does the same.
//!
//! Being looked up, they may also unwind as far as Rust knows, which calls of code of the program need ([`finalization`](crate::interpreter::finalization)).

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use estafette_sync::platform::library::symbol;
use pyo3::exceptions::PySystemError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::interpreter::finalization;

type VectorcallMethod = unsafe extern "C-unwind" fn(
    name: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    nargsf: usize,
    kwnames: *mut ffi::PyObject,
) -> *mut ffi::PyObject;

type ContextVarGet = unsafe extern "C" fn(
    var: *mut ffi::PyObject,
    default: *mut ffi::PyObject,
    value: *mut *mut ffi::PyObject,
) -> c_int;

/// Says that the slot before the arguments may be overwritten (`PY_VECTORCALL_ARGUMENTS_OFFSET`).
const OFFSET: usize = 1 << (usize::BITS - 1);

type Call = unsafe extern "C-unwind" fn(
    callable: *mut ffi::PyObject,
    arguments: *mut ffi::PyObject,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject;

type FrameGetLasti = unsafe extern "C" fn(frame: *mut ffi::PyFrameObject) -> c_int;

struct Found {
    call: Option<Call>,
    vectorcall_method: Option<VectorcallMethod>,
    context_var_get: Option<ContextVarGet>,
    frame_get_lasti: Option<FrameGetLasti>,
}

fn found() -> &'static Found {
    static FOUND: OnceLock<Found> = OnceLock::new();
    FOUND.get_or_init(|| {
        let call = symbol(c"PyObject_Call");
        let method = symbol(c"PyObject_VectorcallMethod");
        let get = symbol(c"PyContextVar_Get");
        let lasti = symbol(c"PyFrame_GetLasti");
        // SAFETY: functions of these names have these signatures in every CPython that exports them; a null pointer becomes
        // `None`.
        unsafe {
            Found {
                call: std::mem::transmute::<*mut c_void, Option<Call>>(call),
                vectorcall_method: std::mem::transmute::<*mut c_void, Option<VectorcallMethod>>(method),
                context_var_get: std::mem::transmute::<*mut c_void, Option<ContextVarGet>>(get),
                frame_get_lasti: std::mem::transmute::<*mut c_void, Option<FrameGetLasti>>(lasti),
            }
        }
    })
}

/// `object.name(*, **keywords)`, where `names` are the names of `values`.
pub fn call_method<'py>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    names: &Bound<'py, PyTuple>,
    values: &[&Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    /// More than any protocol method here takes.
    const MOST: usize = 4;
    debug_assert_eq!(names.len(), values.len());
    let py = object.py();
    let Some(call) = found().vectorcall_method.filter(|_| values.len() <= MOST) else {
        let keywords = PyDict::new(py);
        for (name, value) in std::iter::zip(names, values) {
            keywords.set_item(name, value)?;
        }
        return object.getattr(name)?.call((), Some(&keywords));
    };
    let mut arguments = [ptr::null_mut(); MOST + 2];
    arguments[1] = object.as_ptr();
    for (slot, value) in std::iter::zip(&mut arguments[2..], values) {
        *slot = value.as_ptr();
    }
    // SAFETY: `arguments[1..]` are the object and one live value for each name, with a spare slot in front; the answer is a
    // new reference, or NULL with an exception set.
    unsafe {
        let names = if values.is_empty() { ptr::null_mut() } else { names.as_ptr() };
        let arguments = arguments.as_ptr().add(1);
        let answer = finalization::or_return(|| call(name.as_ptr(), arguments, 1 | OFFSET, names));
        Bound::from_owned_ptr_or_err(py, answer)
    }
}

/// `callable(*arguments)`, for code of the program, which may block in C until the interpreter finalizes.
pub fn call<'py>(
    callable: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(call) = found().call else { return callable.call1(arguments) };
    // SAFETY: both are alive, keywords may be NULL, and the answer is a new reference, or NULL with an exception set.
    unsafe {
        let answer = finalization::or_return(|| call(callable.as_ptr(), arguments.as_ptr(), ptr::null_mut()));
        Bound::from_owned_ptr_or_err(callable.py(), answer)
    }
}

/// The value of a context variable; `None` when it has none.
pub fn context_value<'py>(variable: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = variable.py();
    let Some(get) = found().context_var_get else {
        return variable.call_method1(pyo3::intern!(py, "get"), (py.None(),)).map(Some);
    };
    let mut value = ptr::null_mut();
    // SAFETY: the variable is alive, and the value is a new reference or NULL.
    unsafe {
        if get(variable.as_ptr(), ptr::null_mut(), &mut value) < 0 {
            return Err(PyErr::take(py).unwrap_or_else(|| PySystemError::new_err("no context")));
        }
        Ok(Bound::from_owned_ptr_or_opt(py, value))
    }
}

/// Where in its code a frame is: the same number for the same place. That is the position of its instruction, or else its
/// line, which takes a search through a table.
pub fn position(frame: &Bound<'_, PyAny>) -> i32 {
    let frame = frame.as_ptr().cast::<ffi::PyFrameObject>();
    // SAFETY: the caller has a frame.
    unsafe {
        match found().frame_get_lasti {
            Some(lasti) => lasti(frame),
            None => ffi::PyFrame_GetLineNumber(frame),
        }
    }
}
