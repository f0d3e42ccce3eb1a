//! All of the simulated driver, under one lock.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::api::virtual_memory::VirtualMemory;
use crate::capture::{Capture, GraphNode};
use crate::codes::{Code, INVALID_CONTEXT, INVALID_HANDLE, NOT_INITIALIZED, NOT_PERMITTED};
use crate::command::{Command, CommandId, StreamRequest};
use crate::memory::{MemoryMap, Pool};
use crate::script::Script;
use crate::stream::Stream;
use crate::vector_clock::VectorClock;

/// A context. The first ones are the primary contexts of the devices, in order.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: u64,
    pub(crate) device: usize,
    pub(crate) primary: bool,
    /// Number of times that it was retained; a context that was created counts once.
    pub(crate) holders: usize,
    /// The code that every call returns since a command of it failed.
    pub(crate) fault: Option<Code>,
    /// Contexts whose memory its kernels may use.
    pub(crate) peers: Vec<usize>,
    pub(crate) busy: bool,
}

/// State of an event since it was last recorded.
#[derive(Debug, Clone)]
pub(crate) enum Recorded {
    Never,
    Command { id: CommandId, clock: VectorClock },
    Captured { capture: u64, after: Vec<usize> },
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: usize,
    pub(crate) timing: bool,
    pub(crate) recorded: Recorded,
    /// Time at which the recording was reached, in nanoseconds.
    pub(crate) reached: Option<u64>,
}

/// A captured graph: its nodes in an order that respects their dependences.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<GraphNode>,
}

#[derive(Debug)]
pub(crate) struct DriverState {
    pub(crate) initialized: bool,
    pub(crate) contexts: Vec<Context>,
    /// The primary context that each green context is a part of, by the handle of the green one.
    pub(crate) green_contexts: HashMap<u64, usize>,
    pub(crate) streams: Vec<Stream>,
    /// Streams that were made and not destroyed, by their handles.
    pub(crate) by_handle: HashMap<u64, usize>,
    /// Streams that hold something.
    pub(crate) busy: BTreeSet<usize>,
    /// True if something has changed that others may wait for.
    pub(crate) news: bool,
    /// Threads that wait for the lock of a context.
    pub(crate) queued_calls: usize,
    /// Set when the driver's own handler at the exit of the process has run.
    pub(crate) shut_down: bool,
    pub(crate) events: HashMap<u64, Event>,
    pub(crate) commands: HashMap<CommandId, Command>,
    pub(crate) last_command: CommandId,
    pub(crate) last_handle: u64,
    pub(crate) memory: MemoryMap,
    pub(crate) virtual_memory: VirtualMemory,
    /// Commands that the host knows to be over. One clock for all threads: their own synchronization is not
    /// visible.
    pub(crate) host: VectorClock,
    pub(crate) captures: HashMap<u64, Capture>,
    pub(crate) graphs: HashMap<u64, Graph>,
    pub(crate) executables: HashMap<u64, Graph>,
    pub(crate) modules: HashMap<u64, Vec<String>>,
    pub(crate) functions: HashMap<u64, crate::kernels::Kernel>,
    pub(crate) pools: HashMap<u64, Pool>,
    pub(crate) calls: BTreeMap<&'static str, u64>,
    pub(crate) violations: Vec<String>,
    pub(crate) script: Script,
    started: Instant,
}

/// Of a process that called the driver after its shutdown began.
const EXIT_STATUS: i32 = 86;

