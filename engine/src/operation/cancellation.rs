//! Telling waiters at once that what they wait for will never come.
//!
//! A cancelled operation may sit behind a lease for a long time before it is granted and skipped. Its outcome is known
//! now, though, and so is that of every operation that needs its outputs. Such an operation is *doomed*, and the probes that wait
//! for its outputs get the failure; the graph itself is left alone, so the order of everything else stands.
//!
//! # Who looks, and how far
//! - A *cancel* walks forward: from the outputs of the cancelled operation to what looks at them, and so on. It stops at what is
//!   known to be doomed, since the probes behind that have their failure.
//! - A *probe* that is submitted while a cancelled operation is queued looks back: to the operations whose writes it looks at, and so
//!   on, until it comes to what is known.
//!
//! What is known of an operation is noted in it ([`OpState::verdict`](crate::core::operation::OpState)), so an operation is walked once for
//! each verdict, and neither walk costs anything for what has nothing to do with it. All verdicts are written under one lock, while
//! nothing foreign runs.
//!
//! # When a verdict holds
//! - *Doomed by a cancelled operation* holds while that one is queued. Once it was skipped, the failure is in its variables, where
//!   the program may mend it, and operations behind are looked at anew.
//! - *Sound* holds until a cancel walks there, since what an operation waits for is settled when it is submitted. A cancel that does
//!   not walk, because no probe waits, makes all these verdicts void by a new number for them.
//! - A write that is withdrawn takes the verdicts behind it along.
//!
//! # Who comes first
//! A cancelled operation is entered before the cancel asks whether a probe waits, and a probe is counted before it is submitted and
//! asks afterwards whether there is a cancelled operation (all sequentially consistent). So of a cancel and a probe at the same time at
//! least one walks. The thread that skips a cancelled operation enters it, if the cancel has not done so yet: then it walks before the
//! operation leaves its queues.

use std::collections::BTreeMap;
use std::sync::Arc;

use estafette_graph::Mode;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use estafette_sync::sync::{Mutex, MutexGuard};

use crate::core::error::OperationError;
use crate::core::operation::{Kind, OpHandle, OpState, Phase};
use crate::wait::ready::ReadySignal;

/// Nothing is known. Other verdicts are the number of the cancelled operation, and the number of what is sound.
pub(crate) const UNKNOWN: u64 = 0;

/// Of a cancelled operation that was skipped, and of a write that is being withdrawn: no verdict, and no operation's number.
const LEAVES: u64 = u64::MAX;

/// Numbers of sound verdicts begin here; those of operations never get there.
const SOUND: u64 = 1 << 63;

estafette_sync::statics! {
    /// Probes that have been submitted and not been granted.
    static PROBES: AtomicUsize = AtomicUsize::new(0);
}

estafette_sync::statics! {
    /// As many operations are in [`Known::cancelled`].
    static CANCELLED: AtomicUsize = AtomicUsize::new(0);
}

estafette_sync::statics! {
    static KNOWN: Mutex<Known> = Mutex::new(Known { cancelled: BTreeMap::new(), sound: SOUND });
}

type Op = OpHandle;

struct Known {
    /// Operations that were cancelled and have not been skipped, and their failures.
    cancelled: BTreeMap<u64, OperationError>,
    /// The number of sound verdicts that hold.
    sound: u64,
}

/// What a walk leaves for when no lock is held: dropping a reference may drop what is the program's, and so may telling.
#[derive(Default)]
struct Walk {
    told: Vec<(Arc<ReadySignal>, OperationError)>,
    walked: Vec<Op>,
    left: Option<OperationError>,
}

impl Walk {
    fn leave(&mut self, step: Option<(Op, Vec<Op>)>) {
        let Some((op, sources)) = step else { return };
        self.walked.push(op);
        self.walked.extend(sources);
    }

    /// Tells the probes.
    fn end(self) {
        for (signal, cause) in self.told {
            signal.set(Err(cause.into_error()));
        }
    }
}

fn lock() -> MutexGuard<'static, Known> {
    KNOWN.lock()
}

/// A probe is about to be submitted.
pub(crate) fn probe_enters() {
    PROBES.fetch_add(1, Ordering::SeqCst);
}

/// A probe was granted, or withdrawn.
pub(crate) fn probe_leaves() {
    PROBES.fetch_sub(1, Ordering::SeqCst);
}

/// A probe was submitted, and waits: tells it if the version that it waits for can only be a failure.
pub(crate) fn probe_waits(probe: &OpHandle) {
    if CANCELLED.load(Ordering::SeqCst) == 0 {
        return;
    }
    let mut walk = Walk::default();
    lock().look_back(probe.clone(), &mut walk);
    walk.end();
}

/// An operation was cancelled, and its failure is set: tells every probe that waits for what it will not write.
pub(crate) fn cancelled_enters(op: &OpHandle) {
    let mut walk = Walk::default();
    lock().enter(op, &mut walk);
    walk.end();
}

/// A cancelled operation, whose failure is set, is about to be skipped.
pub(crate) fn cancelled_leaves(op: &OpHandle) {
    let mut walk = Walk::default();
    let mut known = lock();
    known.enter(op, &mut walk);
    walk.left = known.cancelled.remove(&op.id().get());
    op.payload().verdict.store(LEAVES, Ordering::Relaxed);
    CANCELLED.store(known.cancelled.len(), Ordering::SeqCst);
    drop(known);
    walk.end();
}

