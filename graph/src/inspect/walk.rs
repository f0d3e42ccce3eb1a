//! Walking back from operations to everything that they wait for, one queue at a time.
//!
//! A [snapshot](crate::inspect::snapshot) shows one moment, so it holds the locks of all its variables at once. A wait asks for less: what has
//! to move before it can end. A walk goes from queue to queue, [one lock at a time](crate::inspect::dependents::each_queue). It costs time in
//! proportion to the operations that it finds.
//!
//! # What a walk means
//! An operation waits for those that were submitted before it, so what it waits for only becomes less. Therefore everything that a walk
//! finds was waited for when the walk began. What is found first may have moved by the time of what is found last. Where that
//! matters, [`Walk::all_still_wait`] is asked afterwards: if every operation that was found waiting still waits, the whole of what was
//! found was true at the moment when the walk ended.

use std::fmt;

use crate::addresses::Map;
use crate::graph::Graph;
use crate::id::OpId;
use crate::inspect::dependents::each_queue;
use crate::operation::access::{Access, AccessPtr};
use crate::operation::block::{Block, BlockPtr};
use crate::operation::op_ref::OpRef;
use crate::reentry::Lending;
use crate::variable::var::VarNode;

/// What some operations wait for, found by walking back from them. See the module's description.
///
/// `D` is what the caller wants to know of a [hold](crate::Var::try_pin).
pub struct Walk<'g, V, T, D> {
    graph: &'g Graph<V, T>,
    found: Vec<Found<V, T, D>>,
    indices: Map<BlockPtr<V, T>, usize>,
    /// Operations that wait, and were not visited.
    open: Vec<usize>,
    /// What waiting accesses directly wait for.
    sets: Vec<Vec<usize>>,
    /// The set of each read that was passed, so that a run of reads is passed once.
    sets_of_reads: Map<AccessPtr<V, T>, usize>,
    inspected: usize,
}

struct Found<V, T, D> {
    id: OpId,
    subject: Subject<V, T, D>,
    granted: bool,
    /// Sets of what it directly waits for.
    waits_for: Vec<usize>,
}

enum Subject<V, T, D> {
    Op(OpRef<V, T>),
    Pin(D),
}

/// An operation, or a hold, that a [`Walk`] has found.
#[derive(Debug)]
pub struct Step<'a, T, D> {
    /// The operation, or the number that the caller gave for the hold.
    pub id: OpId,
    /// Whether nothing has to move before it: it may run, or runs, or is over.
    pub granted: bool,
    /// What it is.
    pub what: StepKind<'a, T, D>,
}

/// What a [`Step`] is.
#[derive(Debug)]
pub enum StepKind<'a, T, D> {
    /// An operation: its payload.
    Op(&'a T),
    /// A hold: what the caller said of it.
    Pin(&'a D),
}

impl<V, T> Graph<V, T> {
    /// A walk that has found nothing so far.
    pub fn walk<D>(&self) -> Walk<'_, V, T, D> {
        Walk {
            graph: self,
            found: Vec::new(),
            indices: Map::default(),
            open: Vec::new(),
            sets: Vec::new(),
            sets_of_reads: Map::default(),
            inspected: 0,
        }
    }
}

