use std::ffi::c_void;
use std::ptr::NonNull;

/// An event of a device's own kind (a pointer to a `cudaEvent_t`, a `hipEvent_t`, a `sycl::event`, ...), made
/// for foreign code to wait for. Dropping it releases the event.
pub struct NativeEvent {
    pointer: NonNull<c_void>,
    destroy: Option<Box<dyn FnOnce(NonNull<c_void>) + Send>>,
}

// SAFETY: the pointer is an address that this type hands out and never follows; the way to destroy what is
// there is `Send`, and native events may be destroyed on any thread.
unsafe impl Send for NativeEvent {}

impl NativeEvent {
    /// Adopts the event at `pointer`; `destroy` is called once, with it, when this is dropped, from any
    /// thread.
    pub fn new(pointer: NonNull<c_void>, destroy: impl FnOnce(NonNull<c_void>) + Send + 'static) -> Self {
        Self { pointer, destroy: Some(Box::new(destroy)) }
    }

    /// The address of the event, valid for as long as this lives.
    pub fn pointer(&self) -> NonNull<c_void> {
        self.pointer
    }
}

impl Drop for NativeEvent {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy.take() {
            destroy(self.pointer);
        }
    }
}

debug_as!(event: NativeEvent, "NativeEvent({:p})", event.pointer);
