//! The functions of the driver that we call, found by name in the library that cudarc has loaded.
//!
//! The declarations are checked against cudarc's while compiling. They are called as they are here, not through cudarc's own
//! functions, for two reasons: cudarc's panic where the driver lacks a symbol, and they return its `CUresult`, an enumeration
//! that a newer driver may answer with a number of which cudarc knows nothing, which would be undefined behaviour.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUgraph, CUgraphExec, CUgraphNode,
    CUmemAccessDesc, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUpointer_attribute, CUresult,
    CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

/// What a function of the driver returns: 0 or the number of an error.
pub(super) type Code = c_int;

/// Declares the table, and how it is filled.
macro_rules! driver {
    (
        required { $($required:ident = $symbol:ident($($argument:ty),*);)* }
        optional { $($optional:ident = $extra:ident($($given:ty),*);)* }
        newer { $($newer:ident = $later:ident($($taken:ty),*);)* }
    ) => {
        /// Functions of the driver. What is optional came with some version of it; each is a feature that may be missing.
        pub(super) struct Api {
            $(pub(super) $required: unsafe extern "C" fn($($argument),*) -> Code,)*
            $(pub(super) $optional: Option<unsafe extern "C" fn($($given),*) -> Code>,)*
            $(pub(super) $newer: Option<unsafe extern "C" fn($($taken),*) -> Code>,)*
        }

        // The arguments are those that cudarc declares.
        const _: () = {
            $(let _: unsafe fn($($argument),*) -> CUresult = sys::$symbol;)*
            $(let _: unsafe fn($($given),*) -> CUresult = sys::$extra;)*
        };

        impl Api {
            /// Looks all of them up.
            ///
            /// # Errors
            /// The name of one that every driver must have and this one has not.
            ///
            /// # Safety
            /// `library` is a CUDA driver.
            pub(super) unsafe fn find(library: &libloading::Library) -> Result<Self, &'static str> {
                // SAFETY: by contract the symbols are the driver's; the types are those of its header.
                unsafe {
                    Ok(Self {
                        $($required: *library
                            .get(concat!(stringify!($symbol), "\0").as_bytes())
                            .map_err(|_| stringify!($symbol))?,)*
                        $($optional: library
                            .get(concat!(stringify!($extra), "\0").as_bytes())
                            .ok()
                            .map(|symbol| *symbol),)*
                        $($newer: library
                            .get(concat!(stringify!($later), "\0").as_bytes())
                            .ok()
                            .map(|symbol| *symbol),)*
                    })
                }
            }
        }
    };
}

driver! {
    required {
        init = cuInit(c_uint);
        driver_version = cuDriverGetVersion(*mut c_int);
        device_count = cuDeviceGetCount(*mut c_int);
        device_get = cuDeviceGet(*mut CUdevice, c_int);
        device_name = cuDeviceGetName(*mut c_char, c_int, CUdevice);
        device_attribute = cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        device_memory = cuDeviceTotalMem_v2(*mut usize, CUdevice);
        primary_retain = cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        primary_release = cuDevicePrimaryCtxRelease_v2(CUdevice);
        context_current = cuCtxGetCurrent(*mut CUcontext);
        context_push = cuCtxPushCurrent_v2(CUcontext);
        context_pop = cuCtxPopCurrent_v2(*mut CUcontext);
        context_synchronize = cuCtxSynchronize();
        capture_mode = cuThreadExchangeStreamCaptureMode(*mut CUstreamCaptureMode);
        stream_create = cuStreamCreate(*mut CUstream, c_uint);
        stream_destroy = cuStreamDestroy_v2(CUstream);
        stream_query = cuStreamQuery(CUstream);
        stream_synchronize = cuStreamSynchronize(CUstream);
        stream_context = cuStreamGetCtx(CUstream, *mut CUcontext);
        stream_wait = cuStreamWaitEvent(CUstream, CUevent, c_uint);
        stream_capturing = cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus);
        event_create = cuEventCreate(*mut CUevent, c_uint);
        event_destroy = cuEventDestroy_v2(CUevent);
        event_record = cuEventRecord(CUevent, CUstream);
        event_query = cuEventQuery(CUevent);
        event_elapsed = cuEventElapsedTime(*mut f32, CUevent, CUevent);
        memory_allocate = cuMemAlloc_v2(*mut CUdeviceptr, usize);
        memory_free = cuMemFree_v2(CUdeviceptr);
        host_allocate = cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        host_free = cuMemFreeHost(*mut c_void);
        managed_allocate = cuMemAllocManaged(*mut CUdeviceptr, usize, c_uint);
        pointer_attribute = cuPointerGetAttribute(*mut c_void, CUpointer_attribute, CUdeviceptr);
        copy = cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
        fill = cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
    }
    optional {
        stream_write = cuStreamWriteValue64_v2(CUstream, CUdeviceptr, u64, c_uint);
        capture_info = cuStreamGetCaptureInfo_v2(
            CUstream, *mut CUstreamCaptureStatus, *mut u64, *mut CUgraph, *mut *const CUgraphNode, *mut usize
        );
        pool_create = cuMemPoolCreate(*mut CUmemoryPool, *const CUmemPoolProps);
        pool_attribute = cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, *mut c_void);
        pool_access = cuMemPoolSetAccess(CUmemoryPool, *const CUmemAccessDesc, usize);
        pool_allocate = cuMemAllocFromPoolAsync(*mut CUdeviceptr, usize, CUmemoryPool, CUstream);
        pool_free = cuMemFreeAsync(CUdeviceptr, CUstream);
        peer_possible = cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
        peer_enable = cuCtxEnablePeerAccess(CUcontext, c_uint);
        capture_begin = cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
        capture_end = cuStreamEndCapture(CUstream, *mut CUgraph);
        graph_instantiate = cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
        graph_launch = cuGraphLaunch(CUgraphExec, CUstream);
        graph_destroy = cuGraphDestroy(CUgraph);
        executable_destroy = cuGraphExecDestroy(CUgraphExec);
    }
    newer {
        // A number of an error is no `CUresult`: a newer driver knows more of them.
        error_name = cuGetErrorName(c_int, *mut *const c_char);
        // Since CUDA 12.5.
        context_record = cuCtxRecordEvent(CUcontext, CUevent);
    }
}
