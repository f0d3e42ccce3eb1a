//! Errors of measurements.

/// The reason why a workload has no figures.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say what each is")]
pub enum Error {
    #[error(transparent)]
    Engine(#[from] estafette::Error),
    #[error("cannot start {what}: {error}")]
    Start { what: &'static str, error: std::io::Error },
    #[error("{expected} writes were submitted, but {found} have finished: the engine lost or repeated some")]
    Lost { expected: u64, found: u64 },
    #[error("{expected} operations should be pending behind the gate, but {pending} are")]
    NotPending { expected: usize, pending: usize },
    #[error("the gate has ended before it was closed")]
    NoGate,
    #[error("a finished tensor is not ready")]
    NotReady,
    #[error("a task ran before what it awaits was completed")]
    Early,
    #[error(transparent)]
    WrongInput(#[from] crate::metg::WrongInput),
    #[error("{0} is gone before its time")]
    Died(&'static str),
}
