//! Foreign queues. This crate keeps only the numbers of its records there, and enqueues only waits, records,
//! and requested copies.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Weak};

use cudarc::driver::sys::{CUcontext, CUevent, CUstream, CUstreamCaptureStatus};
use estafette_sync::sync::Mutex;
use estafette_sync::thread::{self, ThreadId};

use crate::{Clock, DeviceError, Fence, FenceSet, QueueId};

use super::context::Context;
use super::driver::{Api, CONTEXT_IS_DESTROYED, Code, Handle, INVALID_CONTEXT, NOT_SUPPORTED};
use super::events::{EventFence, PooledEvent};
use super::stream::{is_capturing, wait};

/// `CU_STREAM_LEGACY`: the default stream that other blocking streams of the context wait for.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: the default stream of the calling thread.
pub(super) const PER_THREAD: usize = 2;
/// `CU_EVENT_WAIT_EXTERNAL`: in a capture, wait at every launch for what the event was last recorded for.
const WAIT_EXTERNAL: u32 = 1;

/// A foreign stream, valid during the call that passed it.
pub(super) struct Foreign {
    raw: Handle<CUstream>,
    /// The thread of the stream, where the handle means the calling thread's stream.
    thread: Option<ThreadId>,
}

/// The events that are recorded on one foreign stream, however often it is acquired: each covers those
/// before.
pub(super) struct Records {
    pub(super) queue: QueueId,
    /// The number of records. Locked while a record is made, so that the numbers follow the order of the
    /// stream.
    newest: Mutex<u64>,
}

/// The [`Records`] that fences and import streams of a context have, by the driver's number of the stream. A
/// driver gives no number twice.
#[derive(Default)]
pub(super) struct ForeignStreams(Mutex<HashMap<u64, Weak<Records>>>);

impl ForeignStreams {
    fn records_on(&self, stream: u64) -> Arc<Records> {
        let mut known = self.0.lock();
        if let Some(records) = known.get(&stream).and_then(Weak::upgrade) {
            return records;
        }
        if known.len() == known.capacity() {
            known.retain(|_, records| records.strong_count() > 0);
        }
        let records = Arc::new(Records { queue: QueueId::next(), newest: Mutex::default() });
        known.insert(stream, Arc::downgrade(&records));
        records
    }
}

impl Foreign {
    /// Refuses 0, and a stream of another context.
    ///
    /// # Safety
    /// `handle` is a live stream, or the number of a default stream.
    pub(super) unsafe fn new(context: &Context, handle: usize) -> Result<Self, DeviceError> {
        let raw: CUstream = ptr::with_exposed_provenance_mut(handle);
        let this =
            Self { raw: Handle::new(raw), thread: (handle == PER_THREAD).then(|| thread::current().id()) };
        match handle {
            0 => {
                let message = "stream 0 may mean either default stream; say 1 for the legacy one, 2 for the thread's own";
                return Err(DeviceError::invalid(message));
            }
            LEGACY | PER_THREAD => return Ok(this),
            _ => {}
        }
        let mut of: CUcontext = ptr::null_mut();
        let _current = context.make_current()?;
        // SAFETY: by contract a live stream.
        let code = unsafe { context_of(context.api, raw, &mut of) };
        // The stream's context may be destroyed while this one is intact.
        if matches!(code, INVALID_CONTEXT | CONTEXT_IS_DESTROYED) {
            let message = format!("stream {handle:#x} is of a context that is gone");
            return Err(DeviceError::invalid(message).with_code(code.into()));
        }
        context.check(code, "cannot tell which context the stream is of")?;
        if of != context.raw.get() {
            let message =
                format!("stream {handle:#x} is of another context than the primary one of {}", context.id);
            return Err(DeviceError::invalid(message));
        }
        Ok(this)
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw.get()
    }

    /// True if the handle means the same for as long as the context lives, on every thread.
    pub(super) fn handle_outlives_call(&self) -> bool {
        self.raw().addr() == LEGACY
    }

    /// Fails where the handle means another stream on this thread.
    pub(super) fn here(&self) -> Result<(), DeviceError> {
        if self.thread.is_none_or(|thread| thread == thread::current().id()) {
            return Ok(());
        }
        let message =
            "stream 2 is each thread's own: it was given on another thread, and means another stream here";
        Err(DeviceError::invalid(message))
    }

    pub(super) fn is_capturing(&self, context: &Context) -> Result<bool, DeviceError> {
        self.here()?;
        is_capturing(context, self.raw())
    }

