//! A device's primary context: what its streams, events and memory belong to, and what a fault breaks as a
//! whole.
//!
//! # Faults
//! A broken context writes no values, and a thread that waits for one would wait for ever. So the driver is
//! queried now and then. That call can take long: it waits for the lock of its context, which a launch holds
//! while its stream takes no more work. The reactor, and other threads that poll, must not wait for it: they
//! mark the stream as suspect, and a thread of its own queries the driver. A wait for work of another context
//! that is broken never ends, so streams know which other contexts their work waits for.

use std::any::Any;
use std::ptr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cudarc::driver::sys::{CUcontext, CUstreamCaptureMode};
use estafette_sync::essential::essential;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::{Condvar, Mutex, OnceLock};
use estafette_sync::{daemon, stack};

use crate::driver_exit::DriverCall;
use crate::{DLDevice, DeviceError, DeviceErrorKind, Fence, FenceSet};

use super::driver::{self, Api, Code, Handle};
use super::events::{EventFence, Events, Purpose};
use super::foreign::ForeignStreams;
use super::memory::{AllocationKind, BlockCache};
use super::progress::TimelineValues;
use super::stream::Stream;
use super::timing::DeviceClock;

/// The primary context of one device, shared with every other library of the process. It is retained for as
/// long as the process lives.
pub(super) struct Context {
    pub(super) api: &'static Api,
    pub(super) id: DLDevice,
    pub(super) raw: Handle<CUcontext>,
    pub(super) counters: Counters,
    marks: Events,
    timers: Events,
    pub(super) clock: DeviceClock,
    /// The memory in which streams count, if the device can write there; else events are queried.
    pub(super) timeline_values: Option<TimelineValues>,
    /// Set after `fault` was.
    faulted: AtomicBool,
    fault: OnceLock<DeviceError>,
    /// Streams that fail when this context does: its own, and those of others that wait for it.
    streams: Mutex<Vec<Weak<Stream>>>,
    /// Pinned and managed memory that is used again.
    pinned: BlockCache,
    managed: BlockCache,
    /// Own captures in progress. A query of the whole context would invalidate them.
    /// None begins or ends while this is locked.
    pub(super) captures: Mutex<usize>,
    pub(super) foreign_streams: ForeignStreams,
}

impl Context {
    pub(super) fn new(
        api: &'static Api,
        id: DLDevice,
        raw: Handle<CUcontext>,
        timeline_values: Option<TimelineValues>,
    ) -> Arc<Self> {
        Arc::new(Self {
            api,
            id,
            raw,
            counters: Counters::default(),
            marks: Events::default(),
            timers: Events::default(),
            clock: DeviceClock::default(),
            timeline_values,
            faulted: AtomicBool::new(false),
            fault: OnceLock::new(),
            streams: Mutex::default(),
            pinned: BlockCache::default(),
            managed: BlockCache::default(),
            captures: Mutex::default(),
            foreign_streams: ForeignStreams::default(),
        })
    }

    pub(super) fn events(&self, purpose: Purpose) -> &Events {
        match purpose {
            Purpose::Order => &self.marks,
            Purpose::Time => &self.timers,
        }
    }

