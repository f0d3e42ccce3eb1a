//! An own stream, and how far it has come.
//!
//! # What an operation costs
//! A number. [`Stream::next`] takes it under a lock and calls no driver, so a chain of operations on one
//! stream records no event and writes no value. A request makes an event or a value cover a number:
//! - *another queue*: an event ([`Stream::event_for`]), which serves later requests too;
//! - *the host*: the first request costs a query, since all may be done already. If not, the device writes
//!   the newest number into a pinned value ([`super::progress`]), once; from then on a query is a load. A
//!   device that cannot write records an event, and the oldest event is queried.
//!
//! An event recorded late covers more than was requested, and that must not matter. Before a stream is made
//! to wait, its newest number gets its event ([`Stream::wait`]): a later event would cover the wait as well,
//! and a fence that the wait depends on would then wait for itself, for ever.
//!
//! # What is known
//! [`Completed`] has the newest number, and the failure of a stream that is broken. The value in pinned
//! memory is read into it.
//!
//! A broken context writes no value, so the driver is queried about a polled stream from time to time, on
//! another thread ([`super::context`]).

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUstream, CUstreamCaptureStatus};
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use estafette_sync::sync::{Mutex, MutexGuard};
use estafette_sync::time::Instant;

use crate::fence::completed::Completed;
use crate::fence::source::Timeline;
use crate::{DeviceError, Fence, FenceSet, QueueClock, QueueId};

use super::context::{Context, beyond, context_of, is_of};
use super::driver::{DRIVER, Handle};
use super::events::PooledEvent;
use super::foreign::{capture_id, not_the_same_capture};
use super::memory;
use super::progress::TimelineValue;

/// `CU_STREAM_NON_BLOCKING`: the legacy default stream and this one do not wait for each other.
const NON_BLOCKING: u32 = 1;

pub(super) struct Stream {
    pub(super) context: Arc<Context>,
    pub(super) id: QueueId,
    raw: Handle<CUstream>,
    pub(super) completed: Completed,
    /// The value in which the device counts.
    pub(super) value: Option<TimelineValue>,
    /// The newest number that the device was asked to write. Goes up under the state's lock.
    pub(super) written: AtomicU64,
    /// The newest number requested by the host that only an event covers. Goes up under the state's lock.
    pub(super) asked: AtomicU64,
    /// The newest number that the host has requested while nothing could be enqueued for it: a later poll
    /// enqueues the event or value.
    pub(super) wanted: AtomicU64,
    pub(super) reads: AtomicU64,
    /// The time of the last query of the driver for this stream, since `born`.
    pub(super) checked_ns: AtomicU64,
    /// True if a query of the driver for this stream is requested.
    pub(super) is_suspect: AtomicBool,
    pub(super) born: Instant,
    state: Mutex<QueueState>,
    /// Fences of other contexts that the stream waits for ([`beyond`]). A lock of its own, taken by the
    /// thread that finds such a context broken.
    pub(super) depends: Mutex<FenceSet>,
}

impl Stream {
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, DeviceError> {
        context.intact()?;
        let mut raw: CUstream = ptr::null_mut();
        {
            let _current = context.make_current_relaxed()?;
            // SAFETY: writes one handle, which is ours.
            let code = unsafe { (context.api.stream_create)(&raw mut raw, NON_BLOCKING) };
            context.check(code, "cannot make a stream")?;
        }
        let id = QueueId::next();
        let mut stream = Self {
            context: Arc::clone(context),
            id,
            raw: Handle::new(raw),
            completed: Completed::new(),
            value: None,
            written: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            checked_ns: AtomicU64::new(0),
            is_suspect: AtomicBool::new(false),
            born: Instant::now(),
            state: Mutex::new(QueueState::new(id)),
            depends: Mutex::default(),
        };
        if let Some(values) = &context.timeline_values {
            stream.value = Some(values.take(context)?);
        }
        let stream = Arc::new(stream);
        context.adopt(&stream);
        memory::pending().iter().try_for_each(|event| stream.await_memory(event).map(drop))?;
        Ok(stream)
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw.get()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }

    /// Fails with the error that broke the stream.
    pub(super) fn intact(&self) -> Result<(), DeviceError> {
        self.context.intact()?;
        self.failure().map_or(Ok(()), Err)
    }

