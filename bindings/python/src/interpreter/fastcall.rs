//! Calls that CPython has a faster form of than the stable interface of 3.11 knows.
//!
//! The extension is built once for every Python from 3.11 on, and may link only to what that promises.
//! `PyObject_Vectorcall` and `PyObject_VectorcallMethod` joined the promise in 3.12, the functions of contexts,
//! `PyFrame_GetLasti`, `PyObject_GetOptionalAttr`, `PyThreadState_GetUnchecked` and `_PyType_Lookup` have not, but every CPython
//! from 3.11 on exports all of them under the same signature. So they are looked up when first needed, and where one is
//! missing the slower form does the same.
//!
//! Being looked up, they may also unwind as far as Rust knows, which calls of code of the program need ([`finalization`](crate::interpreter::finalization)).

use std::ffi::{c_int, c_void};
use std::mem::transmute_copy;
use std::ptr;
use std::sync::OnceLock;

use estafette_sync::platform::library::symbol;
use pyo3::exceptions::PySystemError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType, PyTypeMethods};

use crate::interpreter::finalization;

/// Says that the slot before the arguments may be overwritten (`PY_VECTORCALL_ARGUMENTS_OFFSET`).
const OFFSET: usize = 1 << (usize::BITS - 1);

type Object = *mut ffi::PyObject;

type Vectorcall = unsafe extern "C-unwind" fn(
    callable_or_name: Object,
    args: *const Object,
    nargsf: usize,
    kwnames: Object,
) -> Object;

type ContextStep = unsafe extern "C" fn(context: Object) -> c_int;

/// Gives a negative number with an exception set, or puts a new reference or NULL where `value` points.
type Get = unsafe extern "C" fn(from: Object, name_or_default: Object, value: *mut Object) -> c_int;

type FunctionPart = unsafe extern "C" fn(function: Object) -> Object;

struct Found {
    vectorcall: Option<Vectorcall>,
    vectorcall_method: Option<Vectorcall>,
    context_copy: Option<unsafe extern "C" fn() -> Object>,
    context_enter: Option<ContextStep>,
    context_exit: Option<ContextStep>,
    context_var_get: Option<Get>,
    context_var_set: Option<unsafe extern "C" fn(var: Object, value: Object) -> Object>,
    optional_attribute: Option<Get>,
    frame_get_lasti: Option<unsafe extern "C" fn(frame: *mut ffi::PyFrameObject) -> c_int>,
    function_code: Option<FunctionPart>,
    function_module: Option<FunctionPart>,
    type_lookup: Option<unsafe extern "C" fn(class: *mut ffi::PyTypeObject, name: Object) -> Object>,
    current_thread_state: Option<unsafe extern "C" fn() -> *mut ffi::PyThreadState>,
}

fn found() -> &'static Found {
    static FOUND: OnceLock<Found> = OnceLock::new();
    // SAFETY: functions of these names have these signatures in every CPython that exports them.
    FOUND.get_or_init(|| unsafe {
        Found {
            vectorcall: function(symbol(c"PyObject_Vectorcall")),
            vectorcall_method: function(symbol(c"PyObject_VectorcallMethod")),
            context_copy: function(symbol(c"PyContext_CopyCurrent")),
            context_enter: function(symbol(c"PyContext_Enter")),
            context_exit: function(symbol(c"PyContext_Exit")),
            context_var_get: function(symbol(c"PyContextVar_Get")),
            context_var_set: function(symbol(c"PyContextVar_Set")),
            frame_get_lasti: function(symbol(c"PyFrame_GetLasti")),
            function_code: function(symbol(c"PyFunction_GetCode")),
            function_module: function(symbol(c"PyFunction_GetModule")),
            type_lookup: function(symbol(c"_PyType_Lookup")),
            // Public from 3.13 on, as the next one.
            optional_attribute: function(symbol(c"PyObject_GetOptionalAttr"))
                .or_else(|| function(symbol(c"_PyObject_LookupAttr"))),
            current_thread_state: function(symbol(c"PyThreadState_GetUnchecked"))
                .or_else(|| function(symbol(c"_PyThreadState_UncheckedGet"))),
        }
    })
}

/// The function at an address that was looked up; `None` for NULL.
///
/// # Safety
/// `F` is the type of a function pointer, and the function has that type.
pub unsafe fn function<F>(address: *mut c_void) -> Option<F> {
    // SAFETY: by contract; a pointer to a function is as large as any pointer.
    (!address.is_null()).then(|| unsafe { transmute_copy(&address) })
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
    arguments: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    /// More than most functions take.
    const MOST: usize = 7;
    let py = callable.py();
    let Some(call) = found().vectorcall else { return callable.call1(PyTuple::new(py, arguments)?) };
    let mut few = [ptr::null_mut(); MOST + 1];
    let mut many = Vec::new();
    let slots = if arguments.len() <= MOST {
        &mut few[..=arguments.len()]
    } else {
        many.resize(arguments.len() + 1, ptr::null_mut());
        &mut many[..]
    };
    for (slot, argument) in std::iter::zip(&mut slots[1..], arguments) {
        *slot = argument.as_ptr();
    }
    // SAFETY: `slots[1..]` are live objects, with a spare slot in front; the answer is a new reference, or NULL with an
    // exception set.
    unsafe {
        let first = slots.as_ptr().add(1);
        let (callable, count) = (callable.as_ptr(), arguments.len() | OFFSET);
        let answer = finalization::or_return(|| call(callable, first, count, ptr::null_mut()));
        Bound::from_owned_ptr_or_err(py, answer)
    }
}

