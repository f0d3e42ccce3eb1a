//! Propagation of a cancellation: waiters learn at once that what they wait for will never come.
//!
//! A cancelled operation may wait behind a lease for a long time before it is granted and skipped. Its
//! failure is known at once, though, and so is the failure of every operation that needs its outputs. Such an
//! operation is *cancelled by a source*, and the queries that wait for its outputs get the failure. Requests
//! of leases are queries here: a lease that is refused leaves the versions of its variables as they are, so
//! both walks pass over leases. The graph stays as it is, so the order of all other operations stays as well.
//!
//! # Two walks
//! - A *cancel* walks forward: from the outputs of the cancelled operation to the operations that read them,
//!   and so on. The walk stops at operations that have a source already, since the queries behind those have
//!   their failure.
//! - A *query* that is submitted while a cancelled operation is queued walks back: to the operations whose
//!   writes it reads, and so on, until it reaches operations with a verdict.
//!
//! The verdict on an operation is stored in the operation
//! ([`OpState::verdict`](crate::core::operation::OpState)), so an operation is visited once per verdict, and
//! unrelated operations cost nothing. All verdicts are written under one lock, and no foreign code runs under
//! that lock.
//!
//! # How long a verdict is valid
//! - *Cancelled by a source* is valid while the source is queued. Once the source was skipped, its variables
//!   carry the failure, the program may clear the failure, and later operations are inspected anew.
//! - *Sound* is valid until a cancel walks past the operation, since the predecessors of an operation are
//!   fixed when it is submitted. A cancel that does not walk, because no query waits, invalidates all sound
//!   verdicts by a new number for them.
//!
//! # Races
//! The cancel enters the cancelled operation in a table, and then checks whether a query waits. A query is
//! counted, then submitted, and then checks whether the table has an operation. All of these steps are
//! sequentially consistent, so of a concurrent cancel and query at least one walks. If the cancel has not
//! entered the operation by then, the thread that skips the operation does so, and that thread walks before
//! the operation leaves its queues. A request of a lease is counted after its submission, if it was not
//! granted at once: a cancel that has counted before is in the table when the request checks.

use std::collections::BTreeMap;
use std::sync::Arc;

use estafette_graph::AccessMode;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::core::error::OperationError;
use crate::core::one_shot::ReadyOneShot;
use crate::core::operation::{OpHandle, OpKind, OpState, Phase};
use crate::lease::LeaseOp;

/// No verdict. Other values are the id of the cancelled source, or the current number of sound verdicts.
pub(crate) const UNKNOWN: u64 = 0;

/// A cancelled operation that was skipped. No verdict, and not an id.
const LEAVES: u64 = u64::MAX;

/// First number of sound verdicts. Ids of operations are smaller.
const SOUND: u64 = 1 << 63;

estafette_sync::per_process! {
    /// Queries that were submitted and not granted.
    static QUERIES: AtomicUsize = AtomicUsize::new(0);
    /// Length of [`Verdicts::cancelled`].
    static CANCELLED: AtomicUsize = AtomicUsize::new(0);
    static VERDICTS: Mutex<Verdicts> = Mutex::new(Verdicts { cancelled: BTreeMap::new(), sound: SOUND });
}

type Op = OpHandle;

/// Loom treats sequentially consistent accesses as acquire-release ones, and needs a fence between the two of
/// each side.
fn sequentially_consistent() {
    if cfg!(estafette_loom) {
        fence(Ordering::SeqCst);
    }
}

struct Verdicts {
    /// Operations that were cancelled and not skipped, with their failures.
    cancelled: BTreeMap<u64, OperationError>,
    /// The number of the sound verdicts that are valid.
    sound: u64,
}

/// The waiter behind an operation that waits for a version and has no body.
enum Query {
    Ready(Arc<ReadyOneShot>),
    Lease(Arc<LeaseOp>),
}

