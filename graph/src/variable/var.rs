//! The variable, and its handles.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use estafette_sync::cell::UnsafeCell;
use estafette_sync::sync::Arc;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};

use crate::addresses::Set;
use crate::biased_lock::CriticalSection;
use crate::graph::{GraphRef, GraphState};
use crate::id::{OpId, VarId};
use crate::operation::access::{AccessMode, AccessNode};
use crate::operation::op_ref::OpRef;
use crate::reentry::Lending;
use crate::variable::collapse::Group;
use crate::variable::lock::{USER_MASK, VarLock, VarWord};
use crate::variable::queue::Queue;

/// A handle of a variable. Clones are handles of the same variable.
///
/// Dropping the last handle deletes as a write would: the thread that completes the last access submitted
/// through the variable drops the variable's `V`, under no lock.
///
/// After [`Graph::collapse`](crate::Graph::collapse) another variable *orders* this one. Questions about
/// order ([`is_quiet`](Self::is_quiet), [`flags`](Self::flags),
/// [`has_unfinished_write`](Self::has_unfinished_write)) are answered by the variable that orders;
/// [`with_state`](Self::with_state) reaches this variable's own state.
pub struct Var<V, T> {
    node: NonNull<VarNode<V, T>>,
}

/// A variable. Alive while it has handles or a non-empty queue.
///
/// The fields that an operation accesses come first, and with a small `V` fit a cache line.
#[repr(C, align(64))]
pub(crate) struct VarNode<V, T> {
    pub(crate) lock: VarLock,
    /// Belongs to the holder of the lock.
    pub(crate) queue: Queue<V, T>,
    pub(crate) graph: GraphRef<V, T>,
    /// Belongs to the holder of the lock; taken out when the variable ends. Up to 16 bytes of it are in the
    /// first cache line.
    value: UnsafeCell<ManuallyDrop<V>>,
    /// Handles, and variables that forward here.
    handles: AtomicUsize,
    id: VarId,
    /// Set under the lock before the word says forwarded, constant from then on. Counts as a handle of its
    /// target.
    forward: UnsafeCell<Option<NonNull<VarNode<V, T>>>>,
    /// Belongs to the holder of the lock; present if the word says group.
    pub(crate) group: UnsafeCell<Option<Box<Group<V, T>>>>,
    /// Index in the registry; belongs to the holder of its lock.
    pub(crate) registry_index: UnsafeCell<usize>,
}

impl<V, T> Var<V, T> {
    pub(crate) fn new(graph: &Arc<GraphState<V, T>>, value: V) -> Self {
        let mut node = Box::new(VarNode {
            lock: VarLock::new(),
            queue: Queue::new(),
            handles: AtomicUsize::new(1),
            graph: GraphRef::new(graph),
            id: VarId::new(0),
            value: UnsafeCell::new(ManuallyDrop::new(value)),
            forward: UnsafeCell::new(None),
            group: UnsafeCell::new(None),
            registry_index: UnsafeCell::new(0),
        });
        let node = graph.registry().add(|id, index| {
            node.id = VarId::new(id);
            node.registry_index = UnsafeCell::new(index);
            let node = NonNull::from(Box::leak(node));
            // SAFETY: the node was made a line above, and does not move until it is freed.
            unsafe { node.as_ref() }.queue.close_ring();
            node
        });
        Self { node }
    }

    #[inline]
    pub(crate) fn node(&self) -> NonNull<VarNode<V, T>> {
        self.node
    }

    /// The variable's name within its graph.
    pub fn id(&self) -> VarId {
        self.as_node().id
    }

