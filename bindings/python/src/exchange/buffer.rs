//! Python's buffer protocol: `memoryview(t)`, `bytes(t)`, `np.asarray(t)`.
//!
//! A buffer is an export like any other, so it has a lease, which lasts until the last view of the buffer is
//! released.

use std::ffi::{c_int, c_void};
use std::ptr;

use estafette::exchange::{self, Abi, ManagedTensor};
use estafette::{DType, Layout, Tensor};
use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyMemoryView, PyTuple};

use crate::error::{OrRaise, exchange_error, import_module};
use crate::exchange::capsule;
use crate::exchange::dtype;
use crate::exchange::export::{self, ExportRequest, From};
use crate::exchange::typestr;
use crate::interpreter::interrupt;

/// The values that a buffer keeps until it is released.
struct Lent {
    /// Holds the lease. First, so that it is the first to go.
    _managed: ManagedTensor,
    shape: Box<[isize]>,
    /// In bytes.
    strides: Box<[isize]>,
}

/// The answer to `__array__`, which NumPy calls where there is no buffer: an array with a lease, or a copy.
/// Raises `BufferError` for a type that neither NumPy nor `ml_dtypes` has; `ValueError` when a copy is needed
/// and refused; else as [`export::export`].
pub fn to_numpy<'py>(
    this: &Bound<'py, PyAny>,
    tensor: &Tensor,
    dtype: Option<Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = this.py();
    if let Some(raised) = interrupt::kept(this.as_ptr().addr()) {
        return Err(raised);
    }
    // NumPy makes this request, so NumPy is loaded.
    let numpy = py.import("numpy")?;
    let array = match numpy.call_method1("from_dlpack", (this,)) {
        Ok(array) => array,
        Err(error) => match tensor.dtype().ok().filter(|kind| typestr::format(*kind).is_none()) {
            None => return Err(error),
            Some(kind) => as_bits(this, kind).map_err(|lacking| {
                if !lacking.is_instance_of::<PyAttributeError>(py) {
                    return lacking;
                }
                // NumPy does not say which.
                let named = exchange_error(py, format!("NumPy takes no elements of type {kind}"));
                named.set_cause(py, Some(error));
                named
            })?,
        },
    };
    if dtype.is_none() && copy != Some(true) {
        return Ok(array);
    }
    if let Some(copy) = copy {
        let options = PyDict::new(py);
        options.set_item("copy", copy)?;
        return numpy.call_method("array", (array, dtype), Some(&options));
    }
    // `asarray` copies where it must, as NumPy 2 does by `copy=None`, which NumPy 1 takes for True or
    // refuses.
    numpy.call_method1("asarray", (array, dtype))
}

/// An array of `ml_dtypes`: NumPy gets integers of the same width, and their meaning.
/// Raises `AttributeError` for a type that `ml_dtypes` lacks, and without it; else as [`export::export`].
fn as_bits<'py>(this: &Bound<'py, PyAny>, kind: DType) -> PyResult<Bound<'py, PyAny>> {
    let py = this.py();
    let numpy = dtype::numpy(py, kind)?;
    let options = PyDict::new(py);
    options.set_item("max_version", (1, 0))?;
    let exported = this.call_method("__dlpack__", (), Some(&options))?.cast_into::<PyCapsule>()?;
    let managed = capsule::consume(&exported)?;
    let layout = managed.describe().or_raise(py)?;
    let bits = DType::new(DType::U8.code, kind.bits);
    let layout = Layout::strided(bits, layout.device(), layout.shape(), layout.strides()).or_raise(py)?;
    let flags = managed.flags();
    let data = managed.data();
    // SAFETY: the same memory, elements of the same width; what is exported here keeps what was exported
    // there.
    let managed = unsafe { exchange::export(&layout, data, flags, Abi::Versioned, move || drop(managed)) };
    import_module(py, "estafette._dtype")?.call_method1("to_numpy", (capsule::wrap(py, managed)?, numpy))
}

