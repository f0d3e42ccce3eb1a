//! The footprint of a program: all that its nodes read and write.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use estafette_graph::AccessMode;

use crate::tensor::handle::Tensor;
use crate::tensor::variable::Variable;

/// The accesses of a whole program. What a program updates is in both lists.
#[derive(Debug, Default)]
pub(super) struct Footprint {
    pub(super) reads: Vec<Tensor>,
    pub(super) writes: Vec<Tensor>,
    pub(super) reads_vars: Vec<Variable>,
    pub(super) writes_vars: Vec<Variable>,
}

/// Collects a [`Footprint`], node by node.
#[derive(Debug, Default)]
pub(super) struct Uses {
    tensors: Modes<usize, Tensor>,
    vars: Modes<u64, Variable>,
}

impl Uses {
    /// Adds the use of `tensor` by the next node.
    pub(super) fn tensor(&mut self, tensor: &Tensor, mode: AccessMode) {
        self.tensors.note(Arc::as_ptr(&tensor.inner).addr(), tensor, mode);
    }

    /// Adds the use of `variable` by the next node, with one mode for all its uses there.
    pub(super) fn variable(&mut self, variable: &Variable, mode: AccessMode) {
        self.vars.note(variable.id(), variable, mode);
    }

    pub(super) fn footprint(self) -> Footprint {
        let (reads, writes) = self.tensors.split();
        let (reads_vars, writes_vars) = self.vars.split();
        Footprint { reads, writes, reads_vars, writes_vars }
    }
}

/// Values in order of first use, each with the mode that its uses combine to.
#[derive(Debug)]
struct Modes<K, V> {
    places: HashMap<K, usize>,
    used: Vec<(V, AccessMode)>,
}

impl<K, V> Default for Modes<K, V> {
    fn default() -> Self {
        Self { places: HashMap::new(), used: Vec::new() }
    }
}

impl<K: Eq + Hash, V: Clone> Modes<K, V> {
    fn note(&mut self, key: K, value: &V, mode: AccessMode) {
        let place = *self.places.entry(key).or_insert_with(|| {
            self.used.push((value.clone(), mode));
            self.used.len() - 1
        });
        let known = &mut self.used[place].1;
        *known = then(*known, mode);
    }

    /// Splits the values into those that are read and those that are written.
    fn split(self) -> (Vec<V>, Vec<V>) {
        let reads =
            self.used.iter().filter(|(_, mode)| mode.reads()).map(|(value, _)| value.clone()).collect();
        let writes = self.used.into_iter().filter(|(_, mode)| mode.is_exclusive()).map(|(value, _)| value);
        (reads, writes.collect())
    }
}

/// The mode of a use and a later use together. A value that is overwritten first is not read.
fn then(first: AccessMode, later: AccessMode) -> AccessMode {
    match (first, later) {
        (AccessMode::Read, AccessMode::Read) => AccessMode::Read,
        (AccessMode::Read | AccessMode::Update, _) => AccessMode::Update,
        (AccessMode::Write, _) => AccessMode::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_overwrites_first_it_does_not_read() {
        assert_eq!(then(AccessMode::Read, AccessMode::Read), AccessMode::Read);
        assert_eq!(then(AccessMode::Read, AccessMode::Write), AccessMode::Update);
        assert_eq!(then(AccessMode::Update, AccessMode::Read), AccessMode::Update);
        assert_eq!(then(AccessMode::Write, AccessMode::Update), AccessMode::Write);
        assert_eq!(then(AccessMode::Write, AccessMode::Read), AccessMode::Write);
    }
}
