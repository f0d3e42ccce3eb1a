//! Handles: what the caller holds of a tensor, a lease, a promise, an engine or a program.
//!
//! Any value may be given as a handle (see `places.rs`), by any thread at any time: a call *pins* what it uses, and what was
//! released meanwhile goes when the last call that uses it returns. A lookup takes no lock.
//!
//! # The word of a place
//! Its upper half is the tag, its lower half counts pins. While the handle is in use, its holders together have one pin, so the
//! count is 0 only when the place is free.
//!
//! | step | word |
//! |---|---|
//! | filled | new tag, 1 pin |
//! | a call pins | fails unless the tag is the handle's; one pin more |
//! | the last holder releases | the bit "in use" goes, and the holders' pin |
//! | a call, or the last holder, gives a pin up | one pin less; giving up the last one takes the value out and frees the place |

use std::cell::UnsafeCell;
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::ops::Deref;

use estafette_sync::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use estafette_sync::thread;

use crate::entry::Refusal;
use crate::places::{self, Kind, Places};

/// The things of one kind that are in use.
pub(crate) struct Table<T: 'static>(Places<Slot<T>>);

struct Slot<T> {
    word: AtomicU64,
    /// Holders of the handle. Those of one that is over are not looked at.
    holders: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is shared by those who have a pin, and moved out by the one who gave up the last.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

fn word(tag: u32, pins: u32) -> u64 {
    (u64::from(tag) << 32) | u64::from(pins)
}

fn tag_of(word: u64) -> u32 {
    (word >> 32) as u32
}

fn pins_of(word: u64) -> u32 {
    word as u32
}

impl<T: Send + Sync> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self(Places::new(kind))
    }

    /// A free place, which is filled when nothing can fail any more.
    pub(crate) fn reserve(&'static self) -> Result<Vacant<T>, Refusal> {
        let kind = self.0.kind();
        let (number, slot) = self.0.take(|| Slot {
            word: AtomicU64::new(word(kind.first_tag(), 0)),
            holders: AtomicU32::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        })?;
        Ok(Vacant { table: self, slot, number })
    }

    /// What `handle` stands for, pinned. `name` is the argument's.
    #[inline]
    pub(crate) fn get<H>(&'static self, handle: *const H, name: impl Display) -> Result<Pinned<T>, Refusal> {
        self.pin(handle).ok_or_else(|| self.0.kind().refusal(handle, name))
    }

    /// The tag of a handle that may be in use, and its place.
    #[inline]
    fn find<H>(&'static self, handle: *const H) -> Option<(u32, u32, &'static Slot<T>)> {
        let (tag, number) = places::parts(handle);
        let slot = self.0.get(number)?;
        // The tag of a place that is free, or was released during a call, is no handle's.
        places::may_be_in_use(tag).then_some((tag, number, slot))
    }

    #[inline]
    fn pin<H>(&'static self, handle: *const H) -> Option<Pinned<T>> {
        let (tag, number, slot) = self.find(handle)?;
        let mut seen = slot.word.load(Ordering::Relaxed);
        loop {
            if tag_of(seen) != tag {
                return None;
            }
            // Acquire: what filled the place is seen.
            match slot.word.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Pinned { table: self, slot, number }),
                Err(now) => seen = now,
            }
        }
    }

    /// Counts one holder more.
    pub(crate) fn retain<H>(&'static self, handle: *const H, name: &str) -> Result<(), Refusal> {
        let pinned = self.get(handle, name)?;
        let counted = pinned.slot.holders.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |holders| {
            if holders == 0 { None } else { holders.checked_add(1) }
        });
        counted.map(drop).map_err(|holders| match holders {
            0 => self.0.kind().refusal(handle, name),
            _ => Refusal::invalid(format!("{name}: too many holders")),
        })
    }

    /// Counts one holder less. The value is dropped with the last one, or when the last call that uses it returns.
    pub(crate) fn release<H>(&'static self, handle: *const H, name: &str) -> Result<(), Refusal> {
        // Mostly there is one holder, and no call under way.
        if let Some((tag, number, slot)) = self.find(handle)
            && slot.holders.load(Ordering::Relaxed) == 1
            && let (alone, free) = (word(tag, 1), word(places::over(tag), 0))
            && slot.word.compare_exchange(alone, free, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            // SAFETY: the last pin was just given up, with a handle in use.
            drop(unsafe { self.vacate(slot, number) });
            return Ok(());
        }
        let pinned = self.get(handle, name)?;
        let counted = pinned
            .slot
            .holders
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |holders| holders.checked_sub(1));
        match counted {
            // The last pin is given up with `pinned`.
            Ok(1) => self.end(handle, pinned.slot, name),
            Ok(_) => Ok(()),
            // Another thread has released it at the same time.
            Err(_) => Err(self.0.kind().refusal(handle, name)),
        }
    }

    /// Ends the use of a handle that the caller has pinned, and gives up one of its two pins, the holders' and the caller's.
    fn end<H>(&'static self, handle: *const H, slot: &Slot<T>, name: &str) -> Result<(), Refusal> {
        let (tag, _) = places::parts(handle);
        let ended = slot.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| {
            (tag_of(seen) == tag).then(|| word(places::over(tag), pins_of(seen) - 1))
        });
        // Another thread may have been faster.
        ended.map(drop).map_err(|_| self.0.kind().refusal(handle, name))
    }

    /// Ends the use of `handle`, whatever its holders, and gives what it stood for. Waits for calls that use it right now: for kinds
    /// whose calls are short.
    pub(crate) fn take<H>(&'static self, handle: *const H, name: &str) -> Result<T, Refusal> {
        let pinned = self.get(handle, name)?;
        let (slot, number) = (pinned.slot, pinned.number);
        self.end(handle, slot, name)?;
        std::mem::forget(pinned);
        while pins_of(slot.word.load(Ordering::Acquire)) != 1 {
            thread::yield_now();
        }
        slot.word.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the last pin was given up here, and a handle that is over gives none.
        Ok(unsafe { self.vacate(slot, number) })
    }

    /// Takes the value out of a place and frees it.
    ///
    /// # Safety
    /// The caller has given up the last pin.
    unsafe fn vacate(&'static self, slot: &Slot<T>, number: u32) -> T {
        // SAFETY: the place was filled, as it had pins, and no other thread has access now.
        let value = unsafe { (*slot.value.get()).assume_init_read() };
        self.0.give_back(number);
        value
    }
}

