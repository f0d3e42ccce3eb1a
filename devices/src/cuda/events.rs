//! Native events, used again and again, but never while a fence or a wait holds them.
//!
//! An event stands for its last record, so recording it again while a fence still means the last one would
//! lose a wait. A [`PooledEvent`] is one use of a native event, which is free again when the last holder has
//! gone.

use std::any::Any;
use std::sync::Arc;
use std::{fmt, ptr};

use cudarc::driver::sys::{CUevent, CUstream};
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};

use crate::fence::host_event::HostEvent;
use crate::fence::source::{self, Outcome, Subscriber, Watch};
use crate::{Clock, DLDevice, DeviceError, Fence, FenceSet, FenceState, QueueId};

use super::context::{Context, context_of};
use super::driver::{DRIVER, Handle, NOT_READY};
use super::foreign::Records;

/// Free events that are kept. Events beyond these, which a burst needed, are destroyed.
const FREE_MAX: usize = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// For waits: without time stamps, records and waits are cheapest.
    Order,
    /// For measuring the time at which the device reaches the event.
    Time,
}

impl Purpose {
    /// `CU_EVENT_DISABLE_TIMING` and `CU_EVENT_DEFAULT`.
    fn flags(self) -> u32 {
        if self == Self::Order { 2 } else { 0 }
    }
}

/// Free events of a context, all for one purpose.
#[derive(Default)]
pub(super) struct Events(Mutex<Vec<Handle<CUevent>>>);

pub(super) struct PooledEvent {
    context: Arc<Context>,
    raw: Handle<CUevent>,
    purpose: Purpose,
    /// A graph now owns the event, and waits for its last record at every launch.
    given_up: AtomicBool,
}

impl PooledEvent {
    fn acquire(context: &Arc<Context>, purpose: Purpose) -> Result<Arc<Self>, DeviceError> {
        let reused = context.events(purpose).take();
        let raw = reused.map_or_else(|| create(context, purpose), Ok)?;
        let context = Arc::clone(context);
        Ok(Arc::new(Self { context, raw, purpose, given_up: AtomicBool::new(false) }))
    }

    /// An event of everything enqueued on `stream` so far. The context is current, or the stream is no
    /// special one.
    ///
    /// # Safety
    /// `stream` is live, and of the context.
    pub(super) unsafe fn record(context: &Arc<Context>, stream: CUstream) -> Result<Arc<Self>, DeviceError> {
        // SAFETY: by contract.
        unsafe { Self::record_for(context, stream, Purpose::Order) }
    }

    /// As [`record`](Self::record), for a purpose.
    ///
    /// # Safety
    /// As for `record`.
    pub(super) unsafe fn record_for(
        context: &Arc<Context>,
        stream: CUstream,
        purpose: Purpose,
    ) -> Result<Arc<Self>, DeviceError> {
        let event = Self::acquire(context, purpose)?;
        let _current = context.make_current()?;
        // SAFETY: both are live and of one context.
        let code = unsafe { (context.api.event_record)(event.raw(), stream) };
        context.check(code, "cannot record an event")?;
        context.counters.events_recorded.one();
        Ok(event)
    }

    /// An event of everything enqueued in the context so far, where the driver has such.
    pub(super) fn record_context(context: &Arc<Context>) -> Option<Result<Arc<Self>, DeviceError>> {
        let record = context.api.context_record?;
        let recorded = Self::acquire(context, Purpose::Order).and_then(|event| {
            let _current = context.make_current_relaxed()?;
            // SAFETY: both are live.
            let code = unsafe { record(context.raw.get(), event.raw()) };
            context.check(code, "cannot record an event of the context")?;
            context.counters.events_recorded.one();
            Ok(event)
        });
        Some(recorded)
    }

    /// A new event that was never recorded, which counts as done.
    pub(super) fn done(context: &Arc<Context>) -> Result<Handle<CUevent>, DeviceError> {
        create(context, Purpose::Order)
    }

