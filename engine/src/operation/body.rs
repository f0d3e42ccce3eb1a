//! The body of an operation, kept inside the operation itself where it is small: most closures hold a pointer or two, and
//! a heap allocation would cost more than all the rest.

use std::mem::MaybeUninit;

use crate::core::operation::OpGranted;
use crate::operation::run::Running;

/// Words that a body may capture before it goes to the heap.
const WORDS: usize = 5;

type Storage = MaybeUninit<[usize; WORDS]>;

/// Runs what is in the storage, or without an operation only drops it. Takes it out first thing, either way.
type Consume = unsafe fn(*mut Storage, Option<Running>) -> Option<OpGranted>;

/// What an operation does once its inputs are there. It owns its completion, and may hand on the operation to run next on
/// this thread.
pub(crate) struct Body {
    /// `None` while there is nothing in the storage.
    consume: Option<Consume>,
    storage: Storage,
}

// SAFETY: a body is made only from closures that are `Send`.
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
            // SAFETY: `stored` has put an `F` there, and it is read out once.
            let body = unsafe { storage.cast::<F>().read() };
            running.and_then(body)
        }
        let mut storage = Storage::uninit();
        // SAFETY: it fits, by contract.
        unsafe { storage.as_mut_ptr().cast::<F>().write(body) };
        Self { consume: Some(consume::<F>), storage }
    }

    /// Runs the body.
    pub(crate) fn run(mut self, running: Running) -> Option<OpGranted> {
        // SAFETY: the body is ours until it has run.
        unsafe { Self::run_in_place(&raw mut self, running) }
    }

    /// Runs the body at `place`, which is empty from then on and may go as soon as `running` ends.
    ///
    /// # Safety
    /// `place` is the caller's alone until `running` ends.
    #[inline]
    pub(crate) unsafe fn run_in_place(place: *mut Self, running: Running) -> Option<OpGranted> {
        // SAFETY: the place is ours; what is in the storage is taken out by the call before anything else happens, and only
        // once, since `consume` is gone from the place.
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
            // SAFETY: the storage is full while `consume` is there.
            unsafe { consume(&raw mut self.storage, None) };
        }
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
