//! Operations in use: how far the function of each is, and who holds its handle.
//!
//! Callers hold a place (see `places.rs`) by their handles, and the operation itself by a claim, until its
//! end is reported. A caller gives up no claim.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::Duration;

use estafette::bindings;
use estafette::devices::{Reactor, host};
use estafette::exchange::foreign_fence::RawFence;
use estafette::{Completion, Op, Scope};
use estafette_sync::sync::{Mutex, MutexGuard};

use crate::context::BodyContext;
use crate::entry::Refusal;
use crate::op::estafette_op;
use crate::places::{self, HandleKind, Places};

static PLACES: Places<Mutex<SlotState>> = Places::new(HandleKind::Op);

#[derive(Default)]
struct SlotState {
    /// See `places.rs`. The bit "in use" stays set from the first use on; the others say whether the place is
    /// held.
    tag: u32,
    callers: u32,
    is_claimed: bool,
    stage: FunctionStage,
    op: Option<Op>,
}

impl SlotState {
    fn is_held(&self) -> bool {
        self.callers > 0 || self.is_claimed
    }
}

/// The progress of the function.
#[derive(Default)]
enum FunctionStage {
    /// The function was not called yet, or never will be.
    #[default]
    Waiting,
    /// The function was called, and the end is not reported yet.
    Begun(Begun),
    /// A thread is reporting the end right now.
    Ending,
    /// The end was reported.
    Ended,
    /// The body is no function of C, and reports its own end.
    ReportsItself,
}

/// The values that a report of the end needs.
pub(crate) struct Begun {
    pub(crate) completion: Completion,
    pub(crate) context: BodyContext,
    /// Its end is the tensor that it produces.
    pub(crate) produces: bool,
}

/// A claim to a place. Dropping the claim releases the place. The claim of an operation lasts until the
/// operation's end is reported, or until it is known that the operation will never be called.
pub(crate) struct Held(NonNull<estafette_op>);

// SAFETY: a handle is a number.
unsafe impl Send for Held {}

impl Held {
    /// The function is about to be called; the thread that reports the end releases the claim.
    pub(crate) fn begin(self, begun: Begun) -> Result<*mut estafette_op, Refusal> {
        let handle = ManuallyDrop::new(self).0.as_ptr();
        // The submitter, which notes it too, may not have returned from the submission yet.
        if let Some(op) = bindings::operation::completion_op(&begun.completion) {
            set_op(handle, op);
        }
        begin(handle, begun).map(|()| handle)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // It is in use as long as this claim is.
        if let Ok((number, mut state)) = find(self.0.as_ptr()) {
            state.is_claimed = false;
            free_if_unused(number, state);
        }
    }
}

/// The place of a handle, if that is in use.
fn find(op: *mut estafette_op) -> Result<(u32, MutexGuard<'static, SlotState>), Refusal> {
    let (tag, number) = places::parts(op);
    let state = PLACES.get(number).map(Mutex::lock).filter(|state| state.tag == tag && state.is_held());
    state.map(|state| (number, state)).ok_or_else(|| PLACES.kind().refusal(op, "op"))
}

/// A free place, under the tag of its next operation.
fn fresh_place() -> Result<(u32, MutexGuard<'static, SlotState>), Refusal> {
    let kind = PLACES.kind();
    let (number, place) =
        PLACES.take(|| Mutex::new(SlotState { tag: kind.first_tag(), ..SlotState::default() }))?;
    let mut state = place.lock();
    state.tag = kind.next_tag(state.tag);
    Ok((number, state))
}

/// A place that its operation and the caller hold.
pub(crate) fn allocate() -> Result<(*mut estafette_op, Held), Refusal> {
    let (number, mut state) = fresh_place()?;
    (state.callers, state.is_claimed) = (1, true);
    let handle = places::handle(state.tag, number);
    Ok((handle, Held(nonnull(handle))))
}

/// A place for an operation whose function is about to be called, and to which no caller has a reference.
pub(crate) fn allocate_begun(begun: Begun) -> Result<*mut estafette_op, Refusal> {
    let (number, mut state) = fresh_place()?;
    state.is_claimed = true;
    state.stage = FunctionStage::Begun(begun);
    Ok(places::handle(state.tag, number))
}

/// A place for an operation that is to be submitted, and whose body is no C function: it reports its own end.
/// Dropping the reservation releases the place.
pub(crate) struct Submitted(NonNull<estafette_op>);

impl Submitted {
    pub(crate) fn reserve() -> Result<Self, Refusal> {
        let (number, mut state) = fresh_place()?;
        (state.callers, state.stage) = (1, FunctionStage::ReportsItself);
        Ok(Self(nonnull(places::handle(state.tag, number))))
    }

    /// The handle, with one reference: the caller's.
    pub(crate) fn fill(self, op: Op) -> *mut estafette_op {
        let handle = ManuallyDrop::new(self).0.as_ptr();
        set_op(handle, op);
        handle
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        let _ = release(self.0.as_ptr());
    }
}

/// Takes the right to report the end. The operation holds its place no more. `with_tensor` says whether the
/// end is a tensor; `None` for a failure.
pub(crate) fn finish(op: *mut estafette_op, with_tensor: Option<bool>) -> Result<Begun, Refusal> {
    let (number, mut state) = find(op)?;
    let begun = take_stage(&mut state, with_tensor)?;
    end(number, state);
    Ok(begun)
}

