//! What a lease is: an operation in the graph, or a hold of one variable.

use std::marker::PhantomPinned;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use estafette_devices::host::Completer;
use estafette_devices::{Fence, Reactor};
use estafette_graph::{Mode, OpId};
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};
use smallvec::SmallVec;

use super::Access;
use super::acquire::{give_up, note_taking};
use super::label::{LeaseLabel, Slot};
use crate::core::context;
use crate::core::engine_core::graph;
use crate::core::operation::{self, Kind, Name, OpGranted, OpState, OpTag, OpVar, Role};
use crate::core::var_state::{Ending, Replaced, VarState};
use crate::exchange::fork;
use crate::lease::consumer::{After, is_released_early};
use crate::lease::owner::Taker;
use crate::lease::pins::Link;
use crate::operation::run::{self, ReadyList};
use crate::tensor::alias_map::Region;
use crate::tensor::handle::Tensor;
use crate::trace::{self, hooks};

/// Either an operation in the graph or, what most are, a *hold* of the tensor's one variable.
pub(crate) struct LeaseInner {
    pub(crate) tensor: Tensor,
    pub(crate) access: Access,
    label: Label,
    /// Whether it holds the variable, and is among its holders.
    holds: AtomicBool,
    /// Its number among the operations, if it holds the variable and the journal tells of it; else 0.
    noted: AtomicU64,
    link: Link,
    /// The operation, of a lease that was had at once: nobody but its last holder ever looks for it. Of others the label
    /// has it.
    granted: Mutex<Option<OpGranted>>,
    /// See [`scope`](Self::scope). Few leases are imported from, so it is made at first use.
    scope: OnceLock<OpVar>,
    generation: u32,
    /// The operation that it is a view of, and may still be.
    view_of: Option<OpId>,
    /// Whether it has turned out to be an alias: nothing waits for it and nothing is derived from it.
    untracked: AtomicBool,
    /// What few holders have left for its end.
    last: Mutex<Option<Box<Last>>>,
    /// Others look at it, among the holders of the variable, until its destructor has taken it out from there.
    _shared_while_it_ends: PhantomPinned,
}

/// What is to be done at the end of a lease.
#[derive(Default)]
pub(super) struct Last {
    /// Device work of the holder that the release must wait for.
    pub(super) done: Option<Fence>,
    /// What the release must wait for if the holder has not said so.
    after: Option<After>,
    /// Those who are told.
    pub(super) told: Vec<Completer>,
}

/// The label, shared with the operation where there is one.
pub(super) enum Label {
    Own(LeaseLabel),
    Shared(Arc<LeaseLabel>),
}

impl Deref for Label {
    type Target = LeaseLabel;

    #[inline]
    fn deref(&self) -> &LeaseLabel {
        match self {
            Self::Own(label) => label,
            Self::Shared(label) => label,
        }
    }
}

impl LeaseInner {
    /// A view that belongs to the running operation until [`hold_from`](Self::hold_from), and is not in the graph before.
    pub(crate) fn view_of(running: OpId, tensor: &Tensor, access: Access, taker: Taker) -> Arc<Self> {
        let label = Arc::new(LeaseLabel::new(access, taker, None, false));
        let mut lease = Self::with_label(tensor.clone(), access, Label::Shared(label));
        lease.view_of = Some(running);
        Arc::new(lease)
    }

    /// A lease that is not in the graph: an untracked alias, or a part of one that stands for several tensors.
    pub(crate) fn unheld(tensor: &Tensor, access: Access, taker: Taker) -> Arc<Self> {
        let label = Arc::new(LeaseLabel::new(access, taker, None, false));
        Arc::new(Self::with_label(tensor.clone(), access, Label::Shared(label)))
    }

    #[inline(always)]
    pub(super) fn with_label(tensor: Tensor, access: Access, label: Label) -> Self {
        Self {
            tensor,
            access,
            label,
            holds: AtomicBool::new(false),
            noted: AtomicU64::new(0),
            link: Link::default(),
            granted: Mutex::new(None),
            scope: OnceLock::new(),
            generation: fork::generation(),
            view_of: None,
            untracked: AtomicBool::new(access == Access::Alias),
            last: Mutex::new(None),
            _shared_while_it_ends: PhantomPinned,
        }
    }

