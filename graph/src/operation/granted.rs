//! The right to proceed, and its end.

use std::marker::PhantomData;
use std::mem;
use std::ptr::NonNull;

use crate::biased_lock::CriticalSection;
use crate::id::{OpId, VarId};
use crate::operation::access::{AccessMode, AccessNode, AccessPtr};
use crate::operation::block::{Block, BlockPtr};
use crate::operation::completed::Completed;
use crate::operation::op_ref::OpRef;
use crate::operation::submit;
use crate::reentry::{GraphAddress, Lending};
use crate::variable::collapse::Group;
use crate::variable::var::{Var, VarGuard, VarNode};

/// An operation all of whose accesses may proceed.
///
/// A linear token: it must be [completed](Self::complete) exactly once, from any thread. Dropping the token
/// is a bug that leaves everything queued behind the operation waiting for ever; debug builds panic, release
/// builds leak the operation (a [snapshot](crate::Graph::snapshot) still shows it).
#[must_use = "an operation that is granted and never completed blocks everything behind it"]
pub struct Granted<V, T> {
    block: BlockPtr<V, T>,
}

/// One access of a [`Granted`] operation.
pub struct GrantedAccess<'a, V, T> {
    access: AccessPtr<V, T>,
    granted: PhantomData<&'a Granted<V, T>>,
}