    /// True if the process that made the graph is one that this process was forked from: then locks may be
    /// held for ever.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.as_node().graph.generation.is_inherited()
    }

    /// One load: no unfinished write is queued and no user flag is set, on the variable that orders this one.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.order_word().has_no_write_or_flag()
    }

    /// The user flags (24 bits) of the variable that orders this one. One load.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.order_word().user()
    }

    /// True if a write is queued or granted, and not completed, on the variable that orders this one. One
    /// load.
    #[inline]
    pub fn has_unfinished_write(&self) -> bool {
        self.order_word().unfinished_write()
    }

    /// True if another variable orders this one. One load.
    #[inline]
    pub fn is_collapsed(&self) -> bool {
        self.as_node().lock.load().forwarded()
    }

    /// The variable that orders this one: itself, or after a collapse its group.
    #[must_use]
    pub fn ordering(&self) -> Self {
        // SAFETY: our handle keeps the node, which keeps what it forwards to.
        let node = unsafe { VarNode::resolve(self.node) };
        // SAFETY: as above.
        unsafe { node.as_ref() }.retain();
        Self { node }
    }

    /// Lends this variable's own state and user flags (24 bits). `f` runs *under the lock*, on which other
    /// threads that use the variable spin: `f` must be short, must not block, must not use this graph and
    /// must not call foreign code.
    ///
    /// # Panics
    /// If `f` uses a graph that one thread owns. In a shared graph, if `f` waits for a lock of the graph; if
    /// the lock is free, the use succeeds, and is a mistake all the same.
    pub fn with_state<R>(&self, f: impl FnOnce(&mut V, &mut u32) -> R) -> R {
        // SAFETY: our handle keeps the node.
        unsafe { VarNode::lock(self.node) }.lend(f)
    }

    /// As [`with_state`](Self::with_state), of the variable that orders this one when `f` runs.
    ///
    /// # Panics
    /// As [`with_state`](Self::with_state).
    #[inline]
    pub fn with_ordering_state<R>(&self, f: impl FnOnce(&mut V, &mut u32) -> R) -> R {
        loop {
            // SAFETY: our handle keeps the node, which keeps what it forwards to.
            let mut guard = unsafe { VarNode::lock(VarNode::resolve(self.node)) };
            // Otherwise the variable was collapsed since it was found, and changes by `f` could be missed.
            if !guard.word.forwarded() {
                return guard.lend(f);
            }
        }
    }

    /// As [`with_state`](Self::with_state), of this variable and then of each that orders it, one after the
    /// other: `f` sees the state on all of them, however far a collapse has come.
    ///
    /// # Panics
    /// As [`with_state`](Self::with_state).
    pub fn with_each_state(&self, mut f: impl FnMut(&mut V, &mut u32)) {
        let mut next = Some(self.node);
        while let Some(node) = next {
            // SAFETY: our handle keeps the node and everything it forwards to.
            let mut guard = unsafe { VarNode::lock(node) };
            guard.lend(&mut f);
            drop(guard);
            // SAFETY: as above.
            next = unsafe { VarNode::forwarded_to(node) };
        }
    }

    /// True if one variable orders both. Once true, the answer stays true.
    #[must_use]
    pub fn is_ordered_with(&self, other: &Self) -> bool {
        // SAFETY: the handles keep the nodes, which keep what they forward to.
        unsafe {
            loop {
                let (mine, its) = (VarNode::resolve(self.node), VarNode::resolve(other.node));
                if mine == its {
                    return true;
                }
                // Otherwise a collapse came in between, and one variable may order both now.
                if VarNode::forwarded_to(mine).is_none() {
                    return false;
                }
            }
        }
    }

    /// As [`with_state`](Self::with_state), of the variable, this one or one that orders it, on which the
    /// operation `op` is granted a write or an update; `f` also gets the operation's payload. Returns `None`,
    /// and does not call `f`, if `op` has no such access or has completed it. Operations that wait in the
    /// queue cost no time here.
    ///
    /// # Panics
    /// As [`with_state`](Self::with_state).
    pub fn with_state_of_writer<R>(&self, op: OpId, f: impl FnOnce(&T, &mut V, &mut u32) -> R) -> Option<R> {
        let mut next = Some(self.node);
        while let Some(node) = next {
            // SAFETY: our handle keeps the node and everything it forwards to. Under the lock, which keeps
            // the node, a queued operation stays in flight, and so does its payload.
            unsafe {
                let mut guard = VarNode::lock(node);
                let writer = guard.queue(|queue| {
                    // A granted write is the first access, or was split off the first one.
                    let granted = queue.iter().take_while(|(access, granted)| {
                        *granted && access.as_ref().target().mode().is_exclusive()
                    });
                    granted
                        .map(|(access, _)| AccessNode::op(access))
                        .find(|writer| writer.as_ref().id() == op)
                });
                if let Some(writer) = writer {
                    let payload = writer.as_ref().payload();
                    return Some(guard.lend(|state, flags| f(payload, state, flags)));
                }
                drop(guard);
                next = VarNode::forwarded_to(node);
            }
        }
        None
    }

    /// References to the operations that are queued here, granted ones included, in order; after a collapse
    /// also those queued on the variables that order this one. [Collapses](crate::Graph::collapse) are left
    /// out.
    #[must_use]
    pub fn queued(&self) -> Vec<OpRef<V, T>> {
        self.queued_where(|_| true)
    }

    /// As [`queued`](Self::queued), those that write or update this variable.
    #[must_use]
    pub fn queued_writes(&self) -> Vec<OpRef<V, T>> {
        self.queued_where(AccessMode::is_exclusive)
    }

    fn queued_where(&self, wanted: impl Fn(AccessMode) -> bool) -> Vec<OpRef<V, T>> {
        let mut found = Vec::new();
        let mut next = Some(self.node);
        while let Some(node) = next {
            // SAFETY: our handle keeps the node and everything it forwards to.
            unsafe {
                VarNode::queued_into(node, |mode, _| wanted(mode), &mut found);
                next = VarNode::forwarded_to(node);
            }
        }
        // A collapsing operation is queued on the member and on the group.
        let mut seen = Set::default();
        found.retain(|op| seen.insert(op.block));
        found
    }

    fn as_node(&self) -> &VarNode<V, T> {
        // SAFETY: our handle keeps the node.
        unsafe { self.node.as_ref() }
    }

    #[inline]
    fn order_word(&self) -> VarWord {
        let word = self.as_node().lock.load();
        if word.forwarded() { self.forwarded_word() } else { word }
    }

    #[cold]
    fn forwarded_word(&self) -> VarWord {
        // SAFETY: our handle keeps the node, which keeps what it forwards to.
        unsafe { VarNode::resolve(self.node).as_ref() }.lock.load()
    }
}

