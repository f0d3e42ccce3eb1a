use std::any::Any;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUstream};
use estafette_sync::sync::Mutex;

use crate::fence::source::{Event as _, Timeline};
use crate::queue::order_after;
use crate::{
    DLDevice, DeviceError, Fence, FenceSet, FenceState, LaunchGraph, Order, Queue, QueueClock, QueueId,
    Recorded, Timing,
};

use super::capture;
use super::context::{Context, beyond};
use super::events::{Captured, EventFence, PooledEvent};
use super::foreign::{Foreign, capture_id};
use super::memory;
use super::stream::Stream;
use super::timing::TimedInterval;

/// A CUDA stream, own or foreign. Enqueued work goes on when the queue is dropped.
pub struct CudaQueue {
    context: Arc<Context>,
    id: QueueId,
    kind: StreamOrigin,
    /// Measurements of what is enqueued until the next record.
    timings: Mutex<Vec<Arc<TimedInterval>>>,
}

enum StreamOrigin {
    Own(Arc<Stream>),
    /// A foreign stream, with the work that it was made to wait for. Other code enqueues there as well, so
    /// only records have numbers there.
    Foreign(Foreign, Mutex<Waits>),
}

struct Waits {
    clock: QueueClock,
    /// Fences of other contexts ([`beyond`]).
    depends: FenceSet,
}

/// The targets of a queue's wait on the device.
enum Behind {
    /// An event, whether it is ours, and its context.
    Event(CUevent, Option<Arc<PooledEvent>>, Arc<Context>),
    Captured(CUevent, Option<u64>),
    Done,
    /// The host alone can wait for the fence.
    Unknown,
}

impl CudaQueue {
    pub(super) fn own(context: &Arc<Context>) -> Result<Arc<Self>, DeviceError> {
        let stream = Stream::new(context)?;
        Ok(Arc::new(Self::new(context, stream.queue(), StreamOrigin::Own(stream))))
    }

    pub(super) fn foreign(context: &Arc<Context>, foreign: Foreign) -> Arc<Self> {
        let id = QueueId::next();
        // Work that this import was made to wait for stays ordered before everything that is enqueued there
        // later.
        let waits = Waits { clock: QueueClock::new(id, false), depends: FenceSet::default() };
        Arc::new(Self::new(context, id, StreamOrigin::Foreign(foreign, Mutex::new(waits))))
    }

    fn new(context: &Arc<Context>, id: QueueId, kind: StreamOrigin) -> Self {
        Self { context: Arc::clone(context), id, kind, timings: Mutex::default() }
    }

    /// The CUDA queue behind `queue`, if it is one.
    pub fn from_queue(queue: &dyn Queue) -> Option<&CudaQueue> {
        queue.as_any().downcast_ref()
    }

    /// True if other code enqueues on the stream too.
    pub fn is_foreign(&self) -> bool {
        matches!(self.kind, StreamOrigin::Foreign(..))
    }

    /// Enqueues setting `bytes` bytes at `at` to `value`.
    ///
    /// # Errors
    /// The queue has failed, or the driver refused the command. Nothing was enqueued then.
    ///
    /// # Safety
    /// The range is memory that this queue's device reaches, and stays alive and unused by others until the
    /// fill is done.
    pub unsafe fn fill(&self, at: *mut u8, value: u8, bytes: usize) -> Result<(), DeviceError> {
        if bytes == 0 {
            return self.intact();
        }
        self.enqueue("cannot enqueue a fill", |stream| {
            // SAFETY: by contract; the stream is live.
            unsafe { (self.context.api.fill)(at.expose_provenance() as u64, value, bytes, stream) }
        })
    }

