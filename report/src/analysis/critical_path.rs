//! The critical path of what was done, and the slack of everything else: with as many workers and queues as
//! one likes, and no time lost between them.
//!
//! The usual method of project planning (Kelley and Walker, "Critical-Path Planning and Scheduling", 1959):
//! earliest ends in topological order, latest ends in reverse; slack is their difference.

use petgraph::Direction;
use petgraph::algo::toposort;
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::HashMap;

use crate::Trace;
use crate::model::{Nanos, OperationId, OperationKind};

/// The longest chain of dependences, by the time that its operations took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CriticalPath {
    /// From first to last.
    pub operations: Vec<OperationId>,
    /// Time that they took together; nothing could have been faster without making one of them faster.
    pub length: Nanos,
    /// For each operation of the trace that took time: how much later it could have ended without making the
    /// whole longer.
    pub slack: HashMap<OperationId, Nanos>,
}

/// Time an operation took of its own: its body and device work, or the time that a lease was held.
pub fn own_time(trace: &Trace, id: OperationId) -> Nanos {
    let Some(operation) = trace.operation(id) else { return 0 };
    match operation.kind {
        OperationKind::Wait | OperationKind::Await => 0,
        OperationKind::Export => trace
            .lease(id)
            .map_or(0, |lease| lease.closed.unwrap_or(trace.end_of(id)).saturating_sub(lease.opened)),
        OperationKind::Operation | OperationKind::Copy | OperationKind::Import => {
            let end = operation.done.or(operation.issued).unwrap_or(trace.end_of(id));
            let began = operation.began.unwrap_or(end);
            // Device work that waited on its queue took no time of its own meanwhile.
            let queued: Nanos = trace
                .stalls
                .iter()
                .skip(trace.stalls.partition_point(|stall| (stall.waiter, stall.from) < (id, began)))
                .take_while(|stall| stall.waiter == id)
                .filter(|stall| stall.critical)
                .map(crate::model::Stall::duration)
                .sum();
            end.saturating_sub(began).saturating_sub(queued)
        }
    }
}

/// Finds the critical path.
pub fn critical_path(trace: &Trace) -> CriticalPath {
    let mut graph: DiGraph<(OperationId, Nanos), ()> =
        DiGraph::with_capacity(trace.operations.len(), trace.edges.len());
    let mut nodes: HashMap<OperationId, NodeIndex> = HashMap::with_capacity(trace.operations.len());
    for operation in &trace.operations {
        let node = graph.add_node((operation.id, own_time(trace, operation.id)));
        nodes.insert(operation.id, node);
    }
    for edge in &trace.edges {
        if let (Some(from), Some(to)) = (nodes.get(&edge.from), nodes.get(&edge.to)) {
            graph.add_edge(*from, *to, ());
        }
    }
    // A trace that lost events may have a cycle; then it has no critical path.
    let Ok(order) = toposort(&graph, None) else { return CriticalPath::default() };
    let mut earliest = vec![0; graph.node_count()];
    let mut through: Vec<Option<NodeIndex>> = vec![None; graph.node_count()];
    for node in &order {
        let before = graph
            .neighbors_directed(*node, Direction::Incoming)
            .max_by_key(|before| earliest[before.index()]);
        through[node.index()] = before;
        earliest[node.index()] = before.map_or(0, |before| earliest[before.index()]) + graph[*node].1;
    }
    let length = earliest.iter().copied().max().unwrap_or(0);
    let mut latest = vec![length; graph.node_count()];
    for node in order.iter().rev() {
        let after = graph.neighbors_directed(*node, Direction::Outgoing);
        if let Some(least) = after.map(|after| latest[after.index()] - graph[after].1).min() {
            latest[node.index()] = least;
        }
    }
    let mut operations = Vec::new();
    let mut at =
        order.iter().copied().filter(|node| earliest[node.index()] == length).find(|node| graph[*node].1 > 0);
    while let Some(node) = at {
        operations.push(graph[node].0);
        at = through[node.index()];
    }
    operations.reverse();
    let slack = order
        .iter()
        .filter(|node| graph[**node].1 > 0)
        .map(|node| (graph[*node].0, latest[node.index()] - earliest[node.index()]))
        .collect();
    CriticalPath { operations, length, slack }
}
