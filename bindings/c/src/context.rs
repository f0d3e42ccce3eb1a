//! The context that a caller passes along with a function.

use std::ffi::c_void;
use std::sync::Arc;

use estafette::bindings::callback;
use estafette::devices::{Fence, Reactor};

/// Called once with the context, when the library will not use it any more. NULL when there is nothing to do.
pub type estafette_drop = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// A context and the function that gives it up. Dropping this calls the function, so it is made only where
/// the call cannot fail any more.
#[derive(Debug)]
pub(crate) struct Context {
    pointer: *mut c_void,
    drop: estafette_drop,
}

// SAFETY: callbacks and what they are given may be used by any thread, which is part of the contract of every
// function that takes one.
unsafe impl Send for Context {}
// SAFETY: as above; shared use only copies the pointer.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn new(pointer: *mut c_void, drop: estafette_drop) -> Self {
        Self { pointer, drop }
    }

    pub(crate) fn pointer(&self) -> *mut c_void {
        self.pointer
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: the caller gave both for this; it is called once.
            callback::run(|| unsafe { drop(self.pointer) });
        }
    }
}

/// The context of a function that was called. It is given up when the work of the function is over.
#[allow(dead_code, reason = "it is held, and dropped")]
pub(crate) enum BodyContext {
    Own(Context),
    /// Of a node, which every replay calls with the same one, or of an operation with `on_skip`.
    Shared(Arc<Context>),
}

impl BodyContext {
    pub(crate) fn pointer(&self) -> *mut c_void {
        match self {
            Self::Own(context) => context.pointer(),
            Self::Shared(context) => context.pointer(),
        }
    }

    /// Gives the context up when `fence` has settled, well or not: until then the work that it marks may use
    /// it.
    pub(crate) fn drop_after(self, fence: &Fence) {
        Reactor::global().when_settled([fence], move |_outcome| drop(self));
    }
}
