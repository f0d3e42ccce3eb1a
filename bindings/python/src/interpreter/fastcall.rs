//! Calls that CPython has a faster form of than the stable interface of 3.11 knows.
//!
//! The extension is built once for every Python from 3.11 on, and may link only to what that promises.
//! `PyObject_Vectorcall` and `PyObject_VectorcallMethod` joined the promise in 3.12, the functions of
//! contexts, `PyFrame_GetLasti`, `PyObject_GetOptionalAttr`, `PyThreadState_GetUnchecked` and
//! `_PyType_Lookup` have not, but every CPython from 3.11 on exports all of them under the same signature. So
//! they are looked up when the extension is loaded.
//!
//! An array's `__dlpack__` is called without a dictionary: one of four changes that took an import from 1,255
//! to 690 ns (`2026-11-21-exchange.md`). A missing attribute is found without an exception: a call of
//! `np.add` with two operands and a result took 4,530 ns in place of 5,450
//! (`2026-11-27-python-pipelines.md`). The other functions were not measured one by one.
//!
//! Being looked up, they may also unwind as far as Rust knows, which calls of code of the program need
//! ([`finalization`](crate::interpreter::finalization)).

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute_copy;
use std::ptr;
use std::sync::OnceLock;

use estafette_sync::panic::contain_panic;
use estafette_sync::platform::library::symbol;
use pyo3::exceptions::{PyImportError, PySystemError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType, PyTypeMethods};

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

/// The functions, by their names: the first that the interpreter has.
macro_rules! functions {
    ($($field:ident: $type:ty = [$($name:literal),+];)*) => {
        struct Found {
            $($field: $type,)*
        }

        fn found() -> &'static Found {
            static FOUND: OnceLock<Found> = OnceLock::new();
            // SAFETY: functions of these names have these signatures in every CPython that exports them.
            FOUND.get_or_init(|| unsafe { Found { $($field: wanted(&[$($name),+]),)* } })
        }
    };
}

functions! {
    vectorcall: Vectorcall = [c"PyObject_Vectorcall"];
    vectorcall_method: Vectorcall = [c"PyObject_VectorcallMethod"];
    context_copy: unsafe extern "C" fn() -> Object = [c"PyContext_CopyCurrent"];
    context_enter: ContextStep = [c"PyContext_Enter"];
    context_exit: ContextStep = [c"PyContext_Exit"];
    context_var_get: Get = [c"PyContextVar_Get"];
    context_var_set: unsafe extern "C" fn(var: Object, value: Object) -> Object = [c"PyContextVar_Set"];
    frame_get_lasti: unsafe extern "C" fn(frame: Object) -> c_int = [c"PyFrame_GetLasti"];
    function_code: FunctionPart = [c"PyFunction_GetCode"];
    function_module: FunctionPart = [c"PyFunction_GetModule"];
    type_lookup: unsafe extern "C" fn(class: *mut ffi::PyTypeObject, name: Object) -> Object = [c"_PyType_Lookup"];
    // Public from 3.13 on, as the next one.
    optional_attribute: Get = [c"PyObject_GetOptionalAttr", c"_PyObject_LookupAttr"];
    current_thread_state: unsafe extern "C" fn() -> *mut ffi::PyThreadState =
        [c"PyThreadState_GetUnchecked", c"_PyThreadState_UncheckedGet"];
}

/// Looks the functions up. Raises `ImportError` for one that this Python does not have.
pub fn install() -> PyResult<()> {
    let looked_up = contain_panic(|| _ = found());
    looked_up.map_err(|_| PyImportError::new_err("this Python lacks a function that the package calls"))
}

/// # Safety
/// As [`function`].
unsafe fn wanted<F>(names: &[&CStr]) -> F {
    // SAFETY: by contract.
    let known = names.iter().find_map(|name| unsafe { function(symbol(name)) });
    known.unwrap_or_else(|| panic!("this Python has no function {names:?}"))
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
    assert!(names.len() == values.len() && values.len() <= MOST);
    let py = object.py();
    let call = found().vectorcall_method;
    let mut arguments = [ptr::null_mut(); MOST + 2];
    arguments[1] = object.as_ptr();
    for (slot, value) in std::iter::zip(&mut arguments[2..], values) {
        *slot = value.as_ptr();
    }
    // SAFETY: `arguments[1..]` are the object and one live value for each name, with a spare slot in front;
    // the answer is a new reference, or NULL with an exception set.
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
    let call = found().vectorcall;
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
    // SAFETY: `slots[1..]` are live objects, with a spare slot in front; the answer is a new reference, or
    // NULL with an exception set.
    unsafe {
        let first = slots.as_ptr().add(1);
        let (callable, count) = (callable.as_ptr(), arguments.len() | OFFSET);
        let answer = finalization::or_return(|| call(callable, first, count, ptr::null_mut()));
        Bound::from_owned_ptr_or_err(py, answer)
    }
}