    /// A read lease that is to be had at once; nothing is waited for, and nothing is left behind if it is not.
    #[inline]
    pub(crate) fn at_once(tensor: &Tensor, taker: impl FnOnce() -> Taker) -> Option<Arc<Self>> {
        match &tensor.inner.vars[..] {
            [var] => match Self::hold(tensor, var, taker()) {
                Ok(lease) => Some(lease),
                Err(unheld) => Self::begin(tensor, unheld.label.taker.clone()),
            },
            _ => Self::begin(tensor, taker()),
        }
    }

    /// A read lease without an operation, of a tensor that `var` alone orders, if nothing is in its way; else a lease that holds
    /// nothing.
    #[inline]
    fn hold(tensor: &Tensor, var: &OpVar, taker: Taker) -> Result<Arc<Self>, Arc<Self>> {
        // Built in its place: moved there, it would cost as much again.
        let place = Arc::<Self>::new_uninit();
        // SAFETY: nobody else has it yet, which `Arc::get_mut` would find out with a locked instruction.
        let lease = unsafe {
            let label = LeaseLabel::new(Access::Read, taker, None, true);
            let lease = Arc::as_ptr(&place).cast_mut();
            (*lease).write(Self::with_label(tensor.clone(), Access::Read, Label::Own(label)));
            place.assume_init()
        };
        // SAFETY: never null. The place is good for as long as the lease lives.
        let place = unsafe { NonNull::new_unchecked(Arc::as_ptr(&lease).cast_mut()) };
        let number = graph().next_id();
        let held = var.try_pin(|state, flags| {
            if flags != 0 {
                // Fences or a failure: somebody has to look more closely, and perhaps to wait.
                return false;
            }
            // SAFETY: the lease is new, and its destructor takes it out.
            unsafe { state.holders().add(place, number) };
            lease.holds.store(true, Ordering::Relaxed);
            true
        });
        if !held {
            return Err(lease);
        }
        if trace::is_open() {
            lease.noted.store(number.get(), Ordering::Relaxed);
            hooks::holds(number, &lease.label.taker, tensor, var.id());
        }
        Ok(lease)
    }

    /// As [`hold`](Self::hold), with an operation.
    #[cold]
    fn begin(tensor: &Tensor, taker: Taker) -> Option<Arc<Self>> {
        let access = Access::Read;
        let label = Arc::new(LeaseLabel::new(access, taker, None, false));
        let core = &tensor.inner.core;
        let mut pending_op = operation::pending_op(core, Name::Static("lease"), Kind::Lease);
        pending_op.payload_mut().set_role(Role::Lease(Arc::clone(&label)));
        tensor.inner.vars.iter().for_each(|var| pending_op.access(var, Mode::Read));
        if pending_op.payload().noted {
            note_taking(&pending_op, &label, tensor);
        }
        let (op, granted) = pending_op.submit();
        let Some(granted) = granted else {
            give_up(&op, label);
            return None;
        };
        drop(op);
        if granted.accesses().any(|access| access.flags() != 0) || !operation::begin(&granted) {
            // Fences or a failure: somebody has to look more closely, and perhaps to wait.
            end_unused(granted);
            return None;
        }
        if granted.payload().noted {
            hooks::begins(&granted);
        }
        label.held.store(true, Ordering::Release);
        let mut lease = Self::with_label(tensor.clone(), access, Label::Shared(label));
        lease.granted = Mutex::new(Some(granted));
        Some(Arc::new(lease))
    }

    /// See [`Holders`](crate::lease::pins::Holders).
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Whether it holds a variable, without an operation.
    pub(crate) fn holds(&self) -> bool {
        self.holds.load(Ordering::Relaxed)
    }

    /// Whether it is a lease of the memory of `region`.
    pub(crate) fn is_of(&self, region: &Region) -> bool {
        let definition = self.tensor.inner.definition();
        let placed = definition.ok().and_then(|definition| definition.placed.as_ref());
        placed.is_some_and(|placed| std::ptr::eq(&*placed.region, region))
    }