impl<V, T, D> Walk<'_, V, T, D> {
    /// Adds an operation to walk back from. Gives its place among the [`steps`](Self::steps).
    ///
    /// # Panics
    /// If the operation waits in another graph.
    pub fn add(&mut self, op: &OpRef<V, T>) -> usize {
        // A read that was passed may be over, and its place be used by an operation that came after it. It was submitted after
        // everything found so far, but perhaps not after `op`.
        self.sets_of_reads.clear();
        self.graph.assert_own(op);
        // SAFETY: the caller's reference keeps the block.
        unsafe { self.add_op(op.block()) }
    }

    /// Walks until everything is found, or until it has looked at `limit` accesses in all. False: there is more.
    ///
    /// `holders` gets the state of each variable whose holds have to end, under the lock, and adds a number (from
    /// [`Graph::next_id`]) and a description for each. The rules of [`Var::with_state`](crate::Var::with_state) apply.
    ///
    /// # Panics
    /// In a closure that has borrowed state of the graph.
    pub fn run(&mut self, limit: usize, holders: impl Fn(&mut V, &mut Vec<(OpId, D)>)) -> bool {
        while self.inspected < limit {
            let Some(index) = self.open.pop() else { return true };
            self.visit(index, &holders);
        }
        self.open.is_empty()
    }

    /// Everything found, without an order.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = Step<'_, T, D>> {
        self.found.iter().map(|found| {
            let what = match &found.subject {
                Subject::Op(op) => StepKind::Op(op.payload()),
                Subject::Pin(hold) => StepKind::Pin(hold),
            };
            Step { id: found.id, granted: found.granted, what }
        })
    }

    /// Whether every operation that was found waiting still waits.
    pub fn all_still_wait(&self) -> bool {
        self.found.iter().all(|found| match &found.subject {
            Subject::Op(op) => found.granted || !op.is_granted(),
            Subject::Pin(_) => true,
        })
    }

    /// How many accesses the walk has looked at: its cost.
    pub fn inspected(&self) -> usize {
        self.inspected
    }

    /// For each step, whether one that is granted and `moves` is among those that it waits for, or is itself. Only what was found so
    /// far is known.
    pub fn reaches(&self, moves: impl Fn(Step<'_, T, D>) -> bool) -> Vec<bool> {
        let mut reaches: Vec<Option<bool>> = vec![None; self.found.len()];
        for (index, step) in self.steps().enumerate() {
            if step.granted {
                reaches[index] = Some(moves(step));
            }
        }
        // What is waited for was submitted before, so nothing leads back to itself.
        let mut path: Vec<(usize, usize, usize)> = Vec::new();
        for start in 0..self.found.len() {
            if reaches[start].is_none() {
                path.push((start, 0, 0));
            }
            while let Some((index, set, at)) = path.last_mut() {
                let index = *index;
                let next = loop {
                    let Some(set_place) = self.found[index].waits_for.get(*set) else { break None };
                    match self.sets[*set_place].get(*at) {
                        Some(next) => {
                            *at += 1;
                            break Some(*next);
                        }
                        None => (*set, *at) = (*set + 1, 0),
                    }
                };
                match next.map(|next| (next, reaches[next])) {
                    Some((_, Some(false))) => {}
                    Some((next, None)) => path.push((next, 0, 0)),
                    Some((_, Some(true))) => {
                        // Everything on the way here waits for it.
                        path.drain(..).for_each(|(index, _, _)| reaches[index] = Some(true));
                    }
                    None => {
                        reaches[index] = Some(false);
                        path.pop();
                    }
                }
            }
        }
        reaches.into_iter().map(|reaches| reaches == Some(true)).collect()
    }

    /// Finds an operation, if it is new.
    ///
    /// # Safety
    /// The caller holds a reference, or the lock of a variable in whose queue the operation is.
    unsafe fn add_op(&mut self, op: BlockPtr<V, T>) -> usize {
        let next = self.found.len();
        let index = *self.indices.entry(op).or_insert(next);
        if index == next {
            // SAFETY: forwarded to the caller.
            let op = unsafe { OpRef::retain(op) };
            let (id, granted) = (op.id(), op.is_granted());
            self.found.push(Found { id, subject: Subject::Op(op), granted, waits_for: Vec::new() });
            if !granted {
                self.open.push(index);
            }
        }
        index
    }

    /// Finds what the operation directly waits for.
    fn visit(&mut self, index: usize, holders: &impl Fn(&mut V, &mut Vec<(OpId, D)>)) {
        let Subject::Op(op) = &self.found[index].subject else { return };
        let (op, graph) = (op.block(), &*self.graph.state);
        // SAFETY: the walk references the operation. Its access is in the queue of the node, whose lock is held.
        let waits = unsafe {
            each_queue(op, graph, Block::is_granted, |node, access| {
                self.inspect_ahead(index, node, access, holders);
            })
        };
        if !waits {
            self.found[index].granted = true;
            self.found[index].waits_for.clear();
        }
    }

    /// Finds what an access directly waits for, in its queue.
    ///
    /// # Safety
    /// The access is in the queue of the node, whose lock is held, and is of an operation that was waiting when the lock was taken.
    unsafe fn inspect_ahead(
        &mut self,
        index: usize,
        node: &VarNode<V, T>,
        access: AccessPtr<V, T>,
        holders: &impl Fn(&mut V, &mut Vec<(OpId, D)>),
    ) {
        // SAFETY: forwarded to the caller: what is linked is in flight while the lock is held.
        unsafe {
            let exclusive = access.as_ref().target().is_exclusive();
            if !exclusive && node.queue.writes() == 0 {
                // Granted, among reads of which there may be very many.
                self.inspected += 1;
                return;
            }
            let mut set = Vec::new();
            let mut known = None;
            let mut passed = Vec::new();
            let mut to_the_end = true;
            self.inspected += 1;
            for (ahead, granted) in node.queue.ahead_of(access) {
                self.inspected += 1;
                let writes = ahead.as_ref().target().is_exclusive();
                // Granted operations do not wait for each other, so all of them count. Of those that wait the nearest do, which
                // wait for the others themselves.
                let is_last = !granted && writes;
                if (exclusive || writes) && (!is_last || set.is_empty()) {
                    set.push(self.add_op(Access::op(ahead)));
                } else if !exclusive && !granted {
                    known = self.sets_of_reads.get(&ahead).copied();
                    passed.push(ahead);
                }
                if is_last || known.is_some() {
                    to_the_end = false;
                    break;
                }
            }
            if exclusive && to_the_end && node.queue.pins() > 0 {
                self.add_pins(node, &mut set, holders);
            }
            let set = known.unwrap_or_else(|| {
                self.sets.push(set);
                self.sets.len() - 1
            });
            self.found[index].waits_for.push(set);
            if !exclusive {
                self.sets_of_reads.extend(passed.into_iter().chain([access]).map(|read| (read, set)));
            }
        }
    }

    /// Finds the holds of a variable.
    ///
    /// # Safety
    /// The variable's lock is held.
    unsafe fn add_pins(
        &mut self,
        node: &VarNode<V, T>,
        set: &mut Vec<usize>,
        holders: &impl Fn(&mut V, &mut Vec<(OpId, D)>),
    ) {
        let mut pins = Vec::new();
        {
            let _lending = Lending::of(node.graph.address());
            // SAFETY: forwarded to the caller; a closure that comes back is refused, as in `Var::with_state`.
            unsafe { node.value(|state| holders(state, &mut pins)) };
        }
        for (id, hold) in pins {
            set.push(self.found.len());
            self.found.push(Found { id, subject: Subject::Pin(hold), granted: true, waits_for: Vec::new() });
        }
    }
}

impl<V, T, D> fmt::Debug for Walk<'_, V, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk").field("found", &self.found.len()).finish_non_exhaustive()
    }
}