    pub(super) fn raw(&self) -> CUevent {
        self.raw.get()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn query(&self) -> Result<bool, DeviceError> {
        query(&self.context, self.raw())
    }

    /// The event is never recorded again: a graph waits for it at every launch.
    pub(super) fn retire_from_pool(&self) {
        if !self.given_up.swap(true, Ordering::Relaxed) {
            self.context.counters.events_given_up.one();
        }
    }
}

fn create(context: &Context, purpose: Purpose) -> Result<Handle<CUevent>, DeviceError> {
    let mut raw: CUevent = ptr::null_mut();
    let _current = context.make_current_relaxed()?;
    // SAFETY: writes one handle, which is the caller's.
    let code = unsafe { (context.api.event_create)(&raw mut raw, purpose.flags()) };
    context.check(code, "cannot make an event")?;
    context.counters.events_created.one();
    Ok(Handle::new(raw))
}

pub(super) fn query(context: &Context, event: CUevent) -> Result<bool, DeviceError> {
    let _current = context.make_current_relaxed()?;
    context.counters.event_queries.one();
    // SAFETY: a live event.
    match unsafe { (context.api.event_query)(event) } {
        NOT_READY => Ok(false),
        code => context.check(code, "an event failed").map(|()| true),
    }
}

pub(super) fn destroy(context: &Context, event: Handle<CUevent>) {
    if DRIVER.is_driver_gone() {
        return;
    }
    if let Ok(_current) = context.make_current_relaxed() {
        // SAFETY: ours, destroyed this once. Waits that were enqueued for it stay.
        let _ = unsafe { (context.api.event_destroy)(event.get()) };
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        if DRIVER.is_driver_gone() || self.given_up.load(Ordering::Relaxed) {
            return;
        }
        if !self.context.events(self.purpose).keep(self.raw) {
            destroy(&self.context, self.raw);
        }
    }
}

debug_as!(event: PooledEvent, "CUDA event {:p} of {}", event.raw(), event.context.id);

impl Events {
    fn take(&self) -> Option<Handle<CUevent>> {
        self.0.lock().pop()
    }

    /// Keeps an unused event. Returns false if as many as may be kept are there.
    fn keep(&self, raw: Handle<CUevent>) -> bool {
        let mut free = self.0.lock();
        let has_room = free.len() < FREE_MAX;
        if has_room {
            free.push(raw);
        }
        has_room
    }
}

// Fences that are one event each: records of a foreign queue, events from outside, and points in a graph that
// is being captured.

pub(super) struct EventFence {
    core: Arc<EventCore>,
    /// Work of other contexts that the event waits for, until it has settled: points of own streams, and
    /// records of foreign streams. The work that these records wait for is left out, as it would be an
    /// endless chain.
    pub(super) depends: Mutex<FenceSet>,
}

/// The event of a fence, without the waits of the event's stream.
struct EventCore {
    context: Arc<Context>,
    native: Native,
    /// The records of the event's stream, where that stream is foreign and known.
    records: Option<Arc<Records>>,
    host_event: HostEvent,
}

enum Native {
    /// Recorded for this fence and nothing else.
    Ours(Arc<PooledEvent>),
    /// A foreign event, alive until this has settled.
    Theirs(Handle<CUevent>),
    /// No event: settled from the beginning.
    Gone,
}

impl EventFence {
    /// `event` is the newest of `records`, where it has others to be compared with.
    pub(super) fn of(event: Arc<PooledEvent>, records: Option<Arc<Records>>, depends: FenceSet) -> Self {
        let unfinished = depends.into_iter().filter(|fence| !fence.observed_done());
        let depends = unfinished.filter_map(without_waits).collect();
        let context = Arc::clone(event.context());
        let core = EventCore { records, ..EventCore::new(context, Native::Ours(event)) };
        Self { core: Arc::new(core), depends: Mutex::new(depends) }
    }

    /// # Safety
    /// The event stays alive, and is not recorded again, until this fence has settled.
    pub(super) unsafe fn foreign(context: &Arc<Context>, event: CUevent) -> Self {
        Self::new(context, Native::Theirs(Handle::new(event)))
    }

    /// A fence of `context` that is done.
    pub(super) fn done(context: &Arc<Context>) -> Self {
        let fence = Self::new(context, Native::Gone);
        fence.core.settle(&Ok(()));
        fence
    }

    fn new(context: &Arc<Context>, native: Native) -> Self {
        Self { core: Arc::new(EventCore::new(Arc::clone(context), native)), depends: Mutex::default() }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.core.context
    }

    pub(super) fn raw(&self) -> Option<CUevent> {
        self.core.raw()
    }

    /// The event, if this crate owns it.
    pub(super) fn event(&self) -> Option<&Arc<PooledEvent>> {
        match &self.core.native {
            Native::Ours(event) => Some(event),
            Native::Theirs(_) | Native::Gone => None,
        }
    }

    /// The fault of a broken context that the event waits for.
    fn fault(&self) -> Option<DeviceError> {
        let depends = self.depends.lock();
        depends
            .iter()
            .find_map(|fence| context_of(fence)?.fault().filter(|_| !fence.observed_done()).cloned())
    }
}

impl EventCore {
    fn new(context: Arc<Context>, native: Native) -> Self {
        Self { context, native, records: None, host_event: HostEvent::new() }
    }

    fn raw(&self) -> Option<CUevent> {
        match &self.native {
            Native::Ours(event) => Some(event.raw()),
            Native::Theirs(event) => Some(event.get()),
            Native::Gone => None,
        }
    }