/// Withdraws an operation that was not cancelled, by `withdraw`, which says whether it was not too late: what was known, because of
/// it, of those behind it is void.
pub(crate) fn withdrawing(op: &OpHandle, withdraw: impl FnOnce() -> bool) -> bool {
    let state = op.payload();
    if state.kind == Kind::Probe || CANCELLED.load(Ordering::SeqCst) == 0 {
        return withdraw();
    }
    let mut walk = Walk::default();
    lock().forget(op, &mut walk);
    walk.end();
    let withdrawn = withdraw();
    if !withdrawn {
        let _known = lock();
        state.verdict.store(UNKNOWN, Ordering::Relaxed);
    }
    withdrawn
}

/// Whether an operation that uses a variable so fails if the version there is a failure.
fn looks(state: &OpState, mode: Mode) -> bool {
    // What is left on the members of a collapse is moved to the group.
    mode.reads() || state.kind == Kind::Merge
}

impl Known {
    /// The cancelled operation that makes this one fail, as far as that is known.
    fn doomed_by(&self, state: &OpState) -> Option<u64> {
        let verdict = state.verdict.load(Ordering::Relaxed);
        self.cancelled.contains_key(&verdict).then_some(verdict)
    }

    fn is_sound(&self, state: &OpState) -> bool {
        state.verdict.load(Ordering::Relaxed) == self.sound
    }

    fn enter(&mut self, op: &OpHandle, walk: &mut Walk) {
        let (state, id) = (op.payload(), op.id().get());
        if state.verdict.load(Ordering::Relaxed) == LEAVES || self.cancelled.contains_key(&id) {
            return;
        }
        let Some(cause) = state.failure() else { return };
        self.cancelled.insert(id, cause.clone());
        state.verdict.store(id, Ordering::Relaxed);
        CANCELLED.store(self.cancelled.len(), Ordering::SeqCst);
        if PROBES.load(Ordering::SeqCst) == 0 {
            self.sound += 1;
            return;
        }
        self.walk_forward(op, walk, |state| {
            let goes_on = state.phase() == Phase::Queued && self.doomed_by(state).is_none();
            if goes_on {
                state.verdict.store(id, Ordering::Relaxed);
            }
            goes_on
        });
        let probes = walk.walked.iter().filter_map(|op| op.payload().probe());
        walk.told.extend(probes.map(|probe| (Arc::clone(probe), cause.clone())));
    }

    fn forget(&self, op: &OpHandle, walk: &mut Walk) {
        self.walk_forward(op, walk, |state| {
            let goes_on = state.phase() == Phase::Queued && self.doomed_by(state).is_some();
            if goes_on {
                state.verdict.store(UNKNOWN, Ordering::Relaxed);
            }
            goes_on
        });
        op.payload().verdict.store(LEAVES, Ordering::Relaxed);
    }

    /// Walks from `op` to what looks at its writes, and so on behind each for which `goes_on` says so, once.
    fn walk_forward(&self, op: &OpHandle, walk: &mut Walk, goes_on: impl Fn(&OpState) -> bool) {
        let mut open = vec![op.clone()];
        while let Some(op) = open.pop() {
            op.dependents(|state, mode| looks(state, mode) && goes_on(state), &mut open);
            walk.walked.push(op);
        }
    }

    /// Finds out whether `probe` is doomed, and notes its failure then.
    fn look_back(&self, probe: Op, walk: &mut Walk) {
        let signal = probe.payload().probe().cloned();
        if let Some((signal, root)) = signal.zip(self.doomed_by_sources(probe, walk))
            && let Some(cause) = self.cancelled.get(&root)
        {
            walk.told.push((signal, cause.clone()));
        }
    }

    /// The cancelled operation that makes `op` fail. Notes what is found on the way; without recursion, since chains are long.
    fn doomed_by_sources(&self, op: Op, walk: &mut Walk) -> Option<u64> {
        let mut path = vec![self.step(op)];
        // Of the operation that was looked at last.
        let mut doomed_by = None;
        while let Some((op, sources)) = path.last_mut() {
            if doomed_by.is_none()
                && let Some(source) = sources.pop()
            {
                let state = source.payload();
                doomed_by = self.doomed_by(state);
                if doomed_by.is_some() || self.is_sound(state) {
                    walk.walked.push(source);
                } else if state.verdict.load(Ordering::Relaxed) == LEAVES {
                    // In a moment its failure is in its variables, or it is as if it had never been there.
                    walk.walked.push(source);
                    break;
                } else {
                    path.push(self.step(source));
                }
                continue;
            }
            op.payload().verdict.store(doomed_by.unwrap_or(self.sound), Ordering::Relaxed);
            walk.leave(path.pop());
        }
        while let step @ Some(_) = path.pop() {
            walk.leave(step);
        }
        doomed_by
    }

    fn step(&self, op: Op) -> (Op, Vec<Op>) {
        let mut sources = Vec::new();
        let state: &OpState = op.payload();
        op.sources(|mode| looks(state, mode), |read| self.is_sound(read), &mut sources);
        (op, sources)
    }
}
