//! A consistent picture of what is queued, as plain data: which operation waits for which, and why.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::id::{OpId, VarId};
use crate::operation::access::AccessMode;

/// Everything that was queued at one moment. Plain data: it locks nothing and keeps nothing alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot<D> {
    /// Every operation in one of the queues, ascending by id.
    pub ops: Vec<OpView<D>>,
    /// Every variable with a non-empty queue, ascending by id.
    pub vars: Vec<VarView>,
}

/// One operation of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpView<D> {
    /// The operation.
    pub id: OpId,
    /// The result of the caller's `describe` for its payload.
    pub label: D,
    /// True if all its accesses are granted: it may run, or runs, or is completing.
    pub granted: bool,
    /// Variable, mode, and whether this access is granted; ascending by variable. All accesses of an
    /// operation that waits; of a granted operation those on variables of the snapshot that are not completed
    /// yet.
    pub accesses: Vec<(VarId, AccessMode, bool)>,
}

/// The queue of one variable of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VarView {
    /// The variable.
    pub id: VarId,
    /// Operation, mode, and whether this access is granted, in submission order; granted ones stay until
    /// completed.
    pub queue: Vec<(OpId, AccessMode, bool)>,
}

/// A direct dependency of an operation that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dependency {
    /// The operation that must complete first.
    pub op: OpId,
    /// The variable both use.
    pub var: VarId,
    /// Their conflict on it.
    pub hazard: Hazard,
}

/// The reason why two accesses of one variable keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hazard {
    /// Read after write.
    Raw,
    /// Write after read.
    War,
    /// Write after write.
    Waw,
}

impl Hazard {
    /// Three letters: `RAW`, `WAR` or `WAW`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "RAW",
            Self::War => "WAR",
            Self::Waw => "WAW",
        }
    }
}

impl std::fmt::Display for Hazard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Raw => "read after write",
            Self::War => "write after read",
            Self::Waw => "write after write",
        })
    }
}

impl<D> Snapshot<D> {
    /// The operation with this id, if it was queued. Logarithmic.
    pub fn op(&self, id: OpId) -> Option<&OpView<D>> {
        self.ops.binary_search_by_key(&id, |op| op.id).ok().map(|index| &self.ops[index])
    }

    /// The variable with this id, if anything was queued on it. Logarithmic.
    pub fn var(&self, id: VarId) -> Option<&VarView> {
        self.vars.binary_search_by_key(&id, |var| var.id).ok().map(|index| &self.vars[index])
    }

    /// The direct dependencies of the operation: on each variable where it is not granted, the write ahead of
    /// it, or for a write the reads since then. Empty if it is granted or unknown.
    pub fn dependencies(&self, id: OpId) -> Vec<Dependency> {
        self.op(id).map_or_else(Vec::new, |op| self.explained().dependencies(op))
    }

    /// Answers [`dependencies`](Self::dependencies) for many operations, and searches each queue once.
    pub fn explained(&self) -> Explained<'_, D> {
        Explained { snapshot: self, queues: HashMap::new() }
    }

    /// Everything that these operations transitively wait for, nearest first, without themselves. Visits
    /// common ancestors once.
    pub fn ancestors(&self, ids: impl IntoIterator<Item = OpId>) -> Vec<OpId> {
        let mut explained = self.explained();
        let mut open: VecDeque<OpId> = ids.into_iter().collect();
        let mut seen: HashSet<OpId> = open.iter().copied().collect();
        let mut found = Vec::new();
        while let Some(op) = open.pop_front() {
            let dependencies = self.op(op).map_or_else(Vec::new, |op| explained.dependencies(op));
            for dependency in dependencies.into_iter().filter(|dependency| seen.insert(dependency.op)) {
                found.push(dependency.op);
                open.push_back(dependency.op);
            }
        }
        found
    }

    /// The operations that must complete before this one can be granted: the granted ones among its
    /// ancestors. Empty only if the operation is granted itself, or unknown.
    pub fn leaves(&self, id: OpId) -> Vec<OpId> {
        let mut leaves = self.ancestors([id]);
        leaves.retain(|ancestor| self.op(*ancestor).is_some_and(|op| op.granted));
        leaves
    }
}

/// The reason why the operations of a snapshot wait. See [`Snapshot::explained`].
pub struct Explained<'a, D> {
    snapshot: &'a Snapshot<D>,
    /// The position of each access in its queue, so that a walk along a long chain does not search a queue at
    /// every step. Filled queue by queue, on demand.
    queues: HashMap<VarId, HashMap<OpId, QueuePosition>>,
}

/// A position, and that of the last write ahead of it.
type QueuePosition = (usize, Option<usize>);

impl<'a, D> Explained<'a, D> {
    /// As [`Snapshot::dependencies`].
    pub fn dependencies(&mut self, op: &OpView<D>) -> Vec<Dependency> {
        let waiting = op.accesses.iter().filter(|(_, _, granted)| !granted);
        waiting.flat_map(|(var, _, _)| self.dependencies_on(*var, op.id)).collect()
    }

    fn dependencies_on(&mut self, var: VarId, op: OpId) -> impl Iterator<Item = Dependency> + use<'a, D> {
        let view = self.snapshot.var(var);
        let places = self.queues.entry(var).or_insert_with(|| {
            let mut write_ahead = None;
            let queue = view.map_or(&[][..], |view| &view.queue).iter().enumerate();
            let places = queue.map(|(position, (op, mode, _))| {
                let ahead = write_ahead;
                if mode.is_exclusive() {
                    write_ahead = Some(position);
                }
                (*op, (position, ahead))
            });
            places.collect()
        });
        let place = places.get(&op).copied();
        let found = view.zip(place);
        found.into_iter().flat_map(|(view, (position, write_ahead))| view.ahead_of(position, write_ahead))
    }
}

debug_as!([D] _explained: Explained<'_, D>, "Explained");

impl VarView {
    /// The accesses that the one at `position` directly waits for, given the last write ahead of it.
    fn ahead_of(&self, position: usize, write_ahead: Option<usize>) -> impl Iterator<Item = Dependency> {
        let (_, mine, _) = self.queue[position];
        let reads = write_ahead.map_or(0, |write| write + 1)..position;
        let nearest = match write_ahead {
            _ if mine.is_exclusive() && !reads.is_empty() => reads,
            Some(write) => write..write + 1,
            None => 0..0,
        };
        // Granted accesses do not wait for each other: if the nearest conflict is granted, all granted ones
        // count.
        let granted = self.queue.get(nearest.start).is_some_and(|(_, _, granted)| *granted);
        let range = if granted { 0..nearest.end } else { nearest };
        self.queue[range].iter().filter_map(move |(op, theirs, _)| {
            let hazard = match (theirs.is_exclusive(), mine.is_exclusive()) {
                (true, true) => Hazard::Waw,
                (true, false) => Hazard::Raw,
                (false, true) => Hazard::War,
                (false, false) => return None,
            };
            Some(Dependency { op: *op, var: self.id, hazard })
        })
    }
}
