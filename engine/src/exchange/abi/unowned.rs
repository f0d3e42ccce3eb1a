//! Structs of memory that the reader does not own: what an operator is given, and what it fills in.

use super::super::layout::{Layout, NDIM_MAX};
use super::table::{self, DLManagedTensorVersioned, DLPackVersion, DLTensor};
use super::{DLDevice, DType, DlpackFlags, VERSION, export};

/// Memory that the reader does not own, so that there is nothing to call at its end. Shape and strides are
/// those of `layout`: reads of the struct must end before `layout` is dropped.
pub(crate) fn lent(layout: &Layout, data: *mut u8) -> DLManagedTensorVersioned {
    unowned(table::lent(layout, data))
}

/// A struct to be filled in with an element type and a shape: on `device`, without dimensions, and with room
/// for [`NDIM_MAX`] of them in `dims`.
pub(crate) fn blank(device: DLDevice, dims: &mut [i64; NDIM_MAX]) -> DLManagedTensorVersioned {
    let no_type = DType { code: 0, bits: 0, lanes: 1 };
    let scalar = export::raw_tensor(no_type, device, std::ptr::null_mut());
    unowned(DLTensor { shape: dims.as_mut_ptr(), ..scalar })
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
