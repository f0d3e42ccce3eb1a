//! Ties between the things of a trace: stalls and dependences, which a trace has, or which are attributed as
//! it is written.

use std::borrow::Cow;

use crate::analysis::attribution::Attribution;
use crate::format::facts::Totals;
use crate::model::source::{Source, earliest};
use crate::model::{Counter, Edge, Nanos, Operation, OperationId, Stall, Trace};

/// Things written beside operations: a lease or a stall whose operation is not in the trace.
#[derive(Debug, Clone, Copy)]
pub enum Orphan {
    /// Index into the trace's leases.
    Lease(usize),
    /// Index into the trace's stalls.
    Stall(usize),
}

/// Stalls and dependences of things, which are numbered: operations by their positions, orphans after them.
pub trait Ties {
    fn things(&self) -> usize;

    /// The thing, if it is no operation.
    fn orphan(&self, _thing: usize) -> Option<Orphan> {
        None
    }

    fn orphan_stall(&self, index: usize) -> Stall;

    /// No event of an operation, its lease and its stalls comes before this moment.
    fn earliest(&self, at: usize, operation: &Operation) -> Nanos;

    fn stalls<'s>(&'s self, at: usize, operation: &Operation) -> Cow<'s, [Stall]>;

    /// The direct dependences of a thing. `operation` is the thing, if it is one.
    fn edges<'s>(&'s self, id: OperationId, thing: usize, operation: Option<&Operation>) -> Cow<'s, [Edge]>;

    /// The same by numbers: of the other thing, and of the dependence.
    fn arriving(&self, id: OperationId, thing: usize, operation: Option<&Operation>) -> Vec<(usize, u64)>;

    /// The direct successors of a thing: numbers of the other thing, and of the dependence.
    fn leaving(&self, id: OperationId, thing: usize, operation: Option<&Operation>) -> Vec<(usize, u64)>;

    /// Dependences of what is not in the trace.
    fn loose(&self) -> Vec<Edge> {
        Vec::new()
    }

    /// Counters with their samples, unless they are counted meanwhile.
    fn counters(&self) -> Option<&[Counter]> {
        None
    }

    /// The totals that are known before everything is written.
    fn totals(&self) -> Totals;
}

impl<S: Source> Ties for Attribution<'_, S> {
    fn things(&self) -> usize {
        self.source.operations()
    }

    fn orphan_stall(&self, _: usize) -> Stall {
        unreachable!("every stall is of an operation")
    }

    fn earliest(&self, at: usize, operation: &Operation) -> Nanos {
        let lease = self.source.lease(at, operation);
        let held = lease.map(|lease| lease.closed.map_or(lease.opened, |closed| closed.min(lease.opened)));
        held.into_iter().fold(earliest(operation), Nanos::min)
    }

    fn stalls<'s>(&'s self, at: usize, operation: &Operation) -> Cow<'s, [Stall]> {
        Cow::Owned(Self::stalls(self, at, operation))
    }

    fn edges<'s>(&'s self, _: OperationId, at: usize, operation: Option<&Operation>) -> Cow<'s, [Edge]> {
        Cow::Owned(operation.map_or_else(Vec::new, |operation| Self::edges(self, at, operation)))
    }

    fn arriving(&self, _: OperationId, at: usize, operation: Option<&Operation>) -> Vec<(usize, u64)> {
        operation.map_or_else(Vec::new, |operation| Self::arriving(self, at, operation))
    }

    fn leaving(&self, _: OperationId, at: usize, operation: Option<&Operation>) -> Vec<(usize, u64)> {
        operation.map_or_else(Vec::new, |operation| Self::leaving(self, at, operation))
    }

    fn totals(&self) -> Totals {
        Totals {
            operations: self.source.operations() as u64,
            leases: self.source.leases() as u64,
            variables: self.source.variables() as u64,
            ..Totals::default()
        }
    }
}

/// The ties that a trace has.
pub struct TraceTies<'a> {
    trace: &'a Trace,
    /// In the order of their waiters.
    stalls: Cow<'a, [Stall]>,
    /// In the order of their later ends.
    edges: Cow<'a, [Edge]>,
    /// Indices of edges, in the order of their earlier ends.
    leaving: Vec<u32>,
    /// Orphans of leases, then those of stalls.
    orphans: Vec<Orphan>,
}

