//! Running code that is not ours: a panic in it must not take our thread down.

use estafette_sync::panic::contain_panic;

/// Runs `foreign`; a panic is logged with `what` was running and goes no further.
///
/// The state that `foreign` saw may be half changed, as after any panic. Code that shares this state checks
/// for that, usually by the drop of a token inside `foreign`.
pub(crate) fn guarded(what: &str, foreign: impl FnOnce()) {
    if let Err(message) = contain_panic(foreign) {
        tracing::error!(panic = %message, "{what} panicked");
    }
}
