//! Leases: external uses of a tensor, from export until the deleter ran and the last device work is done.
//!
//! A lease is an operation without a body. It is appended like any other, so it waits for earlier conflicting
//! operations and later ones wait for it; once granted and settled it is held until its last holder lets go, on
//! whatever thread that happens.

use std::future::Future;
use std::marker::PhantomPinned;
use std::ops::Deref;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::ThreadId;
use std::time::Duration;

use estafette_devices::host::{self, Completer};
use estafette_devices::{Fence, Reactor};
use estafette_graph::Mode;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};
use smallvec::SmallVec;

use crate::clock::{self, Coarse};
use crate::core::graph;
use crate::error::{Error, OperationError};
use crate::exchange::fork;
use crate::holders::Link;
use crate::journal::{self, hooks};
use crate::operation::{self, Kind, Name, OpDraft, OpGranted, OpHandle, OpState, OpTag, OpVar, Role};
use crate::ready::ReadySignal;
use crate::regions::Region;
use crate::run::{self, ReadyList};
use crate::signal::Signal;
use crate::state::{Ending, VarState};
use crate::taker::Taker;
use crate::tensor::Tensor;
use crate::wait;

/// What a holder of exported memory may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read; engine writes wait until the lease is returned.
    Read,
    /// Read and write, alone; every other use waits until the lease is returned.
    Write,
    /// Untracked: no lease is taken and nothing waits. For people who order things themselves.
    Alias,
}

impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Alias => "alias",
        })
    }
}

/// Who took a lease, and since when.
#[derive(Debug)]
pub(crate) struct LeaseLabel {
    pub(crate) access: Access,
    pub(crate) taker: Taker,
    /// What the holder has made of it, once that is known.
    pub(crate) object: OnceLock<Arc<str>>,
    pub(crate) thread: ThreadId,
    pub(crate) since: Coarse,
    slot: Mutex<Slot>,
    /// Whether it was granted and all earlier work is done, so that only its holder keeps others waiting.
    held: AtomicBool,
    /// Whom to tell; nobody of a lease that was granted as it was submitted.
    signal: Option<Arc<ReadySignal>>,
}

#[derive(Debug)]
enum Slot {
    /// Not granted yet.
    Waiting,
    /// Granted and settled: holding this is holding the lease.
    Held(OpGranted),
    /// Nobody wants it any more: to be completed as soon as it is granted.
    Abandoned,
}

impl LeaseLabel {
    #[inline(always)]
    pub(crate) fn new(access: Access, taker: Taker, signal: Option<Arc<ReadySignal>>, held: bool) -> Self {
        Self {
            access,
            taker,
            object: OnceLock::new(),
            thread: clock::this_thread(),
            since: Coarse::now(),
            slot: Mutex::new(Slot::Waiting),
            held: AtomicBool::new(held),
            signal,
        }
    }

    fn tell(&self, outcome: Result<(), Error>) {
        if let Some(signal) = &self.signal {
            signal.set(outcome);
        }
    }

    fn slot(&self) -> estafette_sync::sync::MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether only its holder keeps others waiting.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Gives up the lease, whether it was granted or not; the operation, if it was, is the caller's to complete.
    pub(crate) fn abandon(&self) -> Option<OpGranted> {
        match std::mem::replace(&mut *self.slot(), Slot::Abandoned) {
            Slot::Held(granted) => Some(granted),
            Slot::Waiting | Slot::Abandoned => None,
        }
    }
}

impl std::fmt::Display for LeaseLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        crate::lease_info::LeaseInfo::of(self).fmt(f)
    }
}

/// A use of a tensor outside any operation, held until dropped.
///
/// Engine operations that conflict with it wait. Cloning shares the lease; it ends with the last clone.
#[derive(Clone)]
pub struct Lease {
    pub(crate) inner: Arc<LeaseInner>,
}

/// Either an operation in the graph or, what most are, a *hold* of the tensor's one variable.
pub(crate) struct LeaseInner {
    pub(crate) tensor: Tensor,
    pub(crate) access: Access,
    label: Label,
    /// Whether it holds the variable, and is among its holders.
    holds: AtomicBool,
    link: Link,
    /// The operation, of a lease that was had at once: nobody but its last holder ever looks for it. Of others the label
    /// has it.
    granted: Mutex<Option<OpGranted>>,
    /// See [`scope`](Self::scope). Few leases are imported from, so it is made at first use.
    scope: OnceLock<OpVar>,
    generation: u32,
    /// Whether it has turned out to be an alias: nothing waits for it and nothing is derived from it.
    untracked: AtomicBool,
    /// What few holders have left for its end.
    last: Mutex<Option<Box<Last>>>,
    /// Others look at it, among the holders of the variable, until its destructor has taken it out from there.
    _shared_while_it_ends: PhantomPinned,
}

