//! Submitting many operations with one wake-up: inside of [`Engine::submit_many`](crate::Engine::submit_many) a thread only
//! notes that work has arrived, and tells the workers at the end, or before it falls asleep itself.
//!
//! What was pushed is visible at once, so workers that are awake take it meanwhile.

use std::cell::RefCell;

use crate::core_ref::CoreRef;

thread_local! {
    static QUIET: RefCell<Option<Quiet>> = const { RefCell::new(None) };
}

struct Quiet {
    core: CoreRef,
    /// Work has arrived, and nobody was told.
    untold: bool,
}

/// Runs `submit`, holding back the wake-ups for `core` on this thread. Inside of another such call it only runs.
pub(crate) fn hold<T>(core: &CoreRef, submit: impl FnOnce() -> T) -> T {
    let outermost = QUIET.with_borrow_mut(|quiet| {
        let outermost = quiet.is_none();
        quiet.get_or_insert_with(|| Quiet { core: core.clone(), untold: false });
        outermost
    });
    /// Ends the quiet also when `submit` panics.
    struct End(bool);
    impl Drop for End {
        fn drop(&mut self) {
            if self.0 {
                tell();
                drop(QUIET.take());
            }
        }
    }
    let _end = End(outermost);
    submit()
}

/// Whether the wake-up for work that has arrived at engine number `core` is left for later.
#[inline]
pub(crate) fn holds(core: u64) -> bool {
    let note = |quiet: &RefCell<Option<Quiet>>| match &mut *quiet.borrow_mut() {
        Some(quiet) if quiet.core.id == core => {
            quiet.untold = true;
            true
        }
        _ => false,
    };
    QUIET.try_with(note).unwrap_or(false)
}

/// Tells the workers what they were not told.
pub(crate) fn tell() {
    let untold = QUIET.try_with(|quiet| {
        let mut quiet = quiet.borrow_mut();
        let quiet = quiet.as_mut().filter(|quiet| quiet.untold)?;
        quiet.untold = false;
        Some(quiet.core.clone())
    });
    if let Ok(Some(core)) = untold {
        core.wake();
    }
}
