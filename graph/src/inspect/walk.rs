//! Walks: from operations back to everything that they wait for, one queue at a time.
//!
//! A [snapshot](crate::inspect::snapshot) shows one moment, so it holds the locks of all its variables at
//! once. A blocking wait needs less: what must complete before the wait can end. A walk goes from queue to
//! queue, [one lock at a time](crate::inspect::dependents::each_queue). Its cost is proportional to the
//! operations that it finds.
//!
//! # What a walk means
//! An operation waits for operations that were submitted before it, so the set it waits for only shrinks.
//! Therefore everything that a walk finds was waited for when the walk began. The first operations found may
//! have completed by the time of the last. If that matters, the caller asks [`Walk::all_still_wait`]
//! afterwards: if every operation that was found waiting still waits, the whole result was true at the moment
//! when the walk ended.

use crate::addresses::Map;
use crate::graph::Graph;
use crate::id::OpId;
use crate::inspect::dependents::each_queue;
use crate::operation::access::{AccessNode, AccessPtr};
use crate::operation::block::{Block, BlockPtr};
use crate::operation::op_ref::OpRef;
use crate::reentry::Lending;
use crate::variable::var::VarNode;

/// Everything that some operations wait for, found by walking back from them. See the module's description.
///
/// `D` is the caller's description of a [pin](crate::Var::try_pin).
pub struct Walk<'g, V, T, D> {
    graph: &'g Graph<V, T>,
    found: Vec<Found<V, T, D>>,
    indices: Map<BlockPtr<V, T>, usize>,
    /// Operations that wait, and were not visited.
    open: Vec<usize>,
    /// Sets of found operations that waiting accesses directly wait for.
    sets: Vec<Vec<usize>>,
    /// The set of each read that was passed, so that a run of reads is passed once.
    sets_of_reads: Map<AccessPtr<V, T>, usize>,
    inspected: usize,
}

struct Found<V, T, D> {
    id: OpId,
    subject: Subject<V, T, D>,
    granted: bool,
    /// The sets that its accesses directly wait for.
    waits_for: Vec<usize>,
}

enum Subject<V, T, D> {
    Op(OpRef<V, T>),
    Pin(D),
}

/// An operation, or a pin, that a [`Walk`] has found.
#[derive(Debug)]
pub struct Step<'a, T, D> {
    /// The operation, or the id that the caller gave for the pin.
    pub id: OpId,
    /// True if it waits for nothing: it may run, or runs, or is over.
    pub granted: bool,
    /// Operation or pin.
    pub what: StepKind<'a, T, D>,
}

