//! Where the handles of operations lead.
//!
//! A handle is no address but a number: a place in a table, and the generation of what lives there. A place whose last
//! holder has gone is used again under the next generation, so a handle that is over is told from a living one, whatever is
//! done with it. Places are never freed: there are as many as operations were ever held at once.
//!
//! The holders of a place are whoever has the handle from a submission, and the operation itself until its end was told.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use estafette::devices::{Fence, Frontier, Reactor, host};
use estafette::exchange::fork;
use estafette::{Completion, Op, Scope};
use estafette_sync::sync::atomic::{AtomicU32, Ordering};
use estafette_sync::sync::{Mutex, MutexGuard, OnceLock};

use crate::context::Context;
use crate::entry::Refusal;
use crate::op::estafette_op;
use crate::status::estafette_status;

/// Places that are made at once.
const CHUNK: usize = 1024;
/// At most so many chunks: four million operations held at once.
const CHUNKS: usize = 4096;

struct Place {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    generation: u32,
    holders: u32,
    stage: Stage,
    op: Option<Op>,
    /// The fence that the operation ends with.
    after: Option<Fence>,
}

/// How far the function is.
#[derive(Default)]
enum Stage {
    /// It was not called yet, or never will be.
    #[default]
    Waiting,
    /// It was called, and the end was not told.
    Begun(Begun),
    /// Somebody is telling the end right now.
    Ending,
    /// The end was told.
    Ended,
}

/// What is needed to tell the end.
pub(crate) struct Begun {
    pub(crate) completion: Completion,
    pub(crate) context: Context,
}

/// So many free places are kept by a thread.
const KEPT_MAX: usize = 128;

/// Free places that a thread keeps, so that it need not ask for each; given to all when the thread ends.
#[derive(Default)]
struct Kept(Vec<u32>);

impl Drop for Kept {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever.
        if !self.0.is_empty() && !fork::in_child() {
            lock(&TABLE.free).append(&mut self.0);
        }
    }
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

struct Table {
    chunks: [OnceLock<Box<[Place]>>; CHUNKS],
    made: AtomicU32,
    free: Mutex<Vec<u32>>,
}

static TABLE: Table = Table {
    chunks: [const { OnceLock::new() }; CHUNKS],
    made: AtomicU32::new(0),
    free: Mutex::new(Vec::new()),
};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Table {
    fn place(&self, number: u32) -> Option<&Place> {
        let chunk = self.chunks.get(number as usize / CHUNK)?.get()?;
        chunk.get(number as usize % CHUNK)
    }

    /// A free place that any thread may have, and some more for this one.
    fn shared(&self) -> Option<u32> {
        let mut free = lock(&self.free);
        let number = free.pop();
        let more = free.len().saturating_sub(KEPT_MAX / 2);
        let more: Vec<u32> = if number.is_some() { free.split_off(more) } else { Vec::new() };
        drop(free);
        let kept = KEPT.try_with(|kept| kept.borrow_mut().0.extend(&more));
        if kept.is_err() {
            lock(&self.free).extend(more);
        }
        number
    }

    /// Takes a place back.
    fn give_back(&self, number: u32) {
        let surplus = KEPT.try_with(|kept| {
            let kept = &mut kept.borrow_mut().0;
            kept.push(number);
            if kept.len() > KEPT_MAX { kept.split_off(KEPT_MAX / 2) } else { Vec::new() }
        });
        match surplus {
            Ok(surplus) if surplus.is_empty() => {}
            Ok(surplus) => lock(&self.free).extend(surplus),
            // The thread is ending.
            Err(_) => lock(&self.free).push(number),
        }
    }

    fn fresh(&self) -> Option<u32> {
        if let Ok(Some(number)) = KEPT.try_with(|kept| kept.borrow_mut().0.pop()) {
            return Some(number);
        }
        if let Some(number) = self.shared() {
            return Some(number);
        }
        let number = self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |made| {
            ((made as usize) < CHUNK * CHUNKS).then(|| made + 1)
        });
        let number = number.ok()?;
        self.chunks[number as usize / CHUNK].get_or_init(|| {
            (0..CHUNK)
                .map(|_| Place { state: Mutex::new(State { generation: 1, ..State::default() }) })
                .collect()
        });
        Some(number)
    }
}

