//! Programs that are one graph of their device.
//!
//! All nodes are on the engine's own queues of one device that captures graphs. The first replay calls each
//! body once, on queues that stand for the queues of the nodes: work that the bodies enqueue is captured and
//! does not run. The first and every later replay launch the captured graph by one call of the driver, on the
//! queue of the first node. That queue also waits for the work before the replay, on the device.

use std::sync::Arc;

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, LaunchGraph, Queue};
use estafette_graph::OpId;
use estafette_report::shown::shown;
use estafette_sync::sync::Mutex;

use super::issue::call_on_device;
use super::node::{Handoff, NodeBody, NodeRun};
use super::plan::{Plan, PlanNode, numbers};
use crate::core::core_ref::CoreRef;
use crate::core::error::{Error, OperationError};
use crate::core::operation::OpTag;
use crate::operation::completion::{Completion, OpResult, Prepared, Promised, Scope};
use crate::tensor::handle::TensorInner;
use crate::tensor::variable::Variable;

/// The plan by which a program becomes a graph.
pub(super) struct GraphPlan {
    /// The queue of the launches.
    pub(super) queue: Arc<dyn Queue>,
    /// For each node, the number of its queue among the queues of the capture.
    queue_of: Box<[usize]>,
    queues: usize,
    /// Every replay writes this variable, so no two replays capture or launch at the same time.
    pub(super) mutex: Variable,
    /// `None` before the first replay that succeeded.
    captured: Mutex<Option<Arc<dyn LaunchGraph>>>,
    /// Marks the last launch, which runs after the earlier ones.
    pub(super) last: Mutex<Option<Fence>>,
}

impl GraphPlan {
    /// # Errors
    /// [`Error::Invalid`] that names the first node that no graph can have.
    pub(super) fn of(nodes: &[PlanNode]) -> Result<Self, Error> {
        let cannot = |node: Option<(usize, &PlanNode)>, why: String| {
            let node = node
                .map(|(at, node)| format!(": node {at} `{}` {why}", shown(node.name.as_str())))
                .unwrap_or(why);
            Err(Error::invalid(format!("the program cannot be one graph{node}")))
        };
        let Some(first) = nodes.first() else { return cannot(None, ": it has no nodes".into()) };
        let mut queues: Vec<&Arc<dyn Queue>> = Vec::new();
        let mut queue_of = Vec::with_capacity(nodes.len());
        for at in nodes.iter().enumerate() {
            let Some(queue) = &at.1.queue else {
                return cannot(Some(at), "works on the host".into());
            };
            if let Some(first) = &first.queue
                && first.device() != queue.device()
            {
                return cannot(
                    Some(at),
                    format!("is on {}, and the first one on {}", queue.device(), first.device()),
                );
            }
            if !queue.supports_capture() {
                let why = "is on a queue that captures no graphs: a foreign queue, or one of a device without graphs";
                return cannot(Some(at), why.into());
            }
            let known = queues.iter().position(|slot| slot.id() == queue.id());
            queue_of.push(known.unwrap_or_else(|| {
                queues.push(queue);
                queues.len() - 1
            }));
        }
        let queue = Arc::clone(queues[0]);
        let (queues, queue_of) = (queues.len(), queue_of.into());
        let (captured, last) = (Mutex::new(None), Mutex::new(None));
        Ok(Self { queue, queue_of, queues, mutex: Variable::mutex(), captured, last })
    }
}

/// Launches the graph of `plan` as the operation of `completion`. Captures the graph first if it was not
/// captured yet.
pub(super) fn start(plan: &Plan, graph: &GraphPlan, core: &CoreRef, completion: Completion) {
    let capture =
        Capture { plan, graph, core, scope: completion.scope(), op: OpId::new(completion.scope().id()) };
    match capture.launch() {
        Ok(fence) => completion.conclude_after(&[fence], Ok(())),
        Err(failure) => completion.conclude(Err(failure)),
    }
}

struct Capture<'a> {
    plan: &'a Plan,
    graph: &'a GraphPlan,
    core: &'a CoreRef,
    scope: &'a Scope,
    op: OpId,
}

