//! Python's buffer protocol inward: `eng.from_dlpack(bytearray(8))`, and any exporter of a buffer that does
//! not speak DLPack.
//!
//! The tensor keeps the `Py_buffer`, so the exporter keeps the memory where it is until the tensor's last use
//! is over: a `bytearray`, for example, cannot be resized meanwhile.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use estafette::bindings;
use estafette::devices::DLDevice;
use estafette::exchange::{Abi, ExportFlags, ManagedTensor, export};
use estafette::{DType, Layout};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::{OrRaise, exchange_error};
use crate::interpreter::once::intern;
use crate::interpreter::{fastcall, guard};

/// True if `object` exports buffers and does not speak DLPack.
pub fn is_all_there_is(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(has_buffer(object) && !object.hasattr(intern!(object.py(), "__dlpack__"))?)
}

/// True if `object` exports buffers.
pub fn has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a live object.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
}

/// As [`take`], of an array of a library whose arrays [have such
/// buffers](crate::exchange::peers::Peer::has_host_buffers); `None` where `__dlpack__` has to be called.
pub fn of_host(array: &Bound<'_, PyAny>) -> PyResult<Option<ManagedTensor>> {
    let py = array.py();
    let says = |method| fastcall::call_method(array, method, &PyTuple::empty(py), &[]);
    // `platform` of a deleted array reads what is gone.
    let is_on_host = || {
        PyResult::Ok(
            !says(intern!(py, "is_deleted"))?.is_truthy()?
                && says(intern!(py, "platform"))?.eq(intern!(py, "cpu"))?,
        )
    };
    // A tracer of JAX has no buffer; another version may lack a method.
    if !has_buffer(array) || !is_on_host().unwrap_or(false) {
        return Ok(None);
    }
    match take(array) {
        // Such as elements that a buffer has no format for.
        Err(error) if error.is_instance_of::<PyBufferError>(py) => Ok(None),
        taken => taken.map(Some),
    }
}

/// A buffer of another object. It stays where it is: exporters let fields of the struct point to others.
struct HeldBuffer(Box<ffi::Py_buffer>);

// SAFETY: the struct is only read, by the thread that filled it, and released with the interpreter lock.
unsafe impl Send for HeldBuffer {}

impl HeldBuffer {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // SAFETY: a live object and a place for the answer, which is filled in unless an exception is set.
        unsafe {
            if ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_FULL_RO) != 0 {
                return Err(PyErr::fetch(object.py()));
            }
            Ok(Self(Box::from_raw(Box::into_raw(view).cast())))
        }
    }
}

impl Drop for HeldBuffer {
    fn drop(&mut self) {
        // With the guard closed the buffer is left to the interpreter that is going away.
        // SAFETY: filled in by `of`, and released once.
        guard::attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}

/// Adopts the memory behind a buffer, which is held until the last use is over. Raises whatever the exporter
/// raises; `BufferError` for suboffsets, for elements that are no numbers or are in the other byte order, and
/// for strides that lie between elements.
pub fn take(object: &Bound<'_, PyAny>) -> PyResult<ManagedTensor> {
    let py = object.py();
    let refuse = |why: String| exchange_error(py, format!("this buffer cannot be a tensor: {why}"));
    let held = HeldBuffer::of(object)?;
    let view = &held.0;
    if !view.suboffsets.is_null() {
        return Err(refuse("it has suboffsets, so its elements lie behind pointers".into()));
    }
    let ndim = usize::try_from(view.ndim).unwrap_or(0);
    // SAFETY: asked for with `PyBUF_FULL_RO`, shape and strides have `ndim` entries; they may be NULL without
    // dimensions.
    let entries = |dims: *const isize| unsafe {
        if ndim == 0 || dims.is_null() { &[][..] } else { std::slice::from_raw_parts(dims, ndim) }
    };
    let shape: Vec<i64> = entries(view.shape).iter().map(|size| *size as i64).collect();
    if shape.len() != ndim {
        return Err(refuse("its exporter gives no shape".into()));
    }
    // SAFETY: a text that lives as long as the buffer, or NULL, which stands for bytes.
    let format = if view.format.is_null() { c"B" } else { unsafe { CStr::from_ptr(view.format) } };
    let dtype = dtype_of(format, view.itemsize).ok_or_else(|| {
        refuse(format!("its elements are of format {format:?}, {} bytes each", view.itemsize))
    })?;
    let layout = if view.strides.is_null() {
        Layout::contiguous(dtype, DLDevice::CPU, &shape)
    } else {
        let strides = entries(view.strides);
        if strides.iter().any(|stride| stride % view.itemsize != 0) {
            return Err(refuse(format!(
                "its strides {strides:?} are no multiples of {} bytes",
                view.itemsize
            )));
        }
        let strides: Vec<i64> = strides.iter().map(|stride| (stride / view.itemsize) as i64).collect();
        Layout::strided(dtype, DLDevice::CPU, &shape, &strides)
    };
    let layout = layout.or_raise(py)?;
    let (data, read_only) = (view.buf.cast::<u8>(), view.readonly != 0);
    let flags = ExportFlags { read_only, is_copied: false };
    // SAFETY: the exporter vouches for the memory until the buffer is released, which the owner does.
    let managed = unsafe { export(&layout, data, flags, Abi::Versioned, move || drop(held)) };
    Ok(bindings::exchange::with_inline_deleter(managed))
}

/// The element type that a format of the module `struct` names, `itemsize` bytes long; `None` for what is no
/// number of this machine's byte order.
fn dtype_of(format: &CStr, itemsize: isize) -> Option<DType> {
    let format = format.to_str().ok()?;
    let (order, letters) = match format.as_bytes().first()? {
        b'@' | b'=' | b'<' | b'>' | b'!' => format.split_at(1),
        _ => ("@", format),
    };
    let foreign = if cfg!(target_endian = "little") { [">", "!"].contains(&order) } else { order == "<" };
    if foreign && itemsize > 1 {
        return None;
    }
    // The size of a letter depends on the sign before it; the exporter says the size itself.
    let sized = |of: [DType; 4]| of.into_iter().find(|dtype| dtype.itemsize() as isize == itemsize);
    match letters {
        "?" if itemsize == 1 => Some(DType::BOOL),
        "b" | "h" | "i" | "l" | "q" | "n" => sized([DType::I8, DType::I16, DType::I32, DType::I64]),
        "B" | "H" | "I" | "L" | "Q" | "N" => sized([DType::U8, DType::U16, DType::U32, DType::U64]),
        "e" | "f" | "d" => sized([DType::F16, DType::F32, DType::F64, DType::F64]),
        "Zf" | "Zd" | "F" | "D" => sized([DType::C64, DType::C128, DType::C128, DType::C128]),
        _ => None,
    }
}
