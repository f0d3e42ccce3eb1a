use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

use estafette_c::estafette_op;

/// Counts of one program's callbacks, and the operations whose end is not reported yet.
#[derive(Default)]
pub struct Shared {
    /// Tensors that were given to the library and accepted.
    pub imported: AtomicU64,
    /// Their deleters that were called.
    pub deleted: AtomicU64,
    /// Contexts that were given away.
    pub contexts: AtomicU64,
    /// Contexts that were given up.
    pub dropped: AtomicU64,
    /// Callbacks of tensors that were called.
    pub notified: AtomicU64,
    /// Callbacks of tensors that were accepted.
    pub to_notify: AtomicU64,
    pub fence_holders: AtomicI64,
    /// Number of things that were made to fail, so that tensors may be poisoned.
    pub failures: AtomicU64,
    /// Operations whose function was called and whose end is not reported.
    pub open: Mutex<Vec<OpenHandle>>,
}

/// A handle that a function was given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OpenHandle(pub *mut estafette_op);

// SAFETY: a handle is a number.
unsafe impl Send for OpenHandle {}

impl Shared {
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, SeqCst);
    }

    pub fn take_open(&self, at: usize) -> Option<*mut estafette_op> {
        let mut open = self.open.lock().expect("no panic under this lock");
        if open.is_empty() {
            return None;
        }
        let at = at % open.len();
        Some(open.swap_remove(at).0)
    }
}