/// What is to be done at the end of a lease.
#[derive(Default)]
struct Last {
    /// Device work of the holder that the release must wait for.
    done: Option<Fence>,
    /// Those who are told.
    told: Vec<Completer>,
}

/// The label, shared with the operation where there is one.
enum Label {
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
    /// A lease that is not in the graph: an untracked alias, or a view that belongs to a running operation until
    /// [`hold_from`](Self::hold_from).
    pub(crate) fn unheld(tensor: &Tensor, access: Access, taker: Taker) -> Arc<Self> {
        let label = Arc::new(LeaseLabel::new(access, taker, None, false));
        Arc::new(Self::with_label(tensor.clone(), access, Label::Shared(label)))
    }

    #[inline(always)]
    fn with_label(tensor: Tensor, access: Access, label: Label) -> Self {
        Self {
            tensor,
            access,
            label,
            holds: AtomicBool::new(false),
            link: Link::default(),
            granted: Mutex::new(None),
            scope: OnceLock::new(),
            generation: fork::generation(),
            untracked: AtomicBool::new(access == Access::Alias),
            last: Mutex::new(None),
            _shared_while_it_ends: PhantomPinned,
        }
    }

    /// A read lease that is to be had at once; nothing is waited for, and nothing is left behind if it is not.
    #[inline]
    pub(crate) fn at_once(tensor: &Tensor, taker: impl FnOnce() -> Taker) -> Option<Arc<Self>> {
        if journal::is_open() {
            // The journal tells of operations.
            return Self::begin(tensor, taker());
        }
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
        let number = graph().number();
        let held = var.hold(|state, flags| {
            if flags != 0 {
                // Fences or a failure: somebody has to look more closely, and perhaps to wait.
                return false;
            }
            // SAFETY: the lease is new, and its destructor takes it out.
            unsafe { state.holders().add(place, number) };
            lease.holds.store(true, Ordering::Relaxed);
            true
        });
        if held { Ok(lease) } else { Err(lease) }
    }

