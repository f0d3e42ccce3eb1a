//! The device table: contexts get the numbers that a tensor's device can carry.

use std::ffi::c_void;

use estafette::devices::table;
use estafette::devices::{DLDevice, DeviceError, DeviceErrorKind, DeviceType};

use crate::entry::{DONE, Refusal, entry, place};
use crate::status::estafette_status;

/// Gives a context a number, to `*device_id`, that stands for it in a `DLDevice` everywhere in this process;
/// the same context gets the same number again, and is registered once more.
///
/// `native_handle` is a `sycl::context *` (`kDLOneAPI`), a `cl_context` (`kDLOpenCL`), a `VkDevice`
/// (`kDLVulkan`) or an `id<MTLDevice>` (`kDLMetal`). The context stays the caller's and must live until it is
/// unregistered; of a SYCL context a reference is kept. A default context of a SYCL platform keeps the number
/// of its first device and is not counted.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, for a kind whose devices have numbers of their own,
/// and for a SYCL context when the SYCL runtime cannot be loaded; `ESTAFETTE_DEVICE` when the runtime
/// refuses; `ESTAFETTE_FORKED`. May be called by any thread.
///
/// # Safety
/// `native_handle` is NULL or a live context of that kind; `device_id` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_register_context(
    device_type: DeviceType,
    native_handle: *mut c_void,
    device_id: *mut i32,
) -> estafette_status {
    entry(|| {
        let context = place(native_handle, "native_handle")?;
        let device_id = place(device_id, "device_id")?;
        // SAFETY: by contract of this function.
        let device = unsafe { table::register(device_type, context) }.map_err(refusal)?;
        // SAFETY: writable, by contract.
        unsafe { device_id.write(device.device_id) };
        DONE
    })
}

/// Ends one registration. The last one takes the number away, for good: no other context ever gets it.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a number that is not registered, or not any more;
/// `ESTAFETTE_FORKED`. May be called by any thread.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_unregister_context(device_type: DeviceType, device_id: i32) -> estafette_status {
    entry(|| table::unregister(DLDevice::new(device_type, device_id)).map_err(refusal))
}

/// The context that a number stands for, to `*native_handle`. It is lent: it lives as long as its
/// registrations.
///
/// Returns as `estafette_unregister_context`, and `ESTAFETTE_INVALID` when `native_handle` is NULL. May be
/// called by any thread.
///
/// # Safety
/// `native_handle` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_resolve_context(
    device_type: DeviceType,
    device_id: i32,
    native_handle: *mut *mut c_void,
) -> estafette_status {
    entry(|| {
        let native_handle = place(native_handle, "native_handle")?;
        let found = table::resolve(DLDevice::new(device_type, device_id)).map_err(refusal)?;
        // SAFETY: writable, by contract.
        unsafe { native_handle.write(std::ptr::with_exposed_provenance_mut(found.context)) };
        DONE
    })
}

fn refusal(error: DeviceError) -> Refusal {
    let invalid = error.kind() == DeviceErrorKind::Invalid;
    let status =
        if invalid { estafette_status::ESTAFETTE_INVALID } else { estafette_status::ESTAFETTE_DEVICE };
    Refusal::new(status, error.message())
}