    /// Makes this the thread's current context, until the guard is dropped.
    pub(super) fn make_current(&self) -> Result<Current<'_>, DeviceError> {
        let call = driver::call()?;
        Ok(Current { context: self, pushed: self.push_during(&call)?, _call: call })
    }

    /// Makes this the thread's current context, and says whether it was another one, which [`pop`](Self::pop)
    /// puts back.
    pub(super) fn push(&self) -> Result<bool, DeviceError> {
        self.push_during(&driver::call()?)
    }

    fn push_during(&self, _call: &DriverCall) -> Result<bool, DeviceError> {
        let mut now: CUcontext = ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (self.api.context_current)(&raw mut now) };
        let pushed = code != 0 || now != self.raw.get();
        if pushed {
            // SAFETY: a context that stays.
            let code = unsafe { (self.api.context_push)(self.raw.get()) };
            self.check(code, "cannot enter the context")?;
        }
        Ok(pushed)
    }

    /// Restores the context that [`push`](Self::push) replaced on this thread. A context that was made
    /// current in place of this one in the meantime is replaced too.
    pub(super) fn pop(&self) {
        let Ok(_call) = driver::call() else { return };
        let mut left: CUcontext = ptr::null_mut();
        // SAFETY: takes one context off this thread's stack; the caller has pushed one.
        let _ = unsafe { (self.api.context_pop)(&raw mut left) };
    }

    /// As [`make_current`](Self::make_current), for calls that a capture of any thread would refuse, or that
    /// would invalidate it: queries, and calls that make, free or destroy. These calls do not touch captured
    /// work.
    pub(super) fn make_current_relaxed(&self) -> Result<Relaxed<'_>, DeviceError> {
        let current = self.make_current()?;
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges one number that belongs to this thread.
        let code = unsafe { (self.api.capture_mode)(&raw mut mode) };
        self.check(code, "cannot leave the capture mode of the thread")?;
        Ok(Relaxed { previous: mode, current })
    }

    /// The result of a call. A fault poisons the context.
    pub(super) fn check(&self, code: Code, what: &str) -> Result<(), DeviceError> {
        if code == 0 { Ok(()) } else { Err(self.error(code, what)) }
    }

    /// As [`check`](Self::check), for a call that failed.
    pub(super) fn error(&self, code: Code, what: &str) -> DeviceError {
        // Every error of a broken context is a consequence of the fault that broke it.
        if let Some(fault) = self.fault() {
            return fault.clone();
        }
        let error = driver::error(self.api, code, what);
        if code == driver::DEINITIALIZED {
            // A library of this process has shut the driver down before its exit.
            driver::DRIVER.close(Duration::ZERO);
        }
        if error.kind() == DeviceErrorKind::Fault && !driver::DRIVER.has_begun() {
            self.poison(error)
        } else {
            error
        }
    }

    /// The fault that broke this context, if one did.
    pub(super) fn fault(&self) -> Option<&DeviceError> {
        if self.faulted.load(Ordering::Acquire) { self.fault.get() } else { None }
    }

    /// Fails with the fault that broke this context.
    pub(super) fn intact(&self) -> Result<(), DeviceError> {
        self.fault().map_or(Ok(()), |fault| Err(fault.clone()))
    }

    /// A stream that fails when this context does.
    pub(super) fn adopt(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams.lock();
        streams.retain(|known| known.strong_count() > 0);
        if !streams.iter().any(|known| Weak::as_ptr(known) == Arc::as_ptr(stream)) {
            streams.push(Arc::downgrade(stream));
        }
        drop(streams);
        // The thread that poisons sets the flag before it reads the list.
        if let Some(fault) = self.fault() {
            stream.break_with(self, fault);
        }
    }

    /// Marks this context as broken: none of its work will ever be done. Returns the first cause.
    fn poison(&self, error: DeviceError) -> DeviceError {
        let fault = self.fault.get_or_init(|| error).clone();
        if !self.faulted.swap(true, Ordering::AcqRel) {
            tracing::error!(device = %self.id, error = %fault, "a CUDA context is broken: all work of it has failed");
        }
        let streams = std::mem::take(&mut *self.streams.lock());
        for stream in streams.iter().filter_map(Weak::upgrade) {
            stream.break_with(self, &fault);
        }
        fault
    }

    /// The list of released memory of a kind; `None` for device memory.
    pub(super) fn kept(&self, kind: AllocationKind) -> Option<&BlockCache> {
        match kind {
            AllocationKind::Device => None,
            AllocationKind::Pinned => Some(&self.pinned),
            AllocationKind::Managed => Some(&self.managed),
        }
    }

    pub(super) fn live_streams(&self) -> Vec<Arc<Stream>> {
        self.streams.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// While the guard lives, the context is the thread's current one.
#[must_use]
pub(super) struct Current<'a> {
    context: &'a Context,
    pushed: bool,
    /// The exit of the process waits until this is gone.
    _call: DriverCall,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if self.pushed {
            self.context.pop();
        }
    }
}

/// While the guard lives, the context is the thread's current one and captures permit any call of the thread.
#[must_use]
pub(super) struct Relaxed<'a> {
    previous: CUstreamCaptureMode,
    current: Current<'a>,
}

impl Relaxed<'_> {
    pub(super) fn api(&self) -> &'static Api {
        self.current.context.api
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        let api = self.api();
        // SAFETY: puts back what the exchange gave on this thread.
        let _ = unsafe { (api.capture_mode)(&raw mut self.previous) };
    }
}