    /// As [`hold`](Self::hold), with an operation.
    #[cold]
    fn begin(tensor: &Tensor, taker: Taker) -> Option<Arc<Self>> {
        let access = Access::Read;
        let label = Arc::new(LeaseLabel::new(access, taker, None, false));
        let core = &tensor.inner.core;
        let mut draft = operation::draft(core, Name::Static("lease"), Kind::Lease);
        draft.payload_mut().set_role(Role::Lease(Arc::clone(&label)));
        tensor.inner.vars.iter().for_each(|var| draft.access(var, Mode::Read));
        if draft.payload().noted {
            note_taking(&draft, &label, tensor);
        }
        let Some(granted) = draft.submit_unreferenced() else {
            // It stands in a queue by now: whoever grants it finds it abandoned.
            if let Some(granted) = label.abandon() {
                end(granted, None);
            }
            return None;
        };
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

    /// See [`Holders`](crate::holders::Holders).
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

    /// Whether memory inside this lease is protected by it.
    pub(crate) fn protects(&self) -> bool {
        !self.untracked.load(Ordering::Acquire)
    }

    fn at_end(&self, add: impl FnOnce(&mut Last)) {
        add(self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert_default());
    }

    /// See [`Lease::note_object`].
    pub(crate) fn note_object(&self, kind: &str) {
        self.label.object.get_or_init(|| kind.into());
    }

    /// Makes it an alias.
    pub(crate) fn untrack(&self) {
        self.untracked.store(true, Ordering::Release);
    }

    /// Makes a view of `running` a lease of its own that stands beside the operation in every queue, so that nothing gets
    /// in between when the operation ends.
    pub(crate) fn hold_from(&self, running: &OpGranted, mode: Mode) {
        let Label::Shared(label) = &self.label else { return };
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

impl Lease {
    /// Starts to take a lease; resolves once the tensor is defined, ready, and free for this access.
    pub(crate) fn acquire(tensor: &Tensor, access: Access, taker: Taker) -> Result<Acquire, Error> {
        tensor.inner.core.check_fork()?;
        if access == Access::Write {
            check_writable(tensor)?;
        }
        let signal = Arc::new(Signal::new());
        let label = Arc::new(LeaseLabel::new(access, taker, Some(Arc::clone(&signal)), false));
        let mut draft = operation::draft(&tensor.inner.core, Name::Static("lease"), Kind::Lease);
        draft.payload_mut().set_role(Role::Lease(Arc::clone(&label)));
        let mode = if access == Access::Write { Mode::Update } else { Mode::Read };
        tensor.inner.vars.iter().for_each(|var| draft.access(var, mode));
        if draft.payload().noted {
            note_taking(&draft, &label, tensor);
        }
        let (handle, granted) = draft.submit();
        if let Some(granted) = granted {
            run::dispatch_one(granted);
        }
        Ok(Acquire { tensor: tensor.clone(), access, label: Some(label), signal, handle })
    }

    /// As [`acquire`](Self::acquire), but gives up when it would have to wait.
    pub(crate) fn acquire_now(tensor: &Tensor, access: Access, taker: &str) -> Result<Option<Self>, Error> {
        let acquire = Self::acquire(tensor, access, taker.into())?;
        match acquire.signal.get() {
            Some(outcome) => outcome.map(|()| Some(acquire.into_lease())),
            None => Ok(None),
        }
    }

    /// As [`acquire`](Self::acquire), blocking for at most `timeout`.
    pub(crate) fn acquire_wait(
        tensor: &Tensor,
        access: Access,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        Self::acquire_wait_as(tensor, access, timeout, "a host reader".into())
    }

    pub(crate) fn acquire_wait_as(
        tensor: &Tensor,
        access: Access,
        timeout: Option<Duration>,
        taker: Taker,
    ) -> Result<Self, Error> {
        let acquire = Self::acquire(tensor, access, taker)?;
        let what = format!("a {access} lease");
        let waited = wait::block(
            &tensor.inner.core,
            &acquire.handle,
            Some(&tensor.inner.vars),
            &what,
            &acquire.signal,
            timeout,
        );
        acquire.note_resumed(true);
        waited??;
        Ok(acquire.into_lease())
    }

    /// The leased tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.inner.tensor
    }

    /// What the holder may do.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Notes what kind of object the holder has made of the memory, for diagnoses. Only the first note counts.
    pub fn note_object(&self, kind: &str) {
        self.inner.note_object(kind);
    }

    /// Makes the end of this lease wait for `fence`, the holder's last device work.
    pub fn release_after(self, fence: Fence) {
        self.inner.at_end(|last| last.done = Some(fence));
    }

    /// The end of this lease as a fence: done when the last holder has let go and the device work that it left is done.
    pub fn end_fence(&self) -> Fence {
        let (completer, fence) = host::promise("a lease");
        self.inner.at_end(|last| last.told.push(completer));
        fence
    }
}

impl Tensor {
    /// The lease that this tensor was imported under: its memory lies inside memory that was leased.
    pub fn imported_under(&self) -> Option<Lease> {
        self.inner.lease.as_ref().map(|lease| Lease { inner: Arc::clone(lease) })
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({})", self.inner.label())
    }
}

/// Refuses a write to memory that may not be written.
pub(crate) fn check_writable(tensor: &Tensor) -> Result<(), Error> {
    if let Some(lease) = &tensor.inner.lease
        && lease.access == Access::Read
    {
        return Err(Error::Conflict(format!(
            "this tensor was imported from memory under a {}; write through the original tensor once it is returned",
            lease.label()
        )));
    }
    if tensor.inner.definition().is_ok_and(|definition| definition.read_only) {
        return Err(Error::Conflict("the owner of this tensor's memory declares it read-only".into()));
    }
    Ok(())
}

/// A lease being taken. Dropping it gives up; the tensor is not affected.
#[must_use = "futures do nothing unless awaited"]
pub(crate) struct Acquire {
    tensor: Tensor,
    access: Access,
    /// `None` once the lease was handed over.
    label: Option<Arc<LeaseLabel>>,
    signal: Arc<ReadySignal>,
    handle: OpHandle,
}

/// Tells the journal who is about to take a lease of what.
#[cold]
fn note_taking(draft: &OpDraft<'_>, label: &LeaseLabel, tensor: &Tensor) {
    hooks::submitted(draft);
    hooks::taken(draft.id(), &label.taker);
    hooks::uses(std::slice::from_ref(tensor));
}

impl Acquire {
    fn note_resumed(&self, blocking: bool) {
        if self.handle.payload().noted {
            hooks::resumed(self.handle.id().get(), blocking);
        }
    }

    fn into_lease(mut self) -> Lease {
        let label = self.label.take().expect("taken once, by value");
        Lease {
            inner: Arc::new(LeaseInner::with_label(self.tensor.clone(), self.access, Label::Shared(label))),
        }
    }
}

impl Future for Acquire {
    type Output = Result<Lease, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.tensor.inner.core.help_alone(cx);
        match self.signal.poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                self.note_resumed(false);
                let label = self.label.take().expect("a future is not polled after it has finished");
                let again = Acquire {
                    tensor: self.tensor.clone(),
                    access: self.access,
                    label: Some(label),
                    signal: Arc::clone(&self.signal),
                    handle: self.handle.clone(),
                };
                Poll::Ready(Ok(again.into_lease()))
            }
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(label) = self.label.take() else { return };
        if self.tensor.inner.core.check_fork().is_err() {
            // A forked child: the graph's locks may be held by threads that do not exist here.
            return std::mem::forget(label);
        }
        self.handle.payload().cancel();
        if let Some(granted) = label.abandon() {
            end(granted, None);
        }
    }
}

