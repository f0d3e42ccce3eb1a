use std::borrow::Cow;
use std::io;

use estafette_devices::{DeviceError, DeviceErrorKind};
use estafette_sync::process::Forked;

use crate::platform::is_shortage;
use crate::ring::Violation;

/// The reason why a link cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer has not taken or not used enough of what was sent. Nothing was sent; wait for the peer.
    #[error("process {process} has as much to receive or to use as a link holds")]
    Full {
        /// The peer.
        process: u32,
    },
    /// The peer closed the link in good order.
    #[error("process {process} closed the link")]
    Closed {
        /// The peer.
        process: u32,
    },
    /// The peer died, or is about to.
    #[error("process {process} died")]
    PeerDied {
        /// The peer.
        process: u32,
    },
    /// The peer does not keep to the protocol. The link is of no use any more.
    #[error("process {process} broke the protocol of links: {what}")]
    Protocol {
        /// The peer.
        process: u32,
        /// The violation.
        what: String,
    },
    /// There is no link to that process: it acts for another user, or speaks another version.
    #[error("no link: {0}")]
    Refused(String),
    /// The argument makes no sense; the message names it.
    #[error("{0}")]
    Invalid(String),
    /// The operating system refused.
    #[error("{what}: {error}")]
    System {
        /// The request.
        what: Cow<'static, str>,
        /// The answer.
        #[source]
        error: io::Error,
    },
    /// This process was forked from one with links, which it cannot use.
    #[error("forked child: links and the threads behind them live in the parent process only")]
    Forked,
}

impl LinkError {
    pub(crate) fn system(what: impl Into<Cow<'static, str>>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { what: what.into(), error }
    }

    /// True if this process or machine has too little of something.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(self, Self::System { error, .. } if is_shortage(error))
    }

    pub(crate) fn violation(process: u32, Violation(what): Violation) -> Self {
        Self::Protocol { process, what: what.to_owned() }
    }
}

impl From<Forked> for LinkError {
    fn from(_: Forked) -> Self {
        Self::Forked
    }
}

impl From<&LinkError> for DeviceError {
    fn from(error: &LinkError) -> Self {
        let kind = match error {
            LinkError::PeerDied { .. } => DeviceErrorKind::PeerDied,
            LinkError::Closed { .. } => DeviceErrorKind::Cancelled,
            LinkError::System { error, .. } if error.kind() == io::ErrorKind::OutOfMemory => {
                DeviceErrorKind::OutOfMemory
            }
            _ => DeviceErrorKind::Other,
        };
        let message = Self::new(kind, error.to_string());
        match error {
            LinkError::PeerDied { process } => message.with_process(*process),
            _ => message,
        }
    }
}