impl<V, T> Clone for Var<V, T> {
    fn clone(&self) -> Self {
        self.as_node().retain();
        Self { node: self.node }
    }
}

impl<V, T> Drop for Var<V, T> {
    fn drop(&mut self) {
        // SAFETY: releases our handle; `self.node` is not used afterwards.
        unsafe { VarNode::release_handle(self.node) };
    }
}

impl<V, T> PartialEq for Var<V, T> {
    /// True if both are handles of one variable.
    fn eq(&self, other: &Self) -> bool {
        self.node == other.node
    }
}

impl<V, T> Eq for Var<V, T> {}

debug_as!([V, T] var: Var<V, T>, "Var({}, {:?})", var.id(), var.order_word());

// SAFETY: a handle gives access to `V` under the lock, from any thread, and may drop it: `V: Send`. Dropping
// a graph's last handle frees its operations' memory; payloads are shared by reference through `OpRef`: `T:
// Send + Sync`.
unsafe impl<V: Send, T: Send + Sync> Send for Var<V, T> {}
// SAFETY: as above; `&Var` gives `&mut V` only under the lock.
unsafe impl<V: Send, T: Send + Sync> Sync for Var<V, T> {}

impl<V, T> VarNode<V, T> {
    pub(crate) fn id(&self) -> VarId {
        self.id
    }

    /// The position of the variable in the order in which locks are taken: its address, which needs no access
    /// to the node. In a model its number, because addresses differ from run to run and a model must not.
    ///
    /// # Safety
    /// The node is alive.
    #[inline]
    pub(crate) unsafe fn lock_rank(this: NonNull<Self>) -> usize {
        if cfg!(any(estafette_loom, estafette_shuttle)) {
            // SAFETY: forwarded to the caller.
            unsafe { this.as_ref() }.id.get() as usize
        } else {
            this.addr().get()
        }
    }

