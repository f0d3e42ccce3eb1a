//! An Arrow array becomes a managed tensor, whose deleter releases the array.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use estafette_devices::{DLDevice, DeviceType};

use super::super::abi::{Abi, ExportFlags, ManagedTensor, export};
use super::super::dtype::DType;
use super::super::layout::Layout;
use super::abi::{ArrowDeviceArray, RawArray};
use super::format;
use crate::core::invalid_tensor::InvalidTensor;

/// An Arrow array as a tensor.
#[derive(Debug)]
pub struct Imported {
    /// One-dimensional, without gaps, and read-only, as Arrow's memory never changes. Its deleter releases
    /// the array.
    pub tensor: ManagedTensor,
    /// The event after which the data may be used, of the type that Arrow gives to the kind of device
    /// ([`Device::has_events`](estafette_devices::Device::has_events)). The event lives until the deleter is
    /// called. `None`: the data may be used at once.
    pub sync_event: Option<NonNull<c_void>>,
}

impl ArrowDeviceArray {
    /// Makes a tensor of the array, without a copy. `format` is that of its
    /// [schema](super::ArrowSchema::format_of).
    ///
    /// # Errors
    /// The first field that a tensor cannot have; the array has been released then.
    pub(crate) fn into_tensor(self, format: &CStr) -> Result<Imported, InvalidTensor> {
        let dtype = format::dtype(format)?;
        let device = self.device();
        let sync_event = NonNull::new(self.0.sync_event);
        if sync_event.is_some() && device.device_type == DeviceType::CPU {
            let reason = format!("is set, but there are no events for memory on {device}");
            return Err(InvalidTensor::new("sync_event", reason));
        }
        let array = &self.0.array;
        let offset = check_shape(array)?;
        let layout = Layout::contiguous(dtype, device, &[array.length])?;
        // SAFETY: the array is owned and not released, and was found to have two buffers.
        let [validity, data] = unsafe { array.buffers.cast::<[*const c_void; 2]>().read_unaligned() };
        // Before the bitmap is looked at, so that an impossible offset leads nowhere.
        let (layout, data) = locate(layout, data.cast_mut().cast(), dtype, offset)?;
        check_nulls(array, validity.cast(), device == DLDevice::CPU)?;
        let flags = ExportFlags { read_only: true, is_copied: false };
        // SAFETY: the interface says that an array has `length` initialized elements from `offset` on in its
        // second buffer, until it is released, which happens when the owner is dropped. Nothing writes them:
        // the tensor is read-only.
        let tensor = unsafe { export(&layout, data, flags, Abi::Versioned, move || drop(self)) };
        Ok(Imported { tensor, sync_event })
    }
}

/// Checks everything but the buffers' contents, and gives the offset.
fn check_shape(array: &RawArray) -> Result<usize, InvalidTensor> {
    let not_negative = |field, value: i64| {
        usize::try_from(value).map_err(|_| InvalidTensor::new(field, format!("is {value}")))
    };
    not_negative("length", array.length)?;
    let offset = not_negative("offset", array.offset)?;
    if array.n_children != 0 {
        let reason = format!("is {}, but an array of a primitive type has no children", array.n_children);
        return Err(InvalidTensor::new("n_children", reason));
    }
    if !array.dictionary.is_null() {
        return Err(InvalidTensor::new(
            "dictionary",
            "is set, but a tensor has its values in place; decode it",
        ));
    }
    if array.n_buffers != 2 {
        let reason = format!("is {}, but an array of a primitive type has 2", array.n_buffers);
        return Err(InvalidTensor::new("n_buffers", reason));
    }
    if array.buffers.is_null() {
        return Err(InvalidTensor::new("buffers", "is NULL, but n_buffers is 2"));
    }
    Ok(offset)
}

/// Checks that no value is missing. A count of -1 means that the producer has not counted.
fn check_nulls(array: &RawArray, validity: *const u8, on_host: bool) -> Result<(), InvalidTensor> {
    let nulls = match array.null_count {
        0 => return Ok(()),
        -1 if validity.is_null() => return Ok(()),
        // SAFETY: the bitmap of an array in host memory has a bit for each of its elements, from `offset` on.
        -1 if on_host => unsafe { count_nulls(validity, array.offset, array.length) },
        -1 => {
            let reason = "is -1, not counted, and the host cannot count in the bitmap of a device";
            return Err(InvalidTensor::new("null_count", reason));
        }
        nulls => nulls,
    };
    if nulls == 0 {
        return Ok(());
    }
    Err(InvalidTensor::new(
        "null_count",
        format!("is {nulls}, but a tensor has no missing values; fill them"),
    ))
}

/// Bits that are 0 among `length` from bit `offset` on.
///
/// # Safety
/// `validity` points to that many bits.
unsafe fn count_nulls(validity: *const u8, offset: i64, length: i64) -> i64 {
    // SAFETY: as this function's contract says.
    let bit = |index: i64| unsafe { *validity.add((index / 8) as usize) } >> (index % 8) & 1;
    (offset..offset.saturating_add(length)).filter(|&index| bit(index) == 0).count() as i64
}

/// The address of the first element: `offset` elements after the buffer's beginning.
fn locate(
    layout: Layout,
    buffer: *mut u8,
    dtype: DType,
    offset: usize,
) -> Result<(Layout, *mut u8), InvalidTensor> {
    if layout.is_empty() {
        return Ok((layout, buffer));
    }
    if buffer.is_null() {
        return Err(InvalidTensor::at("buffers", 1, format!("is NULL, but length is {}", layout.len())));
    }
    let too_far = || InvalidTensor::new("offset", format!("is {offset}, past the address space"));
    let bytes = offset.checked_mul(dtype.itemsize()).ok_or_else(too_far)?;
    if !layout.device().device_type.has_addresses() {
        return Ok((layout.with_byte_offset(bytes as u64), buffer));
    }
    (buffer as usize).checked_add(bytes).ok_or_else(too_far)?;
    let data = buffer.wrapping_add(bytes);
    layout.check_data(data)?;
    Ok((layout, data))
}
