//! The right to proceed, and its end.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ptr::NonNull;

use crate::access::{Access, AccessPtr, Mode};
use crate::block::{Block, BlockPtr};
use crate::collapse::Group;
use crate::dead::Dead;
use crate::id::{OpId, VarId};
use crate::op_ref::OpRef;
use crate::var::{Var, VarNode};

/// An operation all of whose accesses may proceed.
///
/// A linear token: it must be [completed](Self::complete) exactly once, from any thread. Dropping it instead is a
/// bug that leaves everything queued behind the operation waiting for ever; debug builds panic, release builds leak
/// the operation (a [snapshot](crate::Graph::snapshot) still shows it).
#[must_use = "an operation that is granted and never completed blocks everything behind it"]
pub struct Granted<V, T> {
    block: BlockPtr<V, T>,
}

/// One access of a [`Granted`] operation.
pub struct GrantedAccess<'a, V, T> {
    access: AccessPtr<V, T>,
    granted: PhantomData<&'a Granted<V, T>>,
}

/// What `finish` gets for each distinct variable when its operation completes.
#[derive(Debug)]
pub struct Finish<'a, V> {
    /// The variable that ordered the access (a group if it was collapsed).
    pub var: VarId,
    /// How the operation used it.
    pub mode: Mode,
    /// The variable's state.
    pub state: &'a mut V,
    /// The variable's user flags: 24 bits.
    pub flags: &'a mut u32,
}

impl<V, T> Granted<V, T> {
    /// # Safety
    /// Every access of the operation is granted, and this is its only token.
    pub(crate) unsafe fn new(block: BlockPtr<V, T>) -> Self {
        Self { block }
    }

    /// The operation's name within its graph.
    #[inline]
    pub fn id(&self) -> OpId {
        // SAFETY: the token keeps the operation in flight.
        unsafe { self.as_block().id() }
    }

    /// What was submitted with the operation.
    #[inline]
    pub fn payload(&self) -> &T {
        // SAFETY: the token keeps the operation in flight, and the result borrows the token.
        unsafe { self.as_block().payload() }
    }

    /// Whether there are references to the operation. If not, none is left that was made at submission or while the
    /// operation waited; one may still be made of it as a granted operation ([`Var::queued`]).
    #[inline]
    pub fn is_referenced(&self) -> bool {
        self.as_block().is_shared()
    }

    /// A reference to the operation, which keeps its payload alive after completion.
    pub fn to_ref(&self) -> OpRef<V, T> {
        // SAFETY: the token owns the operation and cannot be shared between threads. An operation that has no owner
        // yet has an access, whose variable (alive: the access is queued) keeps the slab's owner.
        unsafe {
            let block = self.as_block();
            if !block.is_owned() {
                let access = Block::access(self.block, 0).as_ref();
                block.own(&access.target().node().as_ref().inner);
            }
            block.retain();
            OpRef::new(self.block)
        }
    }

    /// The distinct variables the operation uses, in no particular order.
    #[inline]
    pub fn accesses(&self) -> impl ExactSizeIterator<Item = GrantedAccess<'_, V, T>> {
        // SAFETY: the token keeps the operation in flight.
        let len = unsafe { self.as_block().len() };
        (0..len).map(|index| GrantedAccess {
            // SAFETY: as above, and the index is in range.
            access: unsafe { Block::access(self.block, index) },
            granted: PhantomData,
        })
    }

    /// Ends the operation.
    ///
    /// `finish` runs once per distinct variable, *under its bit*: it must be short, must not block, must not use
    /// this graph and must call nothing foreign. `ready` then gets every operation that is granted by this
    /// completion, while no bit is held; operations that wait for the same variable come in the order of their
    /// submission. Last, still outside of every bit, the payload (unless an [`OpRef`] keeps it) and the `V` of
    /// variables that ended with this operation are dropped.
    ///
    /// The result is the operation itself when somebody holds an [`OpRef`] of it: there is somebody to be told.
    ///
    /// If `finish` panics, its variable stays blocked by this operation, as if the token had been dropped. If `ready`
    /// panics, the remaining operations are still handed to it.
    pub fn complete(
        self,
        mut finish: impl FnMut(Finish<'_, V>),
        ready: impl FnMut(Self),
    ) -> Option<OpRef<V, T>> {
        let block = self.block;
        mem::forget(self);
        let mut dead = Dead::new();
        let mut ready = ReadyList { ends: None, ready };
        let (mut remains, mut left, mut over) = (None, None, None);
        // SAFETY: the token was ours, so the operation is in flight and every access granted; each is unlinked once,
        // under its variable's bit, and a queued access keeps its variable alive until then.
        unsafe {
            let len = block.as_ref().len();
            // Once the last access is unlinked, another thread may drop the last handles and with them the slab. So
            // a block that does not own its slab goes back while the last bit is still held.
            let owned = block.as_ref().is_owned();
            for index in 0..len {
                let access = Block::access(block, index);
                let target = access.as_ref().target();
                let (node, mode) = (target.node(), target.mode());
                let mut locked = VarNode::lock(node);
                let flags_before = locked.word.user();
                locked.with_state(|state, flags| {
                    finish(Finish { var: node.as_ref().id(), mode, state, flags });
                });
                if locked.word.user() != flags_before {
                    // An operation may be granted here, and at once run by whoever grants its last access elsewhere.
                    node.as_ref().state.publish(locked.word);
                }
                let (empty, writes) = locked.queue(|queue| {
                    queue.unlink(access, mode);
                    queue.advance(mode, |granted| {
                        let op = Access::op(granted);
                        if op.as_ref().grant_one() {
                            ready.push(op);
                        }
                    });
                    (queue.is_empty(), queue.writes())
                });
                locked.word = locked.word.with_unfinished_write(writes > 0);
                if locked.word.group() {
                    Group::completed(&mut locked, mode, &mut dead);
                }
                if empty && locked.word.orphaned() {
                    dead.retire(node);
                }
                if index + 1 == len && !owned {
                    remains = Block::release_pinned(block, &node.as_ref().inner);
                }
            }
            if owned {
                if block.as_ref().is_shared() {
                    left = Some(OpRef::new(block));
                } else {
                    over = Some(OpRef::new(block));
                }
            }
        }
        ready.hand_over();
        drop(remains);
        drop(over);
        drop(dead);
        left
    }

    /// The variable through which this operation uses `var`: itself, or a group that it was collapsed into before.
    pub(crate) fn used(&self, var: &Var<V, T>) -> NonNull<VarNode<V, T>> {
        let mut node = var.node();
        while self.access_to(node).is_none() {
            // SAFETY: the handle keeps the node and everything it forwards to.
            let next = unsafe { VarNode::forwarded_to(node) };
            node = next.unwrap_or_else(|| panic!("{} does not use {}", self.id(), var.id()));
        }
        node
    }

    /// This operation's access to `node`.
    pub(crate) fn access_to(&self, node: NonNull<VarNode<V, T>>) -> Option<AccessPtr<V, T>> {
        // SAFETY: the token keeps the operation in flight.
        unsafe {
            let mut accesses = (0..self.as_block().len()).map(|index| Block::access(self.block, index));
            accesses.find(|access| access.as_ref().target().node() == node)
        }
    }

    #[inline]
    fn as_block(&self) -> &Block<V, T> {
        // SAFETY: the token keeps the operation in flight, and its block with it.
        unsafe { self.block.as_ref() }
    }
}

