use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use estafette_sync::sync::atomic::{AtomicBool, Ordering};

use crate::fence::host_event::HostEvent;
use crate::queue::order_after;
use crate::{DLDevice, DeviceError, Fence, Order, Queue, QueueId, Timing};

use super::command::CommandId;
use super::device::Core;
use super::mark::SimMark;
use super::timeline::SimTimeline;

/// A queue of a [`SimDevice`](super::SimDevice). Work that is enqueued goes on when the queue is dropped.
pub struct SimQueue {
    pub(super) core: Arc<Core>,
    id: QueueId,
    in_order: bool,
    capturing: AtomicBool,
}

impl SimQueue {
    pub(super) fn new(core: &Arc<Core>, out_of_order: bool) -> Arc<Self> {
        let id = QueueId::next();
        let timeline = (!out_of_order)
            .then(|| Arc::new(SimTimeline::new(id, core.device, core.options.notify, core.counters.clone())));
        core.schedule().add_queue(id, timeline);
        let capturing = AtomicBool::new(false);
        let queue = Arc::new(Self { core: core.clone(), id, in_order: !out_of_order, capturing });
        core.handles.lock().insert(queue.native(), Arc::downgrade(&queue));
        queue
    }

    /// The simulated queue behind `queue`, if it is one.
    pub fn from_queue(queue: &dyn Queue) -> Option<&SimQueue> {
        queue.as_any().downcast_ref()
    }

    /// Enqueues a task that takes `duration_ns` virtual nanoseconds. Its effect `work` happens when it
    /// completes; a panic in it is a fault of the queue. `name` is what scripts and traces call it.
    ///
    /// # Errors
    /// The queue has failed; `work` is dropped.
    pub fn launch(
        &self,
        name: impl Into<Cow<'static, str>>,
        duration_ns: u64,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), DeviceError> {
        let name = name.into();
        let work = Box::new(work);
        self.core.change(move |schedule, effects| {
            if let Err(error) = schedule.check(self.id) {
                effects.dropped.push(work);
                return Err(error);
            }
            schedule.launch(self.id, name, duration_ns, work, effects);
            self.core.counters.launches.one();
            Ok(())
        })
    }

    /// Begins or ends the capture of a graph: what [`Queue::is_capturing`] says of it, by whatever handle.
    pub fn set_capturing(&self, capturing: bool) {
        self.capturing.store(capturing, Ordering::Release);
    }

    /// The fence of what is enqueued so far as an event of its own, without a number.
    pub(super) fn record_alone(&self) -> Result<Fence, DeviceError> {
        self.core.change(|schedule, effects| {
            schedule.check(self.id)?;
            let (mark, ..) = schedule.mark(self.id, |command| self.mark(false, command), effects);
            Ok(Fence::event(mark))
        })
    }

    pub(super) fn record_everything(&self) -> Result<Fence, DeviceError> {
        self.core.change(|schedule, effects| {
            schedule.check(self.id)?;
            schedule.wait_for_all(self.id, effects);
            let (mark, ..) = schedule.mark(self.id, |command| self.mark(false, command), effects);
            Ok(Fence::event(mark))
        })
    }

    fn mark(&self, numbered: bool, command: CommandId) -> SimMark {
        let Core { device, options, counters, .. } = &*self.core;
        SimMark {
            queue: self.id,
            numbered,
            device: *device,
            notify: options.notify,
            counters: counters.clone(),
            command,
            host_event: HostEvent::new(),
            observed: AtomicBool::new(false),
            recorded: AtomicBool::new(false),
        }
    }

    /// As [`Queue::order_after`]; a wait is elided only where this queue's own work is `elidable`.
    pub(super) fn order(
        &self,
        fence: &Fence,
        elidable: bool,
        asked_as: &dyn Queue,
    ) -> Result<Order, DeviceError> {
        self.core.schedule().check(self.id)?;
        let is_ordered = || elidable && self.core.schedule().clock_covers(self.id, fence);
        order_after(asked_as, fence, is_ordered, || self.wait(fence))
    }

    fn wait(&self, fence: &Fence) -> Result<Option<Order>, DeviceError> {
        let Some((on, target)) = self.own_target(fence) else { return Ok(None) };
        self.core.change(|schedule, effects| {
            schedule.check(self.id)?;
            if schedule.has_queue(on) {
                schedule.check(on)?;
            }
            let target = match target {
                WaitTarget::Point(sequence) => schedule.unfinished(on, sequence),
                WaitTarget::Mark(command) => Some(command),
            };
            schedule.wait(self.id, target, fence, effects);
            self.core.counters.waits.one();
            Ok(Some(Order::Device))
        })
    }

    /// The command that a fence of this device stands for, and its queue; `None` for fences of other devices.
    fn own_target(&self, fence: &Fence) -> Option<(QueueId, WaitTarget)> {
        let (on, target) = if let Some((timeline, sequence)) = fence.as_point() {
            let on = timeline.queue();
            let timeline: &dyn Any = &**timeline;
            let timeline = timeline.downcast_ref::<SimTimeline>()?;
            timeline.record_natively(sequence);
            (on, WaitTarget::Point(sequence))
        } else {
            let event: &dyn Any = &**fence.as_event()?;
            let mark = event.downcast_ref::<SimMark>()?;
            mark.record_natively();
            (mark.queue, WaitTarget::Mark(mark.command))
        };
        self.core.schedule().has_queue(on).then_some((on, target))
    }
}

enum WaitTarget {
    Point(u64),
    Mark(CommandId),
}

impl Queue for SimQueue {
    fn id(&self) -> QueueId {
        self.id
    }

    fn device(&self) -> DLDevice {
        self.core.device
    }

    fn in_order(&self) -> bool {
        self.in_order
    }

    fn order_after(&self, fence: &Fence) -> Result<Order, DeviceError> {
        self.order(fence, true, self)
    }

    fn record(&self) -> Result<Fence, DeviceError> {
        self.core.change(|schedule, effects| {
            schedule.end_timing(self.id);
            schedule.check(self.id)?;
            if let Some((timeline, sequence, seen)) = schedule.point(self.id) {
                return Ok(Fence::point(timeline, sequence, seen));
            }
            let (mark, sequence, seen) = schedule.mark(self.id, |command| self.mark(true, command), effects);
            Ok(Fence::recorded_event(mark, sequence, seen))
        })
    }

    fn time(&self) -> Option<Arc<dyn Timing>> {
        Some(self.core.schedule().time(self.id))
    }

    fn native(&self) -> usize {
        self.id.get() as usize
    }

    fn is_capturing(&self) -> Result<bool, DeviceError> {
        Ok(self.capturing.load(Ordering::Acquire))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        self.core.handles.lock().remove(&self.native());
        self.core.schedule().close_queue(self.id);
    }
}

impl fmt::Debug for SimQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.in_order { "in-order" } else { "out-of-order" };
        write!(f, "SimQueue({}, {kind}, of {})", self.id, self.core.device)
    }
}
