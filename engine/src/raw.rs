//! Tensor handles as plain pointers, for languages that have nothing else.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::tensor::{Tensor, TensorInner};

impl Tensor {
    /// Gives the handle up as a pointer, which owes a [`from_raw`](Self::from_raw). Every handle of one tensor is the same
    /// pointer.
    pub fn into_raw(self) -> NonNull<c_void> {
        let pointer = Arc::into_raw(self.inner).cast_mut().cast();
        NonNull::new(pointer).expect("an `Arc` is never NULL")
    }

    /// Takes a handle back.
    ///
    /// # Safety
    /// `raw` comes from [`into_raw`](Self::into_raw), and is taken back once for each time that it was given up.
    pub unsafe fn from_raw(raw: NonNull<c_void>) -> Self {
        // SAFETY: by contract of this function.
        Self { inner: unsafe { Arc::from_raw(raw.as_ptr().cast::<TensorInner>()) } }
    }

    /// A look at a tensor whose handle stays given up.
    ///
    /// # Safety
    /// `raw` comes from [`into_raw`](Self::into_raw), and is not taken back for as long as the result is used.
    pub unsafe fn borrow_raw(raw: NonNull<c_void>) -> ManuallyDrop<Self> {
        // SAFETY: by contract of this function; never dropped, so the count stays as it is.
        ManuallyDrop::new(unsafe { Self::from_raw(raw) })
    }
}
