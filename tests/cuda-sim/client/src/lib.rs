//! Loads the simulated CUDA driver in place of the real one, and scripts it.
//!
//! [`Simulator::load`] loads the shared library of `estafette-cuda-sim`, whose name is the driver's. Later
//! requests to the loader for the driver get that copy: so call it before any code looks for CUDA. A process
//! has one simulator for good.

mod library;

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

pub use estafette_cuda_sim::{Kind, codes};
pub use library::{SimulatorError, path};

use library::Library;

/// The simulated driver of this process.
#[derive(Debug)]
pub struct Simulator {
    library: Library,
}

static LOADED: OnceLock<Result<Simulator, SimulatorError>> = OnceLock::new();

impl Simulator {
    /// Loads it, unless that was done before.
    ///
    /// # Errors
    ///
    /// When the library is not built, or the process has a driver already.
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
        LOADED.get_or_init(|| Library::open(missing).map(|library| Self { library })).as_ref()
    }

    /// Sets the number of devices, by default 2; only before `cuInit`. Returns whether the call came early
    /// enough.
    pub fn devices(&self, count: u32) -> bool {
        self.call::<extern "C" fn(u32) -> c_int>(c"cusim_devices")(count) != 0
    }

    /// The version that the driver claims, such as 12040.
    pub fn driver_version(&self, version: i32) {
        self.call::<extern "C" fn(c_int)>(c"cusim_driver_version")(version);
    }

    /// What every device says of an attribute from now on, both by the driver's numbers.
    pub fn attribute(&self, attribute: i32, value: i32) {
        self.call::<extern "C" fn(c_int, c_int)>(c"cusim_attribute")(attribute, value);
    }

    /// Forgets what was scripted, counted and found.
    pub fn reset(&self) {
        self.call::<extern "C" fn()>(c"cusim_reset")();
    }

    /// From now on nothing happens unless time passes: by [`advance`](Self::advance), [`step`](Self::step),
    /// or a call of the driver that waits.
    pub fn virtual_clock(&self, seed: u64) {
        self.call::<extern "C" fn(u64)>(c"cusim_virtual_clock")(seed);
    }

    /// Lets time pass on the virtual clock. How many commands that ended.
    pub fn advance(&self, nanoseconds: u64) -> u64 {
        self.call::<extern "C" fn(u64) -> u64>(c"cusim_advance")(nanoseconds)
    }

    /// Lets time pass until the next command ends. Whether there was one.
    pub fn step(&self) -> bool {
        self.call::<extern "C" fn() -> c_int>(c"cusim_step")() != 0
    }

    /// Nanoseconds on the virtual clock.
    pub fn now(&self) -> u64 {
        self.call::<extern "C" fn() -> u64>(c"cusim_now")()
    }

    /// How long commands of a kind take on a stream, in nanoseconds; `None` is any kind, any stream.
    pub fn latency(&self, stream: Option<usize>, kind: Option<Kind>, nanoseconds: u64) {
        let (stream, kind) = (stream.unwrap_or(0) as u64, kind.map_or(0, |kind| kind as u32));
        let set = self.call::<extern "C" fn(u64, u32, u64) -> c_int>(c"cusim_latency");
        assert!(set(stream, kind, nanoseconds) != 0, "the simulator knows no stream {stream:#x}");
    }

    /// Every command takes up to so many nanoseconds longer, by the seed.
    pub fn jitter(&self, nanoseconds: u64) {
        self.call::<extern "C" fn(u64)>(c"cusim_jitter")(nanoseconds);
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

    /// How many commands of a stream are not over.
    pub fn pending(&self, stream: usize) -> u64 {
        self.call::<extern "C" fn(u64) -> u64>(c"cusim_pending")(stream as u64)
    }

    /// The `nth` allocation from now on fails; 0 lets them all succeed.
    pub fn fail_allocation(&self, nth: u64) {
        self.call::<extern "C" fn(u64)>(c"cusim_fail_allocation")(nth);
    }

    /// The next call of a function, by its symbol, does nothing and fails with `code`.
    pub fn fail_call(&self, name: &str, code: i32) {
        let name = CString::new(name).expect("a symbol has no zero byte");
        self.call::<extern "C" fn(*const c_char, c_int)>(c"cusim_fail_call")(name.as_ptr(), code);
    }

    /// How many bytes of memory each device has.
    pub fn capacity(&self, bytes: u64) {
        self.call::<extern "C" fn(u64)>(c"cusim_capacity")(bytes);
    }

    /// Bytes of a device that are in use.
    pub fn used(&self, device: u32) -> u64 {
        self.call::<extern "C" fn(u32) -> u64>(c"cusim_used")(device)
    }

    /// How many executable graphs there are.
    pub fn graphs(&self) -> u64 {
        self.call::<extern "C" fn() -> u64>(c"cusim_graphs")()
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

    /// Makes failed contexts work again, which no real one does.
    pub fn heal(&self) {
        self.call::<extern "C" fn()>(c"cusim_heal")();
    }

    /// How many hardware connections the streams of a context share; 0 is one each.
    pub fn connections(&self, count: u32) {
        self.call::<extern "C" fn(u32)>(c"cusim_connections")(count);
    }

    /// How many commands a stream takes before a call that enqueues one waits; 0 is any number.
    pub fn depth(&self, commands: u32) {
        self.call::<extern "C" fn(u32)>(c"cusim_depth")(commands);
    }

    /// How many hardware connections the streams of a context share, and how many commands a stream takes; `None`
    /// where there is no limit. A script or the environment sets them, for a process of tests that have to know.
    pub fn limits(&self) -> (Option<usize>, Option<usize>) {
        let (mut connections, mut depth) = (0, 0);
        let ask = self.call::<extern "C" fn(*mut u64, *mut u64)>(c"cusim_limits");
        ask(&raw mut connections, &raw mut depth);
        let limit = |number: u64| (number > 0).then_some(number as usize);
        (limit(connections), limit(depth))
    }

    /// How long each call lasts that needs a context, in nanoseconds. It has the context's lock meanwhile.
    pub fn call_time(&self, nanoseconds: u64) {
        self.call::<extern "C" fn(u64)>(c"cusim_call_time")(nanoseconds);
    }

    /// Whether what pins memory, makes a stream or loads code waits for all work of the context.
    pub fn setup_waits(&self, waits: bool) {
        self.call::<extern "C" fn(c_int)>(c"cusim_setup_waits")(c_int::from(waits));
    }

    /// What `cuInit` fails with from now on, as under MPS; 0 is nothing.
    pub fn fail_start(&self, code: i32) {
        self.call::<extern "C" fn(c_int)>(c"cusim_fail_start")(code);
    }

    /// What says, as anything but 0, that the calling thread must not wait for the driver: it has the lock of an interpreter, or is needed.
    pub fn interpreter(&self, has_lock: extern "C" fn() -> c_int) {
        self.call::<extern "C" fn(extern "C" fn() -> c_int)>(c"cusim_interpreter")(has_lock);
    }

    /// Says that the host now uses the memory there. A violation of managed memory on a device without
    /// concurrent access (attribute 89) that has anything to do.
    pub fn host_uses(&self, address: u64) {
        self.call::<extern "C" fn(u64)>(c"cusim_host_uses")(address);
    }

    /// Whether devices reach each other's memory.
    pub fn peer_access(&self, possible: bool) {
        self.call::<extern "C" fn(c_int)>(c"cusim_peer_access")(c_int::from(possible));
    }

    /// Whether memory can be mapped for reading alone.
    pub fn read_only_mappings(&self, possible: bool) {
        self.call::<extern "C" fn(c_int)>(c"cusim_read_only_mappings")(c_int::from(possible));
    }

    /// Bytes that the pools of a device keep for later.
    pub fn kept(&self, device: u32) -> u64 {
        self.call::<extern "C" fn(u32) -> u64>(c"cusim_kept")(device)
    }

    /// How often a function of the driver was called; of `copies that may block`, how many copies on a stream
    /// could have held up their caller, since an end of them was not pinned.
    pub fn calls(&self, function: &str) -> u64 {
        let function = CString::new(function).expect("no function's name has a zero byte");
        self.call::<extern "C" fn(*const c_char) -> u64>(c"cusim_calls")(function.as_ptr())
    }

    /// Counts calls from 0 again.
    pub fn forget_calls(&self) {
        self.call::<extern "C" fn()>(c"cusim_forget_calls")();
    }

    /// What was found wrong with how the driver was used: races, uses after release, calls where none is
    /// allowed.
    pub fn violations(&self) -> Vec<String> {
        let ask = self.call::<extern "C" fn(*mut u8, usize) -> usize>(c"cusim_violations");
        let mut text = vec![0; ask(std::ptr::null_mut(), 0)];
        let length = ask(text.as_mut_ptr(), text.len());
        text.truncate(length);
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// Forgets what was found wrong.
    pub fn forget_violations(&self) {
        self.call::<extern "C" fn()>(c"cusim_forget_violations")();
    }

    /// A control of the library as a function of the type `F`.
    fn call<F: Copy>(&self, name: &std::ffi::CStr) -> F {
        // SAFETY: the types above are those of `control.rs`, which the client is built with.
        unsafe { self.library.function(name) }
    }
}