/// An operation's own claim to its place, which lasts until its end was told. Dropping it gives it up: the operation will
/// never be called.
pub(crate) struct Held(NonNull<estafette_op>);

// SAFETY: a handle is a number.
unsafe impl Send for Held {}

impl Held {
    /// The function is about to be called; whoever tells the end gives the claim up.
    pub(crate) fn begin(self, begun: Begun) -> Result<*mut estafette_op, Refusal> {
        let handle = ManuallyDrop::new(self).0.as_ptr();
        begin(handle, begun).map(|()| handle)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // It is in use as long as this claim is.
        let _ = release(self.0.as_ptr());
    }
}

fn handle(number: u32, generation: u32) -> *mut estafette_op {
    ((u64::from(generation) << 32) | u64::from(number)) as usize as *mut estafette_op
}

/// The place of a handle, if that is in use.
fn find(op: *mut estafette_op) -> Result<(u32, MutexGuard<'static, State>), Refusal> {
    let bits = op as usize as u64;
    if bits == 0 {
        return Err(crate::entry::is_null("op"));
    }
    let (number, generation) = (bits as u32, (bits >> 32) as u32);
    let state = TABLE.place(number).map(|place| lock(&place.state));
    let state = state.filter(|state| state.generation == generation && state.holders > 0);
    state.map(|state| (number, state)).ok_or_else(|| {
        Refusal::invalid("op: this handle is not in use; its operation has ended, or the handle was released")
    })
}

fn fresh_place() -> Result<(u32, &'static Place), Refusal> {
    let found = TABLE.fresh().and_then(|number| Some((number, TABLE.place(number)?)));
    found.ok_or_else(|| {
        Refusal::new(estafette_status::ESTAFETTE_WINDOW_FULL, "four million operations are held already")
    })
}

/// A place that its operation and the caller hold.
pub(crate) fn enter() -> Result<(*mut estafette_op, Held), Refusal> {
    let (number, place) = fresh_place()?;
    let mut state = lock(&place.state);
    state.holders = 2;
    let handle = handle(number, state.generation);
    let held = NonNull::new(handle).map(Held).ok_or_else(|| crate::entry::is_null("op"))?;
    Ok((handle, held))
}

/// A place for an operation whose function is about to be called, and which nobody else holds.
pub(crate) fn enter_begun(begun: Begun) -> Result<*mut estafette_op, Refusal> {
    let (number, place) = fresh_place()?;
    let mut state = lock(&place.state);
    state.holders = 1;
    state.stage = Stage::Begun(begun);
    Ok(handle(number, state.generation))
}

/// Takes the right to tell the end, which is told without a fence; the operation holds its place no more.
pub(crate) fn finish(op: *mut estafette_op) -> Result<Begun, Refusal> {
    let (number, mut state) = find(op)?;
    let begun = take_stage(&mut state)?;
    state.stage = Stage::Ended;
    leave(number, state);
    Ok(begun)
}

/// Counts one holder more.
pub(crate) fn retain(op: *mut estafette_op) -> Result<(), Refusal> {
    let (_, mut state) = find(op)?;
    state.holders = state.holders.checked_add(1).ok_or_else(|| Refusal::invalid("op: too many holders"))?;
    Ok(())
}

/// Counts one holder less; the last one gives the place back.
pub(crate) fn release(op: *mut estafette_op) -> Result<(), Refusal> {
    let (number, state) = find(op)?;
    leave(number, state);
    Ok(())
}