struct Driver {
    state: Mutex<DriverState>,
    changed: Condvar,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

thread_local! {
    /// This thread's stack of current contexts.
    pub(crate) static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// True if this thread is inside a host function, where the driver may not be called.
    pub(crate) static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

fn driver() -> &'static Driver {
    DRIVER.get_or_init(|| Driver {
        state: Mutex::new(DriverState {
            initialized: false,
            contexts: Vec::new(),
            green_contexts: HashMap::new(),
            streams: Vec::new(),
            by_handle: HashMap::new(),
            busy: BTreeSet::new(),
            news: false,
            queued_calls: 0,
            shut_down: false,
            events: HashMap::new(),
            commands: HashMap::new(),
            last_command: 0,
            last_handle: 0,
            memory: MemoryMap::default(),
            virtual_memory: VirtualMemory::default(),
            host: VectorClock::default(),
            captures: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            pools: HashMap::new(),
            calls: BTreeMap::new(),
            violations: Vec::new(),
            script: Script::default(),
            started: Instant::now(),
        }),
        changed: Condvar::new(),
    })
}

/// The locked state; its holder may wait for a change.
pub(crate) struct Session(Option<MutexGuard<'static, DriverState>>);

impl Session {
    pub(crate) fn open() -> Self {
        Self(Some(driver().state.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Notifies waiting host threads, and streams with work, if the state has changed.
    pub(crate) fn changed(&mut self) {
        if !std::mem::take(&mut self.news) {
            return;
        }
        driver().changed.notify_all();
        for place in &self.busy {
            if self.waits_for_value(*place) || self.ready(*place).is_some() {
                self.streams[*place].condvar.notify_one();
            }
        }
    }

    /// Sleeps until something has changed, or for so long.
    pub(crate) fn sleep(&mut self, limit: Option<Duration>) {
        self.sleep_until(&driver().changed, limit);
    }

    /// As [`sleep`](Self::sleep), until `condvar` is notified.
    pub(crate) fn sleep_until(&mut self, condvar: &Condvar, limit: Option<Duration>) {
        let guard = self.0.take().expect("taken only while asleep or unlocked");
        self.0 = Some(match limit {
            None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => condvar.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0,
        });
    }

    /// Runs `function` without the lock.
    pub(crate) fn unlocked<R>(&mut self, function: impl FnOnce() -> R) -> R {
        self.0 = None;
        let result = function();
        self.0 = Self::open().0;
        result
    }

    /// Waits until `over` says so. On the virtual clock waiting is what makes time pass.
    pub(crate) fn wait_until(&mut self, over: impl Fn(&DriverState) -> bool) {
        // Others may have to do what this call has just asked for.
        self.changed();
        while !over(self) {
            if self.script.virtual_clock {
                if !crate::clockwork::step(self, None) {
                    // Something outside of the simulator has to happen first: a flag, or a control from
                    // another thread.
                    self.sleep(Some(Duration::from_micros(200)));
                }
            } else {
                self.sleep(None);
            }
        }
    }
}

impl Deref for Session {
    type Target = DriverState;

    fn deref(&self) -> &DriverState {
        self.0.as_ref().expect("taken only while asleep or unlocked")
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut DriverState {
        self.0.as_mut().expect("taken only while asleep or unlocked")
    }
}

/// A call of the driver's interface: counts it, refuses it where no call is allowed, and makes a number of
/// the result.
pub(crate) fn call(name: &'static str, body: impl FnOnce(&mut Session) -> Result<(), Code>) -> i32 {
    let mut session = Session::open();
    *session.calls.entry(name).or_default() += 1;
    if IN_HOST_FUNCTION.get() {
        session.violation(format!("{name} was called from a host function"));
        return NOT_PERMITTED;
    }
    if session.shut_down && name != "cuDriverGetVersion" {
        return session.refuse_after_shutdown(name);
    }
    let early = matches!(
        name,
        "cuInit"
            | "cuDriverGetVersion"
            | "cuGetErrorName"
            | "cuGetErrorString"
            | "cuGetProcAddress"
            | "cuGetProcAddress_v2"
    );
    if !session.initialized && !early {
        return NOT_INITIALIZED;
    }
    if let Some(code) = session.script.failing_calls.remove(name) {
        return code;
    }
    let locked = session.lock_context(name);
    let code = body(&mut session).err().unwrap_or(0);
    if let Some(context) = locked {
        session.contexts[context].busy = false;
        session.news |= session.queued_calls > 0;
    }
    session.changed();
    code
}

/// Calls that need no lock: they concern the calling thread or constants alone, or give it up to wait.
fn needs_no_lock(name: &str) -> bool {
    ["cuCtxGet", "cuCtxSet", "cuCtxPush", "cuCtxPop", "cuDevice", "cuGet", "cuDriver", "cuThread"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || name.ends_with("Synchronize")
        || name == "cuInit"
}

impl Session {
    /// Finds a call that may wait, for the lock of the context or for work, on a thread with the
    /// interpreter's lock.
    fn check_interpreter(&mut self, name: &str) {
        let Some(has_lock) = self.script.has_interpreter else { return };
        // The kind of an address depends on no work. A thread without a context waits for nothing.
        let may_wait =
            (!needs_no_lock(name) && !name.starts_with("cuPointerGet")) || name.ends_with("Synchronize");
        let has_context = CURRENT.with_borrow(|stack| !stack.is_empty());
        // SAFETY: a function of the interpreter that any thread may call.
        if may_wait && has_context && unsafe { has_lock() } != 0 {
            self.violation(format!("{name}, which may wait, was called with the interpreter's lock held"));
        }
    }

    /// Takes the lock of the calling thread's context for a call, as the driver does, for as long as such a
    /// call lasts. Returns the context.
    fn lock_context(&mut self, name: &str) -> Option<usize> {
        self.check_interpreter(name);
        if needs_no_lock(name) {
            return None;
        }
        let context = CURRENT.with_borrow(|stack| stack.last().copied())?;
        while self.contexts[context].busy {
            self.queued_calls += 1;
            self.sleep(None);
            self.queued_calls -= 1;
        }
        self.contexts[context].busy = true;
        let time = self.script.call_time;
        if time > 0 {
            self.unlocked(|| std::thread::sleep(Duration::from_nanos(time)));
        }
        Some(context)
    }

    /// As [`DriverState::enqueue`], once the stream has room.
    pub(crate) fn enqueue(
        &mut self,
        stream: usize,
        request: StreamRequest,
    ) -> Result<Option<CommandId>, Code> {
        if let Some(depth) = self.script.depth
            && self.streams[stream].capture.is_none()
        {
            self.wait_until(|state| state.streams[stream].queue.len() < depth);
            self.sound(self.streams[stream].context)?;
        }
        DriverState::enqueue(self, stream, request)
    }

    /// Waits for all work of the calling thread's context, if the script says that such calls do.
    ///
    /// # Errors
    /// The thread has no context, or a broken one.
    pub(crate) fn wait_for_setup(&mut self) -> Result<(), Code> {
        let context = self.current()?;
        if self.script.setup_waits { self.wait_for_context(context) } else { Ok(()) }
    }
}

impl DriverState {
    /// A call after the driver's shutdown began, which is undefined. The process ends with a status that a
    /// test sees, since no test can ask any more.
    fn refuse_after_shutdown(&mut self, name: &str) -> Code {
        eprintln!("the simulated CUDA driver: {name} was called after its shutdown began");
        unsafe extern "C" {
            /// The C library's: ends the process at once.
            safe fn _exit(status: std::ffi::c_int) -> !;
        }
        _exit(EXIT_STATUS)
    }

    pub(crate) fn handle(&mut self) -> u64 {
        self.last_handle += 1;
        // Far above 32 bits, so that a handle that was cut short is no handle.
        0x5e00_0000_0000 + self.last_handle * 0x40
    }

    pub(crate) fn violation(&mut self, text: String) {
        const KEPT: usize = 1000;
        if self.violations.len() < KEPT && !self.violations.contains(&text) {
            self.violations.push(text);
        }
    }

    /// Nanoseconds of the virtual clock, or since the simulator was loaded.
    pub(crate) fn now(&self) -> u64 {
        if self.script.virtual_clock { self.script.now } else { self.started.elapsed().as_nanos() as u64 }
    }

    pub(crate) fn is_over(&self, command: CommandId) -> bool {
        !self.commands.contains_key(&command)
    }

    /// The calling thread's context, if it has one that works.
    pub(crate) fn current(&self) -> Result<usize, Code> {
        let context = CURRENT.with_borrow(|stack| stack.last().copied()).ok_or(INVALID_CONTEXT)?;
        self.sound(context)?;
        Ok(context)
    }

    /// Refuses with the code of a context whose command failed.
    pub(crate) fn sound(&self, context: usize) -> Result<(), Code> {
        self.contexts[context].fault.map_or(Ok(()), Err)
    }

    pub(crate) fn context(&self, handle: u64) -> Result<usize, Code> {
        self.contexts
            .iter()
            .position(|context| context.handle == handle && context.holders > 0)
            .ok_or(INVALID_CONTEXT)
    }

    pub(crate) fn event(&mut self, handle: u64) -> Result<&mut Event, Code> {
        if !self.events.contains_key(&handle) {
            self.violation(format!("event {handle:#x} is used, but was never made or is destroyed"));
        }
        self.events.get_mut(&handle).ok_or(INVALID_HANDLE)
    }
}
