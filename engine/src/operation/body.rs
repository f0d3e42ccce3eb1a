//! Storage for the body of an operation. A small closure is stored inside the operation, since a heap
//! allocation would cost more than the rest of a submission; most closures hold a pointer or two.

use std::mem::MaybeUninit;

use crate::core::operation::OpGranted;
use crate::operation::run::Running;

/// Machine words that a closure may capture before it goes to the heap.
const WORDS: usize = 5;

type Storage = MaybeUninit<[usize; WORDS]>;

/// Moves the closure out of the storage. Runs the closure with an operation, and drops it without one.
type Consume = unsafe fn(*mut Storage, Option<Running>) -> Option<OpGranted>;

/// The work of an operation once its inputs are ready. The closure completes the operation, and may return
/// the operation to run next on this thread.
pub(crate) struct Body {
    /// `None` if the storage is empty.
    consume: Option<Consume>,
    storage: Storage,
}

// SAFETY: bodies are made only from closures that are `Send`.
unsafe impl Send for Body {}

impl Body {
    /// No body.
    pub(crate) const NONE: Self = Self { consume: None, storage: Storage::uninit() };

    #[inline(always)]
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
    #[inline(always)]
    unsafe fn stored<F>(body: F) -> Self
    where
        F: FnOnce(Running) -> Option<OpGranted> + Send + 'static,
    {
        unsafe fn consume<F: FnOnce(Running) -> Option<OpGranted>>(
            storage: *mut Storage,
            running: Option<Running>,
        ) -> Option<OpGranted> {
            // SAFETY: `stored` has written an `F` there, and it is read once.
            let body = unsafe { storage.cast::<F>().read() };
            running.and_then(body)
        }
        let mut storage = Storage::uninit();
        // SAFETY: the closure fits, by contract.
        unsafe { storage.as_mut_ptr().cast::<F>().write(body) };
        Self { consume: Some(consume::<F>), storage }
    }

    /// Runs the body.
    pub(crate) fn run(mut self, running: Running) -> Option<OpGranted> {
        // SAFETY: this call owns the body until it has run.
        unsafe { Self::run_in_place(&raw mut self, running) }
    }

    /// Runs the body at `place`. The place is empty from then on, and its memory may be freed as soon as
    /// `running` ends.
    ///
    /// # Safety
    /// No other code uses `place` until `running` ends.
    #[inline]
    pub(crate) unsafe fn run_in_place(place: *mut Self, running: Running) -> Option<OpGranted> {
        // SAFETY: the caller owns the place. `consume` moves the closure out before anything else happens,
        // and only once, because it is taken from the place.
        unsafe {
            let consume = (*place).consume.take().expect("an operation is run once, and was given a body");
            consume(&raw mut (*place).storage, Some(running))
        }
    }
}

impl Drop for Body {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(consume) = self.consume.take() {
            // SAFETY: the storage is full if `consume` is there.
            unsafe { consume(&raw mut self.storage, None) };
        }
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
