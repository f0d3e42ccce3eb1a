use std::sync::Arc;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};

use crate::DeviceError;
use crate::fence::source::{Outcome, Subscriber};

/// Waits for several fences and calls a closure once. One allocation for all of them.
pub(super) struct Gather<F, W> {
    /// Fences that have not settled, plus one while fences are being added.
    missing: AtomicUsize,
    rest: Mutex<Rest<F>>,
    /// Whether the call is still wanted.
    wanted: W,
}

struct Rest<F> {
    first_failure: Option<DeviceError>,
    callback: Option<F>,
}

impl<F, W> Gather<F, W> {
    pub(super) fn new(callback: F, wanted: W) -> Self {
        let rest = Rest { first_failure: None, callback: Some(callback) };
        Self { missing: AtomicUsize::new(1), rest: Mutex::new(rest), wanted }
    }

    pub(super) fn expect_one(&self) {
        self.missing.fetch_add(1, Ordering::Relaxed);
    }
}

impl<F: FnOnce(Outcome) + Send, W: Fn() -> bool + Send + Sync> Subscriber for Gather<F, W> {
    fn abandoned(&self) -> bool {
        !(self.wanted)()
    }

    fn settled(self: Arc<Self>, outcome: Outcome) {
        if let Err(error) = outcome {
            self.rest.lock().first_failure.get_or_insert(error);
        }
        // AcqRel: the effects of every fence happen before the callback, whichever thread observed them.
        if self.missing.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (callback, failure) = {
            let mut rest = self.rest.lock();
            (rest.callback.take(), rest.first_failure.take())
        };
        if let Some(callback) = callback {
            callback(failure.map_or(Ok(()), Err));
        }
    }
}
