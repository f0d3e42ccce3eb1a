//! Errors, sorted by what the caller can do about them.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use estafette_devices::{DeviceError, DeviceErrorKind};
use estafette_graph::OpId;
use estafette_report::shown::shown;
use estafette_sync::panic::contain_panic;
use estafette_sync::process::Forked;

use crate::core::contained::Contained;
use crate::core::invalid_tensor::InvalidTensor;
use crate::core::lease_info::{self, LeaseInfo};
use crate::core::unretrieved::{self, FailureFate};

/// The error of this crate. Each variant says what the caller can do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is wrong; the message names it. Nothing was submitted.
    #[error("{0}")]
    Invalid(Cow<'static, str>),
    /// A tensor from outside breaks the rules of DLPack, an Arrow array is no tensor, or a tensor is no Arrow
    /// array; the message names the field. The deleter of the tensor has been called.
    #[error("invalid tensor: {0}")]
    InvalidTensor(#[from] InvalidTensor),
    /// The operation that should have made the data failed, or was skipped because an input had failed. The
    /// `source` is the error that the body returned.
    #[error(transparent)]
    Failed(OperationError),
    /// The operation was cancelled before it began, or what it waited for was cancelled.
    #[error(transparent)]
    Cancelled(OperationError),
    /// Other processes cannot be shown the memory of this tensor; the message says why.
    #[error("not shared: {0}")]
    NotShared(Cow<'static, str>),
    /// A device refused or broke, or another process said what failed there, or left or died.
    #[error("{}{_0}", device_text(_0))]
    Device(#[from] DeviceError),
    /// The memory is used in a way that excludes this use; the message names the other use.
    #[error("conflict: {0}")]
    Conflict(String),
    /// Only leases that were not returned hold up this wait.
    #[error("{0}")]
    LeaseHeld(LeaseHeld),
    /// Waiting here could never end.
    #[error("would deadlock: {0}")]
    WouldDeadlock(String),
    /// The operation that makes the tensor has not run yet, so the tensor has no shape, type or memory.
    #[error("tensor is not defined yet: {0}")]
    NotDefined(String),
    /// The time is up; the work goes on. [`Engine::diagnose`](crate::Engine::diagnose) says what it waits
    /// for.
    #[error("not ready within {0:?}")]
    Timeout(Duration),
    /// A hook of a binding has ended the wait; the work goes on.
    #[error("the wait was interrupted")]
    Interrupted,
    /// As many operations are in flight as the engine accepts.
    #[error("in-flight limit reached: {in_flight} operations in flight, limit {limit}")]
    InFlightLimit {
        /// Operations in flight when the submission was refused.
        in_flight: usize,
        /// The engine's limit.
        limit: usize,
    },
    /// No operator has this name.
    #[error("there is no operator `{}`{}", shown(.name), shown(&near_text(.near)))]
    NoOperator {
        /// The name that was asked for.
        name: String,
        /// Names that look like it, the nearest first.
        near: Vec<String>,
    },
    /// The engine has been shut down.
    #[error("the engine is shut down")]
    Shutdown,
    /// An engine, or what belongs to one, of the process that this one was forked from. Its threads do not
    /// exist here; a new engine works.
    #[error(
        "what an engine of the parent process made cannot be used in a forked child; make an engine here, or start this process by spawn"
    )]
    Forked,
    /// The operating system refused something the engine needs.
    #[error("cannot start the engine: {0}")]
    Start(String),
}

impl Error {
    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid(message.into())
    }

    /// The program gets this error, so the failure in the error is retrieved.
    pub(crate) fn retrieve(&self) {
        if let Some(failure) = self.operation() {
            failure.fate().retrieve();
        }
    }

    /// The operation at the root of the failure, when there is one.
    pub fn operation(&self) -> Option<&OperationError> {
        match self {
            Self::Failed(error) | Self::Cancelled(error) => Some(error),
            _ => None,
        }
    }
}

/// `; near it: ...`, when `near` is not empty.
fn near_text(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; near it: `{}`", near.join("`, `")) }
}

/// The beginning of the text of an error of a device. What else fences fail with, and links, is no fault of a
/// device.
fn device_text(error: &DeviceError) -> &'static str {
    let is_broken = matches!(error.kind(), DeviceErrorKind::Fault | DeviceErrorKind::OutOfMemory);
    if is_broken || error.code().is_some() || error.queue().is_some() { "device error: " } else { "" }
}

/// The text of an error and of its sources, without each source that the text already ends with.
pub fn full_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        // A source is foreign: it may panic when it is printed.
        if let Ok(more) = contain_panic(|| error.to_string())
            && !text.ends_with(&more)
        {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    text
}

/// The error of an operation's body: any error, or a message by `.into()`.
pub type BodyError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// The result of an operation's body.
pub type BodyResult<T = ()> = Result<T, BodyError>;

