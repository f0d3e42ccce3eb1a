//! Finding the driver: one probe, which never panics where there is none. And its end: no call reaches the
//! driver once its own shutdown may have begun ([`DriverExit`]).
//!
//! The driver shuts down in a handler of the C library's `exit`, which it registers when it starts. A call
//! after that is undefined (CUDA Programming Guide, "Initialization"). What was in flight stays as it is:
//! nothing fails, and memory is left to the end of the process.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUgraph, CUgraphExec, CUgraphNode,
    CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUpointer_attribute, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, CUuuid,
};
use estafette_sync::platform::exit;
use estafette_sync::platform::library::versioned;
use estafette_sync::sync::{Mutex, OnceLock};

use crate::driver_exit::{DriverCall, DriverExit, GRACE};
use crate::{DeviceError, DeviceErrorKind};

use super::device::CudaDevice;
use super::foreign::{PER_THREAD, context_of};
use super::memory::PointerInfo;

/// The reason why there is no CUDA in this process.
#[derive(Clone, Debug, thiserror::Error)]
#[error("CUDA is not available: {0}")]
pub struct CudaUnavailable(pub(super) String);

/// Loads the driver, or takes the one that is there, and starts it.
///
/// The oldest driver that does is 11.1's, by its symbols; what came later is looked for by name.
pub(super) fn load() -> Result<(Api, usize), CudaUnavailable> {
    let Some(library) = library() else {
        return Err(CudaUnavailable(format!(
            "there is no NVIDIA driver{} on this machine",
            versioned("cuda", 1).map(|name| format!(" ({name})")).unwrap_or_default()
        )));
    };
    // SAFETY: a library of that name is the driver.
    let api = unsafe { Api::find(library) }.map_err(|symbol| {
        CudaUnavailable(format!("the driver lacks the function {symbol}; it is too old"))
    })?;
    if !DRIVER.claim() {
        let why = "a process that this one was forked from has started the driver, which then works there only; start this one by spawn";
        return Err(CudaUnavailable(why.to_owned()));
    }
    // SAFETY: the arguments are those of the header.
    let code = unsafe { (api.init)(0) };
    if code != 0 {
        return Err(CudaUnavailable(format!("cuInit says {} ({code})", name_of(&api, code))));
    }
    // If the handler cannot be registered, the exit is as it was.
    exit::at_exit(at_exit);
    let mut count: c_int = 0;
    // SAFETY: as above.
    let code = unsafe { (api.device_count)(&raw mut count) };
    if code != 0 {
        return Err(CudaUnavailable(format!("cuDeviceGetCount says {} ({code})", name_of(&api, code))));
    }
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok((api, count)),
        _ => Err(CudaUnavailable("the driver knows no device; is CUDA_VISIBLE_DEVICES set?".to_owned())),
    }
}

/// `CUDA_ERROR_DEINITIALIZED`: the driver is shutting down.
pub(super) const DEINITIALIZED: i32 = 4;

estafette_sync::statics! {
    pub(super) static DRIVER: DriverExit = DriverExit::new("CUDA driver");
}

extern "C" fn at_exit() {
    DRIVER.close(GRACE);
}

/// A call of the driver. Fails while the process exits, with the driver's own code for that, and in a forked
/// child.
pub(super) fn call() -> Result<DriverCall, DeviceError> {
    DRIVER.begin_call().ok_or_else(|| DRIVER.gone().with_code(DEINITIALIZED.into()))
}

/// The driver's library, which stays loaded.
///
/// On Linux only the driver is called `libcuda.so.1`. A toolkit has a stub called `libcuda.so`, for linkers,
/// whose functions all fail; images for builds name its folder in `LD_LIBRARY_PATH`. cudarc tries that name
/// first.
fn library() -> Option<&'static libloading::Library> {
    if let Some(name) = versioned("cuda", 1)
        // SAFETY: the driver is made to be loaded at any time, by any thread.
        && let Ok(driver) = unsafe { libloading::Library::new(name) }
    {
        return Some(Box::leak(Box::new(driver)));
    }
    // SAFETY: as above; what is present is loaded without a panic.
    unsafe { sys::is_culib_present().then(|| sys::culib()) }
}

// The functions of the driver that we call, found by name in its library.
//
// The declarations are checked against cudarc's while compiling. They are called as they are here, not
// through cudarc's own functions, for two reasons: cudarc's panic where the driver lacks a symbol, and they
// return its `CUresult`, an enumeration that a newer driver may answer with a number of which cudarc knows
// nothing, which would be undefined behaviour.

/// The result of a function of the driver: 0 or the number of an error.
pub(super) type Code = c_int;

