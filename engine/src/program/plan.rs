//! The plan of a program, shared by all its runs.

use std::collections::HashMap;
use std::sync::Arc;

use estafette_devices::Queue;
use estafette_graph::program::{Countdown, ProgramOrder};
use estafette_graph::{AccessMode, VarId};
use estafette_sync::sync::Mutex;
use smallvec::SmallVec;

use super::footprint::Footprint;
use super::graph::GraphPlan;
use super::node::NodeBody;
use super::pace::NodePace;
use crate::core::operation::{Name, OpVar};
use crate::exchange::{Storage, reaper};
use crate::tensor::handle::TensorInner;

/// Countdowns kept for later runs. Runs of one program overlap only if the program only reads, and then
/// rarely.
const SPARE_MAX: usize = 2;

/// A program after recording.
pub(super) struct Plan {
    pub(super) name: Name,
    /// In the order of recording, as all lists by the number of a node.
    pub(super) bodies: Box<[NodeBody]>,
    pub(super) names: Box<[Name]>,
    pub(super) order: ProgramOrder,
    pub(super) footprint: Footprint,
    /// Length of the nodes in the last run.
    pub(super) pace: NodePace,
    /// True if no two nodes may run at the same time.
    pub(super) chain: bool,
    /// Set if a node ends later than its body returns.
    pub(super) issue: Option<IssuePlan>,
    /// Set if the program is one graph of its device.
    pub(super) graph: Option<GraphPlan>,
    /// True if waiting threads must not run the bodies.
    pub(super) worker_only: bool,
    spare: Mutex<Vec<Countdown>>,
}

/// Queues and predecessors of the nodes.
pub(super) struct IssuePlan {
    pub(super) queues: Box<[Option<Arc<dyn Queue>>]>,
    pub(super) before: Box<[SmallVec<[u32; 2]>]>,
    pub(super) uses: VarUses,
    /// True if a second thread could help: one thread issues all nodes that only enqueue.
    pub(super) shares: bool,
}

impl IssuePlan {
    fn new(order: &ProgramOrder, queues: Box<[Option<Arc<dyn Queue>>]>, uses: VarUses) -> Self {
        let mut before: Box<[SmallVec<[u32; 2]>]> = vec![SmallVec::new(); order.len()].into();
        for node in numbers(order.len()) {
            for after in order.successors(node) {
                before[*after as usize].push(node);
            }
        }
        let shares = queues.iter().filter(|queue| queue.is_none()).count() > 1;
        Self { queues, before, uses, shares }
    }
}

/// The nodes that use each variable, in the order of recording.
#[derive(Default)]
pub(super) struct VarUses {
    /// The index in `nodes` of a variable's uses; variables that were one when the program was finished share
    /// them.
    places: HashMap<VarId, usize>,
    nodes: Vec<Vec<(u32, AccessMode)>>,
}

impl VarUses {
    /// `accesses` are those of all nodes, each with its node and the variable that orders it.
    pub(super) fn of<'a>(accesses: impl Iterator<Item = (u32, &'a OpVar, VarId, AccessMode)>) -> Self {
        let mut uses = Self::default();
        let mut orders = HashMap::new();
        for (node, var, order, mode) in accesses {
            let place = *orders.entry(order).or_insert_with(|| {
                uses.nodes.push(Vec::new());
                uses.nodes.len() - 1
            });
            uses.places.insert(var.id(), place);
            uses.nodes[place].push((node, mode));
        }
        uses
    }

    /// The nodes before `node` that write `tensor`, an operand of it, the last first; those that use it if
    /// `node` `writes` it.
    pub(super) fn before(&self, node: u32, tensor: &TensorInner, writes: bool) -> impl Iterator<Item = u32> {
        let places = tensor.vars.iter().filter_map(|var| self.places.get(&var.id()));
        let nodes = places.flat_map(move |place| {
            let nodes = &self.nodes[*place];
            nodes[..nodes.partition_point(|(earlier, _)| *earlier < node)].iter().rev()
        });
        nodes.filter(move |(_, mode)| writes || mode.is_exclusive()).map(|(earlier, _)| *earlier)
    }
}

/// Numbers of `len` nodes.
pub(super) fn numbers(len: usize) -> std::ops::Range<u32> {
    0..u32::try_from(len).expect("an order has fewer than 2^32 nodes")
}

/// A node as it was recorded.
pub(super) struct PlanNode {
    pub(super) name: Name,
    pub(super) body: NodeBody,
    pub(super) queue: Option<Arc<dyn Queue>>,
}

impl Plan {
    pub(super) fn new(
        name: Name,
        nodes: Vec<PlanNode>,
        order: ProgramOrder,
        footprint: Footprint,
        graph: Option<GraphPlan>,
        worker_only: bool,
        uses: impl FnOnce() -> VarUses,
    ) -> Self {
        assert_eq!(order.len(), nodes.len(), "every node was recorded");
        let issues = nodes.iter().any(|node| !matches!(node.body, NodeBody::Host(_)));
        let mut queues = Vec::with_capacity(nodes.len());
        let (names, bodies): (Vec<_>, Vec<_>) = nodes
            .into_iter()
            .map(|PlanNode { name, body, queue }| {
                queues.push(queue);
                (name, body)
            })
            .unzip();
        let chain = order.is_chain();
        let issue = issues.then(|| IssuePlan::new(&order, queues.into(), uses()));
        Self {
            name,
            bodies: bodies.into(),
            names: names.into(),
            order,
            footprint,
            pace: NodePace::new(worker_only),
            chain,
            issue,
            graph,
            worker_only,
            spare: Mutex::default(),
        }
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.bodies.len()
    }

    /// A countdown for a run whose first `done` nodes have run.
    pub(super) fn countdown(&self, done: usize) -> Countdown {
        let spare = self.spare.lock().pop();
        let mut countdown = spare.unwrap_or_else(|| Countdown::new(self.len()));
        countdown.restart(&self.order, done);
        countdown
    }

    /// Keeps the countdown of a run that has ended for a later run.
    pub(super) fn recycle(&self, countdown: Countdown) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(countdown);
        }
    }
}

impl Drop for Plan {
    /// The work of a captured graph uses what the bodies own: the bodies stay until the last launch is over.
    fn drop(&mut self) {
        let last = self.graph.as_mut().and_then(|graph| graph.last.get_mut().take());
        if let Some(last) = last.filter(|last| !last.observed_done()) {
            let bodies = Box::new(std::mem::take(&mut self.bodies));
            reaper().release(last.into(), Storage::owned(bodies, std::ptr::null_mut()));
        }
    }
}
