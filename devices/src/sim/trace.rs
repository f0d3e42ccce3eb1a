use std::borrow::Cow;
use std::collections::VecDeque;

use crate::QueueId;

/// Something notable that happened on a simulated device, at virtual time `at_ns`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceEvent {
    /// A task was enqueued.
    Launched {
        /// Virtual time.
        at_ns: u64,
        /// Where.
        queue: QueueId,
        /// The task.
        name: Cow<'static, str>,
    },
    /// A device-side wait was enqueued: what comes later on `queue` runs after record `sequence` of `on`.
    Waited {
        /// Virtual time.
        at_ns: u64,
        /// The queue that waits.
        queue: QueueId,
        /// The queue that is waited for.
        on: QueueId,
        /// The number on that queue.
        sequence: u64,
    },
    /// Everything that a task waits for is done: it runs.
    Started {
        /// Virtual time.
        at_ns: u64,
        /// Where.
        queue: QueueId,
        /// The task.
        name: Cow<'static, str>,
    },
    /// A task has ended and its effect is visible.
    Completed {
        /// Virtual time.
        at_ns: u64,
        /// Where.
        queue: QueueId,
        /// The task.
        name: Cow<'static, str>,
    },
    /// A queue has failed, with everything unfinished on it.
    Failed {
        /// Virtual time.
        at_ns: u64,
        /// The queue.
        queue: QueueId,
        /// The message of the root error.
        message: String,
    },
}

impl TraceEvent {
    /// The name of the task, for events that are about one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Launched { name, .. } | Self::Started { name, .. } | Self::Completed { name, .. } => {
                Some(name)
            }
            Self::Waited { .. } | Self::Failed { .. } => None,
        }
    }
}

/// The newest events that a device keeps. A test looks at far fewer; an example that runs for long must not
/// grow.
const TRACE_EVENTS_MAX: usize = 1 << 16;

/// The newest events.
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
    /// What would have been calls into a driver, counted. Tests assert these exactly: that a chain on one queue
    /// needs no wait at all, for example.
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