/// The reason why an operation failed: the root cause, shared by all its waiters.
///
/// Operations that are skipped because an input had failed pass on the cause of that failure. So
/// [`operation`](Self::operation) is always the operation that failed first.
#[derive(Clone)]
pub struct OperationError(Arc<Failure>);

/// Dropped with the last version, handle and one-shot that carries the failure.
pub(crate) struct Failure {
    operation: Cow<'static, str>,
    id: OpId,
    kind: FailureKind,
    message: String,
    source: Option<Contained<BodyError>>,
    fate: Arc<FailureFate>,
}

impl From<Forked> for Error {
    fn from(_: Forked) -> Self {
        Self::Forked
    }
}

impl Failure {
    /// A cancellation: the program asked for it.
    fn is_unsurprising(&self) -> bool {
        self.kind == FailureKind::Cancelled
    }
}

impl Drop for Failure {
    fn drop(&mut self) {
        // In a forked child the failure is the parent's.
        if self.fate.is_settled() || self.is_unsurprising() || self.fate.is_inherited() {
            return;
        }
        unretrieved::last_handle_gone(OperationError(Arc::new(Self {
            operation: std::mem::take(&mut self.operation),
            id: self.id,
            kind: self.kind,
            message: std::mem::take(&mut self.message),
            source: self.source.take(),
            fate: Arc::clone(&self.fate),
        })));
    }
}

/// The kind of an operation's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The body returned an error.
    Error,
    /// The body panicked.
    Panic,
    /// The operation, or what the operation waited for, was cancelled before the operation began.
    Cancelled,
    /// The device work failed after it had been issued.
    Device,
    /// The result could not be adopted; the message says why.
    Result,
}

/// The beginning of a failure's text; the name follows.
const OPERATION: &str = "operation `";

/// True if the failure of an import says what has failed: in another process its operation, and at the end of
/// a link the process.
fn names_its_cause(message: &str) -> bool {
    [OPERATION, "process "].iter().any(|name| message.starts_with(name))
}

/// The name in the text of a failure, up to the first "` (", for protocols that have text alone.
pub(crate) fn operation_in(text: &str) -> Option<&str> {
    Some(text.strip_prefix(OPERATION)?.split_once("` (")?.0)
}

impl OperationError {
    /// `id` is 0 for an import; `cause` is its id then.
    pub(crate) fn new(
        operation: &crate::core::operation::Name,
        id: OpId,
        cause: OpId,
        kind: FailureKind,
        message: impl Into<String>,
        source: Option<BodyError>,
    ) -> Self {
        let source = source.map(Contained::new);
        let message = message.into();
        let fate = match kind {
            // One failure elsewhere may reach several imports.
            FailureKind::Device if id == OpId::new(0) && names_its_cause(&message) => {
                FailureFate::of_device(id, &message)
            }
            FailureKind::Device => FailureFate::of_device(cause, &message),
            _ => Arc::default(),
        };
        Self(Arc::new(Failure { operation: operation.to_cow(), id, kind, message, source, fate }))
    }

    /// Name of the operation that failed first, which may be one of another process.
    pub fn operation(&self) -> &str {
        let elsewhere = self.device_error().filter(|_| self.kind() == FailureKind::Device);
        elsewhere.and_then(DeviceError::operation).unwrap_or(&self.0.operation)
    }

    /// Identity of that operation, as in traces and diagnoses.
    pub fn id(&self) -> u64 {
        self.0.id.get()
    }

    /// The kind of the failure.
    pub fn kind(&self) -> FailureKind {
        self.0.kind
    }

    /// The message of the failure.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The error value that the body returned, if the body returned an error.
    fn source_error(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.0.source.as_deref().map(|source| &**source)
    }

    /// The error of a device or a link that the operation failed with, also where its body returned it as an
    /// [`Error`].
    fn device_error(&self) -> Option<&DeviceError> {
        let source = self.source_error()?;
        match source.downcast_ref() {
            Some(Error::Device(error)) => Some(error),
            _ => source.downcast_ref(),
        }
    }

    /// True if another process has died that was to make the data, by whatever functions the error has come.
    fn is_of_a_death(&self) -> bool {
        let mut sources = std::iter::successors(std::error::Error::source(self), |&error| error.source());
        let error: Option<&DeviceError> = sources.find_map(|error| error.downcast_ref());
        error.is_some_and(|error| error.kind() == DeviceErrorKind::PeerDied)
    }

    pub(crate) fn fate(&self) -> &Arc<FailureFate> {
        &self.0.fate
    }

    /// True if the failure needs no report, retrieved or not.
    pub(crate) fn is_unsurprising(&self) -> bool {
        self.0.is_unsurprising()
    }

