//! The only array of a stream: a column that libraries keep in chunks, and that has one.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use super::abi::{ArrowDeviceArray, ArrowSchema, RawArray, RawSchema};
use super::format;
use crate::core::invalid_tensor::InvalidTensor;

/// `struct ArrowArrayStream`.
#[repr(C)]
struct RawStream {
    get_schema: Option<unsafe extern "C" fn(*mut RawStream, *mut RawSchema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut RawStream, *mut RawArray) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut RawStream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut RawStream)>,
    private_data: *mut c_void,
}

impl RawStream {
    /// Lets a function of the stream fill a struct. A struct of zeros has been released.
    ///
    /// # Safety
    /// The stream is valid, `function` is one of its functions, and `T` is the struct that it fills, which
    /// may be all zeros.
    unsafe fn fill<T>(
        &mut self,
        function: Option<unsafe extern "C" fn(*mut RawStream, *mut T) -> c_int>,
    ) -> Result<T, InvalidTensor> {
        let Some(function) = function.filter(|_| self.release.is_some()) else {
            return Err(InvalidTensor::new("stream", "has been released or moved elsewhere"));
        };
        // SAFETY: by contract.
        let mut filled = unsafe { std::mem::zeroed() };
        // SAFETY: by contract.
        let code = unsafe { function(self, &raw mut filled) };
        if code == 0 {
            return Ok(filled);
        }
        // SAFETY: the function failed, so that the stream may be asked why. The text stays valid until its
        // next call.
        let why = unsafe {
            let text = self.get_last_error.map_or(std::ptr::null(), |why| why(self));
            if text.is_null() { "".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        Err(InvalidTensor::new("stream", format!("fails with code {code}: {why}")))
    }
}

impl ArrowDeviceArray {
    /// Takes the only array of a stream of arrays in host memory, and the format of its schema. The stream
    /// stays its owner's.
    ///
    /// # Errors
    /// The stream fails, was released before, has another number of arrays than one, or has elements that a
    /// tensor cannot have.
    ///
    /// # Safety
    /// `stream` is NULL or points to a valid `ArrowArrayStream` that nothing else uses meanwhile. Its arrays
    /// are as [`take`](Self::take) demands.
    pub(crate) unsafe fn take_stream(stream: *mut c_void) -> Result<(CString, Self), InvalidTensor> {
        // SAFETY: by contract.
        let Some(stream) = (unsafe { stream.cast::<RawStream>().as_mut() }) else {
            return Err(InvalidTensor::new("stream", "is NULL"));
        };
        // SAFETY: functions of the stream, with what they fill: numbers and pointers.
        let schema = ArrowSchema(unsafe { stream.fill(stream.get_schema) }?);
        // SAFETY: the schema is a local value.
        let format = unsafe { ArrowSchema::format_of((&raw const schema).cast()) }?.to_owned();
        format::dtype(&format)?;
        // SAFETY: as above.
        let mut next = || unsafe { stream.fill(stream.get_next) }.map(Self::on_host);
        let only = next()?.unless_released();
        let is_only = only.is_err() || next()?.unless_released().is_err();
        match only {
            Ok(only) if is_only => Ok((format, only)),
            only => {
                let count = if only.is_ok() { "several chunks" } else { "no chunk" };
                let remedy = "`x.combine_chunks()` in pyarrow and `x.rechunk()` in polars make one";
                Err(InvalidTensor::new("stream", format!("has {count}, and a tensor has one: {remedy}")))
            }
        }
    }
}
