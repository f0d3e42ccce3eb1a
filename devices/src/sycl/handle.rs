use std::ffi::c_void;
use std::ptr::NonNull;

use super::api::{Api, Object};
use super::exit::RUNTIME;

/// An object of SYCL that is ours, deleted once, or left to the end of the process where the runtime does not
/// work any more.
pub(super) struct Handle {
    object: NonNull<c_void>,
    delete: unsafe extern "C" fn(Object),
}

// SAFETY: SYCL's objects are reference-counted handles to thread-safe runtime objects (SYCL 2020, 4.5.2 and
// 3.9.9); what is reached through the pointer is used through the C interface only.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Adopts `object`; `None` if it is null.
    ///
    /// # Safety
    /// `object` is null or an object that `delete` deletes, and no other code does.
    pub(super) unsafe fn own(object: Object, delete: unsafe extern "C" fn(Object)) -> Option<Self> {
        NonNull::new(object).map(|object| Self { object, delete })
    }

    /// For calls of the C interface while this lives.
    pub(super) fn raw(&self) -> Object {
        self.object.as_ptr()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(_call) = RUNTIME.begin_call() {
            // SAFETY: ours, and deleted here only.
            unsafe { (self.delete)(self.object.as_ptr()) };
        }
    }
}

debug_as!(handle: Handle, "{:p}", handle.object);

/// The devices in a vector of the C interface, which is deleted.
///
/// # Safety
/// `vector` is null or a vector of devices that the caller owns.
pub(super) unsafe fn devices_in(api: &Api, vector: Object) -> Vec<Handle> {
    // SAFETY: by contract; each element is a copy that is ours.
    unsafe {
        let Some(vector) = Handle::own(vector, api.devices_delete) else { return Vec::new() };
        (0..(api.devices_len)(vector.raw()))
            .filter_map(|at| Handle::own((api.devices_at)(vector.raw(), at), api.device_delete))
            .collect()
    }
}
