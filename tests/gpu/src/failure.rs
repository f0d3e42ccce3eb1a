//! Failures of a step.

/// The reason that a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The device did something else than it should.
    #[error("{0}")]
    Wrong(String),
    /// The driver refused a call that was made by hand.
    #[error("the driver says {0:?}")]
    Driver(#[from] cudarc::driver::DriverError),
    #[error(transparent)]
    Engine(#[from] estafette::Error),
    #[error(transparent)]
    Device(#[from] estafette::devices::DeviceError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Failure {
    pub fn wrong(text: impl Into<String>) -> Self {
        Self::Wrong(text.into())
    }
}

/// Fails with a text unless `condition` holds.
pub fn ensure(condition: bool, text: impl FnOnce() -> String) -> Result<(), Failure> {
    if condition { Ok(()) } else { Err(Failure::Wrong(text())) }
}