impl<'a> TraceTies<'a> {
    pub fn of(trace: &'a Trace) -> Self {
        let mut stalls = Cow::Borrowed(&trace.stalls[..]);
        let waiter = |stall: &Stall| (stall.waiter, stall.from);
        if !stalls.is_sorted_by_key(waiter) {
            stalls.to_mut().sort_by_key(waiter);
        }
        let mut edges = Cow::Borrowed(&trace.edges[..]);
        if !edges.is_sorted_by_key(|edge| edge.to) {
            edges.to_mut().sort_by_key(|edge| edge.to);
        }
        let mut leaving: Vec<u32> = (0..edges.len() as u32).collect();
        leaving.sort_by_key(|edge| edges[*edge as usize].from);
        let is_alone = |id| trace.operation(id).is_none();
        let leases = trace.leases.iter().enumerate().filter(|(_, lease)| is_alone(lease.id));
        let mut orphans: Vec<Orphan> = leases.map(|(lease, _)| Orphan::Lease(lease)).collect();
        let alone = stalls.iter().enumerate().filter(|(_, stall)| is_alone(stall.waiter));
        orphans.extend(alone.map(|(stall, _)| Orphan::Stall(stall)));
        Self { trace, stalls, edges, leaving, orphans }
    }

    /// The number of what has this id.
    fn thing(&self, id: OperationId) -> Option<usize> {
        self.trace.position(id).or_else(|| {
            let lease = |orphan: &Orphan| match orphan {
                Orphan::Lease(lease) => self.trace.leases[*lease].id,
                Orphan::Stall(_) => OperationId::MAX,
            };
            let first = self.orphans.partition_point(|orphan| lease(orphan) < id);
            let found =
                matches!(self.orphans.get(first), Some(Orphan::Lease(at)) if self.trace.leases[*at].id == id);
            found.then_some(self.trace.operations.len() + first)
        })
    }

    /// The indices of the edges whose later end this is.
    fn own(&self, id: OperationId) -> std::ops::Range<usize> {
        let first = self.edges.partition_point(|edge| edge.to < id);
        let count = self.edges[first..].iter().take_while(|edge| edge.to == id).count();
        first..first + count
    }
}

impl Ties for TraceTies<'_> {
    fn things(&self) -> usize {
        self.trace.operations.len() + self.orphans.len()
    }

    fn orphan(&self, thing: usize) -> Option<Orphan> {
        Some(self.orphans[thing.checked_sub(self.trace.operations.len())?])
    }

    fn orphan_stall(&self, index: usize) -> Stall {
        self.stalls[index]
    }

    fn earliest(&self, _: usize, operation: &Operation) -> Nanos {
        let opened = self.trace.lease(operation.id).map(|lease| lease.opened);
        let waited = self.stalls(0, operation).first().map(|stall| stall.from);
        [opened, waited].into_iter().flatten().fold(earliest(operation), Nanos::min)
    }

    fn stalls<'s>(&'s self, _: usize, operation: &Operation) -> Cow<'s, [Stall]> {
        let first = self.stalls.partition_point(|stall| stall.waiter < operation.id);
        let count = self.stalls[first..].iter().take_while(|stall| stall.waiter == operation.id).count();
        Cow::Borrowed(&self.stalls[first..first + count])
    }

    fn edges<'s>(&'s self, id: OperationId, _: usize, _: Option<&Operation>) -> Cow<'s, [Edge]> {
        Cow::Borrowed(&self.edges[self.own(id)])
    }

    fn arriving(&self, id: OperationId, _: usize, _: Option<&Operation>) -> Vec<(usize, u64)> {
        self.own(id).filter_map(|edge| Some((self.thing(self.edges[edge].from)?, edge as u64 + 1))).collect()
    }

    fn leaving(&self, id: OperationId, _: usize, _: Option<&Operation>) -> Vec<(usize, u64)> {
        let first = self.leaving.partition_point(|edge| self.edges[*edge as usize].from < id);
        let own = self.leaving[first..].iter().map(|edge| *edge as usize);
        let own = own.take_while(|edge| self.edges[*edge].from == id);
        own.filter_map(|edge| Some((self.thing(self.edges[edge].to)?, edge as u64 + 1))).collect()
    }

    fn loose(&self) -> Vec<Edge> {
        self.edges.iter().filter(|edge| self.thing(edge.to).is_none()).copied().collect()
    }

    fn counters(&self) -> Option<&[Counter]> {
        Some(&self.trace.counters)
    }

    fn totals(&self) -> Totals {
        Totals::of(self.trace)
    }
}