    pub(crate) fn label(&self) -> &LeaseLabel {
        &self.label
    }

    /// Orders the uses of tensors that were imported from inside this lease among each other.
    pub(crate) fn scope(&self) -> &OpVar {
        self.scope.get_or_init(|| graph().var(VarState::default()))
    }

    /// Whether something may have been derived from it.
    pub(crate) fn has_scope(&self) -> bool {
        self.scope.get().is_some()
    }

    /// Whether memory inside this lease is protected by it.
    pub(crate) fn protects(&self) -> bool {
        !self.untracked.load(Ordering::Acquire)
    }

    /// Whether the calling code may have got memory from the holder. The views of a running operation are its own, and whoever
    /// else comes with the same memory has it from elsewhere.
    pub(crate) fn can_be_imported_from_here(&self) -> bool {
        match self.view_of {
            Some(running) => self.label.is_held() || context::current() == Some(running),
            None => true,
        }
    }

    pub(super) fn at_end(&self, add: impl FnOnce(&mut Last)) {
        add(self.last.lock().get_or_insert_default());
    }

    /// Makes the end wait for the consumer's last work, unless its holder names that.
    pub(crate) fn ends_after(&self, after: After) {
        self.at_end(|last| {
            last.after = Some(match last.after.take() {
                Some(known) => known.and(after),
                None => after,
            });
        });
    }

    /// What [`ends_after`](Self::ends_after) has noted.
    pub(crate) fn after(&self) -> Option<After> {
        self.last.lock().as_ref()?.after.clone()
    }

    /// Takes what [`ends_after`](Self::ends_after) has noted: somebody else's end waits for it.
    pub(crate) fn take_after(&self) -> Option<After> {
        self.last.lock().as_mut()?.after.take()
    }

    /// See [`Lease::note_object`].
    pub(crate) fn note_object(&self, kind: impl Into<Arc<str>>) {
        self.label.object.get_or_init(|| kind.into());
    }

    /// What the journal knows it by, if it is held: its operation, or the number of a hold.
    pub(super) fn known_as(&self) -> Option<OpId> {
        if self.holds() {
            let number = self.noted.load(Ordering::Relaxed);
            return (number != 0).then(|| OpId::new(number));
        }
        let own = self.granted.lock();
        own.as_ref().map(|granted| granted.id()).or_else(|| self.label.operation())
    }

    /// Makes it an alias. See [`Region::untrack`].
    pub(crate) fn untrack(&self) {
        self.untracked.store(true, Ordering::Release);
    }

    /// Whether it was handed into the capture of a graph.
    pub(crate) fn is_captured(&self) -> bool {
        matches!(self.after(), Some(After::Captured))
    }

    /// Makes a view of `running` a lease of its own that stands beside the operation in every queue, so that nothing gets
    /// in between when the operation ends.
    pub(crate) fn hold_from(&self, running: &OpGranted, mode: Mode) {
        let Label::Shared(label) = &self.label else { return };
        if is_released_early(&self.tensor.inner) {
            // It may be used on other queues than the operation's.
            self.ends_after(After::Unknown);
        } else if let Some(queue) = running.payload().queue() {
            // What was pending when the operation began may be so when this ends.
            self.ends_after(After::Queue(Arc::clone(queue)));
        }
        let mut state = OpState::new(self.tensor.inner.core.clone(), Name::Static("lease"), Kind::Lease);
        state.set_role(Role::Lease(Arc::clone(label)));
        state.begin_unsubmitted();
        let vars: SmallVec<[_; 2]> = self.tensor.inner.vars.iter().collect();
        // Exclusive or not, it is no new version: what the operation has left stays, its failure included.
        let mode = if mode.is_exclusive() { Mode::Update } else { mode };
        let granted = running.split(state, &vars, mode);
        if granted.payload().noted {
            hooks::split_off(&granted);
            hooks::taken(granted.id(), &self.label.taker);
            hooks::begins(&granted);
        }
        let mut slot = self.label.slot();
        if matches!(*slot, Slot::Waiting) {
            *slot = Slot::Held(granted);
            self.label.held.store(true, Ordering::Release);
        } else {
            // The last holder let go in the meantime.
            drop(slot);
            end(granted, None);
        }
    }
}