macro_rules! driver {
    (
        required { $($required:ident = $symbol:ident($($argument:ty),*);)* }
        optional { $($optional:ident = $extra:ident($($given:ty),*);)* }
        newer { $($newer:ident = $later:ident($($taken:ty),*);)* }
    ) => {
        /// Functions of the driver. What is optional came with some version of it; each is a feature that may
        /// be missing.
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
            /// Finds all functions. Fails with the name of a missing function that every driver must have.
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
        primary_state = cuDevicePrimaryCtxGetState(CUdevice, *mut c_uint, *mut c_int);
        context_current = cuCtxGetCurrent(*mut CUcontext);
        context_device = cuCtxGetDevice(*mut CUdevice);
        context_push = cuCtxPushCurrent_v2(CUcontext);
        context_pop = cuCtxPopCurrent_v2(*mut CUcontext);
        context_synchronize = cuCtxSynchronize();
        capture_mode = cuThreadExchangeStreamCaptureMode(*mut CUstreamCaptureMode);
        stream_create = cuStreamCreate(*mut CUstream, c_uint);
        stream_destroy = cuStreamDestroy_v2(CUstream);
        stream_query = cuStreamQuery(CUstream);
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
        // Since CUDA 12.0.
        stream_id = cuStreamGetId(CUstream, *mut c_ulonglong);
        capture_info = cuStreamGetCaptureInfo_v2(
            CUstream, *mut CUstreamCaptureStatus, *mut u64, *mut CUgraph, *mut *const CUgraphNode, *mut usize
        );
        pool_create = cuMemPoolCreate(*mut CUmemoryPool, *const CUmemPoolProps);
        pool_attribute = cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, *mut c_void);
        pool_access = cuMemPoolSetAccess(CUmemoryPool, *const CUmemAccessDesc, usize);
        pool_allocate = cuMemAllocFromPoolAsync(*mut CUdeviceptr, usize, CUmemoryPool, CUstream);
        pool_free = cuMemFreeAsync(CUdeviceptr, CUstream);
        pool_trim = cuMemPoolTrimTo(CUmemoryPool, usize);
        device_uuid = cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
        block_create = cuMemCreate(*mut u64, usize, *const CUmemAllocationProp, c_ulonglong);
        block_release = cuMemRelease(u64);
        block_export = cuMemExportToShareableHandle(
            *mut c_void, u64, CUmemAllocationHandleType, c_ulonglong
        );
        block_import = cuMemImportFromShareableHandle(*mut u64, *mut c_void, CUmemAllocationHandleType);
        block_granularity = cuMemGetAllocationGranularity(
            *mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags
        );
        range_reserve = cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        range_free = cuMemAddressFree(CUdeviceptr, usize);
        range_map = cuMemMap(CUdeviceptr, usize, usize, u64, c_ulonglong);
        range_unmap = cuMemUnmap(CUdeviceptr, usize);
        range_access = cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
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
        // Since CUDA 12.5. The last is a `CUgreenCtx`.
        stream_contexts = cuStreamGetCtx_v2(CUstream, *mut CUcontext, *mut *mut c_void);
    }
}

// The meanings of the driver's numbers, as far as they matter here.

pub(super) const NOT_READY: Code = 600;
pub(super) const INVALID_VALUE: Code = 1;
pub(super) const OUT_OF_MEMORY: Code = 2;
pub(super) const NOT_SUPPORTED: Code = 801;
pub(super) const CAPTURE_UNSUPPORTED: Code = 900;
pub(super) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
pub(super) const INVALID_CONTEXT: Code = 201;
pub(super) const CONTEXT_IS_DESTROYED: Code = 709;

/// True if an error breaks its context: for each of these numbers cuda.h says that the process has to end, or
/// that the context is destroyed.
fn is_sticky(code: Code) -> bool {
    matches!(
        code,
        // The primary context is gone; memory, link and contained errors.
        INVALID_CONTEXT | 214 | 220 | 226
        // Illegal address, timeout, the primary context destroyed (`cudaDeviceReset`), assert.
        | 700 | 702 | CONTEXT_IS_DESTROYED | 710
        // Stack, instruction, alignment, address space, program counter, launch, tensor memory.
        | 714
            ..=719 | 721
        // The server of MPS does not answer any more, or has ended this client. The other codes of MPS say
        // that a client cannot start now (805, 807, 808, 809): it may try again.
        | 806 | 810
        // An external device; unknown.
        | 911 | 999
    )
}

pub(super) fn error(api: &Api, code: Code, what: &str) -> DeviceError {
    DeviceError::new(kind(code), format!("{what}: {}", name_of(api, code))).with_code(code.into())
}

