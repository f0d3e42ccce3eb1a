//! The controls: what a test may script and ask. None of them is the driver's, all begin with `cusim_`.
//!
//! Streams are named by their handles; 0 stands for all streams where that makes sense.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::clockwork;
use crate::kind::Kind;
use crate::state::{DriverState, Session};

/// The stream with that handle, destroyed or not.
fn place(state: &DriverState, stream: u64) -> Option<usize> {
    state.streams.iter().position(|other| other.handle == stream)
}

/// Exports controls, and declares a table of them for the client, which finds them in the library that it has
/// loaded.
macro_rules! controls {
    ($($(#[doc = $doc:literal])+ fn $name:ident = $symbol:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? $body:block)+) => {
        $($(#[doc = $doc])+
        #[unsafe(no_mangle)]
        pub extern "C" fn $symbol($($argument: $type),*) $(-> $result)? $body)+

        /// The controls of a simulator.
        #[derive(Debug)]
        pub struct Controls {
            $($name: extern "C" fn($($type),*) $(-> $result)?,)+
        }

        impl Controls {
            /// The controls of a library, whose functions `find` finds by their names.
            ///
            /// # Safety
            ///
            /// The library was built from this crate, and stays loaded.
            pub unsafe fn of(find: impl Fn(&CStr) -> *mut c_void) -> Self {
                let find = |name: &str| find(CStr::from_bytes_with_nul(name.as_bytes()).expect("one zero byte ends it"));
                // SAFETY: the functions of these names have the types above, by contract.
                unsafe { Self { $($name: std::mem::transmute::<*mut c_void, extern "C" fn($($type),*) $(-> $result)?>(
                    find(concat!(stringify!($symbol), "\0")),
                ),)+ } }
            }

            $($(#[doc = $doc])+
            pub fn $name(&self, $($argument: $type),*) $(-> $result)? {
                (self.$name)($($argument),*)
            })+
        }
    };
}

controls! {
    /// Sets the number of devices. To be called before `cuInit`; false when it is too late.
    fn devices = cusim_devices(count: u32) -> bool {
        let mut session = Session::open();
        let early = !session.initialized;
        if early {
            session.script.devices = count as usize;
        }
        early
    }

    /// The version that the driver claims to have, as `cuDriverGetVersion` gives it.
    fn driver_version = cusim_driver_version(version: c_int) {
        Session::open().script.driver_version = version;
    }

    /// Sets an attribute of every device from now on.
    fn attribute = cusim_attribute(attribute: c_int, value: c_int) {
        Session::open().script.attributes.insert(attribute, value);
    }

    /// Forgets what was scripted, counted and found; streams, memory, and contexts that failed, stay as they
    /// are.
    fn reset = cusim_reset() {
        let mut session = Session::open();
        let old = std::mem::take(&mut session.script);
        session.script.devices = old.devices;
        session.script.now = old.now;
        session.streams.iter_mut().for_each(|stream| stream.blocked = false);
        session.calls.clear();
        session.violations.clear();
        session.news = true;
        session.changed();
    }

    /// From now on nothing happens unless the virtual clock is moved: by `cusim_advance` or `cusim_step`, or
    /// by a call of the driver that waits. `seed` chooses among what may happen at the same time.
    fn virtual_clock = cusim_virtual_clock(seed: u64) {
        let mut session = Session::open();
        session.script.virtual_clock = true;
        session.script.seed(seed);
        session.news = true;
        session.changed();
    }

    /// Moves the virtual clock, and does what happens meanwhile. How many commands that was.
    fn advance = cusim_advance(nanoseconds: u64) -> u64 {
        let mut session = Session::open();
        let limit = session.script.now + nanoseconds;
        let mut done = 0;
        while clockwork::step(&mut session, Some(limit)) {
            done += 1;
        }
        done
    }

    /// Moves the virtual clock to the end of the next command; false when nothing can happen.
    fn step = cusim_step() -> bool {
        clockwork::step(&mut Session::open(), None)
    }

    /// Nanoseconds on the virtual clock.
    fn now = cusim_now() -> u64 {
        Session::open().script.now
    }

    /// Every command takes up to so many nanoseconds longer, by the seed.
    fn jitter = cusim_jitter(nanoseconds: u64) {
        Session::open().script.jitter = nanoseconds;
    }

    /// Number of commands of a stream that are not over.
    fn pending = cusim_pending(stream: usize) -> u64 {
        let session = Session::open();
        place(&session, stream as u64).map_or(0, |stream| session.streams[stream].queue.len() as u64)
    }

    /// The `nth` allocation from now on fails; 0 lets them all succeed.
    fn fail_allocation = cusim_fail_allocation(nth: u64) {
        Session::open().script.failing_allocation = (nth > 0).then_some(nth);
    }

    /// Sets the memory of each device.
    fn capacity = cusim_capacity(bytes: u64) {
        Session::open().script.capacity = bytes;
    }

    /// Bytes of a device that are in use.
    fn used = cusim_used(device: u32) -> u64 {
        Session::open().memory.used.get(&(device as usize)).copied().unwrap_or(0)
    }

    /// Number of executable graphs.
    fn graphs = cusim_graphs() -> u64 {
        Session::open().executables.len() as u64
    }

    /// Makes failed contexts work again, which no real one does: for several tests in one process.
    fn heal = cusim_heal() {
        let mut session = Session::open();
        session.contexts.iter_mut().for_each(|context| context.fault = None);
    }

    /// Counts calls from 0 again.
    fn forget_calls = cusim_forget_calls() {
        Session::open().calls.clear();
    }

    /// Forgets what was found wrong.
    fn forget_violations = cusim_forget_violations() {
        Session::open().violations.clear();
    }

    /// Sets the number of hardware connections that the streams of a context share; 0 for one each.
    fn connections = cusim_connections(count: u32) {
        Session::open().script.connections = (count > 0).then_some(count as usize);
    }

    /// Sets the number of commands that a stream takes before a call that enqueues one waits; 0 for any
    /// number.
    fn depth = cusim_depth(commands: u32) {
        Session::open().script.depth = (commands > 0).then_some(commands as usize);
    }

    /// Sets the time of each call that needs a context, in nanoseconds. The call has the context's lock
    /// meanwhile.
    fn call_time = cusim_call_time(nanoseconds: u64) {
        Session::open().script.call_time = nanoseconds;
    }

    /// Lets calls that pin memory, make a stream or load code wait for all work of the context, or not.
    fn setup_waits = cusim_setup_waits(waits: bool) {
        Session::open().script.setup_waits = waits;
    }

    /// Sets the error of `cuInit` from now on, as under MPS; 0 for none.
    fn fail_start = cusim_fail_start(code: c_int) {
        Session::open().script.start = (code != 0).then_some(code);
    }

    /// Says that the host now uses the memory there. A violation of managed memory on a device without
    /// concurrent access (attribute 89) that has anything to do.
    fn host_uses = cusim_host_uses(address: u64) {
        Session::open().host_uses(address);
    }

    /// Lets devices reach each other's memory, or not.
    fn peer_access = cusim_peer_access(possible: bool) {
        Session::open().script.peer_access = possible;
    }

    /// Lets memory be mapped for reading alone, or not.
    fn read_only_mappings = cusim_read_only_mappings(possible: bool) {
        Session::open().script.no_read_only = !possible;
    }

    /// Bytes that the pools of a device keep for later.
    fn kept = cusim_kept(device: u32) -> u64 {
        let session = Session::open();
        let pools = session.pools.values().filter(|pool| pool.device == device as usize);
        pools.map(|pool| pool.reserved - pool.used).sum()
    }
}

/// Sets the time of commands of that kind (0: of any) on that stream (0: on any). 0 when there is no such
/// thing, else 1.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_latency(stream: u64, kind: u32, nanoseconds: u64) -> c_int {
    let mut session = Session::open();
    let key = (
        if stream == 0 { Ok(None) } else { place(&session, stream).map(Some).ok_or(()) },
        if kind == 0 { Ok(None) } else { Kind::numbered(kind).map(Some).ok_or(()) },
    );
    let (Ok(stream), Ok(kind)) = key else { return 0 };
    session.script.latencies.insert((stream, kind), nanoseconds);
    1
}

/// Stops a stream before its next command, or lets it go on. 0 when there is no such stream, else 1.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_block(stream: u64, blocked: c_int) -> c_int {
    let mut session = Session::open();
    let Some(stream) = place(&session, stream) else { return 0 };
    session.streams[stream].blocked = blocked != 0;
    session.news = true;
    session.changed();
    1
}

/// The next call of a function of the driver does nothing and fails with a code.
///
/// # Safety
///
/// `name` is text with a zero byte at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cusim_fail_call(name: *const c_char, code: c_int) {
    // SAFETY: promised by the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    Session::open().script.failing_calls.insert(name, code);
}

/// The `nth` command that a stream starts from now on fails with a code, and its context with it. With `nth`
/// 0 the stream's context fails at once. 0 when there is no such stream, else 1.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_fault(stream: u64, nth: u64, code: c_int) -> c_int {
    let mut session = Session::open();
    let Some(stream) = place(&session, stream) else { return 0 };
    if nth == 0 {
        let context = session.streams[stream].context;
        session.fault(context, code);
    } else {
        session.script.faults.insert(stream, (nth, code));
    }
    session.news = true;
    session.changed();
    1
}

