use std::borrow::Cow;
use std::collections::VecDeque;

use crate::QueueId;

/// Something notable that happened on a simulated device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Virtual time.
    pub at_ns: u64,
    /// The queue.
    pub queue: QueueId,
    /// The kind.
    pub kind: TraceKind,
}

/// The kind of a [`TraceEvent`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceKind {
    /// A task of this name was enqueued.
    Launched(Cow<'static, str>),
    /// A device-side wait was enqueued: what comes later on the queue runs after record `sequence` of `on`.
    Waited {
        /// The queue that is waited for.
        on: QueueId,
        /// The number on that queue.
        sequence: u64,
    },
    /// Everything that a task waits for is done: it runs.
    Started(Cow<'static, str>),
    /// A task has ended and its effect is visible.
    Completed(Cow<'static, str>),
    /// The queue has failed, with everything unfinished on it. This is the message of the root error.
    Failed(String),
}

impl TraceEvent {
    /// The name of the task, for events that are about one.
    pub fn name(&self) -> Option<&str> {
        match &self.kind {
            TraceKind::Launched(name) | TraceKind::Started(name) | TraceKind::Completed(name) => Some(name),
            TraceKind::Waited { .. } | TraceKind::Failed(_) => None,
        }
    }
}

/// The newest events that a device keeps. A test looks at far fewer; an example that runs for long must not
/// grow.
const TRACE_EVENTS_MAX: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Trace(VecDeque<TraceEvent>);

impl Trace {
    pub(super) fn push(&mut self, event: TraceEvent) {
        if self.0.len() == TRACE_EVENTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    pub(super) fn to_vec(&self) -> Vec<TraceEvent> {
        self.0.iter().cloned().collect()
    }
}

crate::counters::counters! {
    /// Counts of what would have been calls into a driver. Tests assert these exactly: that a chain on one
    /// queue needs no wait at all, for example.
    DriverCalls {
        /// Tasks enqueued, copies included.
        launches,
        /// Device-side waits enqueued.
        waits,
        /// Native events recorded: at most one per point, and only for points that another queue or the host
        /// waits for.
        records,
        /// Questions how far the device is.
        queries,
    }
}
