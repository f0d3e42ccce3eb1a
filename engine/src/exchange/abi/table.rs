//! The C exchange table of DLPack 1.3: how a library hands tensors over without a Python call.
//!
//! A library's type carries a capsule named [`CAPSULE`] in its attribute [`ATTRIBUTE`]; inside is a [`Table`]
//! that lives as long as the process. This module has the structs and what needs no Python; the functions
//! that take Python objects are in the bindings.

use std::ffi::CStr;
use std::ptr::NonNull;

use estafette_devices::Device;
use estafette_devices::host::HostDevice;

pub use dlpark::ffi::{
    DLDeviceType, DLManagedTensorVersioned, DLPackExchangeAPI as Table, DLPackExchangeAPIHeader as Header,
    DLPackVersion, DLTensor,
};

use super::super::dtype::DType;
use super::super::layout::{Layout, NDIM_MAX};
use super::super::storage::Storage;
use super::{ExportFlags, ManagedTensor, VERSION, device_of, export, read_dims};
use crate::core::error::Error;
use crate::core::invalid_tensor::InvalidTensor;

/// The name of the capsule that holds a table.
pub const CAPSULE: &CStr = c"dlpack_exchange_api";

/// The attribute of a type that holds the capsule.
pub const ATTRIBUTE: &str = "__dlpack_c_exchange_api__";

/// So many older versions of a table are looked at: a chain that is longer is broken.
const OLDER_MAX: usize = 8;

/// Alignment of fresh memory: what vectorizing libraries ask for, and a cache line.
pub(crate) const ALIGN: usize = 64;

/// The header of this engine's table.
pub const HEADER: Header =
    Header { version: DLPackVersion { major: VERSION.0, minor: VERSION.1 }, prev_api: std::ptr::null_mut() };

/// The newest table in the chain that begins at `table` whose layout we know; `None` when there is none, or
/// when a function that must be there is not.
///
/// # Safety
/// `table` is NULL or points to a table that a library has published, which stays as it is for the life of
/// the process.
pub unsafe fn understood(table: *const Table) -> Option<&'static Table> {
    let mut header = table.cast::<Header>();
    for _ in 0..OLDER_MAX {
        if header.is_null() {
            return None;
        }
        // SAFETY: the caller vouches for the chain; the header is stable across versions.
        let found = unsafe { &*header };
        if found.version.major == VERSION.0 {
            // SAFETY: of our major version, so it has at least these fields, for the life of the process.
            let table = unsafe { &*header.cast::<Table>() };
            let complete =
                table.managed_tensor_from_py_object_no_sync.is_some() && table.current_work_stream.is_some();
            return complete.then_some(table);
        }
        header = found.prev_api;
    }
    None
}

/// Describes memory. Shape and strides are those of `layout`, lent: reads of the result must end before
/// `layout` is dropped. Strides are written out for every tensor with dimensions, and `data` is NULL when
/// there are no elements, as the header asks.
pub(super) fn lent(layout: &Layout, data: *mut u8) -> DLTensor {
    let mut tensor = export::describe_raw(layout, data);
    if !layout.shape().is_empty() {
        tensor.shape = layout.shape().as_ptr().cast_mut();
        tensor.strides = layout.strides().as_ptr().cast_mut();
    }
    tensor
}

/// Describes memory in `out`; shape and strides are those of `layout`, lent.
///
/// # Safety
/// `out` may be written. Reads of `out` must end before `layout` is dropped.
pub unsafe fn lend(layout: &Layout, data: *mut u8, out: NonNull<DLTensor>) {
    // SAFETY: the place is the caller's.
    unsafe { out.write(lent(layout, data)) };
}

/// Fresh zeroed host memory as `prototype` describes it (element type, shape and device; nothing else of it
/// is looked at), for its receiver alone. Needs no engine and no Python.
///
/// # Errors
/// A mistake in the prototype; [`Error::Invalid`] for a device that is not the host; [`Error::Device`] when
/// memory is exhausted.
///
/// # Safety
/// `prototype` is readable, and its shape has `ndim` readable entries or is NULL.
pub unsafe fn allocate(prototype: NonNull<DLTensor>) -> Result<ManagedTensor, Error> {
    // SAFETY: by contract of this function.
    let layout = unsafe { layout_of(prototype) }?;
    let device = layout.device();
    if device != estafette_devices::DLDevice::CPU {
        return Err(Error::invalid(format!("device {device} is not available: tensors are made on cpu:0")));
    }
    let allocation = HostDevice::new().allocate(layout.byte_len().max(1), ALIGN)?;
    // SAFETY: the allocation is ours alone and at least this long.
    unsafe { allocation.ptr().as_ptr().write_bytes(0, layout.byte_len()) };
    let storage = Storage::device(allocation);
    let data = storage.data();
    let owner = move || drop(storage);
    // SAFETY: the memory is as long as the layout says, it has no other owner, and it lives until the deleter
    // is called.
    Ok(unsafe { export(&layout, data, ExportFlags::default(), super::Abi::Versioned, owner) })
}

