use std::any::Any;
use std::sync::Arc;
use std::{fmt, ptr};

use estafette_sync::sync::{Mutex, OnceLock};

use crate::fence::source::Timeline;
use crate::queue::order_after;
use crate::{DLDevice, DeviceError, Fence, Order, Queue, QueueId, Timing};

use super::device::DeviceState;
use super::event::{Single, SyclEvent};
use super::exit;
use super::handle::Handle;
use super::progress::Progress;
use super::queue_state::{Native, QueueState};

/// A queue of a [`SyclDevice`](super::SyclDevice), own or foreign. Enqueued work goes on when the queue is
/// dropped.
pub struct SyclQueue {
    shared: Arc<DeviceState>,
    id: QueueId,
    in_order: bool,
    /// The numbers of an own queue. A foreign queue has none: its owner enqueues too, so each fence stands
    /// alone.
    progress: Option<Arc<Progress>>,
    state: Mutex<QueueState>,
    /// The value that [`keep`](SyclQueue::keep) keeps alive for as long as the wrapper lives.
    kept: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl SyclQueue {
    /// An own queue: foreign code enqueues only through [`Queue::native`].
    pub(super) fn own(
        shared: &Arc<DeviceState>,
        handles: impl Iterator<Item = Handle>,
        in_order: bool,
    ) -> Arc<Self> {
        let id = QueueId::next();
        Self::with(shared, handles, in_order, id, Some(Progress::new(id, shared.id, in_order)))
    }

    pub(super) fn foreign(shared: &Arc<DeviceState>, handle: Handle, in_order: bool) -> Arc<Self> {
        Self::with(shared, [handle].into_iter(), in_order, QueueId::next(), None)
    }

    fn with(
        shared: &Arc<DeviceState>,
        handles: impl Iterator<Item = Handle>,
        in_order: bool,
        id: QueueId,
        progress: Option<Arc<Progress>>,
    ) -> Arc<Self> {
        // Of a foreign queue the order is not known here: what others enqueue comes between.
        let handles = handles.map(|handle| Native::new(shared, handle, progress.is_none())).collect();
        let state = QueueState::new(shared, handles, id, in_order && progress.is_some());
        Arc::new(Self {
            shared: Arc::clone(shared),
            id,
            in_order,
            progress,
            state: Mutex::new(state),
            kept: OnceLock::new(),
        })
    }

    /// The SYCL queue behind `queue`, if it is one.
    pub fn from_queue(queue: &dyn Queue) -> Option<&SyclQueue> {
        queue.as_any().downcast_ref()
    }

    /// True if others enqueue on it too.
    pub fn is_foreign(&self) -> bool {
        self.progress.is_none()
    }

    /// The identity of the runtime's queue while a wrapper of it lives. All wrappers of one queue have the
    /// same identity, as long as the runtime works in this process.
    pub fn identity(&self) -> usize {
        let Ok(api) = self.shared.api() else { return ptr::from_ref(self).addr() };
        let state = self.state.lock();
        // SAFETY: a live queue.
        unsafe { (api.queue_hash)(state.raw()) }
    }

    /// Keeps `what` for as long as this wrapper lives. Only the first call counts.
    pub fn keep(&self, what: Arc<dyn Any + Send + Sync>) {
        let _ = self.kept.set(what);
    }

    /// Enqueues setting `bytes` bytes at `at` to `value`.
    ///
    /// # Errors
    /// The queue has failed, or the runtime refused the command. Nothing was enqueued then.
    ///
    /// # Safety
    /// The range is USM of this queue's context, and stays alive and unused by others until the fill is done.
    pub unsafe fn fill(&self, at: *mut u8, value: u8, bytes: usize) -> Result<(), DeviceError> {
        self.check()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: by contract.
        unsafe { self.state.lock().fill(at.cast(), value, bytes) }
    }

    /// # Safety
    /// As for [`crate::Device::copy`].
    pub(super) unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) -> Result<(), DeviceError> {
        self.check()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: by contract.
        unsafe { self.state.lock().copy(from, to, bytes) }
    }

    pub(super) fn shared(&self) -> &Arc<DeviceState> {
        &self.shared
    }

    fn check(&self) -> Result<(), DeviceError> {
        exit::check()?;
        self.progress.as_ref().and_then(|progress| progress.failure()).map_or(Ok(()), Err)
    }

