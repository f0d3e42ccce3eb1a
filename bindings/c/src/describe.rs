//! The layout and the place of a tensor.

use std::ffi::c_void;

use estafette::bindings;
use estafette::devices::DLDevice;
use estafette::{Error, Tensor};

use crate::dlpack::{DLDataType, DLTensor};
use crate::entry::{DONE, Refusal, entry, place};
use crate::status::estafette_status;
use crate::tensor::{estafette_tensor, tensor};

/// Describes a tensor in `*out`, without a lease: `shape` and `strides` are lent, and stay for as long as the
/// caller holds the tensor. What is at `data` may be used only inside of an operation that declares it, under
/// a lease, or by people who order things themselves.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_NOT_DEFINED` while there is nothing to describe; `ESTAFETTE_INVALID`
/// for NULL or a handle that is not in use; `ESTAFETTE_FORKED`. May be called by any thread.
///
/// # Safety
/// `out` is NULL or may be written. `tensor` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_tensor_lend(
    tensor: *const estafette_tensor,
    out: *mut DLTensor,
) -> estafette_status {
    entry(|| {
        let tensor = self::tensor(tensor, "tensor")?;
        // SAFETY: writable, by contract, which says the rest too.
        unsafe { bindings::tensor::lend(&tensor, place(out, "out")?) }?;
        DONE
    })
}

/// The lengths of a tensor's dimensions: as many as fit into the `capacity` entries of `shape` (which may be
/// NULL when that is 0), and their number to `*ndim`. Known before the data is when the shape was declared.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_NOT_DEFINED`; `ESTAFETTE_INVALID` for NULL or a handle that is not in
/// use; `ESTAFETTE_FORKED`. May be called by any thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says; `shape` has `capacity` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_tensor_shape(
    tensor: *const estafette_tensor,
    shape: *mut i64,
    capacity: i32,
    ndim: *mut i32,
) -> estafette_status {
    entry(|| {
        let tensor = self::tensor(tensor, "tensor")?;
        let ndim = place(ndim, "ndim")?;
        let capacity =
            usize::try_from(capacity).map_err(|_| Refusal::invalid(format!("capacity is {capacity}")))?;
        let found = tensor.shape()?;
        let fitting = found.len().min(capacity);
        if fitting > 0 {
            let place = place(shape, "shape")?;
            // SAFETY: `capacity` entries may be written, by contract.
            unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), place.as_ptr(), fitting) };
        }
        // SAFETY: writable, by contract.
        unsafe { ndim.write(found.len() as i32) };
        DONE
    })
}

/// The element type of a tensor, to `*out`. Known before the data is when it was declared.
///
/// Returns as `estafette_tensor_shape`.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_tensor_dtype(
    tensor: *const estafette_tensor,
    out: *mut DLDataType,
) -> estafette_status {
    // SAFETY: by contract of this function.
    unsafe { describe(tensor, out, |tensor| tensor.dtype().map(DLDataType::from)) }
}

/// Stores the device of a tensor's memory to `*out`.
///
/// Returns as `estafette_tensor_shape`.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_tensor_device(
    tensor: *const estafette_tensor,
    out: *mut DLDevice,
) -> estafette_status {
    // SAFETY: by contract of this function.
    unsafe { describe(tensor, out, Tensor::device) }
}

/// The address of a tensor's first element, to `*out`; see `estafette_tensor_lend` for who may use what is
/// there.
///
/// Returns as `estafette_tensor_shape`.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_tensor_data(
    tensor: *const estafette_tensor,
    out: *mut *mut c_void,
) -> estafette_status {
    // SAFETY: by contract of this function.
    unsafe { describe(tensor, out, |tensor| Ok(tensor.data_ptr()?.cast_mut().cast())) }
}

/// Stores 1 to `*out` if the owner of a tensor's memory forbids writing it, else 0.
///
/// Returns as `estafette_tensor_shape`.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_tensor_read_only(
    tensor: *const estafette_tensor,
    out: *mut i32,
) -> estafette_status {
    // SAFETY: by contract of this function.
    unsafe { describe(tensor, out, |tensor| tensor.is_read_only().map(i32::from)) }
}

/// Writes the result of `ask` for a tensor to `out`.
///
/// # Safety
/// `out` is NULL or may be written.
pub(crate) unsafe fn describe<T>(
    tensor: *const estafette_tensor,
    out: *mut T,
    ask: impl FnOnce(&Tensor) -> Result<T, Error>,
) -> estafette_status {
    entry(|| {
        let tensor = self::tensor(tensor, "tensor")?;
        let out = place(out, "out")?;
        // SAFETY: writable, by contract.
        unsafe { out.write(ask(&tensor)?) };
        DONE
    })
}
