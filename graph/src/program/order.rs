//! The order of a program: constant from run to run.

use std::collections::HashMap;

use crate::id::VarId;
use crate::program::log::ProgramLog;

/// The successors and the readers of each operation of a program. Operations are numbered in the order of
/// recording, from 0.
#[derive(Clone, Debug)]
pub struct ProgramOrder {
    successors: Lists,
    readers: Lists,
    predecessors: Box<[u32]>,
}

impl ProgramOrder {
    /// Computes the order, without dependences that follow from others (`ProgramLog::reduced`, with the
    /// feature `reduction`).
    ///
    /// # Panics
    /// For 2³² or more operations or dependences.
    pub fn of(log: &ProgramLog) -> Self {
        let len = log.ops().len();
        #[cfg(feature = "reduction")]
        let edges = log.reduced();
        #[cfg(not(feature = "reduction"))]
        let edges = log.dependences();
        let mut predecessors = vec![0; len];
        for &(before, after) in &edges {
            assert!(before < after, "dependences lead from earlier to later operations");
            predecessors[after] += 1;
        }
        Self {
            successors: Lists::new(len, &edges),
            readers: Lists::new(len, &flow(log)),
            predecessors: predecessors.into(),
        }
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.predecessors.len()
    }

    /// True if there is no operation.
    pub fn is_empty(&self) -> bool {
        self.predecessors.is_empty()
    }

    /// The number of operations that must end right before `op`: those that have it among their
    /// [`successors`](Self::successors).
    #[inline]
    pub fn predecessors(&self, op: u32) -> u32 {
        self.predecessors[op as usize]
    }

    /// Operations that wait for `op`, without those that also wait for another successor of `op`; ascending.
    #[inline]
    pub fn successors(&self, op: u32) -> &[u32] {
        self.successors.of(op)
    }

    /// Operations that read what `op` wrote, ascending. A failure of `op` reaches them, and no operation that
    /// only overwrites.
    #[inline]
    pub fn readers(&self, op: u32) -> &[u32] {
        self.readers.of(op)
    }

    /// True if every operation waits for the one before, so that no two may run at once.
    pub fn is_chain(&self) -> bool {
        // A dependence of neighbours never follows from others, so the reduction keeps them all.
        (1..self.predecessors.len()).all(|op| {
            let op = u32::try_from(op).expect("checked when the lists were made");
            self.successors(op - 1).first() == Some(&op)
        })
    }
}

/// Pairs of a writer and a reader of what it wrote, ascending, each once.
fn flow(log: &ProgramLog) -> Vec<(usize, usize)> {
    let mut writers: HashMap<VarId, usize> = HashMap::new();
    let mut pairs = Vec::new();
    for (index, op) in log.ops().iter().enumerate() {
        for (var, mode) in op {
            if mode.reads()
                && let Some(writer) = writers.get(var)
            {
                pairs.push((*writer, index));
            }
            if mode.is_exclusive() {
                writers.insert(*var, index);
            }
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// A list of operations for each operation, contiguous in memory.
#[derive(Clone, Debug)]
struct Lists {
    /// The index at which the list of each operation begins; one more for the end of the last one.
    starts: Box<[u32]>,
    items: Box<[u32]>,
}

impl Lists {
    /// From ascending pairs of an operation and a member of its list.
    fn new(len: usize, pairs: &[(usize, usize)]) -> Self {
        let number =
            |number: usize| u32::try_from(number).expect("fewer than 2^32 operations and dependences");
        let starts = (0..=len).map(|op| number(pairs.partition_point(|(from, _)| *from < op)));
        Self { starts: starts.collect(), items: pairs.iter().map(|(_, to)| number(*to)).collect() }
    }

    #[inline]
    fn of(&self, op: u32) -> &[u32] {
        let op = op as usize;
        &self.items[self.starts[op] as usize..self.starts[op + 1] as usize]
    }
}