/// Fails the primary context of a device at once. 0 when there is no such device, else 1.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_fault_device(device: u32, code: c_int) -> c_int {
    let mut session = Session::open();
    if device as usize >= session.contexts.len() {
        return 0;
    }
    session.fault(device as usize, code);
    session.news = true;
    session.changed();
    1
}

/// Number of calls of a function of the driver.
///
/// # Safety
///
/// `name` is text with a zero byte at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cusim_calls(name: *const c_char) -> u64 {
    // SAFETY: promised by the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("");
    Session::open().calls.get(name).copied().unwrap_or(0)
}

/// Writes what was found wrong, a line each, cut to `room` bytes. How many bytes there are.
///
/// # Safety
///
/// `text` is null or has room for so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cusim_violations(text: *mut u8, room: usize) -> usize {
    let lines = Session::open().violations.join("\n");
    if !text.is_null() {
        // SAFETY: promised by the caller.
        unsafe { std::ptr::copy_nonoverlapping(lines.as_ptr(), text, lines.len().min(room)) };
    }
    lines.len()
}

/// Writes how many hardware connections the streams of a context share, and how many commands a stream takes;
/// 0 where there is no limit.
///
/// # Safety
///
/// Both may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cusim_limits(connections: *mut u64, depth: *mut u64) {
    let session = Session::open();
    let number = |limit: Option<usize>| limit.unwrap_or(0) as u64;
    // SAFETY: promised by the caller.
    unsafe {
        connections.write(number(session.script.connections));
        depth.write(number(session.script.depth));
    }
}

/// Sets the function that says that the calling thread has the lock of an interpreter: no call that may wait
/// is to be made with it.
///
/// # Safety
///
/// A function that any thread may call at any time, such as `PyGILState_Check`, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cusim_interpreter(has_lock: Option<unsafe extern "C" fn() -> c_int>) {
    Session::open().script.has_interpreter = has_lock;
}
