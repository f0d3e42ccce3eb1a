//! Programs with nodes that end later than their bodies return: nodes on devices, and nodes that report their
//! end.
//!
//! As for operations, the order of a program is the order of *issue*, and fences order execution. A node
//! leaves its fence to its direct successors, and each successor handles the fence in the cheapest way. A
//! node on the same in-order queue does nothing. A node on another queue makes that queue wait. A host node
//! is parked until the reactor reports the fence; no thread blocks. Dependences that follow from others were
//! removed, and need nothing here: a node comes after all that its predecessors were made to wait for. A node
//! that is skipped leaves its successors the fences that it would have waited for.
//!
//! The replay ends with the fences of the nodes that have no successor, and with those on no queue that nodes
//! have ended with: work on a queue that was ordered after such a fence does not fail with the fence.

use std::sync::Arc;

use estafette_devices::{CurrentGuard, DeviceError, Fence, FenceSet, FenceState, Order, Queue, Reactor};
use estafette_graph::program;
use estafette_sync::sync::OnceLock;
use smallvec::SmallVec;

use super::node::{DeviceBody, Handoff, NodeBody, NodeEnd, NodeRun};
use super::plan::{IssuePlan, numbers};
use super::shared::{SharedRun, StartWith};
use crate::core::error::BodyResult;
use crate::core::inputs::Earlier;
use crate::core::operation::contain_panic;
use crate::core::var_state::same;
use crate::operation::completion::{Prepared, Promised};
use crate::operation::operands::Grant;
use crate::operation::submit::record_end;
use crate::tensor::handle::TensorInner;
use crate::tensor::views::EarlierNodes;

/// The fences that nodes have left.
pub(super) struct NodeFences {
    /// Set when the node has ended.
    left: Box<[OnceLock<Left>]>,
}

/// Fences and failures that a node leaves to its successors.
struct Left {
    /// The fences that were not known to be done.
    fences: FenceSet,
    /// The fence of the node's own work. The node has passed the other fences on from its predecessors.
    own: Option<Fence>,
}

impl NodeFences {
    pub(super) fn new(len: usize) -> Self {
        Self { left: (0..len).map(|_| OnceLock::new()).collect() }
    }

    fn of(&self, node: u32) -> impl Iterator<Item = &Fence> {
        self.left[node as usize].get().into_iter().flat_map(|left| &left.fences)
    }

    /// The fence of the work of `node`.
    fn own(&self, node: u32) -> Option<&Fence> {
        self.left[node as usize].get()?.own.as_ref()
    }

    /// The node whose work `fence` marks; `None` for a fence of earlier work.
    fn origin(&self, fence: &Fence) -> Option<u32> {
        numbers(self.left.len()).find(|node| self.own(*node).is_some_and(|own| same(own, fence)))
    }

    fn set<'a>(&self, node: u32, own: Option<Fence>, passed_on: impl IntoIterator<Item = &'a Fence>) {
        self.left[node as usize].get_or_init(|| {
            let mut fences: FenceSet = passed_on.into_iter().cloned().chain(own.clone()).collect();
            fences.prune();
            Left { fences, own }
        });
    }

    /// The fences that the replay ends with. Fences of earlier readers stay on their variables: their failure
    /// is none of the replay's.
    pub(super) fn last(&self, order: &program::ProgramOrder, earlier: &Earlier) -> Vec<Fence> {
        let mut last = FenceSet::default();
        for node in numbers(order.len()) {
            if order.successors(node).is_empty() {
                last.extend(self.of(node).filter_map(|fence| earlier.input_behind(fence)).cloned());
            } else {
                last.extend(self.own(node).filter(|own| own.queue().is_none()).cloned());
            }
        }
        last.prune();
        last.into_iter().collect()
    }
}

/// The order of a node after a fence.
enum FenceOrder {
    /// The fence is done, or the node's queue is ordered after it.
    Ordered,
    /// Only the host can wait for the fence.
    Pending,
    /// The work behind the fence has failed.
    Failed(DeviceError),
    /// The queue refuses to wait.
    Refused(DeviceError),
}

fn order_after(fence: &Fence, queue: Option<&Arc<dyn Queue>>) -> FenceOrder {
    let refused = match queue.map(|queue| queue.order_after(fence)) {
        Some(Ok(Order::Nothing | Order::Device)) => return FenceOrder::Ordered,
        Some(Ok(Order::Host)) | None => None,
        Some(Err(error)) => Some(error),
    };
    match (fence.state(), refused) {
        (FenceState::Done, _) => FenceOrder::Ordered,
        (FenceState::Failed(error), _) => FenceOrder::Failed(error),
        (FenceState::Pending, None) => FenceOrder::Pending,
        (FenceState::Pending, Some(error)) => FenceOrder::Refused(error),
    }
}

/// Calls the body of a node that enqueues on `queue`.
pub(super) fn call_on_device(
    body: &DeviceBody,
    queue: &dyn Queue,
    earlier: &EarlierNodes<'_>,
) -> Result<BodyResult, String> {
    contain_panic(|| {
        let _current = CurrentGuard::queue(queue)?;
        body(queue, &Grant::of_node(earlier))
    })
}

