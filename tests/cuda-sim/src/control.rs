//! The controls: what a test may script and ask. None of them is the driver's, all begin with `cusim_`.
//!
//! Streams are named by their handles; 0 stands for all streams where that makes sense.

use std::ffi::{CStr, c_char, c_int};

use crate::clockwork;
use crate::kind::Kind;
use crate::state::{Session, State};

/// The stream with that handle, destroyed or not.
fn place(state: &State, stream: u64) -> Option<usize> {
    state.streams.iter().position(|other| other.handle == stream)
}

/// How many devices there are. To be called before `cuInit`; 0 when it is too late, else 1.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_devices(count: u32) -> c_int {
    let mut session = Session::open();
    let early = !session.initialized;
    if early {
        session.script.devices = count as usize;
    }
    c_int::from(early)
}

/// The version that the driver claims to have, as `cuDriverGetVersion` gives it.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_driver_version(version: c_int) {
    Session::open().script.driver_version = version;
}

/// What every device says of an attribute from now on.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_attribute(attribute: c_int, value: c_int) {
    Session::open().script.attributes.insert(attribute, value);
}

/// Forgets what was scripted, counted and found; streams, memory, and contexts that failed, stay as they are.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_reset() {
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

/// From now on nothing happens unless the virtual clock is moved: by `cusim_advance` or `cusim_step`, or by a
/// call of the driver that waits. `seed` chooses among what may happen at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_virtual_clock(seed: u64) {
    let mut session = Session::open();
    session.script.virtual_clock = true;
    session.script.seed(seed);
    session.news = true;
    session.changed();
}

/// Moves the virtual clock, and does what happens meanwhile. How many commands that was.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_advance(nanoseconds: u64) -> u64 {
    let mut session = Session::open();
    let limit = session.script.now + nanoseconds;
    let mut done = 0;
    while clockwork::step(&mut session, Some(limit)) {
        done += 1;
    }
    done
}

/// Moves the virtual clock to the end of the next command. 0 when nothing can happen, else 1.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_step() -> c_int {
    c_int::from(clockwork::step(&mut Session::open(), None))
}

/// Nanoseconds on the virtual clock.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_now() -> u64 {
    Session::open().script.now
}

/// How long commands of that kind (0: of any) take on that stream (0: on any). 0 when there is no such thing,
/// else 1.
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

/// Every command takes up to so many nanoseconds longer, by the seed.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_jitter(nanoseconds: u64) {
    Session::open().script.jitter = nanoseconds;
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

/// How many commands of a stream are not over.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_pending(stream: u64) -> u64 {
    let session = Session::open();
    place(&session, stream).map_or(0, |stream| session.streams[stream].queue.len() as u64)
}

/// The `nth` allocation from now on fails; 0 lets them all succeed.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_fail_allocation(nth: u64) {
    Session::open().script.failing_allocation = (nth > 0).then_some(nth);
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

/// How much memory each device has.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_capacity(bytes: u64) {
    Session::open().script.capacity = bytes;
}

/// Bytes of a device that are in use.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_used(device: u32) -> u64 {
    Session::open().memory.used.get(&(device as usize)).copied().unwrap_or(0)
}

/// How many executable graphs there are.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_graphs() -> u64 {
    Session::open().executables.len() as u64
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

/// Makes failed contexts work again, which no real one does: for several tests in one process.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_heal() {
    let mut session = Session::open();
    session.contexts.iter_mut().for_each(|context| context.fault = None);
}

/// How often a function of the driver was called.
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

#[unsafe(no_mangle)]
pub extern "C" fn cusim_forget_calls() {
    Session::open().calls.clear();
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

/// Forgets what was found wrong.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_forget_violations() {
    Session::open().violations.clear();
}

/// How many hardware connections the streams of a context share; 0 for one each.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_connections(count: u32) {
    Session::open().script.connections = (count > 0).then_some(count as usize);
}

/// How many commands a stream takes before a call that enqueues one waits; 0 for any number.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_depth(commands: u32) {
    Session::open().script.depth = (commands > 0).then_some(commands as usize);
}

/// Writes how many hardware connections the streams of a context share, and how many commands a stream takes; 0
/// where there is no limit.
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

/// How long each call lasts that needs a context, in nanoseconds.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_call_time(nanoseconds: u64) {
    Session::open().script.call_time = nanoseconds;
}

/// Whether what pins memory, makes a stream or loads code waits for all work of the context.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_setup_waits(waits: c_int) {
    Session::open().script.setup_waits = waits != 0;
}

/// What says whether the calling thread has the lock of an interpreter: no call that may wait is to be made with it.
///
/// # Safety
///
/// A function that any thread may call at any time, such as `PyGILState_Check`, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cusim_interpreter(has_lock: Option<unsafe extern "C" fn() -> c_int>) {
    Session::open().script.has_interpreter = has_lock;
}

/// What `cuInit` fails with from now on, as under MPS; 0 for nothing.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_fail_start(code: c_int) {
    Session::open().script.start = (code != 0).then_some(code);
}

/// Says that the host now uses the memory there. Found wrong where the device may not be running meanwhile: of
/// managed memory on a device without concurrent access.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_host_uses(address: u64) {
    Session::open().host_uses(address);
}

/// Whether devices reach each other's memory.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_peer_access(possible: c_int) {
    Session::open().script.peer_access = possible != 0;
}

/// Whether memory can be mapped for reading alone.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_read_only_mappings(possible: c_int) {
    Session::open().script.no_read_only = possible == 0;
}

/// Bytes that the pools of a device keep for later.
#[unsafe(no_mangle)]
pub extern "C" fn cusim_kept(device: u32) -> u64 {
    let session = Session::open();
    let pools = session.pools.values().filter(|pool| pool.device == device as usize);
    pools.map(|pool| pool.reserved - pool.used).sum()
}