    /// One more handle; the caller has one, or holds a lock that keeps one.
    pub(crate) fn retain(&self) {
        let before = self.handles.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before > 0, "the last handle is never brought back");
    }

    /// # Safety
    /// The node is alive now, and something keeps it alive until the guard is dropped (holding the lock
    /// does).
    #[inline]
    pub(crate) unsafe fn lock(this: NonNull<Self>) -> VarGuard<V, T> {
        // SAFETY: forwarded to the caller.
        let node = unsafe { this.as_ref() };
        let section = node.graph.biased.acquire();
        let word = node.lock.lock_within(&section, || node.graph.address());
        VarGuard { node: this, word, _section: Some(section) }
    }

    /// As [`lock`](Self::lock), without waiting: `None` if the lock is taken.
    ///
    /// # Safety
    /// As for [`lock`](Self::lock).
    pub(crate) unsafe fn try_lock(this: NonNull<Self>) -> Option<VarGuard<V, T>> {
        // SAFETY: forwarded to the caller.
        let node = unsafe { this.as_ref() };
        let section = node.graph.biased.acquire();
        let word = node.lock.try_lock_within(&section)?;
        Some(VarGuard { node: this, word, _section: Some(section) })
    }

    /// As [`lock`](Self::lock), in a section that outlives the guard.
    ///
    /// # Safety
    /// As for [`lock`](Self::lock).
    #[inline(always)]
    pub(crate) unsafe fn lock_within(this: NonNull<Self>, section: &CriticalSection) -> VarGuard<V, T> {
        // SAFETY: forwarded to the caller.
        let node = unsafe { this.as_ref() };
        let word = node.lock.lock_within(section, || node.graph.address());
        VarGuard { node: this, word, _section: None }
    }

    /// The guard of a lock that the caller has taken.
    ///
    /// # Safety
    /// The caller holds the lock, without another guard, in a section that outlives this guard.
    pub(crate) unsafe fn guard_locked(this: NonNull<Self>) -> VarGuard<V, T> {
        // SAFETY: holding the lock keeps the node alive.
        let word = unsafe { this.as_ref() }.lock.load_locked();
        VarGuard { node: this, word, _section: None }
    }

    /// Follows forwards to the variable that orders `this` now.
    ///
    /// # Safety
    /// The caller keeps `this` alive; the result is alive for as long.
    #[inline]
    pub(crate) unsafe fn resolve(mut this: NonNull<Self>) -> NonNull<Self> {
        // SAFETY: each forward is set before the word says so (Acquire here, Release there), never changes,
        // and counts as a handle of its target.
        unsafe {
            while this.as_ref().lock.load().forwarded() {
                this = this.as_ref().forward.with(|to| *to).expect("a forwarded word has a forward");
            }
        }
        this
    }

    /// # Safety
    /// The caller holds the lock, and `f` does not use the graph.
    pub(crate) unsafe fn value<R>(&self, f: impl FnOnce(&mut V) -> R) -> R {
        // SAFETY: forwarded to the caller.
        self.value.with_mut(|value| f(unsafe { &mut **value }))
    }

    /// True if anything is queued on `this`, or pins it.
    ///
    /// # Safety
    /// The memory of the node is kept.
    pub(crate) unsafe fn is_busy(this: NonNull<Self>) -> bool {
        // SAFETY: forwarded to the caller.
        unsafe { Self::lock(this).queue(|queue| !queue.is_empty() || queue.pins() > 0) }
    }

    /// Adds references to the operations that are queued on `this` and `wanted`: by the mode of the access,
    /// and whether that is granted.
    ///
    /// # Safety
    /// The memory of the node is kept.
    pub(crate) unsafe fn queued_into(
        this: NonNull<Self>,
        wanted: impl Fn(AccessMode, bool) -> bool,
        found: &mut Vec<OpRef<V, T>>,
    ) {
        // SAFETY: under the lock, which keeps the node, every queued operation stays in flight.
        unsafe {
            Self::lock(this).queue(|queue| {
                let queued = queue.iter();
                let wanted =
                    queued.filter(|(access, granted)| wanted(access.as_ref().target().mode(), *granted));
                found.extend(wanted.filter_map(|(access, _)| OpRef::of_listed(AccessNode::op(access))));
            });
        }
    }

    /// The variable that `this` forwards to, if it was collapsed.
    ///
    /// # Safety
    /// The caller keeps `this` alive; the result is alive for as long.
    pub(crate) unsafe fn forwarded_to(this: NonNull<Self>) -> Option<NonNull<Self>> {
        // SAFETY: as for `resolve`.
        unsafe {
            let node = this.as_ref();
            node.lock.load().forwarded().then(|| node.forward.with(|to| *to)).flatten()
        }
    }

    /// Sets where a forwarded variable forwards to, and counts that as a handle.
    ///
    /// # Safety
    /// The caller holds the locks of both; neither is forwarded yet.
    pub(crate) unsafe fn set_forward(this: NonNull<Self>, to: NonNull<Self>) {
        // SAFETY: no thread reads `forward` before the word says forwarded.
        unsafe {
            to.as_ref().retain();
            this.as_ref().forward.with_mut(|place| *place = Some(to));
        }
    }

    /// Releases a handle. If it was the last and nothing is queued, retires the variable, and releases the
    /// handle of its forward's target in turn. A loop, since forwards may form long chains.
    ///
    /// # Safety
    /// The caller owns the handle. No lock is held.
    pub(crate) unsafe fn release_handle(this: NonNull<Self>) {
        let mut next = Some(this);
        while let Some(node) = next {
            // SAFETY: the handle keeps the node; if it is the last one, the node stays until this thread sets
            // ORPHANED.
            next = unsafe {
                if node.as_ref().handles.fetch_sub(1, Ordering::AcqRel) > 1 {
                    return;
                }
                if node.as_ref().graph.generation.is_inherited() {
                    // The lock may be held for ever: the variable is lost.
                    return;
                }
                let mut guard = Self::lock(node);
                guard.word = guard.word.with_orphaned();
                let idle = guard.queue(|queue| queue.is_empty());
                drop(guard);
                if idle { Self::retire(node) } else { None }
            };
        }
    }

    /// Ends a variable that is orphaned and has an empty queue: at once, or, if it was collapsed, when the
    /// accesses that went to its group have completed. Returns a handle that the caller must release.
    ///
    /// # Safety
    /// The caller found the variable orphaned *and* empty under its lock. No lock is held.
    #[must_use]
    pub(crate) unsafe fn retire(this: NonNull<Self>) -> Option<NonNull<Self>> {
        // SAFETY: by contract no other thread ends this variable, and only snapshots can reach it.
        unsafe { if Group::park_if_busy(this) { None } else { Self::destroy(this) } }
    }

    /// Frees the variable and drops its `V`. Returns a handle that the caller must release.
    ///
    /// # Safety
    /// As for [`Self::retire`], and no access submitted through this variable is unfinished.
    #[must_use]
    pub(crate) unsafe fn destroy(this: NonNull<Self>) -> Option<NonNull<Self>> {
        // SAFETY: the variable has ended, so only snapshots can reach the node, and these read neither the
        // value of a variable that is not pinned nor its forward. Once the node is off the registry, and
        // without a scan, only this thread can.
        unsafe {
            let node = this.as_ref();
            let target = node.forward.with(|to| *to);
            let value = node.value.with_mut(|value| ManuallyDrop::take(&mut *value));
            if node.graph.registry().remove(this) {
                Self::free(this);
            }
            drop(value);
            target
        }
    }

    /// Frees the memory of a variable that has ended.
    ///
    /// # Safety
    /// The variable's value was taken out, and no thread can reach the node any more.
    pub(crate) unsafe fn free(this: NonNull<Self>) {
        // SAFETY: forwarded to the caller. It was made from a box.
        drop(unsafe { Box::from_raw(this.as_ptr()) });
    }
}