/// Runs `f` with `context` as the thread's current one, and gives its result.
/// Raises `RuntimeError` for a context that is entered already.
pub fn in_context<R>(context: &Bound<'_, PyAny>, f: impl FnOnce() -> R) -> PyResult<R> {
    struct Entered<'a, 'py>(&'a Bound<'py, PyAny>);

    impl Drop for Entered<'_, '_> {
        fn drop(&mut self) {
            // SAFETY: a live context, the current one of this thread again.
            if unsafe { (found().context_exit)(self.0.as_ptr()) } < 0
                && let Some(error) = PyErr::take(self.0.py())
            {
                error.write_unraisable(self.0.py(), None);
            }
        }
    }

    // SAFETY: a live context.
    if unsafe { (found().context_enter)(context.as_ptr()) } < 0 {
        return Err(PyErr::fetch(context.py()));
    }
    let _entered = Entered(context);
    Ok(f())
}

/// A copy of the context of the calling code.
pub fn copy_context(py: Python<'_>) -> PyResult<Py<PyAny>> {
    // SAFETY: the Python lock is held; the copy is a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, (found().context_copy)()).map(Bound::unbind) }
}

/// Sets a context variable in the current context.
pub fn set_context_value(variable: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = variable.py();
    let set = found().context_var_set;
    // SAFETY: both are alive, and the token is a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, set(variable.as_ptr(), value.as_ptr())).map(drop) }
}

/// The value of a context variable; `None` when it has none.
pub fn context_value<'py>(variable: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = variable.py();
    let get = found().context_var_get;
    let mut value = ptr::null_mut();
    // SAFETY: the variable is alive, and the value is a new reference or NULL.
    unsafe {
        if get(variable.as_ptr(), ptr::null_mut(), &mut value) < 0 {
            return Err(PyErr::take(py).unwrap_or_else(|| PySystemError::new_err("no context")));
        }
        Ok(Bound::from_owned_ptr_or_opt(py, value))
    }
}

/// An attribute that may be missing. For most objects a missing one makes no exception then, which costs more
/// than a call.
pub fn attribute<'py>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    let get = found().optional_attribute;
    let mut value = ptr::null_mut();
    // SAFETY: both are alive, and the value is a new reference, or NULL, with an exception set where the
    // answer is negative.
    unsafe {
        if get(object.as_ptr(), name.as_ptr(), &mut value) < 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(Bound::from_owned_ptr_or_opt(py, value))
    }
}

/// True if `class` is `base`, or inherits from it. `isinstance` would also ask the object for `__class__`.
pub fn inherits(class: &Bound<'_, PyType>, base: &Bound<'_, PyAny>) -> bool {
    // SAFETY: two classes.
    unsafe { ffi::PyType_IsSubtype(class.as_type_ptr(), base.as_ptr().cast()) != 0 }
}

/// True if instances of `class` have the attribute `name` by their class. A missing one makes no exception,
/// which costs more than a call.
pub fn class_has(class: &Bound<'_, PyType>, name: &Bound<'_, PyString>) -> bool {
    // SAFETY: both are alive. The answer, a borrowed reference or NULL without an exception, is not used.
    unsafe { !(found().type_lookup)(class.as_type_ptr(), name.as_ptr()).is_null() }
}

/// The code and the module of a function written in Python: its attributes `__code__` and `__module__`.
///
/// # Safety
/// `function` is an instance of `types.FunctionType`.
pub unsafe fn code_and_module<'py>(function: &Bound<'py, PyAny>) -> [Bound<'py, PyAny>; 2] {
    let py = function.py();
    let Found { function_code: code, function_module: module, .. } = found();
    // SAFETY: by contract a function, which has both; the module is NULL once it was deleted.
    unsafe {
        let (code, module) = (code(function.as_ptr()), module(function.as_ptr()));
        let module = Bound::from_borrowed_ptr_or_opt(py, module);
        [Bound::from_borrowed_ptr(py, code), module.unwrap_or_else(|| py.None().into_bound(py))]
    }
}

/// True if the calling thread has the Python lock. `PyGILState_Check` says yes to every thread of a program
/// that has ever made a subinterpreter.
pub fn has_lock() -> bool {
    let current = found().current_thread_state;
    // SAFETY: any thread may ask, as long as there is an interpreter: which state is its own, and which one
    // has the lock.
    unsafe {
        let own = ffi::PyGILState_GetThisThreadState();
        !own.is_null() && current() == own
    }
}

/// The place of a frame in its code: the position of its instruction, which is the same number for the same
/// place.
pub fn position(frame: &Bound<'_, PyAny>) -> i32 {
    // SAFETY: the caller has a frame.
    unsafe { (found().frame_get_lasti)(frame.as_ptr()) }
}