impl Query {
    /// `None` for an operation of another kind.
    fn of(state: &OpState) -> Option<Self> {
        let ready = state.query().cloned().map(Self::Ready);
        ready.or_else(|| state.lease().cloned().map(Self::Lease))
    }

    fn fail(self, cause: OperationError) {
        match self {
            Self::Ready(one_shot) => _ = one_shot.set(Err(cause.into())),
            Self::Lease(op) => op.notify(Err(cause.into())),
        }
    }
}

/// Work that a walk leaves until the lock is released: dropping a reference may run code of the program, and
/// so may notifying.
#[derive(Default)]
struct Walk {
    notified: Vec<(Query, OperationError)>,
    walked: Vec<Op>,
    left: Option<OperationError>,
}

impl Walk {
    fn conclude(&mut self, step: Option<(Op, Vec<Op>)>) {
        let Some((op, sources)) = step else { return };
        self.walked.push(op);
        self.walked.extend(sources);
    }

    /// Notifies the queries.
    fn end(self) {
        self.notified.into_iter().for_each(|(query, cause)| query.fail(cause));
    }
}

/// Counts a query, before its submission.
pub(crate) fn count_query() {
    QUERIES.fetch_add(1, Ordering::SeqCst);
    sequentially_consistent();
}

/// Shows queries that operations are cancelled; true if a query waits.
fn announce(cancelled: usize) -> bool {
    CANCELLED.store(cancelled, Ordering::SeqCst);
    sequentially_consistent();
    QUERIES.load(Ordering::SeqCst) > 0
}

/// Counts the end of a query, which was granted or withdrawn.
pub(crate) fn uncount_query() {
    QUERIES.fetch_sub(1, Ordering::SeqCst);
}

/// True if a cancelled operation has not left its graph yet.
pub(crate) fn is_any() -> bool {
    CANCELLED.load(Ordering::SeqCst) > 0
}

/// Inspects a query after its submission, and notifies it if the version it waits for can only be a failure.
pub(crate) fn query_waits(query: &OpHandle) {
    if !is_any() {
        return;
    }
    let mut walk = Walk::default();
    VERDICTS.lock().walk_back(query.clone(), &mut walk);
    walk.end();
}

/// Registers a cancelled operation whose failure is set, and notifies every query that waits for its outputs.
pub(crate) fn register_cancelled(op: &OpHandle) {
    let mut walk = Walk::default();
    VERDICTS.lock().visit(op, &mut walk);
    walk.end();
}

/// Removes a cancelled operation, which is about to be skipped. Its failure is set.
pub(crate) fn remove_cancelled(op: &OpHandle) {
    let mut walk = Walk::default();
    let mut verdicts = VERDICTS.lock();
    verdicts.visit(op, &mut walk);
    walk.left = verdicts.cancelled.remove(&op.id().get());
    op.payload().verdict.store(LEAVES, Ordering::Relaxed);
    CANCELLED.store(verdicts.cancelled.len(), Ordering::SeqCst);
    drop(verdicts);
    walk.end();
}

/// False for queries: the versions of their variables stay as they are, also if the query fails. A write
/// lease that is held may make a version, and no cancelled operation is ahead of it.
fn makes_version(state: &OpState) -> bool {
    state.kind != OpKind::ReadinessQuery && state.lease().is_none()
}

/// True if an operation that uses a variable in this mode fails by a failed version.
fn inherits_failure(state: &OpState, mode: AccessMode) -> bool {
    // A merge moves the failures of the members to the group.
    mode.reads() || state.kind == OpKind::Merge
}

impl Verdicts {
    /// The cancelled operation that makes this one fail, if a verdict says so.
    fn cancelled_source(&self, state: &OpState) -> Option<u64> {
        let verdict = state.verdict.load(Ordering::Relaxed);
        self.cancelled.contains_key(&verdict).then_some(verdict)
    }

    fn is_sound(&self, state: &OpState) -> bool {
        state.verdict.load(Ordering::Relaxed) == self.sound
    }

