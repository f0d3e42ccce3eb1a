//! Fences by the kernel; ordinary ones where it refuses from the beginning.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

use super::membarrier;

/// True if `heavy` makes others fence. Until it is known, `light` fences itself.
static EXPEDITED: AtomicBool = AtomicBool::new(false);

#[inline(always)]
pub fn light() {
    if EXPEDITED.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

pub fn is_asymmetric() -> bool {
    // A forked child registers again: it needs a page of its own too.
    crate::per_process! {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
    }
    *REGISTERED.get_or_init(|| {
        let registered = membarrier::register();
        EXPEDITED.store(registered, Ordering::Relaxed);
        registered
    })
}

pub fn heavy() {
    let expedited = is_asymmetric();
    fence(Ordering::SeqCst);
    if expedited {
        membarrier::fence_everywhere();
    }
}
