//! Split: a part of a running operation's accesses becomes an operation of its own.
//!
//! A view that outlives its body keeps its access, while the rest of the operation completes. The new
//! operation's accesses are linked directly behind the old ones, granted, so nothing gets in between when the
//! old operation completes.

use crate::operation::access::{AccessMode, Target};
use crate::operation::block::Block;
use crate::operation::granted::Granted;
use crate::operation::targets::{self, Targets};
use crate::variable::collapse::Group;
use crate::variable::var::{Var, VarNode};

impl<V, T> Granted<V, T> {
    /// A new operation, granted from the start, that uses `vars` in `mode` as this one does.
    ///
    /// The new operation must be completed like any other. Until both are, operations that wait for one of
    /// `vars` wait for both. Two exclusive accesses of one variable are then granted at once, and the caller
    /// must keep their uses apart.
    ///
    /// # Panics
    /// If `vars` is empty, or this operation does not use one of `vars`, or only reads what `mode` would
    /// change.
    pub fn split(&self, payload: T, vars: &[&Var<V, T>], mode: AccessMode) -> Self {
        // SAFETY: the token keeps this operation in flight, hence its variables alive and its accesses
        // linked. The new block is ours until the first lock is released; a granted operation stays ours. No
        // two locks are held at once: the new accesses wait for nothing, so they need not appear in all
        // queues at one moment.
        unsafe {
            let mut targets: Targets<V, T> =
                vars.iter().map(|var| Target::new(self.used(var), mode)).collect();
            targets::normalize(&mut targets);
            for target in &targets {
                let access = self.access_to(target.node()).expect("`used` found it a moment ago");
                let held = access.as_ref().target().mode();
                assert!(
                    held.is_exclusive() || !mode.is_exclusive(),
                    "{} reads {} and cannot be split into a writer of it",
                    self.id(),
                    target.node().as_ref().id()
                );
            }
            let first = targets.first().expect("a split takes at least one variable along");
            let graph = &first.node().as_ref().graph;
            let (block, id) = graph.slab.take();
            Block::begin(block, id, graph.clone(), |place| place.write(payload), 1);
            Block::set_targets(block, &targets);
            block.as_ref().set_pending(0);
            for (access, target) in Block::accesses(block).zip(&targets) {
                let mut locked = VarNode::lock(target.node());
                let neighbour = self.access_to(target.node()).expect("`used` found it a moment ago");
                locked.queue(|queue| queue.insert_behind(neighbour, access, mode));
                if mode.is_exclusive() {
                    locked.word = locked.word.with_unfinished_write(true);
                    if locked.word.group() {
                        Group::inserted(&locked);
                    }
                }
            }
            Self::new(block)
        }
    }
}