/// Runs `f` with `context` as the thread's current one, and gives its result; `None`, without running it, where that takes
/// `context.run`.
/// Raises `RuntimeError` for a context that is entered already.
pub fn in_context<R>(context: &Bound<'_, PyAny>, f: impl FnOnce() -> R) -> PyResult<Option<R>> {
    struct Entered<'a, 'py>(&'a Bound<'py, PyAny>, ContextStep);

    impl Drop for Entered<'_, '_> {
        fn drop(&mut self) {
            // SAFETY: a live context, the current one of this thread again.
            if unsafe { (self.1)(self.0.as_ptr()) } < 0
                && let Some(error) = PyErr::take(self.0.py())
            {
                error.write_unraisable(self.0.py(), None);
            }
        }
    }

    let (Some(enter), Some(exit)) = (found().context_enter, found().context_exit) else { return Ok(None) };
    // SAFETY: a live context.
    if unsafe { enter(context.as_ptr()) } < 0 {
        return Err(PyErr::fetch(context.py()));
    }
    let _entered = Entered(context, exit);
    Ok(Some(f()))
}

/// A copy of the context of the calling code.
pub fn copy_context(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let Some(copy) = found().context_copy else {
        return Ok(py.import("contextvars")?.call_method0("copy_context")?.unbind());
    };
    // SAFETY: the Python lock is held; the copy is a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, copy()).map(Bound::unbind) }
}

/// Sets a context variable in the current context.
pub fn set_context_value(variable: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = variable.py();
    let Some(set) = found().context_var_set else {
        return variable.call_method1(crate::interpreter::once::intern!(py, "set"), (value,)).map(drop);
    };
    // SAFETY: both are alive, and the token is a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, set(variable.as_ptr(), value.as_ptr())).map(drop) }
}

/// The value of a context variable; `None` when it has none.
pub fn context_value<'py>(variable: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = variable.py();
    let Some(get) = found().context_var_get else {
        return variable.call_method1(crate::interpreter::once::intern!(py, "get"), (py.None(),)).map(Some);
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

/// An attribute that may be missing. For most objects a missing one makes no exception then, which costs more than a call.
pub fn attribute<'py>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    let Some(get) = found().optional_attribute else { return object.getattr_opt(name) };
    let mut value = ptr::null_mut();
    // SAFETY: both are alive, and the value is a new reference, or NULL, with an exception set where the answer is negative.
    unsafe {
        if get(object.as_ptr(), name.as_ptr(), &mut value) < 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(Bound::from_owned_ptr_or_opt(py, value))
    }
}

/// Whether instances of `class` have the attribute `name` by their class. A missing one makes no exception, which costs more than a call.
pub fn class_has(class: &Bound<'_, PyType>, name: &Bound<'_, PyString>) -> PyResult<bool> {
    let Some(lookup) = found().type_lookup else { return class.hasattr(name) };
    // SAFETY: both are alive. The answer, a borrowed reference or NULL without an exception, is not used.
    Ok(unsafe { !lookup(class.as_type_ptr(), name.as_ptr()).is_null() })
}

/// The code and the module of a function written in Python: its attributes `__code__` and `__module__`.
///
/// # Safety
/// `function` is an instance of `types.FunctionType`.
pub unsafe fn code_and_module<'py>(function: &Bound<'py, PyAny>) -> PyResult<[Bound<'py, PyAny>; 2]> {
    let py = function.py();
    let (Some(code), Some(module)) = (found().function_code, found().function_module) else {
        let attribute = |name| function.getattr(name);
        return Ok([attribute("__code__")?, attribute("__module__")?]);
    };
    // SAFETY: by contract a function, which has both; the module is NULL once it was deleted.
    unsafe {
        let (code, module) = (code(function.as_ptr()), module(function.as_ptr()));
        let module = Bound::from_borrowed_ptr_or_opt(py, module);
        Ok([Bound::from_borrowed_ptr(py, code), module.unwrap_or_else(|| py.None().into_bound(py))])
    }
}

/// Whether the calling thread has the Python lock; false where that cannot be known. `PyGILState_Check` says yes to every thread of a program
/// that has ever made a subinterpreter.
pub fn has_lock() -> bool {
    let Some(current) = found().current_thread_state else { return false };
    // SAFETY: any thread may ask, as long as there is an interpreter: which state is its own, and which one has the lock.
    unsafe {
        let own = ffi::PyGILState_GetThisThreadState();
        !own.is_null() && current() == own
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