/// The argument of `finish`, which runs for each distinct variable when its operation completes.
#[derive(Debug)]
pub struct Finish<'a, V> {
    /// The variable that ordered the access (a group if it was collapsed).
    pub var: VarId,
    /// The mode in which the operation used it.
    pub mode: AccessMode,
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

    /// The operation's payload.
    #[inline]
    pub fn payload(&self) -> &T {
        // SAFETY: the token keeps the operation in flight, and the result borrows the token.
        unsafe { self.as_block().payload() }
    }

    /// True if there are references to the operation. If not, no reference is left that was made at
    /// submission or while the operation waited; [`Var::queued`] may still make one of a granted operation.
    #[inline]
    pub fn is_referenced(&self) -> bool {
        self.as_block().is_shared()
    }

    /// A reference to the operation, which keeps its payload alive after completion.
    pub fn to_ref(&self) -> OpRef<V, T> {
        // SAFETY: the token keeps the operation in flight.
        unsafe { OpRef::retain(self.block) }
    }

    /// The distinct variables the operation uses, in no particular order.
    #[inline(always)]
    pub fn accesses(&self) -> impl ExactSizeIterator<Item = GrantedAccess<'_, V, T>> {
        // SAFETY: the token keeps the operation in flight.
        let accesses = unsafe { Block::accesses(self.block) };
        accesses.map(|access| GrantedAccess { access, granted: PhantomData })
    }

    /// Ends the operation.
    ///
    /// `finish` runs once per distinct variable, *under its lock*: `finish` must be short, must not block,
    /// must not use this graph and must not call foreign code. `ready` then gets every operation that is
    /// granted by this completion, under no lock; operations that wait for the same variable come in the
    /// order of their submission. Last, also under no lock, the payload (unless an [`OpRef`] keeps it) and
    /// the `V` of variables that ended with this operation are dropped.
    ///
    /// Returns the operation itself if other references ([`OpRef`]) to it exist, so that the caller can
    /// notify their holders.
    ///
    /// If `finish` panics, its variable stays blocked by this operation, as if the token had been dropped. If
    /// `ready` panics, the remaining operations are still handed to it.
    ///
    /// # Panics
    /// If `finish` uses the graph, as [`Var::with_state`].
    pub fn complete(
        self,
        mut finish: impl FnMut(Finish<'_, V>),
        ready: impl FnMut(Self),
    ) -> Option<OpRef<V, T>> {
        let mut ended = Completed::new();
        let graph = self.address();
        let finish = |its: Finish<'_, V>| {
            let _lending = Lending::of(graph);
            finish(its);
        };
        self.complete_into(finish, &mut ended);
        DeliverGranted::new(&mut ended, ready).rest();
        ended.take_shared()
    }

    /// As [`complete`](Self::complete), but leaves the rest to the caller: `ended` gets the operations that
    /// are granted now, and the operation itself. `ended` is filled in place, since copying what was just
    /// written costs more than its instructions.
    ///
    /// # Panics
    /// If `ended` still contains an operation of an earlier completion.
    #[inline(always)]
    pub fn complete_into(self, mut finish: impl FnMut(Finish<'_, V>), ended: &mut Completed<V, T>) {
        assert!(
            ended.own.is_none() && !ended.has_granted(),
            "a `Completed` is emptied before the next completion"
        );
        let block = self.block;
        mem::forget(self);
        // SAFETY: the token was ours, so the operation is in flight and every access granted; each is
        // unlinked once, under its variable's lock, and a queued access keeps its variable alive until then.
        unsafe {
            block.as_ref().set_over();
            let accesses = Block::accesses(block);
            let section = submit::begin_section(accesses);
            for access in accesses {
                let mut guard = VarNode::lock_within(access.as_ref().target().node(), &section);
                complete_access(&section, &mut guard, access, &mut finish, ended);
            }
            ended.own = Some(block);
        }
    }

    /// The variable through which this operation uses `var`: itself, or a group that it was collapsed into
    /// before.
    pub(crate) fn used(&self, var: &Var<V, T>) -> NonNull<VarNode<V, T>> {
        let mut node = var.node();
        while self.access_to(node).is_none() {
            // SAFETY: the handle keeps the node and everything it forwards to.
            let next = unsafe { VarNode::forwarded_to(node) };
            node = next.unwrap_or_else(|| panic!("{} does not use {}", self.id(), var.id()));
        }
        node
    }

    /// This operation's access to `node`, which is alive. The accesses are in the variables' lock order.
    pub(crate) fn access_to(&self, node: NonNull<VarNode<V, T>>) -> Option<AccessPtr<V, T>> {
        // SAFETY: the token keeps the operation in flight, and a queued access keeps its variable alive.
        unsafe {
            let accesses = Block::accesses(self.block);
            let rank = VarNode::lock_rank(node);
            let (mut first, mut end) = (0, accesses.len());
            while first < end {
                let middle = usize::midpoint(first, end);
                let access = accesses.get(middle);
                let found = access.as_ref().target().node();
                if found == node {
                    return Some(access);
                }
                if VarNode::lock_rank(found) < rank {
                    first = middle + 1;
                } else {
                    end = middle;
                }
            }
            None
        }
    }

    /// The graph's address; NULL for an operation without accesses, which lends no state.
    fn address(&self) -> GraphAddress {
        // SAFETY: the token keeps the operation in flight, and a queued access keeps its variable alive.
        let first = unsafe { Block::accesses(self.block).next() };
        // SAFETY: as above.
        first.map_or(std::ptr::null(), |access| unsafe {
            access.as_ref().target().node().as_ref().graph.address()
        })
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

debug_as!([V, T] granted: Granted<V, T>, "Granted({})", granted.id());

// SAFETY: the token may complete on another thread, where it may drop `T` and `V`; its payload may at the
// same time be shared through an `OpRef`.
unsafe impl<V: Send, T: Send + Sync> Send for Granted<V, T> {}

impl<V, T> GrantedAccess<'_, V, T> {
    /// The variable that orders the access (a group if it was collapsed).
    pub fn var(&self) -> VarId {
        self.as_node().id()
    }

    /// The mode in which the operation uses the variable.
    pub fn mode(&self) -> AccessMode {
        // SAFETY: the access is in flight while its token is borrowed.
        unsafe { self.access.as_ref().target() }.mode()
    }

    /// The variable's user flags. One load.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.as_node().lock.load().user()
    }

    /// Lends the variable's state and user flags (24 bits); the rules of
    /// [`Var::with_state`](crate::Var::with_state) apply.
    pub fn with_state<R>(&self, f: impl FnOnce(&mut V, &mut u32) -> R) -> R {
        // SAFETY: the access is queued, which keeps its variable alive.
        unsafe { VarNode::lock(self.access.as_ref().target().node()) }.lend(f)
    }

    #[inline]
    fn as_node(&self) -> &VarNode<V, T> {
        // SAFETY: the access is queued while its token is borrowed, which keeps its variable alive.
        unsafe { self.access.as_ref().target().node().as_ref() }
    }
}

