//! Which threads run a callback right now: code of others that is called when something settles.
//!
//! What a wait needs may need the very thread that a callback is on: the reactor's, or the one that ends an operation. So a call that
//! would block in a callback is refused with [`Error::WouldDeadlock`] instead. Deleters are no callbacks: the reaper's thread serves
//! them alone, and no wait but its own `flush` needs it.

use std::cell::Cell;

use estafette_sync::thread_local;
use estafette_sync::valgrind;

use crate::core::context::{self, Current};
use crate::core::error::Error;

thread_local! {
    /// The operation that was current when the callback began.
    static RUNNING: Cell<Option<Option<Current>>> = const { Cell::new(None) };
}

/// Runs `f`, which is a callback.
pub fn run<R>(f: impl FnOnce() -> R) -> R {
    let _back = Back(RUNNING.replace(Some(context::current_with_core())));
    valgrind::foreign(f)
}

struct Back(Option<Option<Current>>);

impl Drop for Back {
    fn drop(&mut self) {
        RUNNING.set(self.0);
    }
}

/// For a forked child, whose thread goes on after the callback of its parent.
pub(crate) fn forget() {
    RUNNING.set(None);
}

/// Whether the calling code is a callback. The body of an operation is none, even where a callback runs it.
pub(crate) fn is_running() -> bool {
    RUNNING.get().is_some_and(|current| current == context::current_with_core())
}

/// Refuses what is about to block in a callback.
///
/// # Errors
/// [`Error::WouldDeadlock`] in a callback.
pub fn check() -> Result<(), Error> {
    if is_running() {
        return Err(Error::WouldDeadlock(
            "a callback must not wait; what it would wait for may need its thread".into(),
        ));
    }
    Ok(())
}