/// A place for a handle to be.
pub(crate) struct Vacant<T: Send + Sync + 'static> {
    table: &'static Table<T>,
    slot: &'static Slot<T>,
    number: u32,
}

impl<T: Send + Sync> Vacant<T> {
    /// A handle of `value`, with one holder.
    pub(crate) fn fill<H>(self, value: T) -> *mut H {
        let (table, slot, number) = (self.table, self.slot, self.number);
        std::mem::forget(self);
        // SAFETY: a free place is only its taker's, and holds nothing.
        unsafe { (*slot.value.get()).write(value) };
        let tag = table.0.kind().next_tag(tag_of(slot.word.load(Ordering::Relaxed)));
        slot.holders.store(1, Ordering::Relaxed);
        // Release: a thread that pins it sees the value.
        slot.word.store(word(tag, 1), Ordering::Release);
        places::handle(tag, number)
    }
}

impl<T: Send + Sync> Drop for Vacant<T> {
    fn drop(&mut self) {
        self.table.0.give_back(self.number);
    }
}

/// Something that a call uses.
pub(crate) struct Pinned<T: Send + Sync + 'static> {
    table: &'static Table<T>,
    slot: &'static Slot<T>,
    number: u32,
}

impl<T: Send + Sync> Deref for Pinned<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: pinned, so it is there and stays.
        unsafe { (*self.slot.value.get()).assume_init_ref() }
    }
}