/// The end is about to be reported, by the right that [`take`] gave.
pub(crate) fn ended(op: *mut estafette_op) -> Result<(), Refusal> {
    let (number, state) = find(op)?;
    end(number, state);
    Ok(())
}

fn end(number: u32, mut state: MutexGuard<'static, SlotState>) {
    state.stage = FunctionStage::Ended;
    state.is_claimed = false;
    free_if_unused(number, state);
}

/// Counts one caller more.
pub(crate) fn retain(op: *mut estafette_op) -> Result<(), Refusal> {
    more(&mut find(op)?.1.callers)
}

fn more(count: &mut u32) -> Result<(), Refusal> {
    *count = count.checked_add(1).ok_or_else(|| Refusal::invalid("op: too many references"))?;
    Ok(())
}

/// Counts one caller less.
pub(crate) fn release(op: *mut estafette_op) -> Result<(), Refusal> {
    let (number, mut state) = find(op)?;
    let left = state.callers.checked_sub(1);
    state.callers = left.ok_or_else(|| {
        Refusal::invalid("op: no caller holds this handle, only its operation: it was released too often")
    })?;
    free_if_unused(number, state);
    Ok(())
}

/// Releases the place if nothing holds it any more.
fn free_if_unused(number: u32, mut state: MutexGuard<'static, SlotState>) {
    if state.is_held() {
        return;
    }
    let tag = state.tag;
    let old = std::mem::replace(&mut *state, SlotState { tag, ..SlotState::default() });
    drop(state);
    PLACES.release(number);
    // Operations and fences are dropped under no lock.
    drop(old);
}

/// Notes the operation of a handle, which may be in use no more.
pub(crate) fn set_op(op: *mut estafette_op, submitted: Op) {
    // The earlier one is dropped under no lock.
    let _earlier = find(op).map(|(_, mut state)| state.op.replace(submitted));
}

/// The function is about to be called; or the right to report the end is returned, since the end cannot be
/// reported yet.
pub(crate) fn begin(op: *mut estafette_op, begun: Begun) -> Result<(), Refusal> {
    find(op)?.1.stage = FunctionStage::Begun(begun);
    Ok(())
}

/// Takes the right to report an end that is no tensor.
pub(crate) fn take(op: *mut estafette_op) -> Result<Begun, Refusal> {
    take_stage(&mut find(op)?.1, Some(false))
}

const REPORTS_ITSELF: &str = "op: its body is no function of C, and reports its own end";

fn take_stage(state: &mut SlotState, with_tensor: Option<bool>) -> Result<Begun, Refusal> {
    if let FunctionStage::Begun(Begun { produces, .. }) = state.stage
        && with_tensor.is_some_and(|with_tensor| with_tensor != produces)
    {
        let why = if produces { "a tensor: `estafette_op_complete_with` reports it" } else { "no tensor" };
        return Err(Refusal::invalid(format!("op: its end is {why}")));
    }
    match std::mem::replace(&mut state.stage, FunctionStage::Ending) {
        FunctionStage::Begun(begun) => Ok(begun),
        other => {
            let why = match &other {
                FunctionStage::Waiting => "op: its function was not called yet",
                FunctionStage::Ending | FunctionStage::Begun(_) => {
                    "op: another thread is reporting its end right now"
                }
                FunctionStage::Ended => "op: its end was reported already",
                FunctionStage::ReportsItself => REPORTS_ITSELF,
            };
            state.stage = other;
            Err(Refusal::invalid(why))
        }
    }
}

fn nonnull(op: *mut estafette_op) -> NonNull<estafette_op> {
    NonNull::new(op).expect("a handle in use is not NULL")
}

/// The scope that lends out the operands of a running operation.
pub(crate) fn scope(op: *mut estafette_op) -> Result<Scope, Refusal> {
    match &find(op)?.1.stage {
        FunctionStage::Begun(begun) => Ok(begun.completion.scope().clone()),
        FunctionStage::Waiting => Err(Refusal::invalid("op: its function was not called yet")),
        FunctionStage::Ending | FunctionStage::Ended => {
            Err(Refusal::invalid("op: its end was reported already"))
        }
        FunctionStage::ReportsItself => Err(Refusal::invalid(REPORTS_ITSELF)),
    }
}

/// The operation of a handle from a submission.
pub(crate) fn submitted(op: *mut estafette_op) -> Result<Op, Refusal> {
    find(op)?.1.op.clone().ok_or_else(|| {
        Refusal::invalid("op: this handle was given to a function and can only report the end; submit with `out` for a handle to wait for")
    })
}

/// The end of an operation, its device work included, for another scheduler.
pub(crate) fn export_end(handle: *mut estafette_op) -> Result<RawFence, Refusal> {
    let op = submitted(handle)?;
    if op.is_done() && op.wait_timeout(Some(Duration::ZERO)).is_ok() {
        let mut left = bindings::operation::left(&op);
        left.prune();
        // The other scheduler's device waits for that one.
        if let [fence] = left.iter().as_slice() {
            return Ok(bindings::operation::export_fence(&op, fence.clone()));
        }
    }
    let (completer, fence) = host::promise("an operation");
    let issued = op.fence();
    let end = bindings::operation::export_fence(&op, fence);
    Reactor::global().when_settled([issued], move |outcome| {
        // A replay that one node has failed has the fences of the others.
        Reactor::global()
            .when_settled(bindings::operation::left(&op), move |later| completer.settle(outcome.and(later)));
    });
    Ok(end)
}
