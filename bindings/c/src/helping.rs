//! The permission of a thread to run operations while it waits.

/// Allows functions of this library to run operations on the calling thread, or forbids it: 0 forbids,
/// anything else allows. Returns the earlier setting, 0 or 1. A thread may, until it says otherwise.
///
/// The functions that run operations on the thread that calls them, where this is not forbidden, are those
/// that wait with `ESTAFETTE_FOREVER` (they run what they wait for, `estafette_wait_all` and
/// `estafette_engine_shutdown` whatever is ready) and, in an engine without workers, those that submit and
/// `estafette_engine_destroy`. A wait with another timeout runs none. Forbid it where the thread holds a lock
/// that a function of an operation takes: the work is then done by the engine's workers, or by a thread that
/// an engine without workers starts for the time of the wait.
///
/// May be called by any thread, and in a forked child.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_set_helping(allowed: i32) -> i32 {
    estafette::bindings::set_helping(allowed != 0).into()
}
