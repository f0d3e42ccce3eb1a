//! What is enqueued on a stream of ours: its numbers, the events that cover some of them, and what it was made to wait for.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUstream, CUstreamCaptureStatus};

use crate::source::Timeline;
use crate::{DeviceError, DeviceErrorKind, Fence, QueueClock, QueueId};

use super::context::Context;
use super::events::Event;
use super::foreign::{not_the_same_recording, recording};
use super::stream::Stream;

/// Events on a stream before the oldest are looked at unasked, so that they become free in chains that nobody polls.
const MARKS_LOOK: usize = 16;
/// Events that are kept. Past it every second one is let go: whoever asks for its number gets the next one.
const MARKS_MAX: usize = 1_024;

/// What is enqueued. The lock never covers user code.
pub(super) struct Lane {
    pub(super) clock: QueueClock,
    pub(super) sequence: u64,
    /// Numbers with an event that covers them, ascending.
    pub(super) marks: VecDeque<(u64, Arc<Event>)>,
    /// What is enqueued now is recorded into a graph of ours.
    pub(super) capture: bool,
    /// Somebody has the handle, and may be capturing.
    pub(super) touched: bool,
    /// The newest number when the stream was last made to wait.
    pub(super) waited_at: u64,
}

impl Lane {
    pub(super) fn new(id: QueueId) -> Self {
        Self {
            clock: QueueClock::new(id, true),
            sequence: 0,
            marks: VecDeque::new(),
            capture: false,
            touched: false,
            waited_at: 0,
        }
    }

    /// Whether a graph of ours is being recorded here.
    pub(super) fn is_recording(&self) -> bool {
        self.capture
    }

    /// The first event that covers `sequence`.
    pub(super) fn covering(&self, sequence: u64) -> Option<Arc<Event>> {
        let at = self.marks.partition_point(|(number, _)| *number < sequence);
        self.marks.get(at).map(|(_, event)| Arc::clone(event))
    }
}

impl Stream {
    /// An event that covers number `sequence`; `None` when that is done.
    ///
    /// # Errors
    /// The stream is broken, or the driver refused the event.
    pub(super) fn event_for(&self, sequence: u64) -> Result<Option<Arc<Event>>, DeviceError> {
        if self.completed() >= sequence {
            return Ok(None);
        }
        self.intact()?;
        let mut lane = self.lane();
        if let Some(event) = lane.covering(sequence) {
            return Ok(Some(event));
        }
        self.mark(&mut lane).map(Some)
    }

    /// Makes what is enqueued here next wait for `event`, which is behind `fence`.
    ///
    /// # Errors
    /// The driver refused it; no wait was enqueued.
    ///
    /// # Safety
    /// `event` is live.
    pub(super) unsafe fn wait(
        self: &Arc<Self>,
        fence: &Fence,
        event: CUevent,
        context: &Arc<Context>,
    ) -> Result<(), DeviceError> {
        let mut lane = self.lane();
        self.not_capturing(&lane)?;
        // What was enqueued until now must not seem to wait as well.
        if lane.sequence > self.completed() && lane.covering(lane.sequence).is_none() {
            self.mark(&mut lane)?;
        }
        // SAFETY: by contract.
        unsafe { wait(&self.context, self.raw(), event, 0) }?;
        lane.clock.note_wait(fence);
        lane.waited_at = lane.sequence;
        drop(lane);
        if !Arc::ptr_eq(context, &self.context) {
            let mut depends = self.depends();
            depends.retain(|(fence, _)| !fence.observed_done());
            depends.push((fence.clone(), Arc::clone(context)));
            drop(depends);
            context.adopt(self);
        }
        Ok(())
    }

    /// Makes what is recorded here next wait for a point of the same recording.
    ///
    /// # Safety
    /// `event` is live.
    pub(super) unsafe fn wait_within(&self, event: CUevent, number: Option<u64>) -> Result<(), DeviceError> {
        let _lane = self.lane();
        if number.is_none() || recording(&self.context, self.raw())? != number {
            return Err(not_the_same_recording());
        }
        // SAFETY: by contract.
        unsafe { wait(&self.context, self.raw(), event, 0) }
    }

    /// Records an event of everything enqueued so far: it covers the newest number.
    pub(super) fn mark(&self, lane: &mut Lane) -> Result<Arc<Event>, DeviceError> {
        self.not_capturing(lane)?;
        // SAFETY: a live stream of the context.
        let event = unsafe { Event::record(&self.context, self.raw()) }?;
        let number = lane.sequence;
        if lane.marks.len() >= MARKS_LOOK {
            self.retire(lane)?;
        }
        if lane.marks.len() >= MARKS_MAX {
            let mut at = 0;
            // The newest stays: it is the last of an even number.
            lane.marks.retain(|_| {
                at += 1;
                at % 2 == 0
            });
        }
        lane.marks.push_back((number, Arc::clone(&event)));
        Ok(event)
    }