impl Drop for LeaseInner {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // A forked child: the graph's locks may be held by threads that do not exist here.
            let granted = self.granted.get_mut().take();
            let last = self.last.get_mut().take();
            let label = match &self.label {
                Label::Shared(label) => Some(Arc::clone(label)),
                Label::Own(_) => None,
            };
            std::mem::forget((self.tensor.clone(), label, self.scope.take(), granted, last));
            return;
        }
        match self.last.get_mut().take() {
            None => self.end(None),
            Some(last) => self.end_with(*last),
        }
    }
}

impl LeaseInner {
    /// Ends the lease; whatever waited for it goes on, after `done`.
    #[inline]
    fn end(&mut self, done: Option<Fence>) {
        if *self.holds.get_mut() {
            return self.end_hold(done);
        }
        let granted = self.granted.get_mut().take();
        if let Some(granted) = granted.or_else(|| self.label.abandon()) {
            end(granted, done);
        } else if let Some(done) = done {
            // An alias is in no queue, but its memory must not go before the work is done.
            let _ = self.tensor.used_until(&done);
        }
    }

    #[cold]
    fn end_with(&mut self, last: Last) {
        let Last { done, after, told } = last;
        let done = done.or_else(|| {
            let device = self.tensor.inner.definition().ok()?.layout.device();
            Some(after?.fence(&self.tensor.inner.core, device))
        });
        let fences: SmallVec<[Fence; 1]> =
            if told.is_empty() { SmallVec::new() } else { done.iter().cloned().collect() };
        self.end(done);
        if !told.is_empty() {
            Reactor::global().when_settled(&fences, move |outcome| {
                told.into_iter().for_each(|completer| completer.settle(outcome.clone()));
            });
        }
    }

    /// Ends a hold; whatever waited for it goes on.
    fn end_hold(&self, done: Option<Fence>) {
        let noted = self.noted.load(Ordering::Relaxed);
        if noted != 0 {
            hooks::hold_ends(OpId::new(noted), done.as_ref());
        }
        let mut ready = ReadyList::new();
        let mut observer = None;
        let mut replaced = Replaced::default();
        let tag = done.is_some().then(|| OpTag { name: Name::Static("lease"), id: graph().next_id() });
        let left = done.as_ref().map(std::slice::from_ref).zip(tag.as_ref());
        let ending = Ending::Ran { left, failure: None };
        let finish = |state: &mut VarState, flags: &mut u32| {
            // SAFETY: it was added when the hold began.
            observer = unsafe { state.holders().remove(NonNull::from(self)) };
            state.finish(Mode::Read, &ending, flags, &mut replaced);
        };
        self.tensor.inner.vars[0].unpin(finish, |granted| ready.push(granted));
        drop(replaced);
        if !ready.is_empty() {
            run::dispatch(ready);
        }
        if let Some(observer) = observer {
            observer.set(Ok(()));
        }
        self.tensor.inner.core.bell.ring();
    }
}

/// Ends a lease that was granted and is not wanted; it has seen nothing and leaves nothing.
pub(super) fn end_unused(granted: OpGranted) {
    let core = granted.payload().core.clone();
    let mut ready = ReadyList::new();
    run::complete(granted, &Ending::Looked, None, &mut ready);
    run::dispatch(ready);
    core.bell.ring();
}

/// Ends a held lease; whatever waited for it goes on.
pub(crate) fn end(granted: OpGranted, done: Option<Fence>) {
    let core = granted.payload().core.clone();
    let tag = OpTag::of(&granted);
    let mut ready = ReadyList::new();
    let unordered = done.is_none() && granted.payload().lease().is_some_and(|label| label.orders_itself);
    let ending = if unordered {
        // Its holder has not come to use it, and what was pending still is.
        Ending::Looked
    } else {
        Ending::Ran { left: done.as_ref().map(|done| (std::slice::from_ref(done), &tag)), failure: None }
    };
    run::complete(granted, &ending, None, &mut ready);
    run::dispatch(ready);
    core.bell.ring();
}
