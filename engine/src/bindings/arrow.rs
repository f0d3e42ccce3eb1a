//! Structs of Arrow.

use std::ffi::{CStr, CString, c_void};

use estafette_devices::{DLDevice, NativeEvent};

use crate::exchange::arrow::{ArrowDeviceArray, ArrowHostArray, ArrowSchema};
use crate::exchange::{DType, InvalidTensor, ManagedTensor};

/// A borrowed look at the format of a schema that stays with its owner.
///
/// # Errors
/// It is NULL, was released before, or says no format.
///
/// # Safety
/// `schema` is NULL or points to an `ArrowSchema` that stays valid and unchanged for `'a`.
pub unsafe fn format_of<'a>(schema: *const c_void) -> Result<&'a CStr, InvalidTensor> {
    // SAFETY: by contract.
    unsafe { ArrowSchema::format_of(schema) }
}

/// As [`take`](ArrowDeviceArray::take), from an `ArrowArray`: the plain C data interface, of host memory.
///
/// # Errors
/// As [`take`](ArrowDeviceArray::take).
///
/// # Safety
/// As for [`take`](ArrowDeviceArray::take), of an `ArrowArray` in host memory.
pub unsafe fn take_host(source: *mut c_void) -> Result<ArrowDeviceArray, InvalidTensor> {
    // SAFETY: by contract.
    unsafe { ArrowDeviceArray::take_host(source) }
}

/// Where the array says it is.
pub fn device(array: &ArrowDeviceArray) -> DLDevice {
    array.device()
}

/// The array without its device, for consumers that know host memory alone.
///
/// # Errors
/// It is not in host memory, or has an event to wait for; it has been released then.
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

/// Makes an array of a tensor, without a copy. A consumer waits for `sync_event`, where there is one, before it uses
/// the data. Releasing the array calls the tensor's deleter, on the consumer's thread.
///
/// # Errors
/// The first thing that Arrow's arrays cannot have: dimensions other than one, gaps, an element type that is none of
/// its primitive ones. The deleter has been called then.
pub fn from_tensor(
    tensor: ManagedTensor,
    sync_event: Option<NativeEvent>,
) -> Result<(ArrowSchema, ArrowDeviceArray), InvalidTensor> {
    ArrowDeviceArray::from_tensor(tensor, sync_event)
}

/// Takes the only array of a stream of arrays in host memory, and the format of its schema. The stream stays its owner's.
///
/// # Errors
/// The stream fails, was released before, has another number of arrays than one, or has elements that a tensor cannot have.
///
/// # Safety
/// `stream` is NULL or points to a valid `ArrowArrayStream` that nothing else uses meanwhile. Its arrays are as
/// [`take`](ArrowDeviceArray::take) demands.
pub unsafe fn take_stream(stream: *mut c_void) -> Result<(CString, ArrowDeviceArray), InvalidTensor> {
    // SAFETY: by contract.
    unsafe { ArrowDeviceArray::take_stream(stream) }
}
