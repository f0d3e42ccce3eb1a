//! Structs of memory that the reader does not own: what an operator is given, and what it fills in.

use std::ptr::NonNull;

use super::super::layout::{Layout, NDIM_MAX};
use super::table::{DLDeviceType, DLManagedTensorVersioned, DLPackVersion, DLTensor, lend};
use super::{DLDataType, DLDataTypeCode, DlpackFlags, RawDevice, VERSION, export};

/// A struct around [`lend`]: memory that the reader does not own, so that there is nothing to call at its end.
///
/// # Safety
/// As for [`lend`].
pub(crate) unsafe fn lent(layout: &Layout, data: *mut u8) -> DLManagedTensorVersioned {
    let mut dl_tensor = export::describe_raw(layout, data);
    // SAFETY: the place is ours; about `layout` the caller promises.
    unsafe { lend(layout, data, NonNull::from(&mut dl_tensor)) };
    unowned(dl_tensor)
}

/// A struct to be filled in with an element type and a shape: on `device`, without dimensions, and with room for
/// [`NDIM_MAX`] of them in `dims`.
pub(crate) fn blank(
    device: estafette_devices::DLDevice,
    dims: &mut [i64; NDIM_MAX],
) -> DLManagedTensorVersioned {
    unowned(DLTensor {
        data: std::ptr::null_mut(),
        device: RawDevice {
            device_type: DLDeviceType(device.device_type.0 as u32),
            device_id: device.device_id,
        },
        ndim: 0,
        dtype: DLDataType { code: DLDataTypeCode(0), bits: 0, lanes: 1 },
        shape: dims.as_mut_ptr(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    })
}

fn unowned(dl_tensor: DLTensor) -> DLManagedTensorVersioned {
    DLManagedTensorVersioned {
        version: DLPackVersion { major: VERSION.0, minor: VERSION.1 },
        manager_ctx: std::ptr::null_mut(),
        deleter: None,
        flags: DlpackFlags::empty(),
        dl_tensor,
    }
}
