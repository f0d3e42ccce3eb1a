//! What is under way behind a scope: an operation, or a node of a replay. Both have operands to lend, perhaps a queue, and an end.

use std::sync::{Arc, Weak};

use estafette_devices::{DLDevice, Fence, Queue};
use estafette_graph::Mode;

use crate::core::context::Current;
use crate::core::core_ref::CoreRef;
use crate::core::error::OperationError;
use crate::core::operation::{OpGranted, OpTag};
use crate::exchange::quarantine;
use crate::lease::LeaseState;
use crate::operation::run::{self, Running};
use crate::operation::submit::lost;
use crate::program::NodeRun;
use crate::tensor::handle::Tensor;

/// Views that were lent out, each with the mode of its operand.
pub(crate) type Views = Vec<(Weak<LeaseState>, Mode)>;

/// See the module.
pub(crate) enum ActiveTask {
    Op(Running),
    Node(NodeRun),
}

impl ActiveTask {
    /// What code of it runs as.
    pub(crate) fn current(&self) -> Current {
        match self {
            Self::Op(running) => Current::of(running.op()),
            Self::Node(node) => node.current(),
        }
    }

    pub(crate) fn tag(&self) -> OpTag {
        match self {
            Self::Op(running) => running.tag(),
            Self::Node(node) => node.tag().clone(),
        }
    }

    /// The queue that it enqueues on, if it works on a device.
    pub(crate) fn queue(&self) -> Option<&Arc<dyn Queue>> {
        match self {
            Self::Op(running) => running.op().payload().queue(),
            Self::Node(node) => node.queue(),
        }
    }

    pub(crate) fn core(&self) -> &CoreRef {
        match self {
            Self::Op(running) => &running.op().payload().core,
            Self::Node(node) => node.core(),
        }
    }

    /// The fence of what it has enqueued on its queue: that is the operation, however it ends.
    pub(crate) fn left_on_queue(&self) -> Option<Fence> {
        // What it has enqueued may run even if nobody will know when it ends.
        Some(self.queue()?.record().unwrap_or_else(lost))
    }

    /// The fence of what a function on the host may have launched with memory of `device`: it said nothing of its streams, so a
    /// quarantine has to tell.
    pub(crate) fn after_lending(&self, device: DLDevice) -> Option<Fence> {
        let core = self.core();
        let device = core.device(device.queue_device())?;
        device
            .may_release_before_completion()
            .then(|| quarantine::enter(Some(device), core.quarantine_timeout))
    }

    /// Takes out of the variables what has settled of the fences that they carried when this began: a replay settles those itself,
    /// node by node, so they are there still. Others wait for them before they begin.
    pub(crate) fn note_settled(&self) {
        if let Self::Op(running) = self
            && running.op().payload().inputs().is_some()
        {
            run::inspect(running.op());
        }
    }

    /// Turns the views that are still alive into leases. Not those of tensors that `aliased`, the result, was declared an
    /// alias of: the result keeps such a view alive, and is ordered with the tensor by their common variables instead. But a view
    /// that another tensor was derived from becomes a lease all the same, since that one relies on it.
    ///
    /// Those of a node are kept by its replay, and become leases at the end of that.
    pub(crate) fn hand_over(&self, views: Views, aliased: Option<&Tensor>) {
        let running = match self {
            Self::Op(running) => running,
            Self::Node(node) => return node.keep(views),
        };
        let ordered = |tensor: &Tensor| {
            let mut vars = aliased.into_iter().flat_map(|result| &result.inner.vars);
            vars.any(|var| tensor.inner.vars.iter().any(|its| its.is_ordered_with(var)))
        };
        let untracked = |lease: &LeaseState| {
            let placed = lease.tensor.inner.definition().ok().and_then(|known| known.placed.as_ref());
            placed.is_some_and(|placed| placed.region.untrack(lease))
        };
        for (view, mode) in views {
            let Some(lease) = view.upgrade() else { continue };
            if !(ordered(&lease.tensor) && untracked(&lease)) {
                lease.split_from(running.op(), mode);
            }
        }
    }

    /// Ends it; `fences` mark the device work that it left. Gives what may run next.
    pub(crate) fn finish(self, fences: &[Fence], result: Result<(), OperationError>) -> Option<OpGranted> {
        match self {
            Self::Op(running) => running.finish_with_all(fences, result),
            Self::Node(node) => {
                node.finish(fences.first().cloned(), result);
                None
            }
        }
    }
}