fn leave(number: u32, mut state: MutexGuard<'static, State>) {
    state.holders -= 1;
    if state.holders > 0 {
        return;
    }
    // Generation 0 is no handle's, so that place 0 of it is not NULL.
    let generation = state.generation.checked_add(1).unwrap_or(1);
    let old = std::mem::replace(&mut *state, State { generation, ..State::default() });
    drop(state);
    TABLE.give_back(number);
    // Operations and fences are dropped under no lock.
    drop(old);
}

/// Notes the operation of a handle.
pub(crate) fn set_op(op: *mut estafette_op, submitted: Op) -> Result<(), Refusal> {
    find(op)?.1.op = Some(submitted);
    Ok(())
}

/// The function is about to be called.
fn begin(op: *mut estafette_op, begun: Begun) -> Result<(), Refusal> {
    find(op)?.1.stage = Stage::Begun(begun);
    Ok(())
}

/// Takes the right to tell the end.
pub(crate) fn take(op: *mut estafette_op) -> Result<Begun, Refusal> {
    take_stage(&mut find(op)?.1)
}

fn take_stage(state: &mut State) -> Result<Begun, Refusal> {
    match std::mem::replace(&mut state.stage, Stage::Ending) {
        Stage::Begun(begun) => Ok(begun),
        other => {
            let why = match &other {
                Stage::Waiting => "op: its function was not called yet",
                Stage::Ending | Stage::Begun(_) => "op: another thread is telling its end right now",
                Stage::Ended => "op: its end was told already",
            };
            state.stage = other;
            Err(Refusal::invalid(why))
        }
    }
}

/// The end cannot be told yet after all.
pub(crate) fn put_back(op: *mut estafette_op, begun: Begun) -> Result<(), Refusal> {
    begin(op, begun)
}

/// The end is about to be told; `after` is the fence it waits for.
pub(crate) fn ended(op: *mut estafette_op, after: Option<Fence>) -> Result<(), Refusal> {
    let (_, mut state) = find(op)?;
    state.stage = Stage::Ended;
    state.after = after;
    Ok(())
}

/// What lends out the operands of a running operation.
pub(crate) fn scope(op: *mut estafette_op) -> Result<Scope, Refusal> {
    match &find(op)?.1.stage {
        Stage::Begun(begun) => Ok(begun.completion.scope().clone()),
        Stage::Waiting => Err(Refusal::invalid("op: its function was not called yet")),
        Stage::Ending | Stage::Ended => Err(Refusal::invalid("op: its end was told already")),
    }
}

/// The operation of a handle from a submission, and the fence that it ends with, if that is known.
pub(crate) fn op(op: *mut estafette_op) -> Result<(Op, Option<Fence>), Refusal> {
    let (_, state) = find(op)?;
    let found = state.op.clone().ok_or_else(|| {
        Refusal::invalid("op: this handle was given to a function and can only tell the end; submit with `out` for one to wait for")
    })?;
    Ok((found, state.after.clone()))
}

/// The end of an operation, its fence included.
pub(crate) fn end_fence(handle: *mut estafette_op) -> Result<Fence, Refusal> {
    let (submitted, _) = op(handle)?;
    // Held until then, as only the place knows the fence.
    retain(handle)?;
    let held = NonNull::new(handle).map(Held);
    let (completer, fence) = host::promise("an operation");
    let issued = submitted.fence();
    Reactor::global().when_settled([issued], move |outcome| {
        let place = held.as_ref().and_then(|held| find(held.0.as_ptr()).ok());
        let after = place.and_then(|(_, state)| state.after.clone());
        drop(held);
        match (outcome, after) {
            (Ok(()), Some(after)) => {
                let fences = Frontier::from(after);
                Reactor::global().when_settled(&fences, move |outcome| completer.settle(outcome));
            }
            (outcome, _) => completer.settle(outcome),
        }
    });
    Ok(fence)
}