    fn state(&self) -> FenceState {
        if self.host_event.state().is_pending() {
            let asked = match (self.context.fault(), self.raw()) {
                (Some(fault), _) => Err(fault.clone()),
                (None, Some(event)) => query(&self.context, event),
                (None, None) => Ok(true),
            };
            match asked {
                Ok(false) => {}
                outcome => self.settle(&outcome.map(drop)),
            }
        }
        self.host_event.state()
    }

    fn settle(&self, outcome: &Outcome) {
        // A call that the exit refuses is no failure of the event.
        if outcome.is_err() && DRIVER.has_begun() {
            return;
        }
        let subscribers = self.host_event.settle(&outcome.clone().map_err(DeviceError::of_unknown_end));
        debug_assert!(subscribers.is_empty(), "the reactor polls a CUDA event: it has no subscribers");
    }
}

/// The fence without its own waits, as a record of work that other work waits for. `None` for an event whose
/// stream is unknown, as there may be any number of such events.
fn without_waits(fence: Fence) -> Option<Fence> {
    let Some(event) = fence.as_event() else { return Some(fence) };
    let any: &dyn Any = &**event;
    let event = any.downcast_ref::<EventFence>().filter(|event| event.core.records.is_some())?;
    let event = Arc::new(EventFence { core: Arc::clone(&event.core), depends: Mutex::default() });
    Some(Fence::recorded_event(event, fence.sequence()?, Clock::default()).of_this_crate())
}

impl source::Event for EventFence {
    fn device(&self) -> DLDevice {
        self.core.context.id
    }

    fn queue(&self) -> Option<QueueId> {
        self.core.records.as_ref().map(|records| records.queue)
    }

    fn state(&self) -> FenceState {
        if self.core.host_event.state().is_pending()
            && self.context().fault().is_none()
            && let Some(fault) = self.fault()
        {
            self.core.settle(&Err(fault));
        }
        let state = self.core.state();
        if !state.is_pending() {
            let depends = std::mem::take(&mut *self.depends.lock());
            drop(depends);
        }
        state
    }

    fn observed_done(&self) -> bool {
        self.core.host_event.is_done()
    }

    fn observed_state(&self) -> FenceState {
        if self.context().fault().is_some() || self.fault().is_some() {
            // Settles it.
            self.state()
        } else {
            self.core.host_event.state()
        }
    }

    fn watch(&self, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        self.state().outcome().map_or(Watch::MustPoll, Watch::Settled)
    }
}

impl fmt::Debug for EventFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.core.native {
            Native::Ours(event) => event.fmt(f),
            Native::Theirs(_) => write!(f, "a foreign CUDA event, of {}", self.core.context.id),
            Native::Gone => write!(f, "settled work of {}", self.core.context.id),
        }
    }
}

/// A point in a graph that is being captured.
///
/// Nothing has run when the point is made, and the work may run often or never: there is no moment at which
/// the point is done. A query would invalidate the capture, so the point is never queried; its state is a
/// failure whose message says why, and no wait lasts for ever. The point orders work within its capture:
/// another queue of the capture may wait for it.
pub(super) struct Captured {
    event: Arc<PooledEvent>,
    /// The driver's number of the capture; `None` where it does not say, and then nothing can be ordered
    /// after this.
    pub(super) capture_id: Option<u64>,
    failure: DeviceError,
}

impl Captured {
    pub(super) fn new(event: Arc<PooledEvent>, capture_id: Option<u64>) -> Self {
        let message = "this point was captured into a graph: it has no time of its own, what it stands for runs whenever the \
                       graph is launched";
        Self { event, capture_id, failure: DeviceError::invalid(message) }
    }

    pub(super) fn raw(&self) -> CUevent {
        self.event.raw()
    }
}

impl source::Event for Captured {
    fn device(&self) -> DLDevice {
        self.event.context().id
    }

    fn state(&self) -> FenceState {
        FenceState::Failed(self.failure.clone())
    }

    fn observed_done(&self) -> bool {
        false
    }

    fn watch(&self, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        Watch::Settled(Err(self.failure.clone()))
    }
}

debug_as!(point: Captured, "a point in a graph, {:?}", point.event);

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(number: usize) -> Handle<CUevent> {
        Handle::new(ptr::without_provenance_mut(number))
    }

    #[test]
    fn an_event_is_used_again_and_a_burst_of_events_is_not_kept() {
        let events = Events::default();
        assert!(events.take().is_none());
        let kept = (1..=FREE_MAX + 10).filter(|number| events.keep(raw(*number))).count();
        assert_eq!(kept, FREE_MAX);
        assert_eq!(events.take().map(|event| event.get().addr()), Some(FREE_MAX));
        assert!(events.keep(raw(FREE_MAX)) && !events.keep(raw(FREE_MAX + 1)));
    }
}