    /// # Safety
    /// As for [`crate::Device::copy`].
    pub(super) unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), DeviceError> {
        if bytes == 0 {
            return self.intact();
        }
        self.enqueue("cannot enqueue a copy", |stream| {
            let (to, from) = (to.expose_provenance() as u64, from.expose_provenance() as u64);
            // SAFETY: by contract; the stream is live. Memory has one address space, so the driver knows
            // where each is.
            unsafe { (self.context.api.copy)(to, from, bytes, stream) }
        })
    }

    /// Calls `command`, which enqueues something, with the stream.
    pub(super) fn enqueue(
        &self,
        what: &str,
        command: impl FnOnce(CUstream) -> i32,
    ) -> Result<(), DeviceError> {
        self.intact()?;
        let stream = self.here()?;
        let _current = self.context.make_current()?;
        self.context.check(command(stream), what)?;
        self.context.counters.commands.one();
        Ok(())
    }

    /// Makes work that is enqueued here next wait for allocations that the device may not have reached.
    pub(super) fn await_memory(&self) -> Result<(), DeviceError> {
        memory::pending().iter().try_for_each(|event| match &self.kind {
            StreamOrigin::Own(stream) => {
                if !stream.await_memory(event)? {
                    memory::await_on_host(event);
                }
                Ok(())
            }
            StreamOrigin::Foreign(foreign, _) => {
                foreign.here()?;
                // SAFETY: ours, and live.
                unsafe { foreign.wait(&self.context, event.raw(), Some(event)) }.map(drop)
            }
        })
    }

    /// The stream, for a call by this thread.
    fn here(&self) -> Result<CUstream, DeviceError> {
        match &self.kind {
            StreamOrigin::Own(stream) => stream.for_command(),
            StreamOrigin::Foreign(foreign, _) => {
                foreign.here()?;
                Ok(foreign.raw())
            }
        }
    }

    /// Begins to measure; `None` in a capture, which runs when it is launched.
    fn begin_to_measure(&self) -> Result<Option<Arc<TimedInterval>>, DeviceError> {
        if self.is_capturing()? {
            return Ok(None);
        }
        // SAFETY: a live stream of the context.
        let interval = unsafe { TimedInterval::begin(&self.context, self.here()?) }?;
        self.timings.lock().push(Arc::clone(&interval));
        Ok(Some(interval))
    }

    /// Ends the measurements. An interval that cannot be measured stays unknown.
    fn end_measuring(&self) {
        let timings = std::mem::take(&mut *self.timings.lock());
        for interval in timings {
            // SAFETY: a live stream of the context.
            let ended = self.here().and_then(|stream| unsafe { interval.end(stream) });
            if let Err(error) = ended {
                tracing::debug!(%error, queue = %self.id, "device time is not measured");
            }
        }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn stream(&self) -> Option<&Arc<Stream>> {
        match &self.kind {
            StreamOrigin::Own(stream) => Some(stream),
            StreamOrigin::Foreign(..) => None,
        }
    }

    fn intact(&self) -> Result<(), DeviceError> {
        match &self.kind {
            StreamOrigin::Own(stream) => stream.intact(),
            StreamOrigin::Foreign(..) => self.context.intact(),
        }
    }

    fn covers(&self, fence: &Fence) -> bool {
        match &self.kind {
            StreamOrigin::Own(stream) => stream.state().clock.covers(fence),
            StreamOrigin::Foreign(_, waits) => waits.lock().clock.covers(fence),
        }
    }

    /// Enqueues a wait for the target of `fence`; `None` if the fence is not CUDA's.
    fn wait(&self, fence: &Fence) -> Result<Option<Order>, DeviceError> {
        let behind = behind(fence)?;
        if let Behind::Event(_, _, context) = &behind {
            context.intact()?;
        }
        match (&self.kind, behind) {
            (_, Behind::Done) => return Ok(Some(Order::Nothing)),
            (_, Behind::Unknown) => return Ok(None),
            // SAFETY: the event lives as long as the fence that holds it, or by the contract of
            // `fence_of_event`.
            (StreamOrigin::Own(stream), Behind::Event(event, ..)) => unsafe {
                stream.wait(fence, event)?;
            },
            (StreamOrigin::Own(stream), Behind::Captured(event, number)) => {
                // SAFETY: as above.
                unsafe { stream.wait_within(event, number) }?;
            }
            (StreamOrigin::Foreign(foreign, waits), Behind::Event(event, ours, _)) => {
                foreign.here()?;
                // SAFETY: as above.
                if unsafe { foreign.wait(&self.context, event, ours.as_ref()) }? {
                    let depends = beyond(fence, &self.context);
                    let mut waits = waits.lock();
                    waits.clock.note_wait(fence);
                    waits.depends.merge(&depends);
                }
            }
            (StreamOrigin::Foreign(foreign, _), Behind::Captured(event, number)) => {
                // SAFETY: as above.
                unsafe { foreign.wait_within(&self.context, event, number) }?;
            }
        }
        Ok(Some(Order::Device))
    }
}

/// The target behind a fence. An own stream records an event for the fence now, if none covers it.
fn behind(fence: &Fence) -> Result<Behind, DeviceError> {
    if let Some((timeline, sequence)) = fence.as_point() {
        let timeline: &Arc<dyn Timeline> = timeline;
        let any: &dyn Any = &**timeline;
        let Some(stream) = any.downcast_ref::<Stream>() else { return Ok(Behind::Unknown) };
        return Ok(stream.event_for(sequence)?.map_or(Behind::Done, |event| {
            Behind::Event(event.raw(), Some(event), Arc::clone(&stream.context))
        }));
    }
    let Some(event) = fence.as_event() else { return Ok(Behind::Unknown) };
    let any: &dyn Any = &**event;
    if let Some(single) = any.downcast_ref::<EventFence>() {
        return Ok(match (single.observed_state(), single.raw()) {
            (FenceState::Failed(error), _) => return Err(error),
            // A foreign event may be gone by now.
            (FenceState::Done, _) | (_, None) => Behind::Done,
            (FenceState::Pending, Some(raw)) => {
                Behind::Event(raw, single.event().cloned(), Arc::clone(single.context()))
            }
        });
    }
    if let Some(captured) = any.downcast_ref::<Captured>() {
        return Ok(Behind::Captured(captured.raw(), captured.capture_id));
    }
    Ok(Behind::Unknown)
}