    /// The handle, for foreign code that enqueues there.
    pub(super) fn touch(&self) -> CUstream {
        let mut state = self.state();
        state.touched = true;
        // An event that cannot be waited for now is waited for by the next use.
        let _ = self.catch_up(&mut state);
        self.raw()
    }

    /// The handle, for a command of this crate.
    pub(super) fn for_command(&self) -> Result<CUstream, DeviceError> {
        self.catch_up(&mut self.state()).map(|()| self.raw())
    }

    /// The next number: of everything enqueued so far.
    pub(super) fn next(&self, state: &mut QueueState) -> u64 {
        state.sequence += 1;
        state.sequence
    }

    /// Marks the stream as broken by `error`: none of its pending work will ever be done.
    pub(super) fn fail(&self, error: &DeviceError) {
        // A call that the exit refuses is no failure of the stream.
        if DRIVER.has_begun() {
            return;
        }
        if let Some(value) = self.value {
            self.completed.reach(value.read());
        }
        self.completed.fail(error);
    }

    /// Fails the stream, as `context` is broken: its own context, or one that it has waited for.
    pub(super) fn break_with(&self, context: &Context, error: &DeviceError) {
        let own = ptr::eq(context, &raw const *self.context);
        let waits = || {
            let depends = self.depends.lock();
            depends.iter().any(|fence| is_of(fence, context) && !fence.observed_done())
        };
        if own || waits() {
            self.fail(error);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if DRIVER.is_driver_gone() || self.context.fault().is_some() {
            return;
        }
        if let Ok(_current) = self.context.make_current_relaxed() {
            // SAFETY: ours, destroyed this once. The driver lets what is enqueued finish.
            let _ = unsafe { (self.context.api.stream_destroy)(self.raw()) };
        }
        if let (Some(values), Some(value)) = (&self.context.timeline_values, self.value) {
            values.release(value, self.written.load(Ordering::Relaxed));
        }
    }
}

debug_as!(stream: Stream, "Stream({} of {}, {} done)", stream.id, stream.context.id, stream.completed());

// The work that is enqueued on an own stream: numbers, the events that cover some of them, and the waits.

/// After every so many events on a stream the oldest ones are queried without a request, so that they become
/// free in chains that no thread polls. A query of the driver costs more than an event and a wait.
const MARKS_LOOK: usize = 64;
/// Events that are kept. Beyond, every second one is dropped: a request for its number gets the next event.
const MARKS_MAX: usize = 1_024;

/// The enqueued work. The lock never covers user code.
pub(super) struct QueueState {
    pub(super) clock: QueueClock,
    pub(super) sequence: u64,
    /// Numbers with an event that covers them, ascending.
    pub(super) marks: VecDeque<(u64, Arc<PooledEvent>)>,
    /// True if an own capture records what is enqueued now.
    pub(super) capture: bool,
    /// True if the handle was given out: foreign code may be capturing.
    pub(super) touched: bool,
    /// The newest number when the stream was last made to wait.
    pub(super) waited_at: u64,
    /// Events behind allocations that a foreign capture has kept the stream from waiting for.
    missed: Vec<Arc<PooledEvent>>,
}

impl QueueState {
    pub(super) fn new(id: QueueId) -> Self {
        Self {
            clock: QueueClock::new(id, true),
            sequence: 0,
            marks: VecDeque::new(),
            capture: false,
            touched: false,
            waited_at: 0,
            missed: Vec::new(),
        }
    }

    pub(super) fn covering(&self, sequence: u64) -> Option<Arc<PooledEvent>> {
        let at = self.marks.partition_point(|(number, _)| *number < sequence);
        self.marks.get(at).map(|(_, event)| Arc::clone(event))
    }
}

impl Stream {
    /// An event that covers number `sequence`; `None` when that is done.
    pub(super) fn event_for(&self, sequence: u64) -> Result<Option<Arc<PooledEvent>>, DeviceError> {
        if self.completed() >= sequence {
            return Ok(None);
        }
        self.intact()?;
        let mut state = self.state();
        if let Some(event) = state.covering(sequence) {
            return Ok(Some(event));
        }
        self.mark(&mut state).map(Some)
    }

