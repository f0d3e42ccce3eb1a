//! A managed tensor becomes an Arrow array, whose release calls the tensor's deleter.

use std::ffi::c_void;
use std::ptr;

use estafette_devices::{DLDevice, NativeEvent, log_panic};
use estafette_sync::process::{Generation, ProcessBound};

use super::super::abi::ManagedTensor;
use super::super::dtype::DType;
use super::abi::{ArrowDeviceArray, ArrowSchema, HOST_ID, RawArray, RawDeviceArray, RawSchema};
use super::format;
use crate::core::invalid_tensor::InvalidTensor;

impl ArrowSchema {
    /// The schema of arrays with elements of this type.
    ///
    /// # Errors
    /// Arrow has no primitive type for it.
    pub(crate) fn of(dtype: DType) -> Result<Self, InvalidTensor> {
        Ok(Self(RawSchema {
            format: format::format(dtype)?.as_ptr(),
            // Names and formats are static, so there is nothing to free.
            name: c"".as_ptr(),
            metadata: ptr::null(),
            flags: 0,
            n_children: 0,
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: Some(release_schema),
            private_data: ptr::null_mut(),
        }))
    }
}

impl ArrowDeviceArray {
    /// Makes an array of a tensor, without a copy. A consumer waits for `sync_event`, where there is one,
    /// before it uses the data. Releasing the array calls the tensor's deleter, on the consumer's thread.
    ///
    /// # Errors
    /// The first thing that Arrow's arrays cannot have: dimensions other than one, gaps, an element type that
    /// is none of its primitive ones. The deleter has been called then.
    pub(crate) fn from_tensor(
        tensor: ManagedTensor,
        sync_event: Option<NativeEvent>,
    ) -> Result<(ArrowSchema, Self), InvalidTensor> {
        let layout = tensor.describe()?;
        let schema = ArrowSchema::of(layout.dtype())?;
        let &[length] = layout.shape() else {
            let reason = format!("is {:?}, but an Arrow array has one dimension", layout.shape());
            return Err(InvalidTensor::new("shape", reason));
        };
        if !layout.is_contiguous() {
            let reason = format!("are {:?}, but an Arrow array has no gaps", layout.strides());
            return Err(InvalidTensor::new("strides", reason));
        }
        let device = layout.device();
        if !device.device_type.has_addresses() {
            let reason = format!("is {device}, whose memory has handles: an Arrow array has addresses");
            return Err(InvalidTensor::new("device", reason));
        }
        let event = sync_event.as_ref().map_or(ptr::null_mut(), |event| event.pointer().as_ptr());
        let buffers = [ptr::null(), tensor.data().cast_const().cast::<c_void>()];
        let held =
            Box::leak(Box::new(ArrayOwner { buffers, _lent: ProcessBound::new((tensor, sync_event)) }));
        let array = RawArray {
            length,
            null_count: 0,
            offset: 0,
            n_buffers: 2,
            n_children: 0,
            buffers: held.buffers.as_mut_ptr(),
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: Some(release),
            private_data: ptr::from_mut(held).cast(),
        };
        let device_id = if device == DLDevice::CPU { HOST_ID } else { i64::from(device.device_id) };
        let device_type = device.device_type.0;
        let whole = RawDeviceArray { array, device_id, device_type, sync_event: event, reserved: [0; 3] };
        Ok((schema, Self(whole, Generation::current())))
    }
}

/// The values that an exported array keeps until it is released.
struct ArrayOwner {
    /// The validity bitmap, which there is none of, and the data.
    buffers: [*const c_void; 2],
    /// First the tensor is released, then the event goes.
    _lent: ProcessBound<(ManagedTensor, Option<NativeEvent>)>,
}

/// The release, which the consumer calls once, with the struct wherever it has been moved.
///
/// # Safety
/// `array` was made by [`ArrowDeviceArray::from_tensor`], perhaps moved, and not released.
unsafe extern "C" fn release(array: *mut RawArray) {
    // SAFETY: as above: `private_data` is the box leaked there, which is taken back this once; marking the
    // struct as released is what the interface asks for.
    unsafe {
        (*array).release = None;
        let held = (*array).private_data.cast::<ArrayOwner>();
        log_panic("the tensor behind an Arrow array", || drop(Box::from_raw(held)));
    }
}

/// # Safety
/// `schema` was made by [`ArrowSchema::of`], perhaps moved, and not released.
unsafe extern "C" fn release_schema(schema: *mut RawSchema) {
    // SAFETY: as above.
    unsafe { (*schema).release = None };
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::super::abi::{Abi, ExportFlags, export};
    use super::super::super::layout::Layout;
    use super::*;
    use estafette_sync::platform::child::in_forked_child;
    use estafette_sync::process::leaked;

    #[test]
    fn an_array_released_in_a_forked_child_stays_the_parents() {
        static RELEASED: AtomicUsize = AtomicUsize::new(0);
        static VALUES: [i32; 2] = [1, 2];
        let make = || {
            let layout = Layout::contiguous(DType::I32, DLDevice::CPU, &[2]).unwrap();
            let flags = ExportFlags { read_only: true, ..ExportFlags::default() };
            let data = VALUES.as_ptr().cast::<u8>().cast_mut();
            let owner = || {
                RELEASED.fetch_add(1, Ordering::SeqCst);
            };
            // SAFETY: the memory is static and read-only.
            let tensor = unsafe { export(&layout, data, flags, Abi::Versioned, owner) };
            ArrowDeviceArray::from_tensor(tensor, None).unwrap()
        };
        let mut kept = make();
        let array = &raw mut kept.1.0.array;
        assert!(in_forked_child(|| {
            // SAFETY: what a consumer in the child would do, unaware of us; the parent's copy is another one.
            unsafe { release(array) };
            let marked = kept.1.0.array.release.is_none();
            marked && leaked() == 1 && RELEASED.load(Ordering::SeqCst) == 0
        }));
        assert_eq!(RELEASED.load(Ordering::SeqCst), 0);
        drop(kept);
        assert_eq!(RELEASED.load(Ordering::SeqCst), 1);
    }
}
