//! The recorded operations as a petgraph graph, and what it tells.

use std::collections::HashMap;
use std::fmt;

use petgraph::Direction;
use petgraph::algo::toposort;
use petgraph::dot::Dot;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::{EdgeRef, IntoEdgeReferences};

use super::log::ProgramLog;
use crate::id::{OpId, VarId};
use crate::inspect::snapshot::Hazard;

/// Operations, with an edge from each to those that had to wait for it.
pub type OrderGraph = StableDiGraph<OpId, Dependence>;

/// Why one operation had to wait for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dependence {
    /// The variable both used.
    pub var: VarId,
    /// How they conflict on it.
    pub kind: Hazard,
}

/// The chain of dependent operations that took longest, and how much later every operation could have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CriticalPath {
    /// The operations of the chain, first to last.
    pub ops: Vec<OpId>,
    /// The sum of their durations: with any number of workers, the recorded work cannot take less.
    pub length_ns: u64,
    slack_ns: HashMap<OpId, u64>,
}

/// Two operations that depend on each other and did not keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderViolation {
    /// Submitted first.
    pub first: OpId,
    /// When it was issued.
    pub first_issued_ns: u64,
    /// Submitted later, and granted before the first was issued.
    pub second: OpId,
    /// When it was granted.
    pub second_granted_ns: u64,
    /// Why it should have waited.
    pub dependence: Dependence,
}

impl ProgramLog {
    /// The operations and the dependences that kept them in order: a read depends on the last write of its variable,
    /// a write on the reads since the last write, or on that write if there are none. All others follow from these.
    pub fn graph(&self) -> OrderGraph {
        let mut graph = OrderGraph::with_capacity(self.ops().len(), self.ops().len());
        let mut vars: HashMap<VarId, Version> = HashMap::new();
        for op in self.ops() {
            let node = graph.add_node(op.id);
            for (var, mode) in &op.accesses {
                let var = *var;
                let version = vars.entry(var).or_default();
                if !mode.is_exclusive() {
                    if let Some(writer) = version.writer {
                        graph.add_edge(writer, node, Dependence { var, kind: Hazard::Raw });
                    }
                    version.readers.push(node);
                    continue;
                }
                if let (Some(writer), true) = (version.writer, version.readers.is_empty()) {
                    graph.add_edge(writer, node, Dependence { var, kind: Hazard::Waw });
                }
                for reader in version.readers.drain(..) {
                    graph.add_edge(reader, node, Dependence { var, kind: Hazard::War });
                }
                version.writer = Some(node);
            }
        }
        graph
    }

    /// Checks that dependent operations kept their order, as far as times were recorded: each was granted (or, where
    /// that is not known, started) only when what it depends on had been issued (or done). Returns the operations in
    /// an order that respects every dependence.
    pub fn check_topological(&self) -> Result<Vec<OpId>, OrderViolation> {
        let graph = self.graph();
        for edge in graph.edge_references() {
            let [first, second] = [edge.source(), edge.target()].map(|node| &self.ops()[node.index()]);
            if let (Some(issued), Some(granted)) =
                (first.issued_ns.or(first.done_ns), second.granted_ns.or(second.started_ns))
                && granted < issued
            {
                return Err(OrderViolation {
                    first: first.id,
                    first_issued_ns: issued,
                    second: second.id,
                    second_granted_ns: granted,
                    dependence: *edge.weight(),
                });
            }
        }
        Ok(sorted(&graph).into_iter().map(|node| graph[node]).collect())
    }

    /// The longest chain of dependent operations by [`duration`](super::log::LoggedOp::duration_ns), and every operation's
    /// slack.
    pub fn critical_path(&self) -> CriticalPath {
        let graph = self.graph();
        let order = sorted(&graph);
        let duration = |node: NodeIndex| self.ops()[node.index()].duration_ns();

        // How long the longest chain that ends (begins) with each operation is, itself included.
        let mut until: Vec<u64> = vec![0; order.len()];
        let mut onward: Vec<u64> = vec![0; order.len()];
        let longest = |lengths: &[u64], node, direction| {
            let neighbours = graph.neighbors_directed(node, direction);
            neighbours.map(|other: NodeIndex| lengths[other.index()]).max().unwrap_or(0)
        };
        for node in &order {
            until[node.index()] = longest(&until, *node, Direction::Incoming) + duration(*node);
        }
        for node in order.iter().rev() {
            onward[node.index()] = longest(&onward, *node, Direction::Outgoing) + duration(*node);
        }
        let length_ns = until.iter().copied().max().unwrap_or(0);

        let mut ops = Vec::new();
        let mut next = order.iter().copied().find(|node| onward[node.index()] == length_ns);
        while let Some(node) = next {
            ops.push(graph[node]);
            let rest = onward[node.index()] - duration(node);
            let successors = graph.neighbors_directed(node, Direction::Outgoing);
            next = successors.filter(|other| onward[other.index()] == rest).min();
        }
        let slack_ns = order.iter().map(|node| {
            let longest_through = until[node.index()] + onward[node.index()] - duration(*node);
            (graph[*node], length_ns - longest_through)
        });
        CriticalPath { ops, length_ns, slack_ns: slack_ns.collect() }
    }

    /// The graph in Graphviz's language: operations with name and duration, dependences with kind and variable.
    pub fn to_dot(&self) -> String {
        let labelled = self.graph().map(
            |node, id| {
                let op = &self.ops()[node.index()];
                format!("{id} {}\n{} ns", op.name, op.duration_ns())
            },
            |_, dependence| dependence.to_string(),
        );
        Dot::new(&labelled).to_string()
    }
}

impl CriticalPath {
    /// How much longer the operation could have taken without making the critical path longer. Zero on the path.
    pub fn slack_ns(&self, op: OpId) -> Option<u64> {
        self.slack_ns.get(&op).copied()
    }
}

impl fmt::Display for Dependence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.kind.name(), self.var)
    }
}

impl fmt::Display for OrderViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} was granted at {} ns, before {} was issued at {} ns ({})",
            self.second, self.second_granted_ns, self.first, self.first_issued_ns, self.dependence
        )
    }
}

impl std::error::Error for OrderViolation {}

/// StepKind later accesses of a variable may depend on.
#[derive(Default)]
struct Version {
    writer: Option<NodeIndex>,
    readers: Vec<NodeIndex>,
}

fn sorted(graph: &OrderGraph) -> Vec<NodeIndex> {
    toposort(graph, None).expect("edges lead from earlier to later submissions, so there is no cycle")
}