    /// Makes work that is enqueued here next wait for `event`, which is the target of `fence`.
    /// If the driver refuses, no wait is enqueued.
    ///
    /// # Safety
    /// `event` is live.
    pub(super) unsafe fn wait(self: &Arc<Self>, fence: &Fence, event: CUevent) -> Result<(), DeviceError> {
        let mut state = self.state();
        self.not_capturing(&state)?;
        // Work that was enqueued until now must not seem to wait as well.
        if state.sequence > self.completed() && state.covering(state.sequence).is_none() {
            self.mark(&mut state)?;
        }
        // Before the wait, so that a stream that waits for this one meanwhile finds them.
        self.depend(&beyond(fence, &self.context));
        // SAFETY: by contract.
        unsafe { wait(&self.context, self.raw(), event, 0) }?;
        state.clock.note_wait(fence);
        state.waited_at = state.sequence;
        Ok(())
    }

    /// Makes this stream fail with the contexts of `fences` from now on.
    fn depend(self: &Arc<Self>, fences: &FenceSet) {
        if fences.is_empty() {
            return;
        }
        // Dropped after the lock: a stream that goes calls the driver, which may find a fault, and that takes
        // the lock.
        let mut dropped = Vec::new();
        let mut depends = self.depends.lock();
        depends.take_out(Fence::observed_done, &mut dropped);
        dropped.extend(fences.iter().filter_map(|fence| depends.insert_replacing(fence.clone())));
        drop(depends);
        fences.iter().filter_map(context_of).for_each(|context| context.adopt(self));
    }

    /// Makes work that is enqueued here next wait for an event behind allocations. In a capture of this crate
    /// each launch waits, and this stream does once the capture is over. No mark is needed before the wait,
    /// since no work here precedes an allocation. Returns false where another library captures: the stream
    /// waits later, and the graph never.
    pub(super) fn await_memory(&self, event: &Arc<PooledEvent>) -> Result<bool, DeviceError> {
        let mut state = self.state();
        if state.capture {
            return Ok(true);
        }
        self.catch_up(&mut state)?;
        if !self.records(&state)? {
            // SAFETY: ours, and live.
            return unsafe { wait(&self.context, self.raw(), event.raw(), 0) }.map(|()| true);
        }
        // A node would break the capture where this branch of it has been joined already.
        state.missed.push(Arc::clone(event));
        Ok(false)
    }

    /// Waits for what a foreign capture has kept this stream from waiting for, once that capture is over.
    fn catch_up(&self, state: &mut QueueState) -> Result<(), DeviceError> {
        if state.missed.is_empty() || self.records(state)? {
            return Ok(());
        }
        while let Some(event) = state.missed.last() {
            // SAFETY: ours, and live.
            unsafe { wait(&self.context, self.raw(), event.raw(), 0) }?;
            state.missed.pop();
        }
        Ok(())
    }

    /// Makes work that is captured here next wait for a point of the same capture.
    ///
    /// # Safety
    /// `event` is live.
    pub(super) unsafe fn wait_within(&self, event: CUevent, number: Option<u64>) -> Result<(), DeviceError> {
        let _state = self.state();
        if number.is_none() || capture_id(&self.context, self.raw())? != number {
            return Err(not_the_same_capture());
        }
        // SAFETY: by contract.
        unsafe { wait(&self.context, self.raw(), event, 0) }
    }

    /// Records an event of everything enqueued so far: it covers the newest number.
    pub(super) fn mark(&self, state: &mut QueueState) -> Result<Arc<PooledEvent>, DeviceError> {
        self.not_capturing(state)?;
        // SAFETY: a live stream of the context.
        let event = unsafe { PooledEvent::record(&self.context, self.raw()) }?;
        let number = state.sequence;
        if state.marks.len() % MARKS_LOOK == MARKS_LOOK - 1 {
            self.retire(state)?;
        }
        if state.marks.len() >= MARKS_MAX {
            let mut at = 0;
            // The newest stays: it is the last of an even number.
            state.marks.retain(|_| {
                at += 1;
                at % 2 == 0
            });
        }
        state.marks.push_back((number, Arc::clone(&event)));
        Ok(event)
    }

