//! The active task behind a scope: an operation, or a node of a replay. Both have operands, perhaps a queue,
//! and an end.

use std::sync::{Arc, Weak};

use estafette_devices::{DLDevice, Fence, Queue, table};
use estafette_graph::AccessMode;
use smallvec::SmallVec;

use crate::core::context::Current;
use crate::core::core_ref::CoreRef;
use crate::core::error::OperationError;
use crate::core::lost::lost;
use crate::core::operation::{OpGranted, OpTag};
use crate::exchange::quarantine;
use crate::lease::LeaseState;
use crate::operation::import::Copying;
use crate::operation::run::{self, Running};
use crate::program::NodeRun;
use crate::tensor::handle::Tensor;

/// Views that a task has lent, each with the mode of its operand.
pub(crate) type Views = SmallVec<[(Weak<LeaseState>, AccessMode); 2]>;

/// An operation or a node between its grant and its end.
pub(crate) enum ActiveTask {
    Op(Running),
    Node(NodeRun),
}

impl ActiveTask {
    /// The task that this thread runs on behalf of.
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

    /// The queue that the task enqueues on, if it works on a device.
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

    /// Records the fence of the work that the task has enqueued on its queue.
    pub(crate) fn left_on_queue(&self) -> Option<Fence> {
        // The work may run although its end cannot be known.
        Some(self.queue()?.record().unwrap_or_else(lost))
    }

    /// A fence for work that a host function may have launched with memory of `device`. The function names no
    /// stream, so the fence is that of a quarantine.
    pub(crate) fn after_lending(&self, device: DLDevice) -> Option<Fence> {
        let core = self.core();
        let device = core.device(table::owner(device))?;
        device
            .may_release_before_completion()
            .then(|| quarantine::admit(Some(device), core.quarantine_timeout))
    }

    /// Removes settled fences from the variables, for a replay: its nodes wait for those fences one by one,
    /// and the variables still carry them. Other operations have waited before they began.
    pub(crate) fn note_settled(&self) {
        if let Self::Op(running) = self
            && running.op().payload().inputs().is_some()
        {
            run::inspect(running.op(), false);
        }
    }

    /// Turns the views that are still alive into leases.
    ///
    /// A view of a tensor that one of `results` was declared an alias of becomes no lease: the result
    /// keeps the view alive, and common variables order the result with the tensor. If another tensor was
    /// derived from the view, the view becomes a lease all the same.
    ///
    /// A node leaves its views to its replay, and they become leases when the replay ends.
    pub(crate) fn hand_over(&self, views: Views, results: &[(Tensor, Copying)]) {
        let running = match self {
            Self::Op(running) => running,
            Self::Node(node) => return node.keep(views),
        };
        let ordered = |tensor: &Tensor| {
            let mut vars = results.iter().flat_map(|(result, _)| &result.inner.vars);
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

    /// Ends the task without its body, as if an input had failed by `cause`. Its variables, or the run of a
    /// node, keep the fences that the task comes after.
    pub(crate) fn skip<T>(self, cause: OperationError, operands: T) -> Option<OpGranted> {
        match self {
            Self::Op(running) => running.skip_without(cause, operands),
            Self::Node(_) => self.finish(&[], Err(cause)),
        }
    }

    /// Ends the task. `fences` mark the device work that it left. Returns the operation to run next on this
    /// thread.
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