    /// Makes work that is enqueued here next wait for an event from outside of any capture. Returns true if
    /// all later work waits, and not a capture alone.
    ///
    /// # Safety
    /// The event is live.
    pub(super) unsafe fn wait(
        &self,
        context: &Context,
        event: CUevent,
        ours: Option<&Arc<PooledEvent>>,
    ) -> Result<bool, DeviceError> {
        if !self.is_capturing(context)? {
            // SAFETY: by contract.
            unsafe { wait(context, self.raw(), event, 0) }?;
            return Ok(true);
        }
        let Some(ours) = ours else {
            let message =
                "the stream is capturing a graph, which would wait for a foreign event at every launch";
            return Err(DeviceError::invalid(message));
        };
        // The graph waits for the event for as long as the graph lives; no driver call reports its end.
        ours.retire_from_pool();
        // SAFETY: the event stays as it is for ever.
        unsafe { wait(context, self.raw(), event, WAIT_EXTERNAL) }?;
        Ok(false)
    }

    /// Makes work that is captured here next wait for a point of the same capture.
    ///
    /// # Safety
    /// The event is live.
    pub(super) unsafe fn wait_within(
        &self,
        context: &Context,
        event: CUevent,
        capture_id: Option<u64>,
    ) -> Result<(), DeviceError> {
        self.here()?;
        if capture_id.is_none() || self::capture_id(context, self.raw())? != capture_id {
            return Err(not_the_same_capture());
        }
        // SAFETY: by contract.
        unsafe { wait(context, self.raw(), event, 0) }
    }

    /// The fence of everything enqueued here by now, also by others. `seen` is the work on other queues that
    /// this stream waits for, and `depends` the part of it in other contexts. The stream is not capturing.
    pub(super) fn record(
        &self,
        context: &Arc<Context>,
        seen: Clock,
        depends: FenceSet,
    ) -> Result<Fence, DeviceError> {
        self.here()?;
        let _current = context.make_current()?;
        let stream = stream_number(context, self.raw());
        let records = stream.map(|stream| context.foreign_streams.records_on(stream));
        let mut newest = records.as_ref().map(|records| records.newest.lock());
        // SAFETY: live by the contract of `new`, of this context.
        let event = unsafe { PooledEvent::record(context, self.raw()) }?;
        let sequence = newest.as_deref_mut().map_or(0, |newest| {
            *newest += 1;
            *newest
        });
        drop(newest);
        Ok(Fence::recorded_event(Arc::new(EventFence::of(event, records, depends)), sequence, seen)
            .of_this_crate())
    }
}

/// Writes the context that a stream is of. Of a stream of a green context it is the primary context, whose
/// memory and events the green one shares; the older function names a context of its own.
///
/// # Safety
/// `stream` is live.
pub(super) unsafe fn context_of(api: &Api, stream: CUstream, context: &mut CUcontext) -> Code {
    let mut green: *mut c_void = ptr::null_mut();
    // SAFETY: by contract; writes two handles, or one.
    unsafe {
        match api.stream_contexts {
            Some(contexts) => contexts(stream, context, &raw mut green),
            None => (api.stream_context)(stream, context),
        }
    }
}

/// The number that identifies a stream of the context, which is current. `None` where the driver does not
/// report it. Not queried for a capturing stream, as the query would invalidate the capture, nor for the
/// legacy stream, of which there is one.
fn stream_number(context: &Context, stream: CUstream) -> Option<u64> {
    if stream.addr() == LEGACY {
        return Some(u64::MAX);
    }
    let mut number = 0;
    // SAFETY: a live stream; writes one number.
    let code = unsafe { (context.api.stream_id?)(stream, &raw mut number) };
    (code == 0).then_some(number)
}

pub(super) fn not_the_same_capture() -> DeviceError {
    DeviceError::invalid("a point in a graph can be waited for in the same capture only")
}

/// The driver's number of the capture that `stream` takes part in; `None` for none, and where the driver
/// does not say.
pub(super) fn capture_id(context: &Context, stream: CUstream) -> Result<Option<u64>, DeviceError> {
    let Some(ask) = context.api.capture_info else { return Ok(None) };
    let (mut status, mut number): (u32, u64) = (0, 0);
    let _current = context.make_current()?;
    let status_at = (&raw mut status).cast::<CUstreamCaptureStatus>();
    // SAFETY: a live stream; what is not asked for is null.
    let code =
        unsafe { ask(stream, status_at, &raw mut number, ptr::null_mut(), ptr::null_mut(), ptr::null_mut()) };
    if code == NOT_SUPPORTED {
        return Ok(None);
    }
    context.check(code, "cannot tell what the stream is capturing")?;
    Ok((status == 1).then_some(number))
}