    /// Finds the newest event that is done, by bisection, if the oldest is: a stream completes its events in
    /// order.
    pub(super) fn retire(&self, state: &mut QueueState) -> Result<(), DeviceError> {
        let completed = self.completed();
        while state.marks.pop_front_if(|(number, _)| *number <= completed).is_some() {}
        let (mut done, mut at, mut pending) = (0, 0, state.marks.len());
        while done < pending {
            if state.marks[at].1.query()? {
                done = at + 1;
            } else {
                pending = at;
            }
            at = done.midpoint(pending);
        }
        if let Some((number, _)) = state.marks.drain(..done).next_back() {
            self.completed.reach(number);
        }
        Ok(())
    }

    /// Fails where the stream is capturing.
    fn not_capturing(&self, state: &QueueState) -> Result<(), DeviceError> {
        if !self.records(state)? {
            return Ok(());
        }
        let message = format!("{} is capturing a graph: nothing outside of it can be waited for", self.id);
        Err(DeviceError::invalid(message).with_queue(self.id))
    }

    /// True if a capture, own or foreign, records what is enqueued now.
    pub(super) fn records(&self, state: &QueueState) -> Result<bool, DeviceError> {
        Ok(state.capture || state.touched && is_capturing(&self.context, self.raw())?)
    }

    /// True if the stream is capturing.
    pub(super) fn is_capturing(&self) -> Result<bool, DeviceError> {
        self.records(&self.state())
    }

    /// Begins a capture of all work that is enqueued from now on. All earlier work gets an event first, as
    /// none can be recorded during the capture. Fails where the stream is capturing already or broken, and
    /// with `begin`.
    pub(super) fn begin_capture(
        &self,
        begin: impl FnOnce(CUstream) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.intact()?;
        let mut state = self.state();
        self.not_capturing(&state)?;
        if state.sequence > self.completed() && state.covering(state.sequence).is_none() {
            self.mark(&mut state)?;
        }
        let mut captures = self.context.captures.lock();
        begin(self.raw())?;
        *captures += 1;
        state.capture = true;
        Ok(())
    }

    /// Joins the capture that `origin` has begun.
    pub(super) fn join_capture(&self, origin: &Self) -> Result<(), DeviceError> {
        self.begin_capture(|raw| {
            // SAFETY: a live stream of the context.
            let fork = unsafe { PooledEvent::record(&self.context, origin.raw()) }?;
            // SAFETY: the event is live, and a capture keeps what it waits for by itself.
            unsafe { wait(&self.context, raw, fork.raw(), 0) }
        })
    }

    /// Makes `origin`, whose capture this stream has joined, wait for the work that was enqueued here.
    pub(super) fn rejoin(&self, origin: &Self) -> Result<(), DeviceError> {
        // SAFETY: a live stream of the context.
        let join = unsafe { PooledEvent::record(&self.context, self.raw()) }?;
        // SAFETY: as in `join_capture`.
        unsafe { wait(&self.context, origin.raw(), join.raw(), 0) }
    }

    /// Notes that the capture which this stream has begun or joined is over, and calls `end`.
    pub(super) fn end_capture(
        &self,
        end: impl FnOnce(CUstream) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut state = self.state();
        state.capture = false;
        let mut captures = self.context.captures.lock();
        *captures -= 1;
        end(self.raw())
    }
}

/// Makes work that is enqueued on `stream` next wait for `event`.
///
/// # Safety
/// Both are live.
pub(super) unsafe fn wait(
    context: &Context,
    stream: CUstream,
    event: CUevent,
    flags: u32,
) -> Result<(), DeviceError> {
    let _current = context.make_current()?;
    // SAFETY: by contract.
    let code = unsafe { (context.api.stream_wait)(stream, event, flags) };
    context.check(code, "cannot wait for an event")?;
    context.counters.waits.one();
    Ok(())
}

/// True if `stream` is capturing.
pub(super) fn is_capturing(context: &Context, stream: CUstream) -> Result<bool, DeviceError> {
    let mut status: u32 = 0;
    let _current = context.make_current()?;
    // SAFETY: a live stream; the status is a number, written to one.
    let code =
        unsafe { (context.api.stream_capturing)(stream, (&raw mut status).cast::<CUstreamCaptureStatus>()) };
    context.check(code, "cannot tell whether the stream is capturing a graph")?;
    Ok(status != 0)
}