/// An event for `fence` that foreign code may wait for; `None` if the fence is done. Fails with the fence,
/// and for one that has no event to hand out.
pub(super) fn event_of(fence: &Fence, device: DLDevice) -> Result<Option<Arc<PooledEvent>>, DeviceError> {
    if fence.observed_done() {
        return Ok(None);
    }
    match behind(fence)? {
        Behind::Event(_, Some(event), _) => Ok(Some(event)),
        Behind::Done => Ok(None),
        Behind::Captured(..) | Behind::Event(_, None, _) | Behind::Unknown => match fence.state() {
            FenceState::Done => Ok(None),
            FenceState::Failed(error) => Err(error),
            FenceState::Pending => {
                let message =
                    format!("the fence of {} is none that {device} has an event for", fence.device());
                Err(DeviceError::invalid(message))
            }
        },
    }
}

impl Queue for CudaQueue {
    fn id(&self) -> QueueId {
        self.id
    }

    fn device(&self) -> DLDevice {
        self.context.id
    }

    fn in_order(&self) -> bool {
        // A fence of a foreign queue is not ordered before what is enqueued there next without a wait.
        !self.is_foreign()
    }

    fn order_after(&self, fence: &Fence) -> Result<Order, DeviceError> {
        self.intact()?;
        order_after(self, fence, || self.covers(fence), || self.wait(fence))
    }

    /// Measures between two events with time stamps, which cost a little: hence only on request.
    fn time(&self) -> Option<Arc<dyn Timing>> {
        match self.begin_to_measure() {
            Ok(interval) => interval.map(|interval| interval as Arc<dyn Timing>),
            Err(error) => {
                tracing::debug!(%error, queue = %self.id, "device time is not measured");
                None
            }
        }
    }

    fn record(&self) -> Result<Fence, DeviceError> {
        self.intact()?;
        self.end_measuring();
        let (stream, event) = match &self.kind {
            StreamOrigin::Own(stream) => {
                let mut state = stream.state();
                if !state.capture {
                    let sequence = stream.next(&mut state);
                    let seen = state.clock.snapshot();
                    drop(state);
                    let timeline = Arc::clone(stream) as Arc<dyn Timeline>;
                    return Ok(Fence::point(timeline, sequence, seen).of_this_crate());
                }
                drop(state);
                // SAFETY: a live stream of the context.
                (stream.raw(), unsafe { PooledEvent::record(&self.context, stream.raw()) }?)
            }
            StreamOrigin::Foreign(foreign, waits) => {
                if !foreign.is_capturing(&self.context)? {
                    let (seen, depends) = {
                        let waits = waits.lock();
                        (waits.clock.snapshot(), waits.depends.clone())
                    };
                    return foreign.record(&self.context, seen, depends);
                }
                // SAFETY: as above.
                (foreign.raw(), unsafe { PooledEvent::record(&self.context, foreign.raw()) }?)
            }
        };
        Ok(Fence::event(Arc::new(Captured::new(event, capture_id(&self.context, stream)?))).of_this_crate())
    }

    fn make_current(&self) -> Result<bool, DeviceError> {
        self.context.push()
    }

    fn restore_current(&self) {
        self.context.pop();
    }

    /// The `CUstream`. The caller may enqueue there until the next [`Queue::record`].
    fn native(&self) -> usize {
        match &self.kind {
            StreamOrigin::Own(stream) => stream.touch().expose_provenance(),
            StreamOrigin::Foreign(foreign, _) => foreign.raw().expose_provenance(),
        }
    }

    fn handle(&self) -> usize {
        match &self.kind {
            StreamOrigin::Own(stream) => stream.raw().expose_provenance(),
            StreamOrigin::Foreign(foreign, _) => foreign.raw().expose_provenance(),
        }
    }

    fn handle_outlives_call(&self) -> bool {
        match &self.kind {
            StreamOrigin::Own(_) => true,
            StreamOrigin::Foreign(foreign, _) => foreign.handle_outlives_call(),
        }
    }

    fn is_capturing(&self) -> Result<bool, DeviceError> {
        match &self.kind {
            StreamOrigin::Own(stream) => stream.is_capturing(),
            StreamOrigin::Foreign(foreign, _) => foreign.is_capturing(&self.context),
        }
    }

    fn supports_capture(&self) -> bool {
        let api = self.context.api;
        let known =
            api.capture_begin.is_some() && api.graph_instantiate.is_some() && api.graph_launch.is_some();
        known && !self.is_foreign()
    }

    fn capture_graph(
        &self,
        queues: usize,
        enqueue: Recorded<'_>,
    ) -> Result<Arc<dyn LaunchGraph>, DeviceError> {
        capture::record(self, queues, enqueue)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for CudaQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.is_foreign() { ", foreign" } else { "" };
        write!(f, "CudaQueue({}{whose}, of {})", self.id, self.context.id)
    }
}

pub(super) fn not_ours(queue: &dyn Queue, device: DLDevice) -> DeviceError {
    DeviceError::invalid(format!("cannot enqueue on {}: it is no queue of {device}", queue.id()))
}
