//! Calls to foreign code whose panic has no receiver.

use estafette_sync::panic::contain_panic;

/// Runs `f`. A panic is logged with `what` and ends here. Returns whether `f` returned normally.
///
/// Callers are a deleter that a foreign library calls (unwinding into that library is undefined) and the reaper's threads
/// (one bad deleter must not end all others).
pub(super) fn log_panic(what: &'static str, f: impl FnOnce()) -> bool {
    let contained = contain_panic(f);
    if let Err(message) = &contained {
        tracing::error!(what, message, "panic contained");
    }
    contained.is_ok()
}
