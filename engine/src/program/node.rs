//! One node: its body in the plan, and its run where the node reports its end.

use std::sync::Arc;

use estafette_devices::{Fence, Queue};
use estafette_sync::sync::Mutex;

use crate::core::context::Current;
use crate::core::core_ref::CoreRef;
use crate::core::error::{BodyResult, FailureKind};
use crate::core::operation::OpTag;
use crate::lease::consumer::EndsAfter;
use crate::operation::active::Views;
use crate::operation::completion::{Completion, OpResult, Scope};
use crate::operation::operands::{Declared, Grant};

/// A body that enqueues on the queue it gets.
pub(super) type DeviceBody = dyn for<'a> Fn(&'a dyn Queue, &'a Grant<'a>) -> BodyResult + Send + Sync;

/// The body of a node, which owns its operands. A run calls it at most once.
pub(super) enum NodeBody {
    /// Works on the host, and has ended when it returns.
    Host(Box<dyn Fn() -> BodyResult + Send + Sync>),
    /// Has ended when the work that it enqueued is done.
    Device(Box<DeviceBody>),
    /// Reports its end through a completion, on the host or on a device. Boxed, since long programs consist
    /// of the other kinds.
    External(Box<External>),
}

/// See [`NodeBody::External`].
pub(super) struct External {
    /// The operands that the scope may lend.
    pub(super) operands: Declared,
    pub(super) start: Box<dyn Fn(Completion) + Send + Sync>,
}

/// A running node that reports its end through a completion.
pub(crate) struct NodeRun {
    tag: OpTag,
    core: CoreRef,
    queue: Option<Arc<dyn Queue>>,
    /// The scope of the replay.
    replay: Scope,
    /// `None` once the end was reported.
    handoff: Option<Arc<Handoff>>,
}

impl NodeRun {
    pub(super) fn new(
        tag: OpTag,
        core: CoreRef,
        queue: Option<Arc<dyn Queue>>,
        replay: Scope,
        handoff: Arc<Handoff>,
    ) -> Self {
        Self { tag, core, queue, replay, handoff: Some(handoff) }
    }

    /// A node runs on behalf of its replay.
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
                lease.ends_after(EndsAfter::Queue(Arc::clone(queue), None));
            }
        }
        self.replay.keep(views);
    }

    /// Reports the end.
    pub(crate) fn finish(mut self, fence: Option<Fence>, result: OpResult) {
        if let Some(handoff) = self.handoff.take() {
            handoff.report(fence, result);
        }
    }
}

impl Drop for NodeRun {
    fn drop(&mut self) {
        if let Some(handoff) = self.handoff.take() {
            let why = "its completion was dropped without being used";
            handoff.report(None, Err(self.tag.failure(FailureKind::Error, why, None)));
        }
    }
}

/// Connects a node that reports its end with the thread that started it, in either order. Each side acts
/// once.
#[derive(Default)]
pub(super) struct Handoff(Mutex<HandoffState>);

/// The end of a node: the fence of the work that it left, and its outcome.
pub(super) type NodeEnd = (Option<Fence>, OpResult);

#[derive(Default)]
enum HandoffState {
    #[default]
    Running,
    Ended(NodeEnd),
    /// The thread that started the node has left. The closure continues the run.
    Left(Box<dyn FnOnce(NodeEnd) + Send>),
    Over,
}

impl Handoff {
    fn swap(&self, with: impl FnOnce(&mut HandoffState)) -> HandoffState {
        let mut stage = self.0.lock();
        let before = std::mem::replace(&mut *stage, HandoffState::Over);
        if matches!(before, HandoffState::Running) {
            with(&mut stage);
        }
        before
    }

    fn report(&self, fence: Option<Fence>, result: OpResult) {
        let mut end = Some((fence, result));
        let before = self.swap(|stage| *stage = end.take().map_or(HandoffState::Over, HandoffState::Ended));
        // Called under no lock.
        if let (HandoffState::Left(then), Some(end)) = (before, end) {
            then(end);
        }
    }

    /// Takes the end if it was reported. Otherwise stores `then`, which will get it.
    pub(super) fn take_or_call(&self, then: impl FnOnce(NodeEnd) + Send + 'static) -> Option<NodeEnd> {
        let before = self.swap(|stage| *stage = HandoffState::Left(Box::new(then)));
        if let HandoffState::Ended(end) = before { Some(end) } else { None }
    }
}
