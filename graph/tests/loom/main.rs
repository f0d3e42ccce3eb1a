//! The variable protocol under every interleaving (within a preemption bound) that loom can produce.
//!
//! Run with `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette-graph --profile model --test loom`.
//!
//! Loom also watches every cell of the crate (links, targets, payloads, states): an access that the protocol
//! does not order is reported as a race, and memory that is not freed as a leak.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]
#![cfg(estafette_loom)]

use std::collections::BTreeSet;

use estafette_graph::{AccessMode, Granted, Graph, OpRef, Snapshot, Var};
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

mod biased;
mod collapse;
mod inspection;
mod lifetimes;
mod pin;
mod split;
mod submission;
mod withdrawal;

const READ: AccessMode = AccessMode::Read;
const WRITE: AccessMode = AccessMode::Write;

/// Explores with at most `preemptions` involuntary switches per execution, or as many as
/// `LOOM_MAX_PREEMPTIONS` says if that is less. With three threads, one: two threads that wait for one lock
/// may yield to each other for ever, which loom would follow.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.into_iter().chain([preemptions]).min();
    // Enough for three threads; only a livelock needs more.
    builder.max_branches = 10_000;
    builder.check(f);
}

/// The cells that operations touch while granted, without any lock: loom reports two operations that overlap
/// and should not.
struct Data {
    cells: Vec<UnsafeCell<usize>>,
    done: AtomicUsize,
}

/// The cells that an operation uses, each with its mode.
type Uses = Vec<(usize, AccessMode)>;

struct World {
    graph: Graph<usize, Uses>,
    vars: Vec<Var<usize, Uses>>,
    data: Arc<Data>,
}

impl World {
    fn new(vars: usize) -> Self {
        Self::of(Graph::new(), vars)
    }

    /// With a graph that this thread has for itself, until another one uses it.
    fn biased(vars: usize) -> Self {
        Self::of(Graph::biased(), vars)
    }

    fn of(graph: Graph<usize, Uses>, vars: usize) -> Self {
        let cells = (0..vars).map(|_| UnsafeCell::new(0)).collect();
        let vars = (0..vars).map(|_| graph.var(0)).collect();
        Self { graph, vars, data: Arc::new(Data { cells, done: AtomicUsize::new(0) }) }
    }

    /// A copy with its own handles, for another thread.
    fn share(&self) -> Self {
        Self { graph: self.graph.clone(), vars: self.vars.clone(), data: Arc::clone(&self.data) }
    }

    fn submit(&self, uses: &[(usize, AccessMode)]) {
        let accesses = uses.iter().map(|(var, mode)| (&self.vars[*var], *mode));
        self.run(self.graph.op(uses.to_vec(), accesses).submit_unreferenced());
    }

    /// Runs what is granted, and what that releases.
    fn run(&self, granted: Option<Granted<usize, Uses>>) {
        let mut ready: Vec<_> = granted.into_iter().collect();
        while let Some(granted) = ready.pop() {
            for (cell, mode) in granted.payload() {
                let cell = &self.data.cells[*cell];
                match mode {
                    // SAFETY: exactly what the graph promises, and loom checks.
                    AccessMode::Read => assert!(cell.with(|value| unsafe { *value }) < 100),
                    // SAFETY: as above.
                    _ => cell.with_mut(|value| unsafe { *value += 1 }),
                }
            }
            granted.complete(|finish| *finish.state += 1, |granted| ready.push(granted));
            self.data.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Submits an operation that may be withdrawn, and that cannot be granted yet.
    fn request(&self, uses: &[(usize, AccessMode)]) -> OpRef<usize, Uses> {
        self.request_of(uses.to_vec(), uses)
    }

    /// As `request`, of which only `touches` is touched when it runs.
    fn request_of(&self, touches: Uses, uses: &[(usize, AccessMode)]) -> OpRef<usize, Uses> {
        let accesses = uses.iter().map(|(var, mode)| (&self.vars[*var], *mode));
        let (request, granted) = self.graph.op(touches, accesses).submit();
        assert!(granted.is_none(), "something is in its way");
        request
    }

    /// Withdraws the request, and runs what that releases; false where it was too late.
    fn withdraw(&self, request: &OpRef<usize, Uses>) -> bool {
        let mut ready = Vec::new();
        let withdrawn = request.withdraw(|granted| ready.push(granted));
        ready.into_iter().for_each(|granted| self.run(Some(granted)));
        withdrawn
    }

    fn done(&self) -> usize {
        self.data.done.load(Ordering::Relaxed)
    }
}

/// The outcomes that the executions of a model came across, so that a model can state that it saw every one.
#[derive(Clone, Default)]
struct Seen(std::sync::Arc<std::sync::Mutex<BTreeSet<usize>>>);

impl Seen {
    fn note(&self, outcome: usize) {
        self.0.lock().unwrap().insert(outcome);
    }

    fn assert(&self, outcomes: impl IntoIterator<Item = usize>) {
        assert_eq!(*self.0.lock().unwrap(), BTreeSet::from_iter(outcomes));
    }
}

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn counter() -> (Arc<AtomicUsize>, impl Fn() -> usize) {
    let drops = Arc::new(AtomicUsize::new(0));
    let read = Arc::clone(&drops);
    (drops, move || read.load(Ordering::Relaxed))
}
