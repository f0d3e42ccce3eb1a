//! Parts of OpenCL that dpctl's C interface lacks: completion callbacks, which make polling unnecessary,
//! and flushes, without which a command may stay where it is until a thread blocks for it.
//!
//! dpctl's C interface has no callback, but it gives the runtime's own events, and the runtime gives their
//! `cl_event` (`sycl::event::getNative`, part of its stable ABI; intel/llvm: sycl/include/sycl/event.hpp),
//! for which `clSetEventCallback` asks (OpenCL 3.0, 5.11). The same with queues and `clFlush` (5.15: events
//! of another queue may be waited for only once that queue was flushed). All are looked up in what the
//! process has loaded already. Where one of them is missing, or the backend is another one, the reactor polls
//! instead.
//!
//! The callback runs on a thread of the driver. It notifies subscribers, which are short and never call a
//! driver: operations are handed to workers, deleters to the reaper.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use estafette_sync::platform::library::{self, file_name, loaded};
use estafette_sync::sync::OnceLock;

use super::api::Object;
use super::errors;
use super::event::SyclEvent;
use super::exit::RUNTIME;
use super::handle::Handle;

const COMPLETE: c_int = 0;

type Callback = extern "C" fn(*mut c_void, c_int, *mut c_void);

#[derive(Debug)]
struct Functions {
    /// `sycl::event::getNative() const`; the result holds a reference.
    native: unsafe extern "C" fn(Object) -> *mut c_void,
    set_callback: unsafe extern "C" fn(*mut c_void, c_int, Callback, *mut c_void) -> c_int,
    release: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// `sycl::queue::getNative(int32_t &) const`; the result holds a reference.
    native_queue: unsafe extern "C" fn(Object, *mut i32) -> *mut c_void,
    flush: unsafe extern "C" fn(*mut c_void) -> c_int,
    release_queue: unsafe extern "C" fn(*mut c_void) -> c_int,
}

impl Functions {
    /// Found once; `None` where something is missing.
    fn get() -> Option<&'static Functions> {
        estafette_sync::statics! {
            static FOUND: OnceLock<Option<Functions>> = OnceLock::new();
        }
        FOUND.get_or_init(Self::find).as_ref()
    }

    fn find() -> Option<Self> {
        let open = |stem: &str| {
            let file = loaded(&file_name(stem)).into_iter().next()?;
            // SAFETY: in the process already, so nothing new is run; never closed.
            let library = unsafe { library::open(&file) }.ok()?;
            Some(&*Box::leak(Box::new(library)))
        };
        let (sycl, opencl) = (open("sycl")?, open("OpenCL")?);
        // SAFETY: the types are those of the declarations; a member function without arguments takes `this`
        // as its first argument in the Itanium C++ ABI, and returns an integer as a C function does.
        unsafe {
            Some(Self {
                native: *sycl.get(b"_ZNK4sycl3_V15event9getNativeEv\0").ok()?,
                set_callback: *opencl.get(b"clSetEventCallback\0").ok()?,
                release: *opencl.get(b"clReleaseEvent\0").ok()?,
                native_queue: *sycl.get(b"_ZNK4sycl3_V15queue9getNativeERi\0").ok()?,
                flush: *opencl.get(b"clFlush\0").ok()?,
                release_queue: *opencl.get(b"clReleaseCommandQueue\0").ok()?,
            })
        }
    }
}

/// Sends the commands of one OpenCL queue on their way.
#[derive(Debug)]
pub(super) struct Flusher {
    functions: &'static Functions,
    /// The `cl_command_queue`.
    native: NonNull<c_void>,
}

// SAFETY: OpenCL's queues may be used from any thread (OpenCL 3.0, appendix A.2).
unsafe impl Send for Flusher {}
// SAFETY: as above, at the same time too.
unsafe impl Sync for Flusher {}

impl Flusher {
    /// For a queue of an OpenCL device.
    pub(super) fn of(queue: &Handle) -> Option<Self> {
        let functions = Functions::get()?;
        let _call = RUNTIME.begin_call()?;
        let mut kind = 0;
        // SAFETY: a live queue of an OpenCL device; the other argument says of which kind it is.
        let native = unsafe { (functions.native_queue)(queue.raw(), &raw mut kind) };
        NonNull::new(native).map(|native| Self { functions, native })
    }

    /// To be called while the call lives that has enqueued something.
    pub(super) fn flush(&self) {
        // SAFETY: a live queue. It fails only for what is no queue.
        unsafe { (self.functions.flush)(self.native.as_ptr()) };
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        let Some(_call) = RUNTIME.begin_call() else { return };
        // SAFETY: the reference that `getNative` gave.
        unsafe { (self.functions.release_queue)(self.native.as_ptr()) };
    }
}

/// True if events of OpenCL devices announce themselves.
pub(super) fn available() -> bool {
    Functions::get().is_some()
}

/// Asks the driver to settle `event`, which is of an OpenCL device. False if it cannot be asked.
pub(super) fn arm(event: &Arc<SyclEvent>) -> bool {
    let (Some(functions), Some(_call)) = (Functions::get(), RUNTIME.begin_call()) else { return false };
    // SAFETY: a live event of an OpenCL device.
    let native = unsafe { (functions.native)(event.raw()) };
    if native.is_null() {
        return false;
    }
    let data = Arc::into_raw(Arc::clone(event));
    // SAFETY: a live `cl_event`, and a callback that adopts the reference to ours.
    let code = unsafe { (functions.set_callback)(native, COMPLETE, on_settled, data.cast_mut().cast()) };
    if code != COMPLETE {
        // SAFETY: the callback was not taken, so both references are still ours.
        unsafe {
            drop(Arc::from_raw(data));
            (functions.release)(native);
        }
        return false;
    }
    true
}

extern "C" fn on_settled(native: *mut c_void, status: c_int, data: *mut c_void) {
    // SAFETY: the reference that `arm` left, adopted once: the driver calls back once.
    let event = unsafe { Arc::from_raw(data.cast_const().cast::<SyclEvent>()) };
    event.settle(if status == COMPLETE { Ok(()) } else { Err(errors::failed(status.into())) });
    if let (Some(functions), Some(_call)) = (Functions::get(), RUNTIME.begin_call()) {
        // SAFETY: the reference that `getNative` gave.
        unsafe { (functions.release)(native) };
    }
}
