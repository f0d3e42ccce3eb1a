//! A trace that is read one operation at a time, so that it is attributed and written without being in memory
//! as a whole.

use std::borrow::Cow;

use crate::Trace;
use crate::model::{Lease, Nanos, Operation, OperationId, Variable};

/// Operations, leases and variables of a trace, each made when it is asked for.
pub trait Source {
    /// Program, duration, tracks, libraries and losses. Its other lists may be empty.
    fn about(&self) -> &Trace;

    /// The number of operations. Their positions are in the order of their ids.
    fn operations(&self) -> usize;

    /// The operation at a position below [`operations`](Self::operations).
    fn operation(&self, at: usize) -> Cow<'_, Operation>;

    /// The position of the operation with this id.
    fn position(&self, id: OperationId) -> Option<usize>;

    /// The number of leases.
    fn leases(&self) -> usize;

    /// The lease with the id of `operation`, which is at position `at`.
    fn lease<'s>(&'s self, at: usize, operation: &Operation) -> Option<Cow<'s, Lease>>;

    /// The number of variables. Their positions are in the order of their ids.
    fn variables(&self) -> usize;

    /// The variable at a position below [`variables`](Self::variables).
    fn variable(&self, at: usize) -> Cow<'_, Variable>;

    /// The position of the variable with this id.
    fn variable_position(&self, id: u64) -> Option<usize>;
}

impl Source for Trace {
    fn about(&self) -> &Trace {
        self
    }

    fn operations(&self) -> usize {
        self.operations.len()
    }

    fn operation(&self, at: usize) -> Cow<'_, Operation> {
        Cow::Borrowed(&self.operations[at])
    }

    fn position(&self, id: OperationId) -> Option<usize> {
        self.operations.binary_search_by_key(&id, |operation| operation.id).ok()
    }

    fn leases(&self) -> usize {
        self.leases.len()
    }

    fn lease<'s>(&'s self, _: usize, operation: &Operation) -> Option<Cow<'s, Lease>> {
        Self::lease(self, operation.id).map(Cow::Borrowed)
    }

    fn variables(&self) -> usize {
        self.variables.len()
    }

    fn variable(&self, at: usize) -> Cow<'_, Variable> {
        Cow::Borrowed(&self.variables[at])
    }

    fn variable_position(&self, id: u64) -> Option<usize> {
        self.variables.binary_search_by_key(&id, |variable| variable.id).ok()
    }
}

/// All operations, in the order of their ids.
pub(crate) fn operations(source: &impl Source) -> impl Iterator<Item = Cow<'_, Operation>> {
    (0..source.operations()).map(|at| source.operation(at))
}

/// The first moment that anything is known of at `operation`.
pub(crate) fn earliest(operation: &Operation) -> Nanos {
    operation.later().fold(operation.submitted, Nanos::min)
}

/// Values that grow one by one and are merged when their memory is full, so that they take memory for what
/// differs only.
#[derive(Debug)]
pub struct Merging<T> {
    values: Vec<T>,
    merge: fn(&mut Vec<T>),
}

impl<T> Merging<T> {
    /// `merge` sorts the values and puts together those that can be.
    pub fn new(merge: fn(&mut Vec<T>)) -> Self {
        Self { values: Vec::new(), merge }
    }

    /// Adds a value.
    pub fn push(&mut self, value: T) {
        if self.values.len() == self.values.capacity() && self.values.len() >= 64 {
            (self.merge)(&mut self.values);
            if self.values.len() > self.values.capacity() / 2 {
                self.values.reserve_exact(self.values.len());
            }
        }
        self.values.push(value);
    }

    /// The values, merged.
    pub fn finish(mut self) -> Vec<T> {
        (self.merge)(&mut self.values);
        self.values.shrink_to_fit();
        self.values
    }
}
