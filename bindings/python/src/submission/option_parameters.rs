//! The options of `call` that a function has as parameters of its own.

use std::collections::HashSet;

use estafette_sync::sync::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};

use crate::error::import_module;
use crate::interpreter::once::intern;
use crate::submission::function_kind::FUNCTIONS;

/// `CO_VARKEYWORDS` of CPython's `Include/cpython/code.h`.
const KEYWORDS: u32 = 0x8;

/// The options of `call`.
pub const OPTIONS: [&str; 8] = ["using", "alias_of", "like", "copy", "outputs", "name", "on", "priority"];

/// The parameters in the code of a function.
#[derive(Clone, Copy)]
pub(super) struct Parameters {
    /// True for each of [`OPTIONS`] that a parameter is named after.
    pub(super) named: [bool; OPTIONS.len()],
    /// True if there is one as `**kwargs`.
    pub(super) has_keywords: bool,
}

/// The [`OPTIONS`] that are names of parameters of a function that is not written in Python, by its
/// signature.
struct Inspected {
    /// A weak reference to the function, or the function itself: those of classes in C that allow none are
    /// few and small, as NumPy's.
    function: Py<PyAny>,
    named: [bool; OPTIONS.len()],
}

estafette_sync::per_process! {
    static INSPECTED: Mutex<[Option<Inspected>; FUNCTIONS]> = Mutex::new([const { None }; FUNCTIONS]);
}

impl Parameters {
    /// Of a function with that code.
    pub(super) fn of(code: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = code.py();
        let counts = [intern!(py, "co_argcount"), intern!(py, "co_kwonlyargcount")];
        let [by_place, by_name] = counts.map(|count| code.getattr(count)?.extract::<usize>());
        let variables: Vec<String> = code.getattr(intern!(py, "co_varnames"))?.extract()?;
        let flags: u32 = code.getattr(intern!(py, "co_flags"))?.extract()?;
        let parameters = &variables[..by_place? + by_name?];
        let named = OPTIONS.map(|option| parameters.iter().any(|parameter| parameter == option));
        Ok(Self { named, has_keywords: flags & KEYWORDS != 0 })
    }
}

/// The [`OPTIONS`] that may be names of parameters, by the signature, which takes longer than some calls.
pub(super) fn inspected(function: &Bound<'_, PyAny>) -> PyResult<[bool; OPTIONS.len()]> {
    let py = function.py();
    // Objects are some ten bytes long.
    let slot = (function.as_ptr() as usize >> 4) % FUNCTIONS;
    let known = INSPECTED.lock()[slot].as_ref().map(|known| (known.function.clone_ref(py), known.named));
    if let Some((kept, named)) = known {
        let kept = kept.into_bound(py);
        let is_same = match kept.cast::<PyWeakrefReference>() {
            Ok(weak) => weak.upgrade().is_some_and(|kept| kept.is(function)),
            Err(_) => kept.is(function),
        };
        if is_same {
            return Ok(named);
        }
    }
    let names: HashSet<String> =
        import_module(py, "estafette._calls")?.call_method1("parameter_names", (function,))?.extract()?;
    let named = OPTIONS.map(|option| names.contains(option));
    let kept = match PyWeakrefReference::new(function) {
        Ok(weak) => Some(weak.into_any().unbind()),
        // An object of a class of the program, what a method is bound to, and a function that `np.frompyfunc`
        // has wrapped, may have much memory.
        Err(_)
            if is_of_heap_class(function)
                || function.hasattr(intern!(py, "__self__"))?
                || is_wrapped(function)? =>
        {
            None
        }
        Err(_) => Some(function.clone().unbind()),
    };
    if let Some(function) = kept {
        let old = INSPECTED.lock()[slot].replace(Inspected { function, named });
        drop(old);
    }
    Ok(named)
}

/// True if it is a ufunc that calls a function of the program.
fn is_wrapped(function: &Bound<'_, PyAny>) -> PyResult<bool> {
    let name = function.getattr_opt(intern!(function.py(), "__name__"))?;
    Ok(name.is_some_and(|name| name.to_string().ends_with(" (vectorized)")))
}

/// True if its class was made while the program ran, as those written in Python are.
fn is_of_heap_class(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the class of a live object.
    unsafe { ffi::PyType_HasFeature(object.get_type_ptr(), ffi::Py_TPFLAGS_HEAPTYPE) != 0 }
}
