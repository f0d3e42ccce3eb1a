//! Submitting many operations with one wake-up. Inside of [`Engine::submit_many`](crate::Engine::submit_many)
//! a thread only notes that work has arrived. The thread notifies the workers at the end, or before it falls
//! asleep.
//!
//! Pushed work is visible at once, so workers that are awake take it meanwhile. A thread may also wait, by
//! other means than the engine's, for something that only sleeping workers could bring about. So the thread
//! that inspects long waits ([`awaits`](crate::wait::awaits)) also inspects the notes of this module, every
//! [`LATE_MAX`], and notifies the workers instead.

use std::cell::RefCell;
use std::sync::Arc;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::thread_local;
use estafette_sync::time::{Duration, Instant};

use crate::core::clock;
use crate::core::core_ref::CoreRef;
use crate::wait::awaits;

/// Longest delay until workers are notified of work that a thread in `submit_many` has submitted.
const LATE_MAX: Duration = Duration::from_millis(2);

/// The time that inspections go on after the last `submit_many`, so that consecutive calls do not each wake
/// the inspecting thread.
const LINGER: Duration = Duration::from_millis(100);

thread_local! {
    static COALESCED: RefCell<Option<Arc<Coalesced>>> = const { RefCell::new(None) };
}

struct Coalesced {
    core: CoreRef,
    /// Work has arrived, and the workers were not notified.
    untold: AtomicBool,
}

estafette_sync::per_process! {
    /// Notifications that threads inside of `submit_many` hold back.
    static OPEN: Mutex<OpenSubmissions> = Mutex::new(OpenSubmissions { held_back: Vec::new(), last: None });
}

struct OpenSubmissions {
    held_back: Vec<Arc<Coalesced>>,
    /// The time at which the last `submit_many` began or was found.
    last: Option<Instant>,
}

/// Runs `submit`, and holds back the wake-ups for `core` on this thread. Inside of another such call this
/// function only runs `submit`.
pub(crate) fn hold_back<T>(core: &CoreRef, submit: impl FnOnce() -> T) -> T {
    // Nothing is submitted to an inherited engine, whose locks may be held for ever.
    // A thread that ends may have no place for it any more, and sends each wake-up.
    let is_free = COALESCED.try_with(|coalesced| coalesced.borrow().is_none()).unwrap_or(false);
    let outermost = is_free && core.generation.is_current();
    /// Stops coalescing, also when `submit` panics.
    struct StopCoalescing(bool);
    impl Drop for StopCoalescing {
        fn drop(&mut self) {
            if self.0 {
                wake_held_back();
                let coalesced = COALESCED.take();
                if let Some(coalesced) = &coalesced {
                    OPEN.lock().held_back.retain(|known| !Arc::ptr_eq(known, coalesced));
                }
            }
        }
    }
    if outermost {
        let coalesced = Arc::new(Coalesced { core: core.clone(), untold: AtomicBool::new(false) });
        let now = Instant::now();
        {
            let mut open = OPEN.lock();
            open.held_back.push(Arc::clone(&coalesced));
            open.last = Some(now);
        }
        COALESCED.set(Some(coalesced));
        // Without workers nothing sleeps that could be woken.
        if !core.has_no_workers()
            && let Some(look) = now.checked_add(LATE_MAX)
        {
            awaits::inspect_by(look);
        }
    }
    let _end = StopCoalescing(outermost);
    submit()
}

/// Notes work that has arrived at the engine with number `core`. Returns whether the wake-up is held back.
#[inline]
pub(crate) fn is_held_back(core: u64) -> bool {
    let note = |coalesced: &RefCell<Option<Arc<Coalesced>>>| match &*coalesced.borrow() {
        Some(coalesced) if coalesced.core.id == core => {
            coalesced.untold.store(true, Ordering::Release);
            true
        }
        _ => false,
    };
    COALESCED.try_with(note).unwrap_or(false)
}

/// Sends the notification that this thread has held back.
pub(crate) fn wake_held_back() {
    let untold = COALESCED.try_with(|coalesced| {
        let coalesced = coalesced.borrow();
        coalesced.as_ref().filter(|coalesced| coalesced.untold.swap(false, Ordering::AcqRel)).cloned()
    });
    if let Ok(Some(coalesced)) = untold
        && coalesced.core.generation.is_current()
    {
        coalesced.core.wake();
    }
}

/// Sends the notifications that other threads hold back. Returns when to do so again, if at all.
pub(crate) fn wake_those_of_other_threads() -> Option<Instant> {
    let now = Instant::now();
    let held_back = {
        let mut open = OPEN.lock();
        if !open.held_back.is_empty() {
            open.last = Some(now);
        }
        let recent = open.last.is_some_and(|last| now.saturating_duration_since(last) < LINGER);
        if !recent {
            open.last = None;
            return None;
        }
        open.held_back.clone()
    };
    for coalesced in &held_back {
        if coalesced.untold.swap(false, Ordering::AcqRel) {
            coalesced.core.wake();
        }
    }
    clock::deadline(LATE_MAX)
}
