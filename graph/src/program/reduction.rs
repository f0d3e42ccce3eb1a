//! The fewest dependences that keep the recorded order: the transitive reduction, by petgraph.

use petgraph::adj::List;
use petgraph::algo::tred::dag_transitive_reduction_closure;
use petgraph::visit::{EdgeRef, IntoEdgeReferences};

use super::log::ProgramLog;

/// Operations that are reduced together. The reduction builds a closure, which is quadratic in this number, so a long
/// log is reduced piece by piece: a redundant dependence that reaches further than a piece is kept, and costs its
/// user one comparison.
const PIECE: usize = 256;

/// Pieces overlap by half, so that every dependence of up to this reach lies whole in one of them.
const STRIDE: usize = PIECE / 2;

impl ProgramLog {
    /// Which operation must end before which other one may begin, as places in [`ops`](Self::ops), ascending; with
    /// everything left out that follows from the rest, as far as dependences reach no further than 128 operations.
    ///
    /// It orders exactly what [`graph`](Self::graph) orders.
    pub fn reduced(&self) -> Vec<(usize, usize)> {
        let graph = self.graph();
        let mut edges: Vec<_> =
            graph.edge_references().map(|edge| (edge.source().index(), edge.target().index())).collect();
        // Two operations may depend on each other by several variables.
        edges.sort_unstable();
        edges.dedup();
        let mut kept = Vec::with_capacity(edges.len());
        let mut rest = &edges[..];
        for start in (0..self.ops().len()).step_by(STRIDE) {
            let judged = rest.partition_point(|(before, _)| *before < start + STRIDE);
            let inside = rest.partition_point(|(before, _)| *before < start + PIECE);
            reduce_piece(start, &rest[..judged], &rest[..inside], &mut kept);
            rest = &rest[judged..];
        }
        kept
    }
}

/// Adds to `kept` those of `judged` that do not follow from the edges `inside` the piece that begins at `start`.
///
/// Every way from one operation to another leads through operations recorded between them. So an edge that lies in the
/// piece is judged exactly.
fn reduce_piece(
    start: usize,
    judged: &[(usize, usize)],
    inside: &[(usize, usize)],
    kept: &mut Vec<(usize, usize)>,
) {
    // The recorded order is a topological one, and sorted edges name the neighbours in that order: what petgraph asks for.
    let mut piece: List<(), u32> = List::with_capacity(PIECE);
    for _ in 0..PIECE {
        piece.add_node();
    }
    let local = |op: usize| u32::try_from(op - start).expect("a piece is short");
    for &(before, after) in inside.iter().filter(|(_, after)| *after < start + PIECE) {
        piece.add_edge(local(before), local(after), ());
    }
    let (reduction, _closure) = dag_transitive_reduction_closure(&piece);
    kept.extend(judged.iter().filter(|&&(before, after)| {
        after >= start + PIECE || reduction.contains_edge(local(before), local(after))
    }));
}
