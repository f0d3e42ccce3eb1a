//! Errors of measurements.

/// The reason why a workload has no figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine refused something.
    #[error(transparent)]
    Engine(#[from] estafette::Error),
    /// The system refused something: a thread, a runtime.
    #[error("cannot start {what}: {error}")]
    Start {
        /// What could not be started.
        what: &'static str,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Writes are missing or were repeated, so the time means nothing.
    #[error("{expected} writes were submitted, but {found} have finished: the engine lost or repeated some")]
    Lost {
        /// Writes that were submitted.
        expected: u64,
        /// Writes that the variables have seen.
        found: u64,
    },
    /// Operations were not held back by the gate.
    #[error("{expected} operations should be pending behind the gate, but {pending} are")]
    NotPending {
        /// Operations submitted, and the gate.
        expected: usize,
        /// Operations in flight.
        pending: usize,
    },
    /// The gate's operation ended before its body started.
    #[error("the gate has ended before it was closed")]
    NoGate,
    /// A finished tensor is not ready.
    #[error("a finished tensor is not ready")]
    NotReady,
    /// A task ran before what it awaits was completed.
    #[error("a task ran before what it awaits was completed")]
    Early,
    /// A task has found a wrong input.
    #[error(transparent)]
    WrongInput(#[from] crate::metg::WrongInput),
    /// An object that must outlive the measurement is gone.
    #[error("{0} is gone before its time")]
    Died(&'static str),
}