/// Handles a granted lease: once its fences are done it is held.
pub(crate) fn lease_granted(granted: OpGranted, ready: &mut ReadyList) {
    let state = granted.payload();
    let label = state.lease().cloned().expect("every lease is submitted with its label");
    if !operation::begin(&granted) {
        let failure = state.failure().cloned();
        run::complete(granted, &Ending::Looked, None, ready);
        if let Some(failure) = failure {
            label.tell(Err(failure.into_error()));
        }
        return;
    }
    settle(granted, label, ready);
}

/// Holds the lease once the fences of earlier uses are done, or refuses it when the version has failed. A failed *reader*
/// concerns nobody.
fn settle(granted: OpGranted, label: Arc<LeaseLabel>, ready: &mut ReadyList) {
    let found = run::inspect(&granted);
    if let Some(failure) = found.failure {
        refuse(granted, &label, failure, ready);
    } else if found.pending.is_empty() {
        hold(granted, &label, ready);
    } else {
        Reactor::global().when_settled(&found.pending, move |_settled| {
            let mut ready = ReadyList::new();
            settle(granted, label, &mut ready);
            run::dispatch(ready);
        });
    }
}

fn refuse(granted: OpGranted, label: &LeaseLabel, failure: OperationError, ready: &mut ReadyList) {
    run::complete(granted, &Ending::Looked, None, ready);
    label.tell(Err(failure.into_error()));
}

fn hold(granted: OpGranted, label: &LeaseLabel, ready: &mut ReadyList) {
    if granted.payload().noted {
        hooks::begins(&granted);
    }
    {
        let mut slot = label.slot();
        if matches!(*slot, Slot::Waiting) {
            *slot = Slot::Held(granted);
            label.held.store(true, Ordering::Release);
            drop(slot);
            label.tell(Ok(()));
            return;
        }
    }
    run::complete(granted, &Ending::Looked, None, ready);
}

impl Drop for LeaseInner {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // A forked child: the graph's locks may be held by threads that do not exist here.
            let granted = self.granted.get_mut().map(Option::take);
            let last = self.last.get_mut().map(Option::take);
            let label = match &self.label {
                Label::Shared(label) => Some(Arc::clone(label)),
                Label::Own(_) => None,
            };
            std::mem::forget((self.tensor.clone(), label, self.scope.take(), granted, last));
            return;
        }
        match self.last.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).take() {
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
        let granted = self.granted.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(granted) = granted.or_else(|| self.label.abandon()) {
            end(granted, done);
        } else if let Some(done) = done {
            // An alias is in no queue, but its memory must not go before the work is done.
            let _ = self.tensor.used_until(&done);
        }
    }

    #[cold]
    fn end_with(&mut self, last: Last) {
        let Last { done, told } = last;
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
        let mut ready = ReadyList::new();
        let mut observer = None;
        let tag = done.is_some().then(|| OpTag { name: Name::Static("lease"), id: graph().number() });
        let ending = Ending::Ran { fence: done.as_ref().zip(tag.as_ref()), failure: None };
        let finish = |state: &mut VarState, flags: &mut u32| {
            // SAFETY: it was added when the hold began.
            observer = unsafe { state.holders().remove(NonNull::from(self)) };
            // A reader replaces no failure.
            state.finish(Mode::Read, &ending, flags, &mut None);
        };
        self.tensor.inner.vars[0].end_hold(finish, |granted| ready.push(granted));
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
fn end_unused(granted: OpGranted) {
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
    let ending = Ending::Ran { fence: done.as_ref().map(|done| (done, &tag)), failure: None };
    run::complete(granted, &ending, None, &mut ready);
    run::dispatch(ready);
    core.bell.ring();
}