    fn visit(&mut self, op: &OpHandle, walk: &mut Walk) {
        let (state, id) = (op.payload(), op.id().get());
        if state.verdict.load(Ordering::Relaxed) == LEAVES || self.cancelled.contains_key(&id) {
            return;
        }
        let Some(cause) = state.failure() else { return };
        self.cancelled.insert(id, cause.clone());
        state.verdict.store(id, Ordering::Relaxed);
        if !announce(self.cancelled.len()) {
            self.sound += 1;
            return;
        }
        self.walk_forward(op, walk, |state| {
            let descend = state.phase() == Phase::Queued && self.cancelled_source(state).is_none();
            if descend {
                state.verdict.store(id, Ordering::Relaxed);
            }
            descend
        });
        let queries = walk.walked.iter().filter_map(|op| Query::of(op.payload()));
        walk.notified.extend(queries.map(|query| (query, cause.clone())));
    }

    /// Walks from `op` to the readers of its writes, and on behind each operation that makes a version and
    /// for which `descend` returns true. Visits each once.
    fn walk_forward(&self, op: &OpHandle, walk: &mut Walk, descend: impl Fn(&OpState) -> bool) {
        let mut open = vec![op.clone()];
        while let Some(op) = open.pop() {
            if makes_version(op.payload()) {
                let wanted = |state: &OpState, mode| inherits_failure(state, mode) && descend(state);
                op.dependents(wanted, makes_version, &mut open);
            }
            walk.walked.push(op);
        }
    }

    /// Finds out whether a cancelled operation makes `query` fail, and notes that failure.
    fn walk_back(&self, query: Op, walk: &mut Walk) {
        let waiting = Query::of(query.payload());
        if let Some((waiting, root)) = waiting.zip(self.cancelled_source_of(query, walk))
            && let Some(cause) = self.cancelled.get(&root)
        {
            walk.notified.push((waiting, cause.clone()));
        }
    }

    /// The cancelled operation that makes `op` fail. Stores verdicts on the way. Works without recursion,
    /// since chains are long.
    fn cancelled_source_of(&self, op: Op, walk: &mut Walk) -> Option<u64> {
        let mut path = vec![self.step(op)];
        // The verdict on the operation that was visited last.
        let mut cancelled_source = None;
        while let Some((op, sources)) = path.last_mut() {
            if cancelled_source.is_none()
                && let Some(source) = sources.pop()
            {
                let state = source.payload();
                cancelled_source = self.cancelled_source(state);
                if cancelled_source.is_some() || self.is_sound(state) {
                    walk.walked.push(source);
                } else if state.verdict.load(Ordering::Relaxed) == LEAVES {
                    // Soon the failure of `source` is in its variables.
                    walk.walked.push(source);
                    break;
                } else {
                    path.push(self.step(source));
                }
                continue;
            }
            op.payload().verdict.store(cancelled_source.unwrap_or(self.sound), Ordering::Relaxed);
            walk.conclude(path.pop());
        }
        while let step @ Some(_) = path.pop() {
            walk.conclude(step);
        }
        cancelled_source
    }

    fn step(&self, op: Op) -> (Op, Vec<Op>) {
        let mut sources = Vec::new();
        let state: &OpState = op.payload();
        op.sources(|mode| inherits_failure(state, mode), makes_version, |op| self.is_sound(op), &mut sources);
        (op, sources)
    }
}

/// Models: `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette --profile model --lib models::`.
#[cfg(all(test, estafette_loom))]
mod models {
    use estafette_sync::thread;

    use super::*;

    #[test]
    fn of_a_cancel_and_a_query_at_the_same_time_one_walks() {
        loom::model(|| {
            let cancel = thread::spawn(|| announce(1));
            count_query();
            let query_walks = is_any();
            let cancel_walks = cancel.join().expect("it does not panic");
            assert!(query_walks || cancel_walks);
        });
    }
}
