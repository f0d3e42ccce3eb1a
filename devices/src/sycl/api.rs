//! The functions of dpctl's C interface that are used here, by name.
//!
//! Signatures: `dpctl/include/syclinterface/*.h` of dpctl 0.22 (IntelPython/dpctl: libsyclinterface). "Give"
//! there means that the caller deletes what is returned, "keep" that it stays whose it was. The functions are
//! documented not to throw; they answer with null, or with 0 for "unknown", where C++ would.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

/// Any object of SYCL, behind an opaque pointer.
pub(super) type Object = *mut c_void;

/// Called by the runtime with the code of an asynchronous error.
pub(super) type ErrorHandler = extern "C" fn(c_int);

/// All backends and all device types: `DPCTL_ALL_BACKENDS | DPCTL_ALL`.
pub(super) const ALL_DEVICES: c_int = (0b1_1111 << 16) | 0b11_1111;
/// `DPCTLSyclBackendType`.
pub(super) const BACKEND_CUDA: u32 = 1 << 16;
pub(super) const BACKEND_LEVEL_ZERO: u32 = 1 << 17;
pub(super) const BACKEND_OPENCL: u32 = 1 << 18;
pub(super) const BACKEND_HIP: u32 = 1 << 19;
/// `DPCTL_ENABLE_PROFILING`.
pub(super) const QUEUE_PROFILING: c_int = 1;
/// `DPCTL_IN_ORDER`.
pub(super) const QUEUE_IN_ORDER: c_int = 1 << 1;
/// `usm_device_allocations` and its neighbours among the aspects.
pub(super) const ASPECT_USM_DEVICE: c_int = 12;
pub(super) const ASPECT_USM_HOST: c_int = 13;
pub(super) const ASPECT_USM_SHARED: c_int = 14;
/// `DPCTL_COMPLETE`, and the answer of an event that threw when it was asked.
pub(super) const STATUS_COMPLETE: u32 = 3;
pub(super) const STATUS_UNKNOWN: u32 = 0;

/// Declares the table of functions and how it is filled, so that neither can be forgotten.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, found once when the library is loaded.
        #[derive(Debug)]
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Keeps the functions where they are.
            _library: Library,
        }

        impl Api {
            /// Takes every function from `library`.
            ///
            /// # Errors
            /// The name of the first one that it lacks.
            pub(super) fn of(library: Library) -> Result<Self, &'static str> {
                $(
                    // SAFETY: the type is that of the declaration in dpctl's headers.
                    let $field = unsafe {
                        *library
                            .get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>($symbol)
                            .map_err(|_| name($symbol))?
                    };
                )*
                Ok(Self { $($field,)* _library: library })
            }
        }
    };
}

functions! {
    devices_get = b"DPCTLDeviceMgr_GetDevices\0": fn(c_int) -> Object;
    devices_len = b"DPCTLDeviceVector_Size\0": fn(Object) -> usize;
    devices_at = b"DPCTLDeviceVector_GetAt\0": fn(Object, usize) -> Object;
    devices_delete = b"DPCTLDeviceVector_Delete\0": fn(Object);
    device_delete = b"DPCTLDevice_Delete\0": fn(Object);
    device_eq = b"DPCTLDevice_AreEq\0": fn(Object, Object) -> bool;
    device_name = b"DPCTLDevice_GetName\0": fn(Object) -> *const c_char;
    device_backend = b"DPCTLDevice_GetBackend\0": fn(Object) -> u32;
    device_is_cpu = b"DPCTLDevice_IsCPU\0": fn(Object) -> bool;
    device_is_gpu = b"DPCTLDevice_IsGPU\0": fn(Object) -> bool;
    device_aspect = b"DPCTLDevice_HasAspect\0": fn(Object, c_int) -> bool;
    device_memory = b"DPCTLDevice_GetGlobalMemSize\0": fn(Object) -> u64;
    device_platform = b"DPCTLDevice_GetPlatform\0": fn(Object) -> Object;
    device_parent = b"DPCTLDevice_GetParentDevice\0": fn(Object) -> Object;
    string_delete = b"DPCTLCString_Delete\0": fn(*const c_char);
    platform_delete = b"DPCTLPlatform_Delete\0": fn(Object);
    platform_context = b"DPCTLPlatform_GetDefaultContext\0": fn(Object) -> Object;
    context_copy = b"DPCTLContext_Copy\0": fn(Object) -> Object;
    context_delete = b"DPCTLContext_Delete\0": fn(Object);
    context_eq = b"DPCTLContext_AreEq\0": fn(Object, Object) -> bool;
    context_devices = b"DPCTLContext_GetDevices\0": fn(Object) -> Object;
    queue_create = b"DPCTLQueue_Create\0": fn(Object, Object, Option<ErrorHandler>, c_int) -> Object;
    queue_copy = b"DPCTLQueue_Copy\0": fn(Object) -> Object;
    queue_delete = b"DPCTLQueue_Delete\0": fn(Object);
    queue_in_order = b"DPCTLQueue_IsInOrder\0": fn(Object) -> bool;
    queue_hash = b"DPCTLQueue_Hash\0": fn(Object) -> usize;
    queue_profiles = b"DPCTLQueue_HasEnableProfiling\0": fn(Object) -> bool;
    queue_context = b"DPCTLQueue_GetContext\0": fn(Object) -> Object;
    queue_device = b"DPCTLQueue_GetDevice\0": fn(Object) -> Object;
    queue_memcpy = b"DPCTLQueue_MemcpyWithEvents\0":
        fn(Object, *mut c_void, *const c_void, usize, *const Object, usize) -> Object;
    queue_memset = b"DPCTLQueue_Memset\0": fn(Object, *mut c_void, u8, usize) -> Object;
    queue_barrier = b"DPCTLQueue_SubmitBarrier\0": fn(Object) -> Object;
    queue_barrier_for = b"DPCTLQueue_SubmitBarrierForEvents\0": fn(Object, *const Object, usize) -> Object;
    event_delete = b"DPCTLEvent_Delete\0": fn(Object);
    event_copy = b"DPCTLEvent_Copy\0": fn(Object) -> Object;
    event_status = b"DPCTLEvent_GetCommandExecutionStatus\0": fn(Object) -> u32;
    event_wait = b"DPCTLEvent_WaitAndThrow\0": fn(Object);
    event_submitted_at = b"DPCTLEvent_GetProfilingInfoSubmit\0": fn(Object) -> u64;
    event_began_at = b"DPCTLEvent_GetProfilingInfoStart\0": fn(Object) -> u64;
    event_ended_at = b"DPCTLEvent_GetProfilingInfoEnd\0": fn(Object) -> u64;
    alloc_shared = b"DPCTLaligned_alloc_shared\0": fn(usize, usize, Object) -> Object;
    alloc_device = b"DPCTLaligned_alloc_device\0": fn(usize, usize, Object) -> Object;
    alloc_host = b"DPCTLaligned_alloc_host\0": fn(usize, usize, Object) -> Object;
    free = b"DPCTLfree_with_context\0": fn(Object, Object);
    pointer_kind = b"DPCTLUSM_GetPointerType\0": fn(Object, Object) -> u32;
}

/// A symbol's name without its end.
fn name(symbol: &'static [u8]) -> &'static str {
    std::str::from_utf8(symbol.strip_suffix(b"\0").unwrap_or(symbol)).unwrap_or("?")
}
