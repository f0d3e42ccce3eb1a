//! What can go wrong with a measurement.

/// Why a workload gave no figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine refused something.
    #[error(transparent)]
    Engine(#[from] estafette::Error),
    /// The system refused something: a thread, a runtime.
    #[error("cannot start {what}: {error}")]
    Start {
        /// What was to be started.
        what: &'static str,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Not every operation left its mark, so a time would mean nothing.
    #[error("{expected} writes were submitted, but {found} have finished: the engine lost or repeated some")]
    Lost {
        /// Writes that were submitted.
        expected: u64,
        /// Writes that the variables have seen.
        found: u64,
    },
}
