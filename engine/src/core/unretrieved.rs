//! Failures that the program has not retrieved.
//!
//! A failure is *retrieved* when it is delivered to the program: by a wait, an `await`, a lease, a fence or a
//! callback. All operations that fail for the same reason share one failure, so the failure is retrieved, or
//! reported, once.
//!
//! A failure that was not retrieved is reported when the last version, handle and one-shot that carries it is
//! gone. The report goes to `tracing`, at the level *error*, or to the function that [`on_unretrieved`] has
//! set. The thread that drops the failure makes the report; this thread also drops the body's own error, and
//! holds no lock.
//!
//! Each engine also lists its failures, so that its end can name those that were not retrieved. The list
//! keeps no failure alive that the program still holds, and at most [`KEPT`] of those that are gone.

use std::sync::{Arc, Weak};

use estafette_graph::OpId;
use estafette_sync::process::Generation;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};
use estafette_sync::thread;

use crate::core::error::{Failure, OperationError, full_text};
use crate::core::operation::contain_panic;

/// Failures that an engine keeps after the last handle is gone, and that one [`Unretrieved`] lists. More
/// failures would only hold memory, as the first ones explain the rest.
const KEPT: usize = 64;

/// Device failures whose [`FailureFate`] is remembered: between two queries of one fence few other fences
/// fail.
const DEVICE_FAILURES: usize = 64;

/// The fate of a failure.
#[derive(Debug, Default)]
pub(crate) struct FailureFate {
    retrieved: AtomicBool,
    reported: AtomicBool,
    /// The engine of the failure has listed it among those that are gone, or has counted it.
    kept: AtomicBool,
    /// The engine of the operation that failed, once known.
    engine_failures: OnceLock<Weak<Failures>>,
    generation: Generation,
}

impl FailureFate {
    /// The shared [`FailureFate`] of a device failure: each query of the same fence makes a new error.
    pub(crate) fn of_device(id: OpId, message: &str) -> Arc<Self> {
        estafette_sync::per_process! {
            static RECENT: Mutex<Vec<(OpId, String, Arc<FailureFate>)>> = Mutex::new(Vec::new());
        }
        let mut recent = RECENT.lock();
        if let Some((.., fate)) = recent.iter().find(|(known, text, _)| *known == id && text == message) {
            return Arc::clone(fate);
        }
        if recent.len() == DEVICE_FAILURES {
            recent.remove(0);
        }
        let fate = Arc::new(Self::default());
        recent.push((id, message.to_string(), Arc::clone(&fate)));
        fate
    }

    /// The failure was delivered to the program.
    pub(crate) fn retrieve(&self) {
        self.retrieved.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_retrieved(&self) -> bool {
        self.retrieved.load(Ordering::Relaxed)
    }

    /// True if the failure is of a process that this one was forked from.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation.is_inherited()
    }

    fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Acquire)
    }

    /// True if a failure that is dropped needs no report.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_retrieved() || self.reported.load(Ordering::Relaxed)
    }
}

/// The failures of one engine.
#[derive(Debug)]
pub(crate) struct Failures {
    /// True if failures that are not retrieved are reported and listed.
    pub(crate) reports: bool,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// Failures that a handle may still hold, and some whose last handle is gone.
    live: Vec<Listed>,
    /// Length of `live` at which failures whose last handle is gone are taken out.
    prune_at: usize,
    /// Failures that were reported when their last handle was dropped, the first [`KEPT`].
    gone: Vec<OperationError>,
    /// The number of such failures past [`KEPT`].
    omitted: u64,
    /// The last handle of the engine is gone: no failure is kept any more.
    closed: bool,
}

/// A failure that something may still hold.
#[derive(Debug)]
struct Listed {
    failure: Weak<Failure>,
    fate: Arc<FailureFate>,
}

impl Listed {
    /// The last handle is being dropped: the dropping thread is about to keep the failure.
    fn is_moving(&self) -> bool {
        self.failure.strong_count() == 0 && !self.fate.is_settled() && !self.fate.is_kept()
    }
}

impl Failures {
    pub(crate) fn new(reports: bool) -> Arc<Self> {
        Arc::new(Self { reports, list: Mutex::default() })
    }

    /// Lists a failure of one of the engine's operations. Only the first engine lists it: others have
    /// dependents.
    pub(crate) fn add(self: &Arc<Self>, failure: &OperationError) {
        if failure.is_unsurprising() || failure.fate().engine_failures.set(Arc::downgrade(self)).is_err() {
            return;
        }
        if !self.reports {
            // Noted with the failure, which may outlive the engine.
            return failure.fate().retrieve();
        }
        let mut list = self.list.lock();
        if list.live.len() >= list.prune_at {
            // Nothing foreign is dropped: a weak reference owns memory alone.
            list.live.retain(|listed| listed.failure.strong_count() > 0 || listed.is_moving());
            list.prune_at = (2 * list.live.len()).max(KEPT);
        }
        list.live.push(Listed { failure: failure.downgrade(), fate: Arc::clone(failure.fate()) });
    }

