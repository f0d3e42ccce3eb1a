//! Tensors that the program owns until the library takes them.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use estafette_c::{DLManagedTensor, DLManagedTensorVersioned};

use super::shared::Shared;

/// The struct as DLPack lays it out, with the arrays it points to.
#[repr(C)]
pub struct Managed {
    pub version: [u32; 2],
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    pub data: *mut c_void,
    pub device: [i32; 2],
    pub ndim: i32,
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
    /// With what is before them from `data` on, a `DLManagedTensor`.
    legacy_ctx: *mut c_void,
    legacy_deleter: Option<unsafe extern "C" fn(*mut c_void)>,
    memory: Vec<f32>,
    lengths: [i64; 1],
    shared: Arc<Shared>,
}

impl Managed {
    pub fn new(shared: &Arc<Shared>, length: usize, read_only: bool) -> *mut Managed {
        let mut managed = Box::new(Managed {
            version: [1, 3],
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete),
            flags: u64::from(read_only),
            data: std::ptr::null_mut(),
            device: [1, 0],
            ndim: 1,
            code: 2,
            bits: 32,
            lanes: 1,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
            legacy_ctx: std::ptr::null_mut(),
            legacy_deleter: Some(delete_legacy),
            memory: vec![0.0; length],
            lengths: [length as i64],
            shared: shared.clone(),
        });
        managed.data = managed.memory.as_mut_ptr().cast();
        managed.shape = managed.lengths.as_mut_ptr();
        Box::into_raw(managed)
    }

    pub fn raw(managed: *mut Managed) -> *mut DLManagedTensorVersioned {
        managed.cast()
    }

    /// The same memory, in the struct from before DLPack 1.0.
    ///
    /// # Safety
    /// It came from [`new`](Self::new).
    pub unsafe fn legacy(managed: *mut Managed) -> *mut DLManagedTensor {
        // SAFETY: as above.
        unsafe { managed.byte_add(std::mem::offset_of!(Managed, data)) }.cast()
    }

    /// Frees one that was not taken.
    ///
    /// # Safety
    /// It came from [`new`](Self::new), and no import took it.
    pub unsafe fn free(managed: *mut Managed) {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(managed) });
    }
}

unsafe extern "C" fn delete_legacy(managed: *mut c_void) {
    // SAFETY: the library calls this once for a struct that it has taken, from `legacy`.
    unsafe { delete(managed.byte_sub(std::mem::offset_of!(Managed, data)).cast()) };
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: the library calls this once for a struct that it has taken.
    let managed = unsafe { Box::from_raw(managed) };
    managed.shared.deleted.fetch_add(1, SeqCst);
}
