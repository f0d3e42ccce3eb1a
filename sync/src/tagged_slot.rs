//! A slot that is filled again and again, and used by a tag that each of its values has: any tag may be
//! given, by any thread at any time. A use *pins* the value; what was released meanwhile goes with the last
//! pin. A lookup takes no lock.
//!
//! # States
//! One word has the tag in its upper half and counts pins in its lower half. The lowest bit of the tag is set
//! while the value is in use; then its references together have one pin, so the count is 0 only in a free
//! slot.
//!
//! # Steps
//! - *Fill*: a new tag, one reference, one pin.
//! - *Pin*: one pin more; fails unless the tag is that of the value.
//! - *End*, by the last reference: the bit "in use" goes, and the references' pin.
//! - *Unpin*: one pin less. The thread that gave up the last one takes the value out, and the slot is free.
//!
//! # The excluded races
//! A pin that comes after the end: the end changes the tag in the same step. A use of the value while it is
//! taken out, or after: the last unpin is one thread's, and happens after all others. A pin by the tag of an
//! earlier value: no tag comes again until the tags of a slot have wrapped around.
//!
//! The models at the end of this file check this with loom.

use std::mem::MaybeUninit;

use crate::cell::UnsafeCell;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::thread;

/// The bit of a tag that is set while the value is in use.
pub const IN_USE: u32 = 1;

/// See the module. A value that is still there is not dropped with its slot.
pub struct TaggedSlot<T> {
    word: AtomicU64,
    /// They count only while the value is in use.
    references: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is shared by those who have a pin, and moved out by the one who gave up the last.
unsafe impl<T: Send + Sync> Sync for TaggedSlot<T> {}

/// The reason why a reference was not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotCounted {
    /// The tag is not that of a value in use.
    NotInUse,
    /// There are as many references as can be counted.
    TooMany,
}

/// The result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Release {
    /// True if a reference was counted down. Else the value was not in use any more.
    pub is_counted: bool,
    /// True if the caller gave up the last pin, and takes the value out.
    pub was_last: bool,
}

fn word(tag: u32, pins: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(pins)
}

fn tag_of(word: u64) -> u32 {
    (word >> 32) as u32
}

fn pins_of(word: u64) -> u32 {
    word as u32
}

