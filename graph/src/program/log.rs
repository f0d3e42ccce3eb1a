//! The operations of a program, as a plain list.

use std::collections::HashMap;

use crate::id::VarId;
use crate::operation::access::AccessMode;

/// Operations and their accesses, in the order of recording.
///
/// ```
/// use estafette_graph::program::ProgramLog;
/// use estafette_graph::{AccessMode, VarId};
///
/// let (x, y) = (VarId::new(1), VarId::new(2));
/// let mut log = ProgramLog::new();
/// log.push([(x, AccessMode::Write)]);
/// log.push([(x, AccessMode::Read), (y, AccessMode::Write)]);
/// assert_eq!(log.dependences(), [(0, 1)]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ProgramLog {
    ops: Vec<Vec<(VarId, AccessMode)>>,
}

/// The accesses of one variable that later accesses may depend on.
#[derive(Default)]
struct Version {
    writer: Option<usize>,
    readers: Vec<usize>,
}

impl ProgramLog {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an operation. Several uses of one variable are merged as the graph merges them.
    pub fn push(&mut self, accesses: impl IntoIterator<Item = (VarId, AccessMode)>) {
        let mut accesses: Vec<_> = accesses.into_iter().collect();
        accesses.sort_unstable_by_key(|(var, _)| *var);
        accesses.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 = kept.1.merge(later.1);
            }
            same
        });
        self.ops.push(accesses);
    }

    /// The accesses of each operation: each distinct variable once, ascending.
    pub fn ops(&self) -> &[Vec<(VarId, AccessMode)>] {
        &self.ops
    }

    /// Pairs of operations, as indices in [`ops`](Self::ops), of which the first must end before the second
    /// begins; ascending, each pair once. A read depends on the last write of its variable, a write on the
    /// reads since the last write, or on that write if there are none. All other dependences follow from
    /// these.
    pub fn dependences(&self) -> Vec<(usize, usize)> {
        let mut edges = Vec::with_capacity(self.ops.len());
        let mut vars: HashMap<VarId, Version> = HashMap::new();
        for (op, accesses) in self.ops.iter().enumerate() {
            for (var, mode) in accesses {
                let version = vars.entry(*var).or_default();
                if !mode.is_exclusive() {
                    edges.extend(version.writer.map(|writer| (writer, op)));
                    version.readers.push(op);
                    continue;
                }
                if version.readers.is_empty() {
                    edges.extend(version.writer.map(|writer| (writer, op)));
                }
                edges.extend(version.readers.drain(..).map(|reader| (reader, op)));
                version.writer = Some(op);
            }
        }
        // Two operations may depend on each other by several variables.
        edges.sort_unstable();
        edges.dedup();
        edges
    }
}
