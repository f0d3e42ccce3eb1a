//! The fewest dependences that keep the recorded order: the transitive reduction, by petgraph.

use petgraph::adj::List;
use petgraph::algo::tred::dag_transitive_reduction_closure;

use super::log::ProgramLog;

/// Operations that are reduced together. The reduction builds a closure, which is quadratic in this number,
/// so a long program is reduced window by window. A redundant dependence that reaches further than a window
/// is kept, and costs one comparison.
const WINDOW: usize = 256;

/// Windows overlap by half, so that every dependence of up to this reach lies whole in one of them.
const STRIDE: usize = WINDOW / 2;

impl ProgramLog {
    /// The [dependences](Self::dependences) without those that follow from the rest, as far as dependences
    /// reach no further than 128 operations. Both order the same operations.
    pub fn reduced(&self) -> Vec<(usize, usize)> {
        let edges = self.dependences();
        let mut kept = Vec::with_capacity(edges.len());
        let mut rest = &edges[..];
        for start in (0..self.ops().len()).step_by(STRIDE) {
            let judged = rest.partition_point(|(before, _)| *before < start + STRIDE);
            let inside = rest.partition_point(|(before, _)| *before < start + WINDOW);
            reduce_window(start, &rest[..judged], &rest[..inside], &mut kept);
            rest = &rest[judged..];
        }
        kept
    }
}

/// Adds to `kept` those of `judged` that do not follow from the edges `inside` the window that begins at
/// `start`.
///
/// Every path from one operation to another leads through operations recorded between them. So an edge that
/// lies in the window is judged exactly.
fn reduce_window(
    start: usize,
    judged: &[(usize, usize)],
    inside: &[(usize, usize)],
    kept: &mut Vec<(usize, usize)>,
) {
    // The recorded order is topological, and sorted edges list the neighbours in that order, as petgraph
    // requires.
    let mut window: List<(), u32> = List::with_capacity(WINDOW);
    for _ in 0..WINDOW {
        window.add_node();
    }
    let local = |op: usize| u32::try_from(op - start).expect("a window is short");
    for &(before, after) in inside.iter().filter(|(_, after)| *after < start + WINDOW) {
        window.add_edge(local(before), local(after), ());
    }
    let (reduction, _closure) = dag_transitive_reduction_closure(&window);
    kept.extend(judged.iter().filter(|&&(before, after)| {
        after >= start + WINDOW || reduction.contains_edge(local(before), local(after))
    }));
}
