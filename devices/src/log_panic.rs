//! Running code that is not ours: a panic in it must not take our thread down.

use estafette_sync::panic::contain_panic;

/// Runs `foreign`; a panic is logged with `what` was running and goes no further. Returns whether `foreign`
/// returned normally.
///
/// The state that `foreign` saw may be half changed, as after any panic. Code that shares this state checks
/// for that, usually by the drop of a token inside `foreign`.
pub fn log_panic(what: &str, foreign: impl FnOnce()) -> bool {
    let contained = contain_panic(foreign);
    if let Err(message) = &contained {
        tracing::error!(panic = %message, "{what} panicked");
    }
    contained.is_ok()
}
