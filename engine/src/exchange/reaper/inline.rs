//! Deleters that need not go to the thread: those known to be quick, where the caller says that they may run.
//!
//! Handing over costs a lock and, for a deleter that needs the Python lock, a fight for it between two
//! threads. A thread that drops a tensor as Python drops any object holds that lock and none of the engine's,
//! and is prepared for whatever an object's end may run.

use std::cell::Cell;

use estafette_sync::thread_local;

use crate::core::context::{Restore, replace};

thread_local! {
    static PLACE: Cell<DeleterPlace> = const { Cell::new(DeleterPlace::Unset) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DeleterPlace {
    /// No value was set.
    Unset,
    /// A good place.
    Good,
    /// In an inline deleter: one that drops the next tensor in turn would make the stack as deep as the chain
    /// is long.
    InDeleter,
}

/// Runs `f`, which drops tensors where inline deleters may run: no lock is held but Python's.
pub fn with_inline_deleters<R>(f: impl FnOnce() -> R) -> R {
    let place = if is_good_place() { PLACE.get() } else { DeleterPlace::Good };
    let _back = replace(&PLACE, place);
    f()
}

/// True if the calling thread is in [`with_inline_deleters`].
pub(super) fn is_good_place() -> bool {
    PLACE.get() != DeleterPlace::Unset
}

/// Permission to run one deleter right here.
pub(super) fn begin_deleter() -> Option<InDeleter> {
    (PLACE.get() == DeleterPlace::Good).then(|| InDeleter(replace(&PLACE, DeleterPlace::InDeleter)))
}

/// See [`begin_deleter`].
pub(super) struct InDeleter(#[allow(dead_code, reason = "dropped")] Restore<DeleterPlace>);
