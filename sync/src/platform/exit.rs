//! The exit of the process.

/// Has `handler` run when the process exits, before what was registered earlier. Where memory is short,
/// nothing happens.
pub fn at_exit(handler: extern "C" fn()) {
    // SAFETY: the handler takes nothing and stays.
    let _ = unsafe { libc::atexit(handler) };
}