/// The source of a fence of CUDA.
enum CudaFence<'a> {
    Stream(&'a Stream),
    Event(&'a EventFence),
}

fn source(fence: &Fence) -> Option<CudaFence<'_>> {
    if let Some((timeline, _)) = fence.as_point() {
        let any: &dyn Any = &**timeline;
        return any.downcast_ref().map(CudaFence::Stream);
    }
    let any: &dyn Any = &**fence.as_event()?;
    any.downcast_ref().map(CudaFence::Event)
}

pub(super) fn context_of(fence: &Fence) -> Option<&Arc<Context>> {
    source(fence).map(|source| match source {
        CudaFence::Stream(stream) => &stream.context,
        CudaFence::Event(event) => event.context(),
    })
}

pub(super) fn is_of(fence: &Fence, context: &Context) -> bool {
    context_of(fence).is_some_and(|of| ptr::eq(&raw const **of, context))
}

/// Unfinished work of other contexts than `context` that a wait for `fence` waits for, as far as it is known.
pub(super) fn beyond(fence: &Fence, context: &Context) -> FenceSet {
    let mut fences = match source(fence) {
        Some(CudaFence::Stream(stream)) => stream.depends.lock().clone(),
        Some(CudaFence::Event(event)) => event.depends.lock().clone(),
        None => FenceSet::default(),
    };
    fences.insert(fence.clone());
    let is_left_out =
        |fence: &Fence| fence.observed_done() || is_of(fence, context) || context_of(fence).is_none();
    fences.take_out(is_left_out, &mut Vec::new());
    fences
}

/// Contexts with suspect streams, and whether the thread runs.
struct Requests {
    contexts: Vec<Arc<Context>>,
    has_thread: bool,
}

estafette_sync::statics! {
    static REQUESTS: Mutex<Requests> = Mutex::new(Requests { contexts: Vec::new(), has_thread: false });
    static ARRIVED: Condvar = Condvar::new();
}

/// Requests an inspection of the suspect streams of `context`. The caller inspects them itself, which calls
/// the driver, only where no thread can be started.
pub(super) fn inspect_soon(context: &Arc<Context>) {
    if driver::DRIVER.is_driver_gone() {
        return;
    }
    let mut requests = REQUESTS.lock();
    if !requests.has_thread {
        let body = || essential("the thread that queries CUDA for faults", run);
        requests.has_thread = stack::thread("estafette-cuda-faults").spawn(body).map(daemon).is_ok();
    }
    let has_thread = requests.has_thread;
    if has_thread && !requests.contexts.iter().any(|known| Arc::ptr_eq(known, context)) {
        requests.contexts.push(Arc::clone(context));
    }
    drop(requests);
    if has_thread {
        ARRIVED.notify_one();
    } else {
        inspect(context);
    }
}

fn inspect(context: &Context) {
    context.live_streams().iter().for_each(|stream| stream.inspect_if_suspect());
}

fn run() {
    let mut requests = REQUESTS.lock();
    loop {
        let contexts = std::mem::take(&mut requests.contexts);
        if contexts.is_empty() {
            requests = ARRIVED.wait(requests);
            continue;
        }
        drop(requests);
        contexts.iter().for_each(|context| inspect(context));
        requests = REQUESTS.lock();
    }
}

crate::counters::counters! {
    /// Counts of calls into the driver for a device, and of memory that was not freed.
    #[non_exhaustive]
    CudaCounters {
        /// Events made. They are used again, so this stands still after a while.
        events_created,
        /// Events recorded, for waits of other queues and for work of others' queues.
        events_recorded,
        /// Waits enqueued on a queue for an event.
        waits,
        /// Queries of an event.
        event_queries,
        /// Queries of a queue: for faults, where the device counts.
        queue_queries,
        /// Numbers that the device writes for the host to read.
        writes,
        /// Copies and fills.
        commands,
        /// Launches of graphs.
        graph_launches,
        /// Waits of a host thread for everything in the context: only for memory whose last use is unknown.
        context_waits,
        /// Allocations that were not freed because the context is broken.
        leaked_allocations,
        /// Their bytes.
        leaked_bytes,
        /// Events that belong to a foreign graph now and are not used again.
        events_given_up,
    }
}
