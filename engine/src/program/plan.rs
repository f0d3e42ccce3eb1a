//! What all runs of a program share.

use std::sync::Arc;

use estafette_devices::Queue;
use estafette_graph::program::{Countdown, ProgramOrder};
use estafette_sync::sync::Mutex;
use smallvec::SmallVec;

use super::footprint::Footprint;
use super::graph::GraphPlan;
use super::node::NodeBody;
use super::pace::Pace;
use crate::core::operation::Name;

/// Countdowns kept for the next run. Runs of one program overlap only when all of it is read only, and then rarely.
const SPARE_MAX: usize = 2;

/// A program after recording.
pub(super) struct Plan {
    pub(super) name: Name,
    /// In the order of recording, as everything that goes by the number of a node.
    pub(super) bodies: Box<[NodeBody]>,
    pub(super) names: Box<[Name]>,
    pub(super) order: ProgramOrder,
    pub(super) footprint: Footprint,
    /// How fast the last run was.
    pub(super) pace: Pace,
    /// Whether never two nodes may run at once.
    pub(super) chain: bool,
    /// What programs have whose nodes do not all end on the host as they return.
    pub(super) issue: Option<IssuePlan>,
    /// How it becomes a graph of its device, if it shall.
    pub(super) graph: Option<GraphPlan>,
    /// Whether threads that wait must not run the bodies.
    pub(super) worker_only: bool,
    spare: Mutex<Vec<Countdown>>,
}

/// Where nodes run, and what each comes right after.
pub(super) struct IssuePlan {
    pub(super) queues: Box<[Option<Arc<dyn Queue>>]>,
    pub(super) before: Box<[SmallVec<[u32; 2]>]>,
    /// Whether a second thread could be of use: nodes that only enqueue are issued by one.
    pub(super) shares: bool,
}

impl IssuePlan {
    fn new(order: &ProgramOrder, queues: Box<[Option<Arc<dyn Queue>>]>) -> Self {
        let mut before: Box<[SmallVec<[u32; 2]>]> = vec![SmallVec::new(); order.len()].into();
        for node in numbers(order.len()) {
            for after in order.successors(node) {
                before[*after as usize].push(node);
            }
        }
        let shares = queues.iter().filter(|queue| queue.is_none()).count() > 1;
        Self { queues, before, shares }
    }
}

/// The numbers of that many nodes.
pub(super) fn numbers(len: usize) -> std::ops::Range<u32> {
    0..u32::try_from(len).expect("an order has fewer than 2^32 nodes")
}

/// A node as it was recorded.
pub(super) struct Node {
    pub(super) name: Name,
    pub(super) body: NodeBody,
    pub(super) queue: Option<Arc<dyn Queue>>,
}

impl Plan {
    pub(super) fn new(
        name: Name,
        nodes: Vec<Node>,
        order: ProgramOrder,
        footprint: Footprint,
        graph: Option<GraphPlan>,
        worker_only: bool,
    ) -> Self {
        assert_eq!(order.len(), nodes.len(), "every node was recorded");
        let issues = nodes.iter().any(|node| !matches!(node.body, NodeBody::Host(_)));
        let mut queues = Vec::with_capacity(nodes.len());
        let (names, bodies): (Vec<_>, Vec<_>) = nodes
            .into_iter()
            .map(|Node { name, body, queue }| {
                queues.push(queue);
                (name, body)
            })
            .unzip();
        let chain = order.is_chain();
        let issue = issues.then(|| IssuePlan::new(&order, queues.into()));
        Self {
            name,
            bodies: bodies.into(),
            names: names.into(),
            order,
            footprint,
            pace: Pace::new(worker_only),
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

    /// A countdown for a run of which the first `done` nodes have been run.
    pub(super) fn countdown(&self, done: usize) -> Countdown {
        let spare = self.spare.lock().pop();
        let mut countdown = spare.unwrap_or_else(|| Countdown::new(self.len()));
        countdown.restart(&self.order, done);
        countdown
    }

    /// Takes a countdown back from a run that no thread looks at any more.
    pub(super) fn recycle(&self, countdown: Countdown) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(countdown);
        }
    }
}