/// The row-major layout of element type, shape and device of a description; nothing else of it is looked at.
///
/// # Errors
/// The field that is wrong.
///
/// # Safety
/// `description` is readable, and its shape has `ndim` readable entries or is NULL.
pub(crate) unsafe fn layout_of(description: NonNull<DLTensor>) -> Result<Layout, InvalidTensor> {
    // SAFETY: by contract of this function.
    let description = unsafe { description.read() };
    let ndim = usize::try_from(description.ndim)
        .ok()
        .filter(|ndim| *ndim <= NDIM_MAX)
        .ok_or_else(|| InvalidTensor::new("ndim", format!("is {}", description.ndim)))?;
    // SAFETY: by contract of this function.
    let shape = unsafe { read_dims(description.shape, ndim) };
    let shape = shape.ok_or_else(|| InvalidTensor::new("shape", format!("is NULL with ndim {ndim}")))?;
    let dtype = description.dtype;
    let dtype = DType { code: dtype.code.0, bits: dtype.bits, lanes: dtype.lanes };
    Layout::contiguous(dtype, device_of(&description), &shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    use estafette_devices::DLDevice;

    fn table(major: u32, prev_api: *mut Header) -> Table {
        unsafe extern "C" fn take(
            _: *mut std::ffi::c_void,
            _: *mut *mut DLManagedTensorVersioned,
        ) -> std::ffi::c_int {
            -1
        }
        unsafe extern "C" fn stream(
            _: DLDeviceType,
            _: i32,
            _: *mut *mut std::ffi::c_void,
        ) -> std::ffi::c_int {
            -1
        }
        Table {
            header: Header { version: DLPackVersion { major, minor: 9 }, prev_api },
            managed_tensor_allocator: None,
            managed_tensor_from_py_object_no_sync: Some(take),
            managed_tensor_to_py_object_no_sync: None,
            dltensor_from_py_object_no_sync: None,
            current_work_stream: Some(stream),
        }
    }

    #[test]
    fn the_table_of_our_major_version_is_found_behind_newer_ones() {
        let mut ours = table(1, std::ptr::null_mut());
        let mut newer = table(2, (&raw mut ours).cast());
        let newest = table(3, (&raw mut newer).cast());
        // SAFETY: the tables outlive the calls, and what is found is only compared.
        unsafe {
            assert_eq!(understood(&newest).map(|found| &raw const *found), Some(&raw const ours));
            assert!(understood(&table(2, std::ptr::null_mut())).is_none());
            assert!(understood(std::ptr::null()).is_none());
            let incomplete = Table { current_work_stream: None, ..ours };
            assert!(understood(&incomplete).is_none());
        }
    }

    #[test]
    fn a_chain_without_an_end_is_given_up() {
        let mut endless = table(2, std::ptr::null_mut());
        endless.header.prev_api = (&raw mut endless).cast();
        // SAFETY: the table outlives the call.
        assert!(unsafe { understood(&endless) }.is_none());
    }

    #[test]
    fn a_lent_description_points_into_the_layout_and_empty_tensors_have_no_data() {
        let mut byte = 0_u8;
        for (shape, has_data) in [(&[2_i64, 3][..], true), (&[2, 0], false), (&[], true)] {
            let layout = Layout::contiguous(DType::U8, DLDevice::CPU, shape).unwrap();
            let mut out = std::mem::MaybeUninit::<DLTensor>::uninit();
            // SAFETY: the place is ours, and the layout outlives the description.
            let tensor = unsafe {
                lend(&layout, &mut byte, NonNull::new(out.as_mut_ptr()).unwrap());
                out.assume_init()
            };
            assert_eq!(tensor.data.is_null(), !has_data);
            let shape_is_lent = tensor.shape.cast_const() == layout.shape().as_ptr();
            assert_eq!(shape_is_lent, !shape.is_empty());
            assert_eq!(tensor.strides.is_null(), shape.is_empty());
            assert_eq!(tensor.ndim as usize, shape.len());
        }
    }

    #[test]
    fn an_allocation_is_as_the_prototype_says_and_a_bad_one_is_refused_by_its_field() {
        let mut shape = [2_i64, 3];
        let layout = Layout::contiguous(DType::F32, DLDevice::CPU, &shape).unwrap();
        let mut prototype = export::describe_raw(&layout, std::ptr::null_mut());
        prototype.shape = shape.as_mut_ptr();
        let make = |change: fn(&mut DLTensor)| {
            let mut prototype = prototype;
            change(&mut prototype);
            // SAFETY: prototype and shape outlive the call.
            unsafe { allocate(NonNull::from(&mut prototype)) }
        };
        let made = make(|_| {}).unwrap();
        assert_eq!(made.describe().unwrap(), layout);
        assert!(
            !made.flags().read_only && !made.data().is_null() && (made.data() as usize).is_multiple_of(ALIGN)
        );
        let reason = |made: Result<ManagedTensor, Error>| made.unwrap_err().to_string();
        assert!(reason(make(|prototype| prototype.ndim = -1)).contains("ndim is -1"));
        assert!(reason(make(|prototype| prototype.shape = std::ptr::null_mut())).contains("shape is NULL"));
        assert!(reason(make(|prototype| prototype.dtype.bits = 0)).contains("dtype.bits is 0"));
        assert!(reason(make(|prototype| prototype.device.device_id = 7)).contains("cpu:7"));
    }
}