debug_as!([V, T] access: GrantedAccess<'_, V, T>, "{:?} of {}", access.mode(), access.var());

/// Completes one access: runs `finish`, unlinks the access, and grants what may go next.
///
/// # Safety
/// The access is granted, its operation in flight, and its variable's lock held in `guard`, within `section`.
/// `ended` is dropped when no lock is held.
#[inline(always)]
unsafe fn complete_access<V, T>(
    section: &CriticalSection,
    guard: &mut VarGuard<V, T>,
    access: AccessPtr<V, T>,
    finish: &mut impl FnMut(Finish<'_, V>),
    ended: &mut Completed<V, T>,
) {
    // SAFETY: forwarded to the caller.
    unsafe {
        let node = guard.node;
        let target = access.as_ref().target();
        let flags_before = guard.word.user();
        guard.with_state(|state, flags| {
            finish(Finish { var: node.as_ref().id(), mode: target.mode(), state, flags });
        });
        if guard.word.user() != flags_before {
            // An operation that is granted here may run at once, on a thread that grants its last access
            // elsewhere.
            node.as_ref().lock.publish(guard.word);
        }
        guard.queue(|queue| queue.unlink(access, target.is_exclusive()));
        let empty = grant_next(section, guard, target.is_exclusive(), ended);
        if guard.word.group() {
            Group::completed(guard, target.mode(), ended.retired());
        }
        if empty && guard.word.orphaned() {
            ended.retired().retire(node);
        }
    }
}

/// After an access, `exclusive` or not, has left the queue: grants what may go next, and corrects the word.
/// True: the queue is empty.
///
/// # Safety
/// The variable's lock is held in `guard`, within `section`. `ended` is used when no lock is held.
#[inline(always)]
pub(crate) unsafe fn grant_next<V, T>(
    section: &CriticalSection,
    guard: &mut VarGuard<V, T>,
    exclusive: bool,
    ended: &mut Completed<V, T>,
) -> bool {
    // SAFETY: forwarded to the caller; an operation is pushed once, when its last access is granted.
    let (empty, writes) = guard.queue(|queue| unsafe {
        queue.advance(exclusive, |granted| {
            let op = AccessNode::op(granted);
            if op.as_ref().grant_one(section) {
                ended.push(op);
            }
        });
        (queue.is_empty(), queue.writes())
    });
    guard.word = guard.word.with_unfinished_write(writes > 0);
    empty
}

/// Hands granted operations to `ready`, also on unwinding.
pub(crate) struct DeliverGranted<'a, V, T, F: FnMut(Granted<V, T>)> {
    ended: &'a mut Completed<V, T>,
    ready: F,
}

impl<'a, V, T, F: FnMut(Granted<V, T>)> DeliverGranted<'a, V, T, F> {
    pub(crate) fn new(ended: &'a mut Completed<V, T>, ready: F) -> Self {
        Self { ended, ready }
    }

    pub(crate) fn rest(&mut self) {
        while let Some(granted) = self.ended.next_granted() {
            (self.ready)(granted);
        }
    }
}

impl<V, T, F: FnMut(Granted<V, T>)> Drop for DeliverGranted<'_, V, T, F> {
    fn drop(&mut self) {
        self.rest();
    }
}
