//! Handles: what the caller holds of a tensor, a lease, a promise, an engine or a program.
//!
//! Any value may be given as a handle (see `places.rs`), by any thread at any time: a call *pins* what it
//! uses, and what was released meanwhile goes when the last call that uses it returns. A lookup takes no
//! lock. The protocol is that of [`TaggedSlot`].

use std::fmt::Display;
use std::ops::Deref;

use estafette_sync::tagged_slot::{NotCounted, TaggedSlot};

use crate::entry::Refusal;
use crate::places::{self, HandleKind, Places};

/// The things of one kind that are in use.
pub(crate) struct Table<T: 'static>(Places<TaggedSlot<T>>);

impl<T: Send + Sync> Table<T> {
    pub(crate) const fn new(kind: HandleKind) -> Self {
        Self(Places::new(kind))
    }

    /// A free place, which is filled when nothing can fail any more.
    pub(crate) fn reserve(&'static self) -> Result<Vacant<T>, Refusal> {
        let kind = self.0.kind();
        let (number, slot) = self.0.take(|| TaggedSlot::new(kind.first_tag()))?;
        Ok(Vacant { table: self, slot, number })
    }

    /// The object of `handle`, pinned. `name` is the argument's.
    #[inline]
    pub(crate) fn get<H>(&'static self, handle: *const H, name: impl Display) -> Result<Pinned<T>, Refusal> {
        self.pin(handle).ok_or_else(|| self.0.kind().refusal(handle, name))
    }

    #[inline]
    fn pin<H>(&'static self, handle: *const H) -> Option<Pinned<T>> {
        let (tag, number) = places::parts(handle);
        let slot = self.0.get(number)?;
        slot.pin(tag).then(|| Pinned { table: self, slot, number })
    }

    /// Adds a reference.
    pub(crate) fn retain<H>(&'static self, handle: *const H, name: &str) -> Result<(), Refusal> {
        let pinned = self.get(handle, name)?;
        // SAFETY: pinned.
        unsafe { pinned.slot.retain() }.map_err(|why| match why {
            NotCounted::NotInUse => self.0.kind().refusal(handle, name),
            NotCounted::TooMany => Refusal::invalid(format!("{name}: too many references")),
        })
    }

    /// Removes a reference. The value is dropped with the last one, or when the last call that uses it
    /// returns.
    pub(crate) fn release<H>(&'static self, handle: *const H, name: &str) -> Result<(), Refusal> {
        let (tag, number) = places::parts(handle);
        let slot = self.0.get(number).ok_or_else(|| self.0.kind().refusal(handle, name))?;
        let release = slot.release(tag);
        if release.was_last {
            // SAFETY: the last pin was just given up.
            drop(unsafe { self.vacate(slot, number) });
        }
        if release.is_counted { Ok(()) } else { Err(self.0.kind().refusal(handle, name)) }
    }

    /// Ends the use of `handle`, whatever its references, and gives what it stood for. Waits for calls that
    /// use it right now: for kinds whose calls are short.
    pub(crate) fn take<H>(&'static self, handle: *const H, name: &str) -> Result<T, Refusal> {
        let pinned = self.get(handle, name)?;
        let (slot, number) = (pinned.slot, pinned.number);
        // SAFETY: pinned by this tag.
        if !unsafe { slot.end(places::parts(handle).0) } {
            return Err(self.0.kind().refusal(handle, name));
        }
        std::mem::forget(pinned);
        // SAFETY: pinned, and ended.
        let value = unsafe { slot.take() };
        self.0.release(number);
        Ok(value)
    }

    /// Takes the value out of a place and frees it.
    ///
    /// # Safety
    /// The caller has given up the last pin.
    unsafe fn vacate(&'static self, slot: &TaggedSlot<T>, number: u32) -> T {
        // SAFETY: as this function's own contract says.
        let value = unsafe { slot.vacate() };
        self.0.release(number);
        value
    }
}

/// A place for a handle to be.
pub(crate) struct Vacant<T: Send + Sync + 'static> {
    table: &'static Table<T>,
    slot: &'static TaggedSlot<T>,
    number: u32,
}

impl<T: Send + Sync> Vacant<T> {
    /// A handle of `value`, with one reference.
    pub(crate) fn fill<H>(self, value: T) -> *mut H {
        let (table, slot, number) = (self.table, self.slot, self.number);
        std::mem::forget(self);
        let tag = table.0.kind().next_tag(slot.tag());
        // SAFETY: a free place is its `Vacant`'s alone.
        unsafe { slot.fill(tag, value) };
        places::handle(tag, number)
    }
}

impl<T: Send + Sync> Drop for Vacant<T> {
    fn drop(&mut self) {
        self.table.0.release(self.number);
    }
}

/// Something that a call uses.
pub(crate) struct Pinned<T: Send + Sync + 'static> {
    table: &'static Table<T>,
    slot: &'static TaggedSlot<T>,
    number: u32,
}

impl<T: Send + Sync> Deref for Pinned<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: pinned.
        unsafe { self.slot.value() }
    }
}

impl<T: Send + Sync> Drop for Pinned<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is the pin.
        if unsafe { self.slot.unpin() } {
            // SAFETY: the last pin was just given up.
            drop(unsafe { self.table.vacate(self.slot, self.number) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static COUNTED: Table<Arc<AtomicUsize>> = Table::new(HandleKind::Lease);

    #[test]
    fn a_place_that_was_never_filled_is_refused() {
        let handle = (HandleKind::Lease.first_tag() as usize) << 32 | 0xffff;
        assert!(COUNTED.get(std::ptr::without_provenance::<u8>(handle), "lease").is_err());
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
