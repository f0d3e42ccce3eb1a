//! Running code that is not ours: a panic in it must not take our thread down.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `foreign`; a panic is logged with `what` was running and goes no further.
///
/// The state that `foreign` saw may be half changed, as after any panic; whoever shares state with it checks for that
/// (the drop of a token inside it is the usual way).
pub(crate) fn guarded(what: &str, foreign: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(foreign)) {
        let message = message_of(&*payload).to_owned();
        // Dropping the payload is foreign code as well. A second panic from there leaks what is left of it.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(payload))).map_err(std::mem::forget);
        tracing::error!(panic = %message, "{what} panicked");
    }
}

fn message_of(payload: &(dyn std::any::Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "a panic without a message"
    }
}