impl Capture<'_> {
    fn launch(&self) -> Result<Fence, OperationError> {
        let known = self.graph.captured.lock().clone();
        let captured = match known {
            Some(captured) => captured,
            None => {
                let captured = self.record()?;
                *self.graph.captured.lock() = Some(Arc::clone(&captured));
                captured
            }
        };
        let own = || OpTag { name: self.plan.name.clone(), id: self.op };
        let fence = captured.launch(&*self.graph.queue).map_err(|error| own().device_failure(error))?;
        let before = self.graph.last.lock().replace(fence.clone());
        drop(before);
        Ok(fence)
    }

    fn record(&self) -> Result<Arc<dyn LaunchGraph>, OperationError> {
        let mut failed = None;
        let captured = self.graph.queue.capture_graph(self.graph.queues, &mut |queues| {
            self.enqueue(queues).map_err(|failure| {
                failed = Some(failure);
                DeviceError::new(DeviceErrorKind::Other, "a node has failed")
            })
        });
        captured.map_err(|error| {
            let own = OpTag { name: self.plan.name.clone(), id: self.op };
            failed.unwrap_or_else(|| own.device_failure(error))
        })
    }

    /// Calls all bodies in the order of recording.
    fn enqueue(&self, queues: &[Arc<dyn Queue>]) -> Result<(), OperationError> {
        let issue = self.plan.issue.as_ref().expect("nodes on devices are issued");
        let mut fences: Vec<Fence> = Vec::with_capacity(self.plan.len());
        for node in numbers(self.plan.len()) {
            let slot = self.graph.queue_of[node as usize];
            let (tag, queue) =
                (OpTag { name: self.plan.names[node as usize].clone(), id: self.op }, &queues[slot]);
            for earlier in &issue.before[node as usize] {
                if self.graph.queue_of[*earlier as usize] != slot {
                    let ordered = queue.order_after(&fences[*earlier as usize]);
                    ordered.map_err(|error| tag.device_failure(error))?;
                }
            }
            self.call(node, &tag, queue)?;
            // Fails if the body did something that no graph can have.
            let left = queue.record().map_err(|error| {
                let message = format!("what it did cannot be part of a graph: {}", error.message());
                let mut said = DeviceError::new(error.kind(), message);
                if let Some(code) = error.code() {
                    said = said.with_code(code);
                }
                tag.device_failure(said)
            })?;
            fences.push(left);
        }
        Ok(())
    }

    fn call(&self, node: u32, tag: &OpTag, queue: &Arc<dyn Queue>) -> OpResult {
        match &self.plan.bodies[node as usize] {
            NodeBody::Host(_) => unreachable!("a node on the host was refused"),
            NodeBody::Device(body) => {
                // The work of earlier nodes is captured, and has not run.
                let earlier = |tensor: &TensorInner, writes| {
                    let issue = self.plan.issue.as_ref();
                    issue.is_some_and(|issue| issue.uses.before(node, tensor, writes).next().is_some())
                };
                match call_on_device(&**body, &**queue, &earlier) {
                    Ok(outcome) => outcome.map_err(|error| tag.body_failure(error)),
                    Err(panic) => Err(tag.panic_failure(panic)),
                }
            }
            NodeBody::External(external) => {
                let handoff = Arc::new(Handoff::default());
                let (core, scope) = (self.core.clone(), self.scope.clone());
                let running =
                    NodeRun::new(tag.clone(), core, Some(Arc::clone(queue)), scope, Arc::clone(&handoff));
                let prepared = Prepared::new(external.operands.clone(), Promised::new());
                let node = prepared.start_node(running, &external.start);
                let why = "a node of a graph has to end before its function returns";
                // Unless it has ended: its scope would lend operands after the end of the replay.
                node.end(None, Err(why.into()));
                match handoff.take_or_call(drop) {
                    // The fence is a point in the capture, or repeats an error that the next record returns
                    // as well.
                    Some((_fence, result)) => result,
                    // Another thread is about to report the end.
                    None => Err(tag.body_failure(why.into())),
                }
            }
        }
    }
}