/// The kind of a [`Step`].
#[derive(Debug)]
pub enum StepKind<'a, T, D> {
    /// An operation, with its payload.
    Op(&'a T),
    /// A pin, with the caller's description.
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
    /// Adds an operation to walk back from. Returns its index among the [`steps`](Self::steps).
    ///
    /// # Panics
    /// If the operation waits in another graph.
    pub fn add(&mut self, op: &OpRef<V, T>) -> usize {
        // A read that was passed may be over, and its block be used by a later operation, which was submitted
        // after everything found so far, but perhaps before `op`.
        self.sets_of_reads.clear();
        self.graph.assert_own(op);
        // SAFETY: the caller's reference keeps the block.
        unsafe { self.add_op(op.block) }
    }

    /// Walks until everything is found, or `limit` accesses in all were inspected. False: there is more to
    /// find.
    ///
    /// `describe_pins` gets the state of each variable whose pins are waited for, under the lock, and adds an
    /// id (from [`Graph::next_id`]) and a description for each pin. The rules of
    /// [`Var::with_state`](crate::Var::with_state) apply.
    ///
    /// # Panics
    /// In a closure that has borrowed state of the graph.
    pub fn run(&mut self, limit: usize, describe_pins: impl Fn(&mut V, &mut Vec<(OpId, D)>)) -> bool {
        while self.inspected < limit {
            let Some(index) = self.open.pop() else { return true };
            self.visit(index, &describe_pins);
        }
        self.open.is_empty()
    }

    /// Everything found, in no particular order.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = Step<'_, T, D>> {
        self.found.iter().map(|found| {
            let what = match &found.subject {
                Subject::Op(op) => StepKind::Op(op.payload()),
                Subject::Pin(pin) => StepKind::Pin(pin),
            };
            Step { id: found.id, granted: found.granted, what }
        })
    }

    /// True if every operation that was found waiting still waits.
    pub fn all_still_wait(&self) -> bool {
        self.found.iter().all(|found| match &found.subject {
            Subject::Op(op) => found.granted || !op.is_granted(),
            Subject::Pin(_) => true,
        })
    }

    /// The number of accesses inspected: the cost of the walk.
    pub fn inspected(&self) -> usize {
        self.inspected
    }

    /// For each step, whether it is, or waits for, a granted step for which `moves` returns true. Considers
    /// only what was found so far.
    pub fn reaches(&self, moves: impl Fn(Step<'_, T, D>) -> bool) -> Vec<bool> {
        let mut reaches: Vec<Option<bool>> = vec![None; self.found.len()];
        for (index, step) in self.steps().enumerate() {
            if step.granted {
                reaches[index] = Some(moves(step));
            }
        }
        // Each operation waits for earlier ones, so there is no cycle.
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
                        // Everything on the path waits for it.
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

    /// Adds an operation, if it is new. Returns its index.
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
    fn visit(&mut self, index: usize, describe_pins: &impl Fn(&mut V, &mut Vec<(OpId, D)>)) {
        let Subject::Op(op) = &self.found[index].subject else { return };
        let (op, graph) = (op.block, &*self.graph.state);
        // SAFETY: the walk references the operation. Its access is in the queue of the node, whose lock is
        // held.
        let waits = unsafe {
            each_queue(op, graph, Block::is_granted, |node, access| {
                self.inspect_ahead(index, node, access, describe_pins);
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
    /// The access is in the queue of the node, whose lock is held, and is of an operation that was waiting
    /// when the lock was taken.
    unsafe fn inspect_ahead(
        &mut self,
        index: usize,
        node: &VarNode<V, T>,
        access: AccessPtr<V, T>,
        describe_pins: &impl Fn(&mut V, &mut Vec<(OpId, D)>),
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
                // Granted operations do not wait for each other, so all of them count. Of waiting operations
                // the nearest count, which wait for the others themselves.
                let is_last = !granted && writes;
                if (exclusive || writes) && (!is_last || set.is_empty()) {
                    set.push(self.add_op(AccessNode::op(ahead)));
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
                self.add_pins(node, &mut set, describe_pins);
            }
            let set = known.unwrap_or_else(|| {
                self.sets.push(set);
                self.sets.len() - 1
            });
            self.found[index].waits_for.push(set);
            if !exclusive && !passed.is_empty() {
                self.sets_of_reads.extend(passed.into_iter().chain([access]).map(|read| (read, set)));
            }
        }
    }

    /// # Safety
    /// The variable's lock is held.
    unsafe fn add_pins(
        &mut self,
        node: &VarNode<V, T>,
        set: &mut Vec<usize>,
        describe_pins: &impl Fn(&mut V, &mut Vec<(OpId, D)>),
    ) {
        let mut pins = Vec::new();
        {
            let _lending = Lending::of(node.graph.address());
            // SAFETY: forwarded to the caller; a closure that comes back is refused, as in `Var::with_state`.
            unsafe { node.value(|state| describe_pins(state, &mut pins)) };
        }
        for (id, pin) in pins {
            set.push(self.found.len());
            self.found.push(Found { id, subject: Subject::Pin(pin), granted: true, waits_for: Vec::new() });
        }
    }
}

debug_as!([V, T, D] walk: Walk<'_, V, T, D>, "Walk({} found)", walk.found.len());
