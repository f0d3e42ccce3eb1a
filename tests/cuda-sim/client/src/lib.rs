//! Loads the simulated CUDA driver in place of the real one, and scripts it.
//!
//! [`Simulator::load`] loads the shared library of `estafette-cuda-sim`, whose name is the driver's. Later
//! requests to the loader for the driver get that copy: so call it before any code looks for CUDA. A process
//! has one simulator for good.

mod library;

use std::ffi::{CString, c_char, c_int};
use std::ops::Deref;
use std::sync::OnceLock;

pub use estafette_cuda_sim::{Controls, Kind, codes};
pub use library::{SimulatorError, path};

use library::Library;

/// The simulated driver of this process.
#[derive(Debug)]
pub struct Simulator {
    library: Library,
    controls: Controls,
}

impl Deref for Simulator {
    type Target = Controls;

    fn deref(&self) -> &Controls {
        &self.controls
    }
}

static LOADED: OnceLock<Result<Simulator, SimulatorError>> = OnceLock::new();

impl Simulator {
    /// Loads it, unless that was done before.
    ///
    /// # Errors
    ///
    /// Fails if the library is not built, or the process has a driver already.
    pub fn load() -> Result<&'static Self, &'static SimulatorError> {
        Self::load_without(&[])
    }

    /// The same, of a driver that lacks these functions: the loader does not find them. Only the first call
    /// of a process chooses.
    ///
    /// # Errors
    ///
    /// As [`Simulator::load`], and when the driver has no function of that name.
    pub fn load_without(missing: &[&str]) -> Result<&'static Self, &'static SimulatorError> {
        let load = || {
            let library = Library::open(missing)?;
            // SAFETY: the library is built with the client, and stays.
            let controls = unsafe { Controls::of(|name| library.find(name)) };
            Ok(Self { library, controls })
        };
        LOADED.get_or_init(load).as_ref()
    }

    /// Sets the time of commands of a kind on a stream, in nanoseconds; `None` is any kind, any stream.
    pub fn latency(&self, stream: Option<usize>, kind: Option<Kind>, nanoseconds: u64) {
        let (stream, kind) = (stream.unwrap_or(0) as u64, kind.map_or(0, |kind| kind as u32));
        let set = self.call::<extern "C" fn(u64, u32, u64) -> c_int>(c"cusim_latency");
        assert!(set(stream, kind, nanoseconds) != 0, "the simulator knows no stream {stream:#x}");
    }

    /// Stops a stream before its next command.
    pub fn block(&self, stream: usize) {
        self.set_blocked(stream, true);
    }

    /// Lets a stream go on.
    pub fn unblock(&self, stream: usize) {
        self.set_blocked(stream, false);
    }

    fn set_blocked(&self, stream: usize, blocked: bool) {
        let set = self.call::<extern "C" fn(u64, c_int) -> c_int>(c"cusim_block");
        assert!(set(stream as u64, c_int::from(blocked)) != 0, "the simulator knows no stream {stream:#x}");
    }

    /// The next call of a function, by its symbol, does nothing and fails with `code`.
    pub fn fail_call(&self, name: &str, code: i32) {
        let name = CString::new(name).expect("a symbol has no zero byte");
        self.call::<extern "C" fn(*const c_char, c_int)>(c"cusim_fail_call")(name.as_ptr(), code);
    }

    /// The `nth` command that a stream starts from now on fails with a code of the driver, and its context
    /// with it; 0 is at once.
    pub fn fault(&self, stream: usize, nth: u64, code: i32) {
        let set = self.call::<extern "C" fn(u64, u64, c_int) -> c_int>(c"cusim_fault");
        assert!(set(stream as u64, nth, code) != 0, "the simulator knows no stream {stream:#x}");
    }

    /// Fails a device's primary context at once.
    pub fn fault_device(&self, device: u32, code: i32) {
        let set = self.call::<extern "C" fn(u32, c_int) -> c_int>(c"cusim_fault_device");
        assert!(set(device, code) != 0, "the simulator has no device {device}, or `cuInit` was not called");
    }

    /// Number of hardware connections that the streams of a context share, and of commands that a stream
    /// takes; `None` where there is no limit. A script or the environment sets them, for a process of tests
    /// that have to know.
    pub fn limits(&self) -> (Option<usize>, Option<usize>) {
        let (mut connections, mut depth) = (0, 0);
        let ask = self.call::<extern "C" fn(*mut u64, *mut u64)>(c"cusim_limits");
        ask(&raw mut connections, &raw mut depth);
        let limit = |number: u64| (number > 0).then_some(number as usize);
        (limit(connections), limit(depth))
    }

    /// Sets the function that returns anything but 0 if the calling thread must not wait for the driver: it
    /// has the lock of an interpreter, or is needed.
    pub fn interpreter(&self, has_lock: extern "C" fn() -> c_int) {
        self.call::<extern "C" fn(extern "C" fn() -> c_int)>(c"cusim_interpreter")(has_lock);
    }

    /// Number of calls of a function of the driver; of `copies that may block`, the number of copies on a
    /// stream that could have held up their caller, since an end of them was not pinned.
    pub fn calls(&self, function: &str) -> u64 {
        let function = CString::new(function).expect("no function's name has a zero byte");
        self.call::<extern "C" fn(*const c_char) -> u64>(c"cusim_calls")(function.as_ptr())
    }

    /// Violations in the use of the driver: races, uses after release, calls where none is
    /// allowed.
    pub fn violations(&self) -> Vec<String> {
        let ask = self.call::<extern "C" fn(*mut u8, usize) -> usize>(c"cusim_violations");
        let mut text = vec![0; ask(std::ptr::null_mut(), 0)];
        let length = ask(text.as_mut_ptr(), text.len());
        text.truncate(length);
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// A control of the library as a function of the type `F`.
    fn call<F: Copy>(&self, name: &std::ffi::CStr) -> F {
        // SAFETY: the types above are those of `control.rs`, which the client is built with.
        unsafe { self.library.function(name) }
    }
}
