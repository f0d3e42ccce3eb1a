//! The body of an operation, kept inside the operation itself where it is small: most closures hold a pointer or two, and
//! a heap allocation would cost more than all the rest.

use std::mem::{self, ManuallyDrop, MaybeUninit};

use crate::operation::OpGranted;
use crate::run::Running;

/// Words that a body may capture before it goes to the heap.
const WORDS: usize = 5;

type Storage = MaybeUninit<[usize; WORDS]>;

/// What an operation does once its inputs are there. It owns its completion, and may hand on the operation to run next on
/// this thread.
pub(crate) struct Body {
    /// Runs what is in the storage, or with `None` only drops it. Consumes it either way.
    consume: unsafe fn(*mut Storage, Option<Running>) -> Option<OpGranted>,
    storage: Storage,
}

// SAFETY: a body is made only from closures that are `Send`.
unsafe impl Send for Body {}

impl Body {
    #[inline]
    pub(crate) fn new<F>(body: F) -> Self
    where
        F: FnOnce(Running) -> Option<OpGranted> + Send + 'static,
    {
        if size_of::<F>() <= size_of::<Storage>() && align_of::<F>() <= align_of::<Storage>() {
            // SAFETY: size and alignment fit.
            unsafe { Self::stored(body) }
        } else {
            let boxed = Box::new(body);
            // SAFETY: a box is one word.
            unsafe { Self::stored(move |running: Running| boxed(running)) }
        }
    }

    /// # Safety
    /// `F` fits the storage in size and alignment.
    #[inline]
    unsafe fn stored<F>(body: F) -> Self
    where
        F: FnOnce(Running) -> Option<OpGranted> + Send + 'static,
    {
        unsafe fn consume<F: FnOnce(Running) -> Option<OpGranted>>(
            storage: *mut Storage,
            running: Option<Running>,
        ) -> Option<OpGranted> {
            // SAFETY: `stored` has put an `F` there, and it is read out once.
            let body = unsafe { storage.cast::<F>().read() };
            running.and_then(body)
        }
        let mut storage = Storage::uninit();
        // SAFETY: it fits, by contract.
        unsafe { storage.as_mut_ptr().cast::<F>().write(body) };
        Self { consume: consume::<F>, storage }
    }

    /// Runs the body.
    #[inline]
    pub(crate) fn run(self, running: Running) -> Option<OpGranted> {
        let mut body = ManuallyDrop::new(self);
        // SAFETY: the storage is full until this call, and not touched afterwards.
        unsafe { (body.consume)(&mut body.storage, Some(running)) }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let mut storage = mem::replace(&mut self.storage, Storage::uninit());
        // SAFETY: a body that has run is not dropped, so the storage is full.
        unsafe { (self.consume)(&mut storage, None) };
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_body_that_never_runs_drops_what_it_holds_once() {
        let held = Arc::new(());
        let (small, large) = (Arc::clone(&held), [(); 9].map(|()| Arc::clone(&held)));
        let bodies = [
            Body::new(move |_| {
                drop(small);
                None
            }),
            Body::new(move |_| {
                drop(large);
                None
            }),
        ];
        assert_eq!(Arc::strong_count(&held), 11);
        drop(bodies);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn overaligned_closures_go_to_the_heap() {
        #[repr(align(64))]
        struct Aligned(u8);
        let aligned = Aligned(7);
        let body = Body::new(move |_| {
            assert_eq!(std::ptr::from_ref(&aligned).addr() % 64, 0);
            assert_eq!(aligned.0, 7);
            None
        });
        drop(body);
    }
}