    /// Queries the oldest events, up to the first that is not done.
    pub(super) fn retire(&self, lane: &mut Lane) -> Result<(), DeviceError> {
        let completed = self.completed();
        while lane.marks.pop_front_if(|(number, _)| *number <= completed).is_some() {}
        while let Some((number, event)) = lane.marks.front() {
            if !event.query()? {
                break;
            }
            self.reach(*number);
            lane.marks.pop_front();
        }
        Ok(())
    }

    /// # Errors
    /// What is enqueued now is recorded into a graph.
    fn not_capturing(&self, lane: &Lane) -> Result<(), DeviceError> {
        if !self.records(lane)? {
            return Ok(());
        }
        let message = format!("{} is recording a graph: nothing outside of it can be waited for", self.id);
        Err(DeviceError::new(DeviceErrorKind::Invalid, message).with_queue(self.id))
    }

    /// Whether what is enqueued now is recorded into a graph, ours or that of somebody who has the handle.
    pub(super) fn records(&self, lane: &Lane) -> Result<bool, DeviceError> {
        Ok(lane.capture || lane.touched && is_capturing(&self.context, self.raw())?)
    }

    /// Whether what is enqueued now is recorded into a graph.
    pub(super) fn is_capturing(&self) -> Result<bool, DeviceError> {
        self.records(&self.lane())
    }

    /// From here on, what is enqueued is recorded into a graph. Everything before has an event: none could be had later.
    ///
    /// # Errors
    /// It is recording already, is broken, or `begin` did not work.
    pub(super) fn begin_recording(
        &self,
        begin: impl FnOnce(CUstream) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.intact()?;
        let mut lane = self.lane();
        self.not_capturing(&lane)?;
        if lane.sequence > self.completed() && lane.covering(lane.sequence).is_none() {
            self.mark(&mut lane)?;
        }
        let mut recordings = self.context.recordings();
        begin(self.raw())?;
        *recordings += 1;
        lane.capture = true;
        Ok(())
    }

    /// Takes part, from here on, in the recording that `origin` has begun.
    ///
    /// # Errors
    /// As [`begin_recording`](Self::begin_recording).
    pub(super) fn join_recording(&self, origin: &Self) -> Result<(), DeviceError> {
        self.begin_recording(|raw| {
            // SAFETY: a live stream of the context.
            let fork = unsafe { Event::record(&self.context, origin.raw()) }?;
            // SAFETY: the event is live, and a recording keeps what it waits for by itself.
            unsafe { wait(&self.context, raw, fork.raw(), 0) }
        })
    }

    /// Makes `origin`, whose recording this stream has joined, come after what was enqueued here.
    ///
    /// # Errors
    /// The recording was spoilt.
    pub(super) fn rejoin(&self, origin: &Self) -> Result<(), DeviceError> {
        // SAFETY: a live stream of the context.
        let join = unsafe { Event::record(&self.context, self.raw()) }?;
        // SAFETY: as in `join_recording`.
        unsafe { wait(&self.context, origin.raw(), join.raw(), 0) }
    }

    /// The recording that this stream has joined is over.
    pub(super) fn leave_recording(&self) {
        let mut lane = self.lane();
        lane.capture = false;
        *self.context.recordings() -= 1;
    }

    /// The recording is over.
    pub(super) fn end_recording(
        &self,
        end: impl FnOnce(CUstream) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut lane = self.lane();
        lane.capture = false;
        let mut recordings = self.context.recordings();
        *recordings -= 1;
        end(self.raw())
    }
}

/// Makes what is enqueued on `stream` next wait for `event`.
///
/// # Safety
/// Both are live.
pub(super) unsafe fn wait(
    context: &Context,
    stream: CUstream,
    event: CUevent,
    flags: u32,
) -> Result<(), DeviceError> {
    let _entered = context.enter()?;
    // SAFETY: by contract.
    let code = unsafe { (context.api.stream_wait)(stream, event, flags) };
    context.check(code, "cannot wait for an event")?;
    context.counters.waits.one();
    Ok(())
}

/// Whether what is enqueued on `stream` now is recorded into a graph.
pub(super) fn is_capturing(context: &Context, stream: CUstream) -> Result<bool, DeviceError> {
    let mut status: u32 = 0;
    let _entered = context.enter()?;
    // SAFETY: a live stream; the status is a number, written to one.
    let code =
        unsafe { (context.api.stream_capturing)(stream, (&raw mut status).cast::<CUstreamCaptureStatus>()) };
    context.check(code, "cannot tell whether the stream is recording a graph")?;
    Ok(status != 0)
}
