//! Bodies as ranges of NVTX, for profilers that show these: Nsight Systems, Nsight Compute, and what is made
//! with CUPTI.
//!
//! NVTX 3 has no library of its own, but a protocol (`nvtxDetail/nvtxInit.h` and `nvtxTypes.h` of
//! <https://github.com/NVIDIA/NVTX>):
//!
//! 1. The profiler names its library in `NVTX_INJECTION64_PATH`. A program that has ranges loads the library,
//!    and calls `InitializeInjectionNvtx2` there with a function that gives tables by number.
//! 2. The profiler asks the first table for each module of NVTX's functions, and gets the places of their
//!    pointers.
//! 3. The profiler writes its own functions there. Places that it leaves alone stay NULL.

use std::ffi::{CString, OsStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};
// Outside of every protocol, as the switch: plain std.
use std::sync::{Once, OnceLock};
use std::{iter, ptr};

use estafette_sync::platform::library;

use super::{OPEN, RANGES};
use crate::core::operation::OpGranted;

/// Places of function pointers of each module, by its number; 0 is no module, and place 0 of each is of no
/// function.
const PLACES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];

type Module = [AtomicPtr<c_void>; 16];

static FUNCTIONS: [Module; 7] = [const { [const { AtomicPtr::new(ptr::null_mut()) }; 16] }; 7];

/// The module of functions of domains, and three of its places.
const CORE2: usize = 5;
const DOMAIN_RANGE_PUSH_EX: usize = 4;
const DOMAIN_RANGE_POP: usize = 5;
const DOMAIN_CREATE_A: usize = 12;

type Create = unsafe extern "C" fn(name: *const c_char) -> *mut c_void;
type Push = unsafe extern "C" fn(domain: *mut c_void, attributes: *const Attributes) -> c_int;
type Pop = unsafe extern "C" fn(domain: *mut c_void) -> c_int;
type Initialize = unsafe extern "C" fn(table: extern "C" fn(c_uint) -> *const c_void) -> c_int;

/// `nvtxEventAttributes_v2`.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    colour_type: i32,
    colour: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

const VERSION: u16 = 3;
const PAYLOAD_TYPE_UNSIGNED_INT64: i32 = 1;
const MESSAGE_TYPE_ASCII: i32 = 1;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    module: extern "C" fn(c_uint, *mut *mut *mut *mut c_void, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    profiler: extern "C" fn(u32),
}

static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), module };
static VERSION_INFO: VersionInfo =
    VersionInfo { size: size_of::<VersionInfo>(), version: VERSION as u32, reserved: 0, profiler };

extern "C" fn table(number: c_uint) -> *const c_void {
    match number {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => ptr::null(),
    }
}

extern "C" fn profiler(_version: u32) {}

extern "C" fn module(number: c_uint, table: *mut *mut *mut *mut c_void, len: *mut c_uint) -> c_int {
    let number = number as usize;
    let Some(&places) = PLACES.get(number).filter(|places| **places > 0) else { return 0 };
    if !len.is_null() {
        // SAFETY: the profiler's variable.
        unsafe { *len = places as c_uint };
    }
    if !table.is_null() {
        let functions = FUNCTIONS[number][1..places].iter().map(AtomicPtr::as_ptr);
        let null = || iter::once(ptr::null_mut());
        // The profiler may keep it. It asks for six modules, once.
        let kept = Vec::leak(null().chain(functions).chain(null()).collect());
        // SAFETY: the profiler's variable.
        unsafe { *table = kept.as_mut_ptr() };
    }
    1
}

struct Domain {
    handle: AtomicPtr<c_void>,
    push: Push,
    pop: Pop,
}

/// The domain of the engines of this process, if a profiler wants ranges.
static DOMAIN: OnceLock<Domain> = OnceLock::new();

/// Has bodies be ranges if a profiler asks for them and this is the first call.
pub(super) fn begin_from_environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(path) = std::env::var_os("NVTX_INJECTION64_PATH").filter(|path| !path.is_empty()) else {
            return;
        };
        match load(&path) {
            Ok(domain) => {
                DOMAIN.get_or_init(|| domain);
                OPEN.fetch_or(RANGES, Ordering::AcqRel);
            }
            Err(error) => tracing::warn!(library = %path.display(), error, "no NVTX ranges"),
        }
    });
}

fn load(path: &OsStr) -> Result<Domain, String> {
    // SAFETY: who starts the program names the library for this.
    let library = unsafe { library::open(Path::new(path)) }.map_err(reason)?;
    // SAFETY: the type is NVTX's.
    let initialize = unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") };
    let initialize = *initialize.map_err(reason)?;
    // The profiler works until the process ends.
    std::mem::forget(library);
    // SAFETY: as NVTX calls it.
    if unsafe { initialize(table) } == 0 {
        return Err("the profiler refuses".into());
    }
    let function = |place: usize| {
        let function = FUNCTIONS[CORE2][place].load(Ordering::Acquire);
        (!function.is_null()).then_some(function).ok_or("the profiler takes no ranges of domains")
    };
    let (create, push, pop) =
        (function(DOMAIN_CREATE_A)?, function(DOMAIN_RANGE_PUSH_EX)?, function(DOMAIN_RANGE_POP)?);
    // SAFETY: the profiler has written functions of NVTX's types to these places.
    unsafe {
        let create = std::mem::transmute::<*mut c_void, Create>(create);
        Ok(Domain {
            handle: create(c"estafette".as_ptr()).into(),
            push: std::mem::transmute::<*mut c_void, Push>(push),
            pop: std::mem::transmute::<*mut c_void, Pop>(pop),
        })
    }
}

/// The loader's reason.
fn reason(error: libloading::Error) -> String {
    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The range of a body, on the thread that has begun it. It ends when dropped.
pub(crate) struct Range(&'static Domain);

pub(super) fn body(granted: &OpGranted) -> Option<Range> {
    let domain = DOMAIN.get()?;
    let name = granted.payload().name.as_str().split('\0').next();
    let name = CString::new(name.unwrap_or_default()).unwrap_or_default();
    let attributes = Attributes {
        version: VERSION,
        size: size_of::<Attributes>() as u16,
        category: 0,
        colour_type: 0,
        colour: 0,
        payload_type: PAYLOAD_TYPE_UNSIGNED_INT64,
        reserved: 0,
        payload: granted.id().get(),
        message_type: MESSAGE_TYPE_ASCII,
        message: name.as_ptr(),
    };
    // SAFETY: the profiler's function, its domain, and attributes that live until it returns: it copies the
    // text.
    unsafe { (domain.push)(domain.handle.load(Ordering::Relaxed), &raw const attributes) };
    Some(Range(domain))
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: as in `body`, on the same thread.
        unsafe { (self.0.pop)(self.0.handle.load(Ordering::Relaxed)) };
    }
}
