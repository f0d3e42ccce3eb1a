//! Values that are made once, and that a forked child never waits for.

use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::type_object::PyTypeCheck;
use pyo3::types::PyDict;

use crate::error::import_module;

/// As [`PyOnceLock`](pyo3::sync::PyOnceLock), but no thread waits while another one makes the value. That
/// thread may give the interpreter's lock up; a process that forks then has a child that would wait for a
/// thread it does not have. `PyOnceLock` gives the lock up even to keep a value. So a value may be made twice
/// here, and the first one stays.
pub struct PyOnce<T>(OnceLock<T>);

impl<T> PyOnce<T> {
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    pub fn get(&self, _py: Python<'_>) -> Option<&T> {
        self.0.get()
    }

    pub fn get_or_init(&self, py: Python<'_>, make: impl FnOnce() -> T) -> &T {
        let made: PyResult<&T> = self.get_or_try_init(py, || Ok(make()));
        made.expect("making it does not fail")
    }

    pub fn get_or_try_init(&self, _py: Python<'_>, make: impl FnOnce() -> PyResult<T>) -> PyResult<&T> {
        if let Some(value) = self.0.get() {
            return Ok(value);
        }
        let value = make()?;
        // The interpreter's lock is held from here to the end, so no thread of Python forks meanwhile.
        Ok(self.0.get_or_init(|| value))
    }
}

impl<T: PyTypeCheck> PyOnce<Py<T>> {
    /// The object of a module by its name.
    pub fn import<'py>(&self, py: Python<'py>, module: &str, name: &str) -> PyResult<&Bound<'py, T>> {
        let found = self.get_or_try_init(py, || {
            Ok(import_module(py, module)?.getattr(name)?.cast_into::<T>()?.unbind())
        })?;
        Ok(found.bind(py))
    }
}

/// The object of a module by its name, looked up at the first use.
macro_rules! imported {
    ($py:expr, $module:literal, $name:literal) => {{
        static FOUND: $crate::interpreter::once::PyOnce<::pyo3::Py<::pyo3::PyAny>> =
            $crate::interpreter::once::PyOnce::new();
        FOUND.import($py, $module, $name)
    }};
}
pub(crate) use imported;

/// The module of that name, where the program has imported it, or is in the middle of that on another thread.
pub fn loaded<'py>(py: Python<'py>, name: impl IntoPyObject<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
    static MODULES: PyOnce<Py<PyDict>> = PyOnce::new();
    MODULES.import(py, "sys", "modules")?.get_item(name)
}

/// A string of Python, made at its first use: [`pyo3::intern`] with a [`PyOnce`].
macro_rules! intern {
    ($py:expr, $text:expr) => {{
        static TEXT: $crate::interpreter::once::PyOnce<::pyo3::Py<::pyo3::types::PyString>> =
            $crate::interpreter::once::PyOnce::new();
        let py = $py;
        TEXT.get_or_init(py, || ::pyo3::types::PyString::intern(py, $text).unbind()).bind(py)
    }};
}
pub(crate) use intern;
