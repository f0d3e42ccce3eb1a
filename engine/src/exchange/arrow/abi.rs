//! The C structs of Arrow's C data and C device interfaces, as owned values.
//!
//! The holder of a struct whose `release` is set owns what the struct describes. A struct is *moved* by
//! copying its bytes and setting `release` of the source to NULL, so a value of these types is released when
//! dropped, unless it was moved out before. They have the layout of the C structs: a pointer to one is a
//! pointer to the C struct, for a capsule or another language.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;

use estafette_devices::{DLDevice, DeviceType};
use estafette_sync::process::Generation;

use crate::core::invalid_tensor::InvalidTensor;

/// `struct ArrowSchema`.
#[repr(C)]
pub(super) struct RawSchema {
    pub(super) format: *const c_char,
    pub(super) name: *const c_char,
    pub(super) metadata: *const c_char,
    pub(super) flags: i64,
    pub(super) n_children: i64,
    pub(super) children: *mut *mut RawSchema,
    pub(super) dictionary: *mut RawSchema,
    pub(super) release: Option<unsafe extern "C" fn(*mut RawSchema)>,
    pub(super) private_data: *mut c_void,
}

/// `struct ArrowArray`.
#[repr(C)]
pub(super) struct RawArray {
    pub(super) length: i64,
    pub(super) null_count: i64,
    pub(super) offset: i64,
    pub(super) n_buffers: i64,
    pub(super) n_children: i64,
    pub(super) buffers: *mut *const c_void,
    pub(super) children: *mut *mut RawArray,
    pub(super) dictionary: *mut RawArray,
    pub(super) release: Option<unsafe extern "C" fn(*mut RawArray)>,
    pub(super) private_data: *mut c_void,
}

/// `struct ArrowDeviceArray`.
#[repr(C)]
pub(super) struct RawDeviceArray {
    pub(super) array: RawArray,
    pub(super) device_id: i64,
    pub(super) device_type: i32,
    pub(super) sync_event: *mut c_void,
    pub(super) reserved: [i64; 3],
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    size_of::<RawSchema>() == 72
        && size_of::<RawArray>() == 80
        && size_of::<RawDeviceArray>() == 128
        && std::mem::offset_of!(RawArray, release) == 64
        && std::mem::offset_of!(RawDeviceArray, device_type) == 88
        && std::mem::offset_of!(RawDeviceArray, sync_event) == 96
);

/// An owned `ArrowSchema`: the type of an array. Released when dropped.
#[repr(transparent)]
pub struct ArrowSchema(pub(super) RawSchema);

/// An owned `ArrowArray` in host memory. Released when dropped; in a forked child it is leaked instead, and
/// counted.
#[repr(C)]
pub struct ArrowHostArray(pub(super) RawArray, pub(super) Generation);

/// An owned `ArrowDeviceArray`. Released when dropped; in a forked child it is leaked instead, and counted.
#[repr(C)]
pub struct ArrowDeviceArray(pub(super) RawDeviceArray, pub(super) Generation);

// SAFETY: the owner of a struct may release it on any thread; producers that need a lock or an interpreter
// there take it themselves. The pointers in it are only read, and what they point to does not change.
unsafe impl Send for ArrowSchema {}
// SAFETY: as for `ArrowSchema`.
unsafe impl Send for ArrowHostArray {}
// SAFETY: as for `ArrowSchema`.
unsafe impl Send for ArrowDeviceArray {}

impl ArrowSchema {
    /// A borrowed look at the format of a schema that stays with its owner.
    ///
    /// # Errors
    /// It is NULL, was released before, or says no format.
    ///
    /// # Safety
    /// `schema` is NULL or points to an `ArrowSchema` that stays valid and unchanged for `'a`.
    pub(crate) unsafe fn format_of<'a>(schema: *const c_void) -> Result<&'a CStr, InvalidTensor> {
        if schema.is_null() {
            return Err(InvalidTensor::new("schema", "is NULL"));
        }
        // SAFETY: as this function's contract says.
        let schema = unsafe { &*schema.cast::<RawSchema>() };
        if schema.release.is_none() {
            return Err(InvalidTensor::new("schema", "has been released or moved elsewhere"));
        }
        if schema.format.is_null() {
            return Err(InvalidTensor::new("format", "is NULL"));
        }
        // SAFETY: the interface says that it is a C string that lives as long as the schema.
        Ok(unsafe { CStr::from_ptr(schema.format) })
    }
}

