//! Telling waiters at once that what they wait for will never come.
//!
//! A cancelled operation may sit behind a lease for a long time before it is granted and skipped. Its outcome is known
//! now, though, and so is that of every operation that needs its outputs. This walks the queues in order and tells the
//! probes that wait for a doomed version; the graph itself is left alone, so the order of everything else stands.
//!
//! The walk costs time in proportion to everything in flight, so it is made only when it can find something: a probe
//! waits *and* a cancelled operation is queued. Both sides count themselves before they look at the other's count (all
//! sequentially consistent), so of a cancel and a wait at the same time at least one walks.

use std::collections::HashMap;
use std::sync::Arc;

use estafette_graph::{OpId, Roots};
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};

use crate::core::graph;
use crate::error::OperationError;
use crate::operation::Phase;
use crate::ready::ReadySignal;

estafette_sync::statics! {
    /// Probes that have been submitted and not been granted.
    static PROBES: AtomicUsize = AtomicUsize::new(0);
}

estafette_sync::statics! {
    /// Operations that were cancelled and have not been skipped. One may be skipped before it is counted: then this wraps below 0
    /// for a moment, which reads as "some".
    static CANCELLED: AtomicUsize = AtomicUsize::new(0);
}

/// A probe is about to be submitted.
pub(crate) fn probe_enters() {
    PROBES.fetch_add(1, Ordering::SeqCst);
}

/// A probe was granted, or withdrawn.
pub(crate) fn probe_leaves() {
    PROBES.fetch_sub(1, Ordering::SeqCst);
}

/// An operation was cancelled, and its failure is set.
pub(crate) fn cancelled_enters() {
    CANCELLED.fetch_add(1, Ordering::SeqCst);
    tell_probes();
}

/// A cancelled operation was skipped.
pub(crate) fn cancelled_leaves() {
    CANCELLED.fetch_sub(1, Ordering::SeqCst);
}

/// Tells every probe that waits for a version which, because of a cancelled operation, can only be a failure.
pub(crate) fn tell_probes() {
    if PROBES.load(Ordering::SeqCst) == 0 || CANCELLED.load(Ordering::SeqCst) == 0 {
        return;
    }
    for (signal, cause) in doomed_probes() {
        signal.set(Err(cause.into_error()));
    }
}

fn doomed_probes() -> Vec<(Arc<ReadySignal>, OperationError)> {
    let snapshot = graph().snapshot(Roots::All, |state| {
        let cause = if state.phase() == Phase::Cancelled { state.failure().cloned() } else { None };
        (state.probe().cloned(), state.phase(), cause)
    });
    // The last writer of each operation's inputs, found by walking every queue once.
    let mut inputs: HashMap<OpId, Vec<OpId>> = HashMap::new();
    for var in &snapshot.vars {
        let mut writer: Option<OpId> = None;
        for (op, mode, _granted) in &var.queue {
            if mode.reads()
                && let Some(writer) = writer
            {
                inputs.entry(*op).or_default().push(writer);
            }
            if mode.is_exclusive() {
                writer = Some(*op);
            }
        }
    }
    let mut doomed: HashMap<OpId, OperationError> = HashMap::new();
    for op in &snapshot.ops {
        doomed.extend(op.label.2.clone().map(|cause| (op.id, cause)));
    }
    let mut told = Vec::new();
    // Identities do not follow the order of submission across threads, so this repeats until nothing changes.
    loop {
        let before = doomed.len();
        for op in &snapshot.ops {
            let (probe, phase, _) = &op.label;
            if *phase != Phase::Queued || doomed.contains_key(&op.id) {
                continue;
            }
            let writers = inputs.get(&op.id).into_iter().flatten();
            let cause = writers.filter_map(|writer| doomed.get(writer)).next().cloned();
            let Some(cause) = cause else { continue };
            told.extend(probe.clone().map(|probe| (probe, cause.clone())));
            doomed.insert(op.id, cause);
        }
        if doomed.len() == before {
            return told;
        }
    }
}
