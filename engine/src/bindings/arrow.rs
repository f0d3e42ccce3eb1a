//! Structs of Arrow.

use std::ffi::{CStr, CString, c_void};

use estafette_devices::{DLDevice, NativeEvent};

use crate::exchange::arrow::{ArrowDeviceArray, ArrowHostArray, ArrowSchema};
use crate::exchange::{DType, InvalidTensor, ManagedTensor};

pub unsafe fn format_of<'a>(schema: *const c_void) -> Result<&'a CStr, InvalidTensor> {
    // SAFETY: by contract.
    unsafe { ArrowSchema::format_of(schema) }
}

pub unsafe fn take_host(source: *mut c_void) -> Result<ArrowDeviceArray, InvalidTensor> {
    // SAFETY: by contract.
    unsafe { ArrowDeviceArray::take_host(source) }
}

pub fn device(array: &ArrowDeviceArray) -> DLDevice {
    array.device()
}

pub fn into_host(array: ArrowDeviceArray) -> Result<ArrowHostArray, InvalidTensor> {
    array.into_host()
}

/// The schema of arrays with elements of this type.
///
/// # Errors
/// Arrow has no primitive type for it.
pub fn schema_of(dtype: DType) -> Result<ArrowSchema, InvalidTensor> {
    ArrowSchema::of(dtype)
}

pub fn from_tensor(
    tensor: ManagedTensor,
    sync_event: Option<NativeEvent>,
) -> Result<(ArrowSchema, ArrowDeviceArray), InvalidTensor> {
    ArrowDeviceArray::from_tensor(tensor, sync_event)
}

pub unsafe fn take_stream(stream: *mut c_void) -> Result<(CString, ArrowDeviceArray), InvalidTensor> {
    // SAFETY: by contract.
    unsafe { ArrowDeviceArray::take_stream(stream) }
}
