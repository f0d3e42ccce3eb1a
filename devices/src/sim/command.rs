//! Commands of a simulated device: see `schedule.rs`, which is the only file that changes any of it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{DeviceError, QueueClock, QueueId};

use super::mark::SimMark;
use super::timeline::SimTimeline;
use super::timing::SimTiming;

/// Names a command of one schedule; ascending, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct CommandId(pub(super) u64);

pub(super) type Work = Box<dyn FnOnce() + Send>;

pub(super) struct Command {
    pub(super) queue: QueueId,
    pub(super) number: u64,
    pub(super) kind: CommandKind,
    pub(super) missing: usize,
    pub(super) dependents: Vec<CommandId>,
    /// The timings that measure it; tasks only.
    pub(super) timings: Vec<Arc<SimTiming>>,
}

pub(super) enum CommandKind {
    /// Work; its effect is taken out when it completes.
    Task { name: Cow<'static, str>, duration_ns: u64, work: Option<Work> },
    /// Later commands of the queue wait for a command of another one.
    Wait,
    /// The fence of everything enqueued before, where the queue's numbers do not serve.
    Mark(Arc<SimMark>),
}

pub(super) struct QueueState {
    pub(super) clock: QueueClock,
    pub(super) failure: Option<DeviceError>,
    /// Unfinished commands by their number on this queue.
    pub(super) pending: BTreeMap<u64, CommandId>,
    pub(super) enqueued: u64,
    /// The timings of what is enqueued until the next record.
    pub(super) timings: Vec<Arc<SimTiming>>,
    /// The queue's handle is dropped; the state goes when no command is pending.
    pub(super) closed: bool,
    pub(super) kind: QueueKind,
}

pub(super) enum QueueKind {
    InOrder(Arc<SimTimeline>),
    OutOfOrder {
        /// Unfinished waits: later tasks wait for them.
        waits: Vec<CommandId>,
        last_mark: Option<(CommandId, u64)>,
        marks: u64,
    },
}
