//! Calls to code that is not ours and may panic, where nobody is left to receive the panic.

use estafette_sync::panic::contain_panic;

/// Runs `f`; a panic is logged with `what` and goes no further. Returns whether `f` returned normally.
///
/// Used where a panic has nowhere to go: in a deleter called by a foreign library (unwinding into it is
/// undefined) and on the reaper thread (one bad deleter must not end all others).
pub(super) fn contain(what: &'static str, f: impl FnOnce()) -> bool {
    let contained = contain_panic(f);
    if let Err(message) = &contained {
        tracing::error!(what, message, "panic contained");
    }
    contained.is_ok()
}