impl<T> TaggedSlot<T> {
    /// A free slot. `tag` is that of no value.
    pub fn new(tag: u32) -> Self {
        Self {
            word: AtomicU64::new(word(tag, 0)),
            references: AtomicU32::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The tag of the last value.
    pub fn tag(&self) -> u32 {
        tag_of(self.word.load(Ordering::Relaxed))
    }

    /// Puts `value` in, with one reference. `tag` has the bit [`IN_USE`].
    ///
    /// # Safety
    /// The slot is free, and the caller's alone.
    pub unsafe fn fill(&self, tag: u32, value: T) {
        debug_assert!(tag & IN_USE != 0, "a value has a tag of a value");
        // SAFETY: no other thread has access to a free slot, which holds nothing.
        self.value.with_mut(|place| unsafe { (*place).write(value) });
        self.references.store(1, Ordering::Relaxed);
        // Release: a thread that pins it sees the value.
        self.word.store(word(tag, 1), Ordering::Release);
    }

    /// Pins the value if `tag` is its tag; the caller gives the pin up by [`unpin`](Self::unpin).
    #[inline]
    pub fn pin(&self, tag: u32) -> bool {
        let mut seen = self.word.load(Ordering::Relaxed);
        // A free slot has a tag without the bit.
        while tag_of(seen) == tag && tag & IN_USE != 0 {
            // Acquire: what filled the slot is seen.
            match self.word.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// The value.
    ///
    /// # Safety
    /// The caller has a pin, for as long as it uses the reference.
    #[inline]
    pub unsafe fn value(&self) -> &T {
        // SAFETY: pinned, so it is there and stays.
        self.value.with(|value| unsafe { (*value).assume_init_ref() })
    }

    /// Gives a pin up; true for the last one, whose owner takes the value out.
    ///
    /// # Safety
    /// The caller has a pin.
    #[inline]
    #[must_use]
    pub unsafe fn unpin(&self) -> bool {
        let was_last = pins_of(self.word.fetch_sub(1, Ordering::Release)) == 1;
        if was_last {
            fence(Ordering::Acquire);
        }
        was_last
    }

    /// Takes the value out; then the slot is free.
    ///
    /// # Safety
    /// The caller gave up the last pin.
    pub unsafe fn vacate(&self) -> T {
        // SAFETY: the slot was filled, as it had pins, and no other thread has access now.
        self.value.with_mut(|value| unsafe { (*value).assume_init_read() })
    }

    /// Counts one reference more.
    ///
    /// # Errors
    /// The value is not in use any more, or has too many references.
    ///
    /// # Safety
    /// The caller has a pin.
    pub unsafe fn retain(&self) -> Result<(), NotCounted> {
        let more = |references: u32| if references == 0 { None } else { references.checked_add(1) };
        let counted = self.references.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted
            .map(drop)
            .map_err(|references| if references == 0 { NotCounted::NotInUse } else { NotCounted::TooMany })
    }

    /// Counts one reference less of the value with that tag; the last one ends its use.
    pub fn release(&self, tag: u32) -> Release {
        // Mostly there is one reference, and no use under way.
        if tag & IN_USE != 0 && self.references.load(Ordering::Relaxed) == 1 {
            let (alone, free) = (word(tag, 1), word(tag & !IN_USE, 0));
            if self.word.compare_exchange(alone, free, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Release { is_counted: true, was_last: true };
            }
        }
        if !self.pin(tag) {
            return Release { is_counted: false, was_last: false };
        }
        let less = |references: u32| references.checked_sub(1);
        let is_counted = match self.references.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less) {
            // SAFETY: pinned above.
            Ok(1) => unsafe { self.end(tag) },
            Ok(_) => true,
            // Another thread has released it at the same time.
            Err(_) => false,
        };
        // SAFETY: pinned above.
        Release { is_counted, was_last: unsafe { self.unpin() } }
    }

    /// Ends the use of the value, whatever its references, and gives the references' pin up. False if another
    /// thread was faster.
    ///
    /// # Safety
    /// The caller has pinned the value by that tag.
    #[must_use]
    pub unsafe fn end(&self, tag: u32) -> bool {
        let end = |seen| (tag_of(seen) == tag).then(|| word(tag & !IN_USE, pins_of(seen) - 1));
        self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, end).is_ok()
    }

    /// Waits for all other uses, and takes the value out: for values whose uses are short.
    ///
    /// # Safety
    /// The caller has a pin, and has [ended](Self::end) the use of the value.
    pub unsafe fn take(&self) -> T {
        while pins_of(self.word.load(Ordering::Acquire)) != 1 {
            thread::yield_now();
        }
        self.word.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the last pin was given up here, and what is not in use gets none.
        unsafe { self.vacate() }
    }
}

debug_as!([T] slot: TaggedSlot<T>, "TaggedSlot({})", slot.tag());

#[cfg(all(test, estafette_loom))]
#[allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]
mod models {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const FIRST: u32 = 2 | IN_USE;
    const SECOND: u32 = 4 | IN_USE;

    /// Loom reports a use that nothing orders before or after the end of the value.
    struct Value {
        content: UnsafeCell<u32>,
        ended: Arc<AtomicUsize>,
    }

    impl Drop for Value {
        fn drop(&mut self) {
            // SAFETY: loom checks this.
            self.content.with_mut(|content| unsafe { *content = 0 });
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct SlotModel {
        slot: TaggedSlot<Value>,
        ended: Arc<AtomicUsize>,
    }

    // SAFETY: loom checks the accesses to the values.
    unsafe impl Sync for SlotModel {}
    // SAFETY: as above.
    unsafe impl Send for SlotModel {}

    impl SlotModel {
        /// With a value of the first tag.
        fn new() -> Arc<Self> {
            let model = Arc::new(Self { slot: TaggedSlot::new(0), ended: Arc::default() });
            model.fill(FIRST);
            model
        }

        fn fill(&self, tag: u32) {
            let value = Value { content: UnsafeCell::new(tag), ended: Arc::clone(&self.ended) };
            // SAFETY: the callers know that the slot is free.
            unsafe { self.slot.fill(tag, value) };
        }

        fn call(&self, tag: u32) -> bool {
            let pinned = self.slot.pin(tag);
            if pinned {
                // SAFETY: pinned; loom checks the access to the content.
                let found = unsafe { self.slot.value().content.with(|content| *content) };
                assert_eq!(found, tag);
                self.unpin();
            }
            pinned
        }

        fn retain(&self) {
            assert!(self.slot.pin(FIRST));
            // SAFETY: pinned.
            unsafe { self.slot.retain() }.unwrap();
            self.unpin();
        }

        fn unpin(&self) {
            // SAFETY: the callers have a pin.
            if unsafe { self.slot.unpin() } {
                // SAFETY: it was the last.
                drop(unsafe { self.slot.vacate() });
            }
        }

        fn release(&self) -> bool {
            let Release { is_counted, was_last } = self.slot.release(FIRST);
            if was_last {
                // SAFETY: it was the last pin.
                drop(unsafe { self.slot.vacate() });
            }
            is_counted
        }

        fn take(&self) -> bool {
            if !self.slot.pin(FIRST) {
                return false;
            }
            // SAFETY: pinned.
            let ended = unsafe { self.slot.end(FIRST) };
            if ended {
                // SAFETY: pinned and ended.
                drop(unsafe { self.slot.take() });
            } else {
                self.unpin();
            }
            ended
        }
    }

    /// Runs both at once, and checks that the value has ended once; returns what they said.
    fn both(first: fn(&SlotModel) -> bool, second: fn(&SlotModel) -> bool, judge: fn(bool, bool)) {
        loom::model(move || {
            let model = SlotModel::new();
            let other = Arc::clone(&model);
            let other = thread::spawn(move || second(&other));
            let said = first(&model);
            judge(said, other.join().unwrap());
            assert!(!model.call(FIRST), "the value is over");
            assert_eq!(model.ended.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_call_meets_the_release() {
        both(SlotModel::release, |model| model.call(FIRST) || true, |released, _| assert!(released));
    }

    #[test]
    fn a_call_meets_the_taking() {
        both(SlotModel::take, |model| model.call(FIRST) || true, |taken, _| assert!(taken));
    }

    #[test]
    fn one_reference_is_released_once() {
        both(SlotModel::release, SlotModel::release, |first, second| assert!(first != second));
    }

    #[test]
    fn one_reference_is_released_or_taken() {
        both(SlotModel::release, SlotModel::take, |released, taken| assert!(released != taken));
    }

    #[test]
    fn two_take_it_and_one_gets_it() {
        both(SlotModel::take, SlotModel::take, |first, second| assert!(first != second));
    }

    #[test]
    fn each_of_two_references_is_released() {
        let retained = |model: &SlotModel| {
            model.retain();
            model.release() && model.release()
        };
        both(retained, |model| model.call(FIRST) || true, |released, _| assert!(released));
        loom::model(|| {
            let model = SlotModel::new();
            model.retain();
            let other = Arc::clone(&model);
            let other = thread::spawn(move || assert!(other.call(FIRST) && other.release()));
            assert!(model.release());
            other.join().unwrap();
            assert_eq!(model.ended.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_call_with_an_old_handle_never_meets_the_next_value() {
        loom::model(|| {
            let model = SlotModel::new();
            let other = Arc::clone(&model);
            let other = thread::spawn(move || (other.call(FIRST), other.call(SECOND)));
            if model.slot.release(FIRST).was_last {
                // SAFETY: it was the last pin. Then the slot is free.
                drop(unsafe { model.slot.vacate() });
                model.fill(SECOND);
                assert!(model.call(SECOND));
            }
            other.join().unwrap();
            assert_eq!(model.ended.load(Ordering::Relaxed), 1);
        });
    }
}
