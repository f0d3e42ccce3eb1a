//! The tokio runtime that an engine makes for its asynchronous bodies.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::runtime::{Builder, Runtime};

use crate::core::error::Error;
use crate::core::operation::text_of_panic;

/// A runtime of one thread, with `stack_size` bytes of stack.
///
/// # Errors
/// [`Error::Start`] when the system refuses a thread or a descriptor. Where a thread is refused tokio panics;
/// this function contains the panic.
pub(crate) fn start(stack_size: usize) -> Result<Runtime, Error> {
    let build = || -> io::Result<Runtime> {
        Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("estafette-async")
            .thread_stack_size(stack_size)
            .enable_all()
            .build()
    };
    let built = match catch_unwind(AssertUnwindSafe(build)) {
        Ok(built) => built.map_err(|error| error.to_string()),
        Err(panic) => Err(text_of_panic(panic)),
    };
    built.map_err(|why| Error::Start(format!("asynchronous runtime: {why}")))
}
