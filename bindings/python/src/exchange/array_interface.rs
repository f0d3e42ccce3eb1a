//! The common part of CUDA's and SYCL's array interfaces: a dictionary that says where memory is, and an
//! object that keeps it.

use estafette::Layout;
use estafette::bindings;
use estafette::exchange::{Abi, ExportFlags, ManagedTensor, export};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::OrRaise;
use crate::interpreter::kept::Kept;

/// True if an object has the interface `name` and does not speak DLPack.
pub fn is_all_there_is(object: &Bound<'_, PyAny>, name: &str) -> PyResult<bool> {
    Ok(!object.hasattr(crate::interpreter::once::intern!(object.py(), "__dlpack__"))?
        && object.hasattr(name)?)
}

pub struct Dictionary<'py> {
    name: &'static str,
    entries: Bound<'py, PyDict>,
}

impl<'py> Dictionary<'py> {
    /// Raises `TypeError` for what is no dictionary; whatever the attribute raises.
    pub fn of(object: &Bound<'py, PyAny>, name: &'static str) -> PyResult<Self> {
        let entries = object.getattr(name)?.cast_into::<PyDict>();
        let entries = entries.map_err(|_| PyTypeError::new_err(format!("`{name}` is no dictionary")))?;
        Ok(Self { name, entries })
    }

    /// An entry, unless it is missing or `None`.
    pub fn entry(&self, key: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.entries.get_item(key)?.filter(|value| !value.is_none()))
    }

    /// An entry that must be there.
    /// Raises `ValueError` that names it.
    pub fn needed(&self, key: &str) -> PyResult<Bound<'py, PyAny>> {
        self.entry(key)?.ok_or_else(|| PyValueError::new_err(format!("`{}` has no {key:?}", self.name)))
    }
}

/// Memory that `object` owns, as a struct whose deleter drops the object.
///
/// # Safety
/// `data` is memory as `layout` says for as long as the object lives, and is not written if it is
/// `read_only`.
pub unsafe fn kept_by(
    object: &Bound<'_, PyAny>,
    layout: &Layout,
    data: *mut u8,
    read_only: bool,
) -> ManagedTensor {
    let keeper = Kept::new(object.clone().unbind());
    let flags = ExportFlags { read_only, is_copied: false };
    // SAFETY: by contract, and the object is kept until the deleter is called.
    unsafe { export(layout, data.cast(), flags, Abi::Versioned, move || drop(keeper)) }
}

/// A tensor of a library whose struct does not keep the memory alive: with `object`, which does.
pub fn kept_with(object: &Bound<'_, PyAny>, managed: ManagedTensor) -> PyResult<ManagedTensor> {
    let keeper = Kept::new(object.clone().unbind());
    released_by(object.py(), managed, move |managed| {
        drop(managed);
        drop(keeper);
    })
}

/// `managed` in a struct whose deleter hands it to `release`.
pub fn released_by(
    py: Python<'_>,
    managed: ManagedTensor,
    release: impl FnOnce(ManagedTensor) + Send + 'static,
) -> PyResult<ManagedTensor> {
    let layout = managed.describe().or_raise(py)?;
    let flags = managed.flags();
    let (data, abi) = (managed.data(), bindings::exchange::abi(&managed));
    // SAFETY: the same memory, which `managed` keeps until the deleter is called.
    Ok(unsafe { export(&layout, data, flags, abi, move || release(managed)) })
}