    fn wait(&self, fence: &Fence) -> Result<Option<Order>, DeviceError> {
        // A queue can wait for what is of its own context.
        let event = event_of(fence).filter(|event| event.shared().context.same(&self.shared.context));
        let Some(event) = event else { return Ok(None) };
        // A failed queue cannot be waited for. The query costs one load while no failure is known.
        if let Some(error) = fence.as_point().and_then(|(timeline, _)| timeline.failure()) {
            return Err(error);
        }
        let mut state = self.state.lock();
        state.wait_for(event)?;
        if self.is_foreign() {
            state.flush_to(0)?;
        } else {
            state.clock.note_wait(fence);
        }
        Ok(Some(Order::Device))
    }
}

/// The native event behind a fence; `None` for fences of others, and for what is done.
pub(super) fn event_of(fence: &Fence) -> Option<Arc<SyclEvent>> {
    if let Some((timeline, sequence)) = fence.as_point() {
        let timeline: &dyn Any = &**timeline;
        return timeline.downcast_ref::<Progress>()?.event_of(sequence);
    }
    let event: &dyn Any = &**fence.as_event()?;
    event.downcast_ref::<Single>().map(|single| Arc::clone(&single.0))
}

impl Queue for SyclQueue {
    fn id(&self) -> QueueId {
        self.id
    }

    fn device(&self) -> DLDevice {
        self.shared.id
    }

    fn in_order(&self) -> bool {
        // A fence of a foreign queue is not ordered before what is enqueued there next without a wait.
        self.in_order && !self.is_foreign()
    }

    fn order_after(&self, fence: &Fence) -> Result<Order, DeviceError> {
        self.check()?;
        let is_ordered =
            || self.in_order() && fence.queue() == Some(self.id) || self.state.lock().clock.covers(fence);
        order_after(self, fence, is_ordered, || self.wait(fence))
    }

    fn record(&self) -> Result<Fence, DeviceError> {
        self.check()?;
        let mut state = self.state.lock();
        let Some(progress) = &self.progress else {
            return Ok(Fence::event(Arc::new(Single(state.record_all()?))).of_this_crate());
        };
        let event = state.record()?;
        let (sequence, seen) = (state.sequence, state.clock.snapshot());
        // Under the lock: numbers get their events in order.
        let tidy = event.is_some_and(|event| progress.add(sequence, &event));
        drop(state);
        if tidy {
            progress.tidy();
        }
        Ok(Fence::point(Arc::clone(progress) as Arc<dyn Timeline>, sequence, seen).of_this_crate())
    }

    /// dpctl drops arrays in host tasks of the runtime. Enqueueing in such a task waits for a lock of the
    /// scheduler (DPC++ 2026), and the lock may be held by a thread that waits for this very task.
    fn record_is_thread_safe(&self) -> bool {
        false
    }

    /// An own queue uses profiling queues of the runtime from here on, until something is enqueued that is
    /// not measured. A foreign queue is measured between two barriers, if its owner has made it with
    /// profiling.
    fn time(&self) -> Option<Arc<dyn Timing>> {
        match exit::check().and_then(|()| self.state.lock().time()) {
            Ok(commands) => commands.map(|commands| commands as Arc<dyn Timing>),
            Err(error) => {
                tracing::debug!(%error, queue = %self.id, "device time is not measured");
                None
            }
        }
    }

    /// The pointer to the `sycl::queue`. The caller may enqueue there until the next [`Queue::record`]. Waits
    /// kept for the next command are enqueued first.
    fn native(&self) -> usize {
        let touched = exit::check().and_then(|()| self.state.lock().touch());
        match (touched, &self.progress) {
            (Ok(handle), _) => handle.expose_provenance(),
            (Err(error), Some(progress)) => {
                // Work would run too early. Later calls on this queue fail with this error.
                progress.fail(&error.with_queue(self.id));
                0
            }
            (Err(_), None) => 0,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for SyclQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.in_order { "in-order" } else { "out-of-order" };
        let whose = if self.is_foreign() { ", foreign" } else { "" };
        write!(f, "SyclQueue({}, {kind}{whose}, of {})", self.id, self.shared.id)
    }
}

pub(super) fn not_ours(queue: &dyn Queue, device: DLDevice) -> DeviceError {
    let message = format!("cannot enqueue on {}: it is no queue of the context of {device}", queue.id());
    DeviceError::invalid(message)
}