impl SharedRun {
    /// Runs a node. Returns false if the node has not ended: a later event resumes it.
    pub(super) fn issue(self: &Arc<Self>, node: u32, fences: &NodeFences, plan: &IssuePlan) -> bool {
        let run = &self.run;
        let queue = plan.queues[node as usize].as_ref();
        let before = &plan.before[node as usize];
        let (mut pending, mut refused) = (FenceSet::default(), None);
        for &earlier in before {
            for fence in fences.of(earlier) {
                match order_after(fence, queue) {
                    FenceOrder::Ordered => {}
                    FenceOrder::Pending => pending.insert(fence.clone()),
                    FenceOrder::Failed(_) => {
                        // `earlier` may have passed the fence on.
                        let Some(FenceState::Failed(error)) =
                            run.earlier.input_behind(fence).map(Fence::state)
                        else {
                            continue;
                        };
                        let origin = fences.origin(fence).unwrap_or(earlier);
                        run.failed(origin, run.tag(origin).device_failure(error));
                        run.failures.poison_readers(&run.plan.order, earlier);
                    }
                    FenceOrder::Refused(error) => refused = Some(error),
                }
            }
        }
        let first = before.is_empty().then_some(&run.earlier);
        for fence in first.into_iter().flat_map(Earlier::all) {
            match order_after(fence, queue) {
                FenceOrder::Ordered => {}
                FenceOrder::Pending => pending.insert(fence.clone()),
                FenceOrder::Refused(error) => refused = Some(error),
                // An input that fails fails the replay. Other failures are not failures of this replay.
                FenceOrder::Failed(error) if run.earlier.has_written(fence) => refused = Some(error),
                FenceOrder::Failed(_) => {}
            }
        }
        if run.skip_if_poisoned(node) || self.refuse(node, refused) {
            fences.set(node, None, self.left_before(node, fences, plan));
            return true;
        }
        if !pending.is_empty() {
            let shared = Arc::clone(self);
            // The resumed node finds a fence that has failed.
            Reactor::global().when_settled(&pending, move |_| shared.resume(StartWith::Node(node)));
            return false;
        }
        match &run.plan.bodies[node as usize] {
            NodeBody::Host(_) => self.call_on_host(node),
            NodeBody::Device(body) => {
                let queue = queue.expect("a device body was recorded with a queue");
                let earlier = |tensor: &TensorInner, writes| {
                    let mut left = plan.uses.before(node, tensor, writes).filter_map(|node| fences.own(node));
                    // A driver is asked once for each queue, where all is done.
                    let mut done = SmallVec::<[&Fence; 2]>::new();
                    left.any(|fence| {
                        if done.iter().any(|done| done.same_or_later_on_queue(fence)) {
                            return false;
                        }
                        let is_done = fence.is_done();
                        if is_done && fence.queue().is_some() {
                            done.push(fence);
                        }
                        !is_done
                    })
                };
                run.returned(node, call_on_device(&**body, &**queue, &earlier));
                let (left, marked) = record_end(&**queue, || run.tag(node));
                if let Err(failure) = marked {
                    run.failed(node, failure);
                }
                self.store_fence(node, Some(left), fences, plan);
            }
            NodeBody::External(external) => {
                let handoff = Arc::new(Handoff::default());
                let (tag, core, scope) = (run.tag(node), self.core.clone(), self.scope.clone());
                let running = NodeRun::new(tag, core, queue.cloned(), scope, Arc::clone(&handoff));
                Prepared::new(external.operands.clone(), Promised::new())
                    .start_node(running, &external.start);
                let shared = Arc::clone(self);
                let later = move |end| {
                    shared.note(node, end);
                    shared.resume(StartWith::Ended(node));
                };
                let Some(end) = handoff.take_or_call(later) else { return false };
                self.note(node, end);
            }
        }
        true
    }

    /// Returns true, and fails `node`, if its queue refuses to wait for what the node comes after.
    fn refuse(&self, node: u32, refused: Option<DeviceError>) -> bool {
        let Some(error) = refused else { return false };
        self.run.failed(node, self.run.tag(node).device_failure(error));
        true
    }

    /// The fences that `node` comes after.
    fn left_before<'a>(
        &'a self,
        node: u32,
        fences: &'a NodeFences,
        plan: &'a IssuePlan,
    ) -> impl Iterator<Item = &'a Fence> {
        let before = &plan.before[node as usize];
        let first = before.is_empty().then_some(&self.run.earlier);
        before.iter().flat_map(|earlier| fences.of(*earlier)).chain(first.into_iter().flat_map(Earlier::all))
    }

    /// Leaves the end of `node` to its successors. A fence of the node's own queue is ordered after all that
    /// the queue was made to wait for. No other fence is, and neither is one that could not be recorded: then
    /// that is left to the successors as well.
    fn store_fence(&self, node: u32, left: Option<Fence>, fences: &NodeFences, plan: &IssuePlan) {
        let is_behind =
            |queue: &Arc<dyn Queue>| left.as_ref().is_none_or(|left| left.queue() != Some(queue.id()));
        let passed_on = plan.queues[node as usize].as_ref().filter(|queue| is_behind(queue));
        let passed_on = passed_on.map(|_| self.left_before(node, fences, plan)).into_iter().flatten();
        fences.set(node, left.clone(), passed_on);
    }

    /// Notes the end that a node has reported.
    fn note(&self, node: u32, (fence, result): NodeEnd) {
        if let (Some(fences), Some(plan)) = (&self.fences, &self.run.plan.issue) {
            self.store_fence(node, fence, fences, plan);
        }
        if let Err(failure) = result {
            self.run.failed(node, failure);
        }
    }
}