    pub(crate) fn downgrade(&self) -> Weak<Failure> {
        Arc::downgrade(&self.0)
    }

    pub(crate) fn upgrade(weak: &Weak<Failure>) -> Option<Self> {
        weak.upgrade().map(Self)
    }
}

/// The error that waiters get.
impl From<OperationError> for Error {
    fn from(failure: OperationError) -> Self {
        match failure.kind() {
            FailureKind::Cancelled => Self::Cancelled(failure),
            _ => Self::Failed(failure),
        }
    }
}

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.0.kind {
            FailureKind::Cancelled => "was cancelled",
            FailureKind::Panic => "panicked",
            _ => "failed",
        };
        if self.0.id == OpId::new(0) {
            let message = &self.0.message;
            return if names_its_cause(message) {
                f.write_str(message)
            } else {
                write!(f, "the fence of an import {verb}: {message}")
            };
        }
        let name = shown(&self.0.operation);
        write!(f, "{OPERATION}{name}` ({}) {verb}: {}", self.0.id, self.0.message)
    }
}

impl fmt::Debug for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationError({self})")
    }
}

impl std::error::Error for OperationError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source_error().map(|source| source as _)
    }
}

/// The leases that hold up a wait, oldest first.
#[derive(Debug, Clone)]
pub struct LeaseHeld {
    /// The operation or the call that waits, in words.
    pub waiting: String,
    /// Each blocking lease in words: access, owner, age.
    pub leases: Vec<String>,
    /// The blocking leases as values.
    pub held: Vec<LeaseInfo>,
}

impl LeaseHeld {
    pub(crate) fn new(waiting: impl fmt::Display, held: Vec<LeaseInfo>) -> Self {
        let leases = held.iter().map(LeaseInfo::with_thread).collect();
        Self { waiting: waiting.to_string(), leases, held }
    }
}

impl fmt::Display for LeaseHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} waits only for leases that were never returned: {}",
            self.waiting,
            lease_info::in_words(&self.held).join("; ")
        )
    }
}

/// The error of a fence for an error of the engine.
pub(crate) fn device_error(error: Error) -> DeviceError {
    let kind = match &error {
        Error::Device(error) => return error.clone(),
        Error::Cancelled(_) => DeviceErrorKind::Cancelled,
        Error::Invalid(_) => DeviceErrorKind::Invalid,
        // So that a third process learns of it, and may compute again what the dead one has promised.
        Error::Failed(failure) if failure.is_of_a_death() => DeviceErrorKind::PeerDied,
        _ => DeviceErrorKind::Other,
    };
    let text = DeviceError::new(kind, full_text(&error));
    match error.operation() {
        Some(failure) => text.with_operation(failure.operation()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use estafette_devices::{DeviceError, DeviceErrorKind};

    use super::{BodyError, Error, device_error, full_text};
    use crate::Engine;

    #[derive(Debug, thiserror::Error)]
    #[error("root")]
    struct Root;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Root);

    #[derive(Debug, thiserror::Error)]
    #[error("says it all: {0}")]
    struct Whole(#[source] Outer);

    #[derive(Debug, thiserror::Error)]
    #[error("a function of its own")]
    struct Own(#[source] Error);

    #[test]
    fn a_death_that_passes_through_a_function_stays_one_for_the_next_process() {
        let engine = Engine::builder().workers(1).build().unwrap();
        let death = DeviceError::new(DeviceErrorKind::PeerDied, "process 7 died");
        let fails = |error: BodyError| {
            let op = engine.op("any").run(move |[], []| Err(error)).unwrap();
            op.wait().unwrap_err()
        };
        let once = fails(Box::new(death));
        let twice = fails(Box::new(once.clone()));
        let third = fails(Box::new(Own(twice.clone())));
        for error in [once, twice, third] {
            assert_eq!(device_error(error).kind(), DeviceErrorKind::PeerDied);
        }
        assert_eq!(device_error(fails("plain".into())).kind(), DeviceErrorKind::Other);
    }

    fn fails_with(error: fn() -> BodyError) -> String {
        let engine = Engine::builder().workers(1).build().unwrap();
        let op = engine.op("any").run(move |[], []| Err(error())).unwrap();
        full_text(&op.wait().unwrap_err())
    }

    #[test]
    fn the_text_of_a_failure_has_every_source_once() {
        let text = fails_with(|| Box::new(Outer(Root)));
        assert!(text.starts_with("operation `any`") && text.ends_with("failed: outer: root"), "{text}");
        let text = fails_with(|| Box::new(Whole(Outer(Root))));
        assert!(text.ends_with("failed: says it all: outer: root"), "{text}");
        let text = fails_with(|| "plain".into());
        assert!(text.ends_with("failed: plain"), "{text}");
    }
}