/// Holds the lock of a variable. Dropping the guard publishes the word and releases the lock, also on
/// unwinding.
pub(crate) struct VarGuard<V, T> {
    pub(crate) node: NonNull<VarNode<V, T>>,
    pub(crate) word: VarWord,
    /// Left after the lock was released.
    _section: Option<CriticalSection>,
}

impl<V, T> VarGuard<V, T> {
    #[inline(always)]
    pub(crate) fn queue<R>(&mut self, f: impl FnOnce(&Queue<V, T>) -> R) -> R {
        // SAFETY: holding the lock keeps the node alive.
        f(unsafe { &self.node.as_ref().queue })
    }

    /// As [`with_state`](Self::with_state), to a closure that is refused if it waits for the graph.
    pub(crate) fn lend<R>(&mut self, f: impl FnOnce(&mut V, &mut u32) -> R) -> R {
        // SAFETY: holding the lock keeps the node alive.
        let _lending = Lending::of(unsafe { self.node.as_ref() }.graph.address());
        self.with_state(f)
    }

    /// Lends the state and the user flags.
    #[inline]
    pub(crate) fn with_state<R>(&mut self, f: impl FnOnce(&mut V, &mut u32) -> R) -> R {
        let mut flags = self.word.user();
        // SAFETY: we hold the lock. A closure that uses the variable is refused by the biased lock, or waits
        // for this lock.
        let result = unsafe { self.node.as_ref().value.with_mut(|value| f(&mut **value, &mut flags)) };
        debug_assert!(flags <= USER_MASK, "user flags are 24 bits");
        self.word = self.word.with_user(flags & USER_MASK);
        result
    }
}

impl<V, T> Drop for VarGuard<V, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: holding the lock keeps the node alive; after the store the node may be gone, and is not
        // accessed.
        unsafe { self.node.as_ref() }.lock.unlock(self.word);
    }
}