    /// The failures that were not retrieved so far, in the order in which they failed.
    pub(crate) fn unretrieved(self: &Arc<Self>) -> Unretrieved {
        let (mut failures, omitted) = {
            let mut list = self.list.lock();
            while list.live.iter().any(Listed::is_moving) {
                // Between the last handle and the list of those that are gone, nothing foreign runs.
                drop(list);
                thread::yield_now();
                list = self.list.lock();
            }
            let live = list.live.iter().filter_map(|listed| OperationError::upgrade(&listed.failure));
            (list.gone.iter().cloned().chain(live).collect::<Vec<_>>(), list.omitted)
        };
        // A failure that is dropped from here on may be the last of its kind, and no lock is held.
        failures.retain(|failure| !failure.fate().is_retrieved());
        failures.sort_by_key(OperationError::id);
        failures.dedup_by(|a, b| Arc::ptr_eq(a.fate(), b.fate()));
        let more = failures.len().saturating_sub(KEPT);
        failures.truncate(KEPT);
        Unretrieved { failures, omitted: omitted + more as u64, engine_failures: Arc::downgrade(self) }
    }

    /// The last handle of the engine is gone, so nothing will ask.
    pub(crate) fn close(&self) {
        let gone = {
            let mut list = self.list.lock();
            list.closed = true;
            std::mem::take(&mut list.gone)
        };
        drop(gone);
    }

    /// Keeps a failure that was reported.
    fn keep(&self, failure: OperationError) {
        let mut list = self.list.lock();
        // Under the lock: an end of the engine that sees this finds the failure listed.
        failure.fate().kept.store(true, Ordering::Release);
        if list.closed {
            drop(list);
            return drop(failure);
        }
        if list.gone.len() < KEPT {
            return list.gone.push(failure);
        }
        // Failures that were retrieved since make room.
        let retrieved = list.take_retrieved();
        let failure = if list.gone.len() < KEPT {
            list.gone.push(failure);
            None
        } else {
            list.omitted += 1;
            Some(failure)
        };
        drop(list);
        drop((retrieved, failure));
    }
}

impl List {
    /// Takes out failures that were retrieved after their last handle was dropped. The caller drops them
    /// where no lock is held.
    fn take_retrieved(&mut self) -> Vec<OperationError> {
        let (retrieved, gone) =
            std::mem::take(&mut self.gone).into_iter().partition(|known| known.fate().is_retrieved());
        self.gone = gone;
        retrieved
    }
}

/// Failures of an engine's operations that the program has not retrieved: by a wait, an `await`, a lease, a
/// fence or a callback.
#[derive(Debug, Clone, Default)]
pub struct Unretrieved {
    failures: Vec<OperationError>,
    omitted: u64,
    engine_failures: Weak<Failures>,
}

impl Unretrieved {
    /// Number of failures, including those that are not listed: each of these was reported when its last
    /// handle was dropped. The call retrieves no failure.
    pub fn count(&self) -> u64 {
        self.failures.len() as u64 + self.omitted
    }

    /// The listed failures, at most 64, in the order of their operations. The call retrieves them.
    pub fn failures(&self) -> &[OperationError] {
        self.failures.iter().for_each(|failure| failure.fate().retrieve());
        if let Some(engine_failures) = self.engine_failures.upgrade() {
            // The engine need not keep them any longer.
            let retrieved = engine_failures.list.lock().take_retrieved();
            drop(retrieved);
        }
        &self.failures
    }

    /// Reports the failures that were not reported yet, as if their last handles were gone. Retrieves no
    /// failure.
    pub(crate) fn report(&self) {
        self.failures.iter().for_each(report);
    }
}

/// Called with a failure that was not retrieved.
type Reporter = fn(&OperationError);

estafette_sync::statics! {
    static REPORTER: OnceLock<Reporter> = OnceLock::new();
}

/// Sets the function that is called, instead of an event of `tracing`, when the last handle of an unretrieved
/// failure is dropped. Only the first call counts.
///
/// `reporter` is called once per failure, on the thread that drops the handle, under no lock of the engine. A
/// panic of `reporter` is contained. A forked child does not report failures that it has inherited.
pub fn on_unretrieved(reporter: fn(&OperationError)) {
    let _ = REPORTER.set(reporter);
}

/// The last handle of the failure has gone; `failure` is a copy.
#[cold]
pub(crate) fn last_handle_gone(failure: OperationError) {
    let engine_failures = failure.fate().engine_failures.get().and_then(Weak::upgrade);
    if let Some(engine_failures) = engine_failures {
        // First, so that the engine's end does not miss it while it is reported.
        engine_failures.keep(failure.clone());
    }
    report(&failure);
}

fn report(failure: &OperationError) {
    if failure.fate().is_retrieved() || failure.fate().reported.swap(true, Ordering::Relaxed) {
        return;
    }
    let report = REPORTER.get().copied().unwrap_or(log);
    // The failure may be dropped while a panic unwinds, and a second panic would abort.
    let _ = contain_panic(|| report(failure));
}

fn log(failure: &OperationError) {
    tracing::error!(
        target: "estafette::unretrieved",
        operation = failure.operation(),
        id = failure.id(),
        error = full_text(failure),
        "the failure of an operation was never retrieved"
    );
}
