//! The functions of dpctl's C interface that are used here, by name.
//!
//! Signatures: `dpctl/include/syclinterface/*.h` of dpctl 0.22 (IntelPython/dpctl: libsyclinterface). "Give"
//! there means that the caller deletes what is returned, "keep" that it stays whose it was. The functions are
//! documented not to throw; they answer with null, or with 0 for "unknown", where C++ would.

use std::ffi::{c_char, c_int, c_void};

/// Any object of SYCL, behind an opaque pointer.
pub(super) type Object = *mut c_void;

/// Called by the runtime with the code of an asynchronous error.
pub(super) type ErrorHandler = extern "C" fn(c_int);

/// All backends and all device types: `DPCTL_ALL_BACKENDS | DPCTL_ALL`.
pub(super) const ALL_DEVICES: c_int = (0b1_1111 << 16) | 0b11_1111;
pub(super) const BACKEND_CUDA: u32 = 1 << 16;
pub(super) const BACKEND_LEVEL_ZERO: u32 = 1 << 17;
pub(super) const BACKEND_OPENCL: u32 = 1 << 18;
pub(super) const BACKEND_HIP: u32 = 1 << 19;
/// `DPCTL_ENABLE_PROFILING`.
pub(super) const QUEUE_PROFILING: c_int = 1;
pub(super) const QUEUE_IN_ORDER: c_int = 1 << 1;
/// `usm_device_allocations` and its neighbours among the aspects.
pub(super) const ASPECT_USM_DEVICE: c_int = 12;
pub(super) const ASPECT_USM_HOST: c_int = 13;
pub(super) const ASPECT_USM_SHARED: c_int = 14;
/// `DPCTL_COMPLETE`, and the answer of an event that threw when it was asked.
pub(super) const STATUS_COMPLETE: u32 = 3;
pub(super) const STATUS_UNKNOWN: u32 = 0;

estafette_sync::library_functions! {
    devices_get = "DPCTLDeviceMgr_GetDevices": fn(c_int) -> Object;
    devices_len = "DPCTLDeviceVector_Size": fn(Object) -> usize;
    devices_at = "DPCTLDeviceVector_GetAt": fn(Object, usize) -> Object;
    devices_delete = "DPCTLDeviceVector_Delete": fn(Object);
    device_delete = "DPCTLDevice_Delete": fn(Object);
    device_eq = "DPCTLDevice_AreEq": fn(Object, Object) -> bool;
    device_name = "DPCTLDevice_GetName": fn(Object) -> *const c_char;
    device_backend = "DPCTLDevice_GetBackend": fn(Object) -> u32;
    device_is_cpu = "DPCTLDevice_IsCPU": fn(Object) -> bool;
    device_is_gpu = "DPCTLDevice_IsGPU": fn(Object) -> bool;
    device_aspect = "DPCTLDevice_HasAspect": fn(Object, c_int) -> bool;
    device_memory = "DPCTLDevice_GetGlobalMemSize": fn(Object) -> u64;
    device_platform = "DPCTLDevice_GetPlatform": fn(Object) -> Object;
    device_parent = "DPCTLDevice_GetParentDevice": fn(Object) -> Object;
    string_delete = "DPCTLCString_Delete": fn(*const c_char);
    platform_delete = "DPCTLPlatform_Delete": fn(Object);
    platform_context = "DPCTLPlatform_GetDefaultContext": fn(Object) -> Object;
    context_copy = "DPCTLContext_Copy": fn(Object) -> Object;
    context_delete = "DPCTLContext_Delete": fn(Object);
    context_eq = "DPCTLContext_AreEq": fn(Object, Object) -> bool;
    context_devices = "DPCTLContext_GetDevices": fn(Object) -> Object;
    queue_create = "DPCTLQueue_Create": fn(Object, Object, Option<ErrorHandler>, c_int) -> Object;
    queue_copy = "DPCTLQueue_Copy": fn(Object) -> Object;
    queue_delete = "DPCTLQueue_Delete": fn(Object);
    queue_in_order = "DPCTLQueue_IsInOrder": fn(Object) -> bool;
    queue_hash = "DPCTLQueue_Hash": fn(Object) -> usize;
    queue_profiles = "DPCTLQueue_HasEnableProfiling": fn(Object) -> bool;
    queue_context = "DPCTLQueue_GetContext": fn(Object) -> Object;
    queue_device = "DPCTLQueue_GetDevice": fn(Object) -> Object;
    queue_memcpy = "DPCTLQueue_MemcpyWithEvents":
        fn(Object, *mut c_void, *const c_void, usize, *const Object, usize) -> Object;
    queue_memset = "DPCTLQueue_Memset": fn(Object, *mut c_void, u8, usize) -> Object;
    queue_barrier = "DPCTLQueue_SubmitBarrier": fn(Object) -> Object;
    queue_barrier_for = "DPCTLQueue_SubmitBarrierForEvents": fn(Object, *const Object, usize) -> Object;
    event_delete = "DPCTLEvent_Delete": fn(Object);
    event_copy = "DPCTLEvent_Copy": fn(Object) -> Object;
    event_status = "DPCTLEvent_GetCommandExecutionStatus": fn(Object) -> u32;
    event_wait = "DPCTLEvent_WaitAndThrow": fn(Object);
    event_submitted_at = "DPCTLEvent_GetProfilingInfoSubmit": fn(Object) -> u64;
    event_began_at = "DPCTLEvent_GetProfilingInfoStart": fn(Object) -> u64;
    event_ended_at = "DPCTLEvent_GetProfilingInfoEnd": fn(Object) -> u64;
    alloc_shared = "DPCTLaligned_alloc_shared": fn(usize, usize, Object) -> Object;
    alloc_device = "DPCTLaligned_alloc_device": fn(usize, usize, Object) -> Object;
    alloc_host = "DPCTLaligned_alloc_host": fn(usize, usize, Object) -> Object;
    free = "DPCTLfree_with_context": fn(Object, Object);
    pointer_kind = "DPCTLUSM_GetPointerType": fn(Object, Object) -> u32;
}
