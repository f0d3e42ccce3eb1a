use std::sync::Arc;
use std::{error, fmt};

use crate::QueueId;

/// The error of a device. Cloning shares the one root error.
#[derive(Clone)]
pub struct DeviceError(Arc<ErrorData>);

#[derive(Clone)]
struct ErrorData {
    kind: DeviceErrorKind,
    code: Option<i64>,
    message: Box<str>,
    queue: Option<QueueId>,
    process: Option<u32>,
    operation: Option<Box<str>>,
}

/// The kind of a [`DeviceError`], by what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceErrorKind {
    /// The device or the work on it broke, or the end of the work cannot be known. Its queue is poisoned:
    /// everything unfinished on it has failed.
    Fault,
    /// The device has no room. Free something or ask for less; the queue is unharmed.
    OutOfMemory,
    /// The request makes no sense; the message names the argument. Nothing happened.
    Invalid,
    /// The promised work was given up. Nothing is broken.
    Cancelled,
    /// Another process promised the work, and died.
    PeerDied,
    /// Anything else; the message says what.
    Other,
}

impl DeviceError {
    /// An error without a driver code and without a queue. Messages are lower case and name what is wrong.
    pub fn new(kind: DeviceErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(ErrorData {
            kind,
            code: None,
            message: message.into().into_boxed_str(),
            queue: None,
            process: None,
            operation: None,
        }))
    }

    /// An error of a request that makes no sense: [`DeviceErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(DeviceErrorKind::Invalid, message)
    }

    /// The same error with the driver's own code.
    #[must_use]
    pub fn with_code(self, code: i64) -> Self {
        self.changed(|inner| inner.code = Some(code))
    }

    /// The same error, saying on which queue it happened.
    #[must_use]
    pub fn with_queue(self, queue: QueueId) -> Self {
        self.changed(|inner| inner.queue = Some(queue))
    }

    /// The same error, with the process that caused it.
    #[must_use]
    pub fn with_process(self, process: u32) -> Self {
        self.changed(|inner| inner.process = Some(process))
    }

    /// The same error, with the name of the operation that failed first.
    #[must_use]
    pub fn with_operation(self, name: &str) -> Self {
        self.changed(|inner| inner.operation = Some(name.into()))
    }

    /// The kind, by what the caller can do about it.
    pub fn kind(&self) -> DeviceErrorKind {
        self.0.kind
    }

    /// The driver's own code, where there is one.
    pub fn code(&self) -> Option<i64> {
        self.0.code
    }

    /// The message, in lower case.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The queue on which it happened, where there is one.
    pub fn queue(&self) -> Option<QueueId> {
        self.0.queue
    }

    /// The process that caused it, where that is another one than that which says so.
    pub fn process(&self) -> Option<u32> {
        self.0.process
    }

    /// The name of the operation that failed first, where the error is the end of that operation.
    pub fn operation(&self) -> Option<&str> {
        self.0.operation.as_deref()
    }

    /// True if both are the same occurrence, not merely equal words: every waiter gets the one root error.
    pub fn same_root(&self, other: &DeviceError) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The error of work that may go on, unseen: a [`Fault`](DeviceErrorKind::Fault), after which memory of
    /// the work is never released.
    #[cfg(feature = "_driver")]
    pub(crate) fn of_unknown_end(self) -> Self {
        if self.kind() == DeviceErrorKind::Fault {
            return self;
        }
        self.changed(|inner| {
            inner.kind = DeviceErrorKind::Fault;
            inner.message = format!("the end of device work cannot be known: {}", inner.message).into();
        })
    }

    fn changed(self, change: impl FnOnce(&mut ErrorData)) -> Self {
        let mut inner = ErrorData::clone(&self.0);
        change(&mut inner);
        Self(Arc::new(inner))
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(code) = self.0.code {
            write!(f, " (code {code})")?;
        }
        if let Some(queue) = self.0.queue {
            write!(f, " on {queue}")?;
        }
        Ok(())
    }
}

debug_as!(error: DeviceError, "{:?}({error})", error.0.kind);

impl error::Error for DeviceError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_code_and_queue() {
        let queue = QueueId::next();
        let error =
            DeviceError::new(DeviceErrorKind::Fault, "illegal address").with_code(700).with_queue(queue);
        assert_eq!(error.to_string(), format!("illegal address (code 700) on {queue}"));
        assert_eq!(error.kind(), DeviceErrorKind::Fault);
        assert!(error.same_root(&error.clone()));
    }
}