/// Fills `view` with the memory behind `from`. Raises `BufferError` for an element type or a device that a
/// buffer cannot describe, and for what the reader demands of it (writing, an order of elements); else as
/// [`export::export`].
///
/// # Safety
/// `view` may be written, and is released by [`release`].
pub unsafe fn fill(
    owner: Bound<'_, PyAny>,
    from: From<'_>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let py = owner.py();
    if view.is_null() {
        return Err(PyBufferError::new_err("there is no buffer to fill"));
    }
    // SAFETY: the caller's place. A buffer that was not filled has no object.
    unsafe { (*view).obj = ptr::null_mut() };
    let request = ExportRequest { stream: None, max_version: Some((1, 3)), dl_device: None, copy: None };
    interrupt::forget();
    let managed = export::export_managed(py, from, &request)
        .inspect_err(|error| interrupt::keep(py, owner.as_ptr().addr(), error))?;
    let layout = managed.describe().or_raise(py)?;
    let read_only = managed.flags().read_only;
    let dtype = layout.dtype();
    if !layout.device().device_type.is_host_readable() {
        let message = format!("memory on {} cannot be a buffer of the host", layout.device());
        return Err(exchange_error(py, message));
    }
    let Some(format) = typestr::format(dtype) else {
        let message =
            format!("a buffer cannot describe elements of type {dtype}; exchange it through DLPack");
        return Err(exchange_error(py, message));
    };
    check(py, &layout, read_only, flags)?;
    let itemsize = dtype.itemsize() as isize;
    let lent = Box::new(Lent {
        shape: layout.shape().iter().map(|size| *size as isize).collect(),
        strides: layout.strides().iter().map(|stride| *stride as isize * itemsize).collect(),
        _managed: managed,
    });
    let wants = |flag: c_int| flags & flag == flag;
    // SAFETY: the view is the caller's. Shape and strides live in the box, which the view keeps until it is
    // released, and so does the memory; there are as many entries as dimensions.
    unsafe {
        let view = &mut *view;
        view.buf = lent._managed.data().cast();
        view.len = layout.len() as isize * itemsize;
        view.itemsize = itemsize;
        view.readonly = c_int::from(read_only);
        view.ndim = layout.shape().len() as c_int;
        let has_dims = !layout.shape().is_empty();
        let format = format.as_ptr().cast_mut();
        view.format = if wants(ffi::PyBUF_FORMAT) { format } else { ptr::null_mut() };
        let shape = lent.shape.as_ptr().cast_mut();
        view.shape = if has_dims && wants(ffi::PyBUF_ND) { shape } else { ptr::null_mut() };
        let strides = lent.strides.as_ptr().cast_mut();
        view.strides = if has_dims && wants(ffi::PyBUF_STRIDES) { strides } else { ptr::null_mut() };
        view.suboffsets = ptr::null_mut();
        view.internal = Box::into_raw(lent).cast::<c_void>();
        view.obj = owner.into_ptr();
    }
    Ok(())
}

/// Fails if the reader cannot use the buffer.
fn check(py: Python<'_>, layout: &Layout, read_only: bool, flags: c_int) -> PyResult<()> {
    let wants = |flag: c_int| flags & flag == flag;
    let refuse = |message: &str| Err(exchange_error(py, message));
    if wants(ffi::PyBUF_WRITABLE) && read_only {
        return refuse("this buffer is for reading; one for writing is `memoryview(t.for_write())`");
    }
    let (row_major, column_major) = (layout.is_contiguous(), is_column_major(layout));
    if wants(ffi::PyBUF_C_CONTIGUOUS) && !row_major {
        return refuse("the elements are not in row-major order without gaps");
    }
    if wants(ffi::PyBUF_F_CONTIGUOUS) && !column_major {
        return refuse("the elements are not in column-major order without gaps");
    }
    if wants(ffi::PyBUF_ANY_CONTIGUOUS) && !row_major && !column_major {
        return refuse("there are gaps between the elements");
    }
    if !wants(ffi::PyBUF_STRIDES) && !row_major {
        return refuse(
            "the elements are not in row-major order without gaps, and the reader asks for no strides",
        );
    }
    Ok(())
}

/// The dictionary of `__array_interface__`. Its `data` is a `memoryview`, which has a lease: NumPy keeps that
/// object and releases the buffer that it has asked it for at once. Raises `AttributeError` for memory that
/// is not the host's, has gaps or another order, or whose elements have no name there, so that the tensor
/// seems not to have the interface; else as [`export::until_defined`].
pub fn array_interface<'py>(this: &Bound<'py, PyAny>, tensor: &Tensor) -> PyResult<Bound<'py, PyDict>> {
    let py = this.py();
    if let Some(raised) = interrupt::kept(this.as_ptr().addr()) {
        return Err(raised);
    }
    export::until_defined(py, tensor)?;
    let layout = tensor.layout().or_raise(py)?;
    let lacks = |why: &str| PyAttributeError::new_err(format!("no `__array_interface__`: {why}"));
    if !layout.device().device_type.is_host_readable() {
        return Err(lacks("the memory is not the host's"));
    }
    if !layout.is_contiguous() {
        return Err(lacks("the elements are not in row-major order without gaps"));
    }
    let typestr = typestr::of(layout.dtype()).ok_or_else(|| lacks("it has no name for such elements"))?;
    let dictionary = PyDict::new(py);
    dictionary.set_item("version", 3)?;
    dictionary.set_item("typestr", typestr)?;
    dictionary.set_item("shape", PyTuple::new(py, layout.shape())?)?;
    dictionary.set_item("data", PyMemoryView::from(this)?)?;
    Ok(dictionary)
}

fn is_column_major(layout: &Layout) -> bool {
    let mut wanted = 1;
    layout.is_empty()
        || std::iter::zip(layout.shape(), layout.strides()).all(|(size, stride)| {
            let fits = *size == 1 || *stride == wanted;
            wanted *= size;
            fits
        })
}

/// Releases what [`fill`] has lent. The release of a lease may set off much, but waits for nothing.
///
/// # Safety
/// `view` was filled by [`fill`] and is released once.
pub unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: the box that `fill` made, which has no other owner.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Lent>()) });
}