/// The result of a call that breaks no context.
pub(super) fn check(api: &Api, code: Code, what: &str) -> Result<(), DeviceError> {
    if code == 0 { Ok(()) } else { Err(error(api, code, what)) }
}

/// True if a call was refused since the stream is captured.
pub(super) fn is_of_capture(error: &DeviceError) -> bool {
    matches!(error.code(), Some(900..=907))
}

fn kind(code: Code) -> DeviceErrorKind {
    match code {
        _ if is_sticky(code) => DeviceErrorKind::Fault,
        OUT_OF_MEMORY => DeviceErrorKind::OutOfMemory,
        // An invalid value or handle; something that a capture does not allow.
        INVALID_VALUE | 400 | 900..=908 => DeviceErrorKind::Invalid,
        _ => DeviceErrorKind::Other,
    }
}

pub(super) fn name_of(api: &Api, code: Code) -> String {
    let mut name = ptr::null();
    // SAFETY: the name is a constant of the driver.
    let known = api.error_name.is_some_and(|ask| unsafe { ask(code, &raw mut name) } == 0);
    if !known || name.is_null() {
        return "an error without a name".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// A handle of the driver: an address that is handed back and never followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle<T>(T);

// SAFETY: handles may be used from every thread; the driver has locks of its own.
unsafe impl<T> Send for Handle<*mut T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<*mut T> {}

impl<T: Copy> Handle<T> {
    pub(super) fn new(raw: T) -> Self {
        Self(raw)
    }

    pub(super) fn get(self) -> T {
        self.0
    }
}

/// The CUDA driver of this process, with its devices.
///
/// A device is opened when it is first asked for: its primary context takes some hundred megabytes of its
/// memory and some time, which a process that uses one of eight devices should pay once.
pub struct CudaRuntime {
    api: &'static Api,
    driver_version: i32,
    /// Indexed by the driver's device numbers.
    places: Vec<DeviceSlot>,
}

/// The slot of a device, which it fills once it is open. A refusal is not kept, as another process may have
/// the memory for a while.
#[derive(Default)]
struct DeviceSlot {
    device: OnceLock<Arc<CudaDevice>>,
    /// Locked while a thread opens the device.
    open_lock: Mutex<()>,
}

impl CudaRuntime {
    /// The driver; loaded and started at the first call.
    ///
    /// # Errors
    /// The reason why there is none, the same at every call.
    pub fn get() -> Result<&'static CudaRuntime, CudaUnavailable> {
        estafette_sync::per_process! {
            static PROBED: OnceLock<Result<CudaRuntime, CudaUnavailable>> = OnceLock::new();
        }
        PROBED.get_or_init(Self::probe).as_ref().map_err(CudaUnavailable::clone)
    }

    fn probe() -> Result<Self, CudaUnavailable> {
        let (api, count) = load()?;
        let api: &'static Api = Box::leak(Box::new(api));
        let mut driver_version: c_int = 0;
        // SAFETY: writes one number.
        let _ = unsafe { (api.driver_version)(&raw mut driver_version) };
        let places = (0..count).map(|_| DeviceSlot::default()).collect();
        Ok(Self { api, driver_version, places })
    }

    /// The number of the driver's devices.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// The device with the driver's number `ordinal`, opened by the first call. `None` if the device does not
    /// exist or cannot be used now; a log line says why.
    pub fn device(&self, ordinal: i32) -> Option<&Arc<CudaDevice>> {
        let opened = self.open(ordinal);
        opened.inspect_err(|error| tracing::warn!(%error, ordinal, "a CUDA device cannot be used")).ok()?
    }

    /// As [`device`](Self::device); fails with what keeps the device from being used.
    pub(crate) fn open(&self, ordinal: i32) -> Result<Option<&Arc<CudaDevice>>, DeviceError> {
        let place = usize::try_from(ordinal).ok().and_then(|at| self.places.get(at));
        let Some(place) = place else { return Ok(None) };
        if place.device.get().is_none() {
            let _open = place.open_lock.lock();
            if place.device.get().is_none() {
                let device = CudaDevice::new(self.api, ordinal, self.count())?;
                place.device.get_or_init(|| Arc::new(device));
            }
        }
        Ok(place.device.get())
    }

    pub(super) fn opened(&self) -> impl Iterator<Item = &Arc<CudaDevice>> {
        self.places.iter().filter_map(|place| place.device.get())
    }

    /// All devices, in the driver's order, opened if they are not; those that cannot be used now are left
    /// out.
    pub fn devices(&self) -> Vec<Arc<CudaDevice>> {
        self.usable().cloned().collect()
    }

    /// As [`devices`](Self::devices), one after the other.
    pub(crate) fn usable(&self) -> impl Iterator<Item = &Arc<CudaDevice>> {
        (0..self.count() as i32).filter_map(|at| self.device(at))
    }

    pub(crate) fn identified(&self, uuid: [u8; 16]) -> Option<i32> {
        (0..self.count() as i32).find(|ordinal| uuid_of(self.api, *ordinal) == Some(uuid))
    }

    /// The memory that `pointer` points to, as [`CudaDevice::pointer_info`] reports it, asked of a device
    /// that the process uses. `None` where it uses none.
    pub fn pointer_info(&self, pointer: *const u8) -> Option<PointerInfo> {
        self.device(self.used()?)?.pointer_info(pointer)
    }

    /// The number of the device whose context is the calling thread's current one; `None` where there is
    /// none. Opens no device.
    pub fn current(&self) -> Option<i32> {
        let _call = call().ok()?;
        self.device_of_current()
    }

    /// The number of a device that the process uses already: one that is open here, the calling thread's
    /// [current](Self::current) one, or one that another library has opened. Opens no device.
    pub fn used(&self) -> Option<i32> {
        let _call = call().ok()?;
        let open = || self.opened().next().map(|device| device.ordinal());
        open()
            .or_else(|| self.device_of_current())
            .or_else(|| (0..self.count() as i32).find(|ordinal| self.is_used(*ordinal)))
    }

    /// The numbers of all devices that the process [uses](Self::used).
    pub(crate) fn all_used(&self) -> Vec<i32> {
        let Ok(_call) = call() else { return Vec::new() };
        (0..self.count() as i32).filter(|ordinal| self.is_used(*ordinal)).collect()
    }

    fn is_used(&self, ordinal: i32) -> bool {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: writes two numbers. A device's handle is its number.
        let code = unsafe { (self.api.primary_state)(ordinal, &raw mut flags, &raw mut active) };
        code == 0 && active != 0
    }

    /// The number of the device that `stream` is of. A default stream is of the device whose context is
    /// [current](Self::current). `None` where the driver does not say. Opens no device.
    ///
    /// # Safety
    /// `stream` is the number of a default stream or a live `CUstream`.
    pub unsafe fn device_of_stream(&self, stream: usize) -> Option<i32> {
        let _call = call().ok()?;
        if stream <= PER_THREAD {
            return self.device_of_current();
        }
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: by contract; the context is live, and what is pushed is popped.
        unsafe {
            let code = context_of(self.api, ptr::with_exposed_provenance_mut(stream), &mut context);
            if code != 0 || (self.api.context_push)(context) != 0 {
                return None;
            }
            let device = self.device_of_current();
            let _ = (self.api.context_pop)(&raw mut context);
            device
        }
    }

    fn device_of_current(&self) -> Option<i32> {
        let mut device: CUdevice = 0;
        // SAFETY: writes one number, which is the device's ordinal.
        (unsafe { (self.api.context_device)(&raw mut device) } == 0).then_some(device)
    }

    /// The newest version of CUDA that the driver supports, as `1000 * major + 10 * minor`.
    pub fn driver_version(&self) -> i32 {
        self.driver_version
    }
}

/// The UUID of a device, or of the part of one that this process has; `None` where the driver does not say.
pub(super) fn uuid_of(api: &Api, ordinal: i32) -> Option<[u8; 16]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: writes sixteen bytes. A device's handle is its number.
    let code = unsafe { (api.device_uuid?)(&raw mut uuid, ordinal) };
    (code == 0).then(|| uuid.bytes.map(|byte| byte as u8))
}

debug_as!(runtime: CudaRuntime, "CudaRuntime(version {}, {} devices)", runtime.driver_version, runtime.count());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_end_a_context_are_distinguished_from_those_that_do_not() {
        let fault = [201, 214, 220, 226, 700, 702, 709, 710, 714, 719, 721, 806, 810, 911, 999];
        let other = [DEINITIALIZED, 3, 100, 600, 800, NOT_SUPPORTED, 805, 807, 808, 809];
        let invalid = [INVALID_VALUE, 400, 900, 906, 908];
        assert_eq!(fault.map(kind), [DeviceErrorKind::Fault; 15]);
        assert_eq!(other.map(kind), [DeviceErrorKind::Other; 10]);
        assert_eq!(invalid.map(kind), [DeviceErrorKind::Invalid; 5]);
        assert_eq!(kind(OUT_OF_MEMORY), DeviceErrorKind::OutOfMemory);
    }
}
