//! Common part of the simulator's own tests: its driver through cudarc, one test at a time.

#![allow(dead_code, clippy::unwrap_used, reason = "tests panic, and none uses all of it")]

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUcontext, CUdeviceptr, CUevent, CUfunction, CUresult, CUstream};
use estafette_cuda_sim_client::Simulator;

/// The simulator with the first device's primary context current, for one test at a time.
pub struct Bench {
    pub simulator: &'static Simulator,
    pub context: CUcontext,
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());

pub fn bench() -> Bench {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let simulator = Simulator::load().unwrap();
    // SAFETY: asks whether the library can be loaded.
    assert!(unsafe { sys::is_culib_present() });
    simulator.reset();
    let mut context = std::ptr::null_mut();
    // SAFETY: all arguments are as the driver wants them.
    unsafe {
        ok(sys::cuInit(0));
        simulator.heal();
        ok(sys::cuDevicePrimaryCtxRetain(&mut context, 0));
        ok(sys::cuCtxSetCurrent(context));
    }
    Bench { simulator, context, _turn: turn }
}

#[track_caller]
pub fn ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

#[track_caller]
pub fn fails(code: CUresult, with: CUresult) {
    assert_eq!(code, with);
}

pub fn stream(flags: u32) -> CUstream {
    let mut stream = std::ptr::null_mut();
    // SAFETY: there is a place for the result.
    ok(unsafe { sys::cuStreamCreate(&mut stream, flags) });
    stream
}

pub fn non_blocking() -> CUstream {
    stream(1)
}

pub fn event() -> CUevent {
    let mut event = std::ptr::null_mut();
    // SAFETY: there is a place for the result.
    ok(unsafe { sys::cuEventCreate(&mut event, 2) });
    event
}

pub fn record(stream: CUstream) -> CUevent {
    let event = event();
    // SAFETY: both are alive.
    ok(unsafe { sys::cuEventRecord(event, stream) });
    event
}

pub fn wait(stream: CUstream, event: CUevent) {
    // SAFETY: both are alive.
    ok(unsafe { sys::cuStreamWaitEvent(stream, event, 0) });
}

pub fn query(event: CUevent) -> CUresult {
    // SAFETY: it is alive.
    unsafe { sys::cuEventQuery(event) }
}

pub fn synchronize(stream: CUstream) {
    // SAFETY: it is alive.
    ok(unsafe { sys::cuStreamSynchronize(stream) });
}

pub fn device_memory(bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    // SAFETY: there is a place for the result.
    ok(unsafe { sys::cuMemAlloc_v2(&mut address, bytes) });
    address
}

pub fn pinned(bytes: usize) -> *mut u8 {
    let mut address = std::ptr::null_mut();
    // SAFETY: there is a place for the result.
    ok(unsafe { sys::cuMemHostAlloc(&mut address, bytes, 0) });
    address.cast()
}

pub fn fill(stream: CUstream, to: CUdeviceptr, value: u8, bytes: usize) {
    // SAFETY: the memory is the test's.
    ok(unsafe { sys::cuMemsetD8Async(to, value, bytes, stream) });
}

pub fn copy(stream: CUstream, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
    // SAFETY: the memory is the test's.
    ok(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream) });
}

/// Reads device memory, after everything on the legacy stream.
pub fn fetch(from: CUdeviceptr, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    // SAFETY: there is room for the result.
    ok(unsafe { sys::cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), from, bytes) });
    out
}

/// PTX text that only names the kernels; the simulator has their code.
pub const KERNELS: &std::ffi::CStr = c".version 6.0
.target sm_70
.address_size 64
.visible .entry delay_ns() { ret; }
.visible .entry fill_u8() { ret; }
.visible .entry add_f32() { ret; }
.visible .entry scale_f32() { ret; }
.visible .entry unheard_of() { ret; }
";

pub fn kernel(name: &std::ffi::CStr) -> CUfunction {
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: there are places for the results.
    unsafe {
        ok(sys::cuModuleLoadData(&mut module, KERNELS.as_ptr().cast()));
        ok(sys::cuModuleGetFunction(&mut function, module, name.as_ptr()));
    }
    function
}

pub fn launch(function: CUfunction, stream: CUstream, arguments: &mut [*mut c_void]) {
    // SAFETY: the caller passes the kernel's arguments.
    ok(unsafe {
        let none = std::ptr::null_mut();
        sys::cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments.as_mut_ptr(), none)
    });
}

pub fn delay(stream: CUstream, nanoseconds: u64) {
    let mut nanoseconds = nanoseconds;
    launch(kernel(c"delay_ns"), stream, &mut [(&raw mut nanoseconds).cast()]);
}

/// A stream's handle as the client wants it.
pub fn handle(stream: CUstream) -> usize {
    stream as usize
}