impl ArrowDeviceArray {
    /// Moves an array out of the struct at `source`, which is marked as released.
    ///
    /// # Errors
    /// `source` is NULL, or was released or moved elsewhere before. Nothing has to be released then.
    ///
    /// # Safety
    /// `source` is NULL or points to a valid `ArrowDeviceArray` that no other thread accesses meanwhile. What
    /// it describes stays valid and unchanged until its `release` is called, which may be done once, from any
    /// thread, and does not unwind.
    pub unsafe fn take(source: *mut c_void) -> Result<Self, InvalidTensor> {
        let source = source.cast::<RawDeviceArray>();
        if source.is_null() {
            return Err(InvalidTensor::new("array", "is NULL"));
        }
        // SAFETY: as this function's contract says; the copy owns the array once the source's `release` is
        // NULL, and a source that had none owned nothing.
        unsafe {
            let taken = Self(source.read(), Generation::current());
            (*source).array.release = None;
            taken.unless_released()
        }
    }

    /// As [`take`](Self::take), from an `ArrowArray`: the plain C data interface, of host memory.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    ///
    /// # Safety
    /// As for [`take`](Self::take), of an `ArrowArray` in host memory.
    pub(crate) unsafe fn take_host(source: *mut c_void) -> Result<Self, InvalidTensor> {
        let source = source.cast::<RawArray>();
        if source.is_null() {
            return Err(InvalidTensor::new("array", "is NULL"));
        }
        // SAFETY: as in `take`.
        unsafe {
            let taken = Self::on_host(source.read());
            (*source).release = None;
            taken.unless_released()
        }
    }

    /// The device in the array's struct.
    pub(crate) fn device(&self) -> DLDevice {
        let (device_type, id) = (DeviceType(self.0.device_type), self.0.device_id);
        // The host is -1 here by convention, and 0 in DLPack.
        let id = if device_type == DeviceType::CPU { 0 } else { i32::try_from(id).unwrap_or(i32::MAX) };
        DLDevice::new(device_type, id)
    }

    /// The array without its device, for consumers that know host memory alone.
    ///
    /// # Errors
    /// It is not in host memory, or has an event to wait for; it has been released then.
    pub(crate) fn into_host(self) -> Result<ArrowHostArray, InvalidTensor> {
        if self.device().device_type != DeviceType::CPU {
            return Err(InvalidTensor::new("device_type", format!("is {}, not host memory", self.device())));
        }
        if !self.0.sync_event.is_null() {
            return Err(InvalidTensor::new("sync_event", "is set, and a plain array has none"));
        }
        let whole = std::mem::ManuallyDrop::new(self);
        // SAFETY: the only owning part is moved out, and the whole is not dropped.
        Ok(ArrowHostArray(unsafe { (&raw const whole.0.array).read() }, whole.1))
    }

    pub(super) fn on_host(array: RawArray) -> Self {
        let raw = RawDeviceArray {
            array,
            device_id: HOST_ID,
            device_type: DeviceType::CPU.0,
            sync_event: std::ptr::null_mut(),
            reserved: [0; 3],
        };
        Self(raw, Generation::current())
    }

    pub(super) fn unless_released(self) -> Result<Self, InvalidTensor> {
        match self.0.array.release {
            Some(_) => Ok(self),
            None => Err(InvalidTensor::new("array", "has been released or moved elsewhere")),
        }
    }
}

/// The `device_id` of host memory, by convention of the interface.
pub(super) const HOST_ID: i64 = -1;

impl Drop for ArrowSchema {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: the struct is owned and not released, so this is the one call that it is owed.
            unsafe { release(&raw mut self.0) };
        }
    }
}

/// Releases an array that is owned, unless it was moved elsewhere or this is a forked child.
fn release_array(array: &mut RawArray, generation: Generation) {
    let Some(release) = array.release else { return };
    // SAFETY: as in `ArrowSchema`.
    generation.release(|| unsafe { release(array) });
}

impl Drop for ArrowHostArray {
    fn drop(&mut self) {
        release_array(&mut self.0, self.1);
    }
}

impl Drop for ArrowDeviceArray {
    fn drop(&mut self) {
        release_array(&mut self.0.array, self.1);
    }
}

impl fmt::Debug for ArrowSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrowSchema").field("released", &self.0.release.is_none()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ArrowHostArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrowHostArray").field("length", &self.0.length).finish_non_exhaustive()
    }
}

impl fmt::Debug for ArrowDeviceArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrowDeviceArray")
            .field("length", &self.0.array.length)
            .field("device", &self.device())
            .finish_non_exhaustive()
    }
}