impl<V, T> Drop for Granted<V, T> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            panic!("{} was granted and dropped without being completed", self.id());
        }
    }
}

impl<V, T> fmt::Debug for Granted<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Granted").field("id", &self.id()).finish_non_exhaustive()
    }
}

// SAFETY: the token may complete on another thread, where it may drop `T` and `V`; its payload may at the same time
// be shared through an `OpRef`. Not `Sync`: `to_ref` writes to the block.
unsafe impl<V: Send, T: Send + Sync> Send for Granted<V, T> {}

impl<V, T> GrantedAccess<'_, V, T> {
    /// The variable that orders the access (a group if it was collapsed).
    pub fn var(&self) -> VarId {
        self.as_node().id()
    }

    /// How the operation uses the variable.
    pub fn mode(&self) -> Mode {
        // SAFETY: the access is in flight while its token is borrowed.
        unsafe { self.access.as_ref().target() }.mode()
    }

    /// The variable's user flags. One load.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.as_node().state.load().user()
    }

    /// Lends the variable's state and user flags (24 bits); the rules of [`Var::with_state`](crate::Var::with_state)
    /// apply.
    pub fn with_state<R>(&self, f: impl FnOnce(&mut V, &mut u32) -> R) -> R {
        // SAFETY: the access is queued, which keeps its variable alive.
        unsafe { VarNode::lock(self.access.as_ref().target().node()) }.with_state(f)
    }

    #[inline]
    fn as_node(&self) -> &VarNode<V, T> {
        // SAFETY: the access is queued while its token is borrowed, which keeps its variable alive.
        unsafe { self.access.as_ref().target().node().as_ref() }
    }
}

impl<V, T> fmt::Debug for GrantedAccess<'_, V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.mode(), self.var())
    }
}

/// Operations granted and not yet handed over, linked through their blocks. Empties itself into `ready`, also on
/// unwinding: nobody else knows of them.
struct ReadyList<V, T, F: FnMut(Granted<V, T>)> {
    ends: Option<(BlockPtr<V, T>, BlockPtr<V, T>)>,
    ready: F,
}

impl<V, T, F: FnMut(Granted<V, T>)> ReadyList<V, T, F> {
    /// # Safety
    /// The operation is granted, and has no token yet.
    unsafe fn push(&mut self, op: BlockPtr<V, T>) {
        // SAFETY: a granted operation without a token is ours, and so is its link.
        unsafe {
            op.as_ref().next(|next| *next = None);
            self.ends = match self.ends {
                None => Some((op, op)),
                Some((head, tail)) => {
                    tail.as_ref().next(|next| *next = Some(op));
                    Some((head, op))
                }
            };
        }
    }

    #[inline]
    fn hand_over(&mut self) {
        while let Some((head, tail)) = self.ends {
            // SAFETY: the head is ours; once its token is handed over, its block is not touched any more.
            let granted = unsafe {
                let next = head.as_ref().next(Option::take);
                self.ends = next.map(|next| (next, tail));
                Granted::new(head)
            };
            (self.ready)(granted);
        }
    }
}

impl<V, T, F: FnMut(Granted<V, T>)> Drop for ReadyList<V, T, F> {
    fn drop(&mut self) {
        self.hand_over();
    }
}
