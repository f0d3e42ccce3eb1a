//! The executor of an engine's asynchronous bodies: a tokio runtime, given or made at first use. Without the
//! feature `tokio` a thread of the engine polls them, made at first use.
//!
//! | part | what it has |
//! |---|---|
//! | `own_thread` | a thread that polls, without tokio |
//! | `with_tokio` | a tokio runtime |

#[cfg(any(test, not(feature = "tokio")))]
#[cfg_attr(feature = "tokio", allow(dead_code, reason = "its tests run with all features too"))]
mod own_thread;
#[cfg(feature = "tokio")]
mod with_tokio;

#[cfg(not(feature = "tokio"))]
pub(crate) use own_thread::{Runtime, block};
#[cfg(feature = "tokio")]
pub(crate) use with_tokio::{Runtime, block};