impl<T: Send + Sync> Drop for Pinned<T> {
    #[inline]
    fn drop(&mut self) {
        let before = self.slot.word.fetch_sub(1, Ordering::Release);
        if pins_of(before) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: the last pin was just given up.
            drop(unsafe { self.table.vacate(self.slot, self.number) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    static COUNTED: Table<Arc<AtomicUsize>> = Table::new(Kind::Lease);

    fn text<R>(result: Result<R, Refusal>) -> String {
        result.err().map(|refusal| refusal.message).unwrap_or_default()
    }

    #[test]
    fn a_handle_that_is_over_is_refused_and_its_place_is_used_again() {
        let value = Arc::new(AtomicUsize::new(0));
        let first: *mut u8 = COUNTED.reserve().unwrap().fill(value.clone());
        COUNTED.retain(first, "lease").unwrap();
        COUNTED.release(first, "lease").unwrap();
        assert_eq!(Arc::strong_count(&value), 2);
        COUNTED.release(first, "lease").unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
        for refused in [
            text(COUNTED.release(first, "lease")),
            text(COUNTED.retain(first, "lease")),
            text(COUNTED.get(first, "lease")),
            text(COUNTED.take(first, "lease")),
        ] {
            assert_eq!(refused, "lease: this handle is not in use; it was released");
        }
        let second: *mut u8 = COUNTED.reserve().unwrap().fill(value.clone());
        assert_eq!(first as u32, second as u32, "the same place");
        assert!(COUNTED.get(first, "lease").is_err() && COUNTED.get(second, "lease").is_ok());
        assert!(Arc::ptr_eq(&COUNTED.take(second, "lease").unwrap(), &value));
        drop(COUNTED.reserve().unwrap());
    }

    #[test]
    fn what_is_released_during_a_call_goes_when_the_call_returns() {
        let value = Arc::new(AtomicUsize::new(0));
        let handle: *mut u8 = COUNTED.reserve().unwrap().fill(value.clone());
        let pinned = COUNTED.get(handle, "lease").unwrap();
        COUNTED.release(handle, "lease").unwrap();
        assert!(COUNTED.get(handle, "lease").is_err());
        assert_eq!(Arc::strong_count(&value), 2, "a call uses it");
        drop(pinned);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn any_value_may_be_given() {
        assert_eq!(text(COUNTED.get(std::ptr::null::<u8>(), "lease")), "lease is NULL");
        let strange = [1, 64, usize::MAX, 1 << 32, (Kind::Lease.first_tag() as usize) << 32, 0xdead_beef];
        for bits in strange {
            let refused = text(COUNTED.get(std::ptr::without_provenance::<u8>(bits), "lease"));
            assert!(refused.starts_with("lease: this handle is not in use"), "{refused}");
        }
        let local = 5;
        assert!(COUNTED.get(&raw const local, "lease").is_err(), "an address is no handle");
        static OTHER: Table<u8> = Table::new(Kind::Engine);
        let engine: *mut u8 = OTHER.reserve().unwrap().fill(7);
        assert_eq!(text(COUNTED.get(engine, "lease")), "lease: this is the handle of an engine");
        assert_eq!(OTHER.take(engine, "engine").unwrap(), 7);
    }

    #[test]
    fn threads_that_misuse_a_handle_at_once_drop_it_once() {
        const THREADS: usize = 4;
        for round in 0..200 {
            let value = Arc::new(AtomicUsize::new(0));
            let handle: *mut u8 = COUNTED.reserve().unwrap().fill(value.clone());
            let bits = handle.addr();
            let ended: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|number| {
                        scope.spawn(move || {
                            let handle = std::ptr::without_provenance::<u8>(bits);
                            if let Ok(pinned) = COUNTED.get(handle, "lease") {
                                pinned.fetch_add(1, Ordering::Relaxed);
                            }
                            let ended = if (number + round) % 2 == 0 {
                                COUNTED.release(handle, "lease").is_ok()
                            } else {
                                COUNTED.take(handle, "lease").is_ok()
                            };
                            usize::from(ended)
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(ended, 1);
            assert_eq!(Arc::strong_count(&value), 1);
        }
    }
}
