//! One node: what it is in the plan, and its run where it tells its end itself.

use std::sync::Arc;

use estafette_devices::{Fence, Queue};
use estafette_sync::sync::Mutex;

use crate::core::context::Current;
use crate::core::core_ref::CoreRef;
use crate::core::error::{BodyResult, FailureKind};
use crate::core::operation::OpTag;
use crate::lease::consumer::EndsAfter;
use crate::operation::active::Views;
use crate::operation::completion::{Completion, Ended, Scope};
use crate::operation::operands::Declared;

/// What enqueues on the queue that it is given.
pub(super) type DeviceBody = dyn Fn(&dyn Queue) -> BodyResult + Send + Sync;

/// The body of a node, which owns its operands. Called once per run, never twice at once within a run.
pub(super) enum NodeBody {
    /// Works on the host, and has ended when it returns.
    Host(Box<dyn Fn() -> BodyResult + Send + Sync>),
    /// Has ended when what it has enqueued is done.
    Device(Box<DeviceBody>),
    /// Tells its end itself, on the host or on a device. Behind a pointer, since those of long programs are the others.
    External(Box<External>),
}

/// See [`NodeBody::External`].
pub(super) struct External {
    /// What it may lend.
    pub(super) operands: Declared,
    pub(super) start: Box<dyn Fn(Completion) + Send + Sync>,
}

/// A node that runs and tells its end through a completion.
pub(crate) struct NodeRun {
    tag: OpTag,
    core: CoreRef,
    queue: Option<Arc<dyn Queue>>,
    /// Of the replay.
    replay: Scope,
    /// `None` once the end was end.
    ticket: Option<Arc<Ticket>>,
}

impl NodeRun {
    pub(super) fn new(
        tag: OpTag,
        core: CoreRef,
        queue: Option<Arc<dyn Queue>>,
        replay: Scope,
        ticket: Arc<Ticket>,
    ) -> Self {
        Self { tag, core, queue, replay, ticket: Some(ticket) }
    }

    /// A node runs as its replay.
    pub(crate) fn current(&self) -> Current {
        Current { op: self.tag.id, core: self.core.id }
    }

    pub(crate) fn tag(&self) -> &OpTag {
        &self.tag
    }

    pub(crate) fn queue(&self) -> Option<&Arc<dyn Queue>> {
        self.queue.as_ref()
    }

    pub(crate) fn core(&self) -> &CoreRef {
        &self.core
    }

    /// Leaves views that outlive the node to the replay.
    pub(crate) fn keep(&self, views: Views) {
        if let Some(queue) = &self.queue {
            for lease in views.iter().filter_map(|(view, _)| view.upgrade()) {
                lease.ends_after(EndsAfter::Queue(Arc::clone(queue)));
            }
        }
        self.replay.keep(views);
    }

    /// Tells the end.
    pub(crate) fn finish(mut self, fence: Option<Fence>, result: Ended) {
        if let Some(ticket) = self.ticket.take() {
            ticket.report(fence, result);
        }
    }
}

impl Drop for NodeRun {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let why = "its completion was dropped without being used";
            ticket.report(None, Err(self.tag.failure(FailureKind::Error, why, None)));
        }
    }
}

/// Where a node tells its end, and whoever has started it asks for that: each once, in either order.
#[derive(Default)]
pub(super) struct Ticket(Mutex<TicketState>);

/// What is end of a node's end: the fence of the work that it left, and how it ended.
pub(super) type NodeEnd = (Option<Fence>, Ended);

#[derive(Default)]
enum TicketState {
    #[default]
    Running,
    Ended(NodeEnd),
    /// Whoever has started it has left.
    Left(Box<dyn FnOnce(NodeEnd) + Send>),
    Over,
}

impl Ticket {
    fn swap(&self, with: impl FnOnce(&mut TicketState)) -> TicketState {
        let mut stage = self.0.lock();
        let before = std::mem::replace(&mut *stage, TicketState::Over);
        if matches!(before, TicketState::Running) {
            with(&mut stage);
        }
        before
    }

    fn report(&self, fence: Option<Fence>, result: Ended) {
        let mut end = Some((fence, result));
        let before = self.swap(|stage| *stage = end.take().map_or(TicketState::Over, TicketState::Ended));
        // Under no lock.
        if let (TicketState::Left(then), Some(end)) = (before, end) {
            then(end);
        }
    }

    /// The end, if it was end; else `then` gets it.
    pub(super) fn take_or_call(&self, then: impl FnOnce(NodeEnd) + Send + 'static) -> Option<NodeEnd> {
        let before = self.swap(|stage| *stage = TicketState::Left(Box::new(then)));
        if let TicketState::Ended(end) = before { Some(end) } else { None }
    }
}
