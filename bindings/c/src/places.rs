//! Places that handles name by number. A place lives as long as the process and is used again and again;
//! there are as many as handles of its kind were ever in use at once.
//!
//! A handle is no address. Its lower half is the number of a place, its upper half a *tag*: the kind of the
//! handle, the generation of what lives in the place, and a bit that is set while the handle is in use. So a
//! handle that is over, or of another kind, is distinguished from one in use by one comparison, whatever is
//! done with it.

use std::cell::RefCell;
use std::fmt::Display;

use estafette_sync::sync::atomic::{AtomicU32, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};
use estafette_sync::tagged_slot::IN_USE;

use crate::entry::{Refusal, is_forked};
use crate::status::estafette_status;

/// The kind of object that a handle stands for. No kind is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandleKind {
    Op = 1,
    Tensor,
    Lease,
    Promise,
    Engine,
    Program,
    Trace,
    Ticket,
    Door,
    Link,
}

/// Kinds, and 0.
const KINDS: usize = 11;

/// The kind is in the upper bits of a tag. All of them set is no kind, as in what programs write for "none".
const KIND_SHIFT: u32 = 28;

impl HandleKind {
    /// Each kind, as messages name it, and what ends the use of its handles.
    const ALL: [(HandleKind, &str, &str); KINDS - 1] = [
        (HandleKind::Op, "an operation", "its operation has ended, or the handle was released"),
        (HandleKind::Tensor, "a tensor", "it was released"),
        (HandleKind::Lease, "a lease", "it was released"),
        (HandleKind::Promise, "a promise", "the promise was settled or dropped"),
        (HandleKind::Engine, "an engine", "it was destroyed"),
        (HandleKind::Program, "a program", "it was destroyed"),
        (HandleKind::Trace, "a trace", "it was ended"),
        (HandleKind::Ticket, "a ticket", "it was revoked"),
        (HandleKind::Door, "a door", "it was closed"),
        (HandleKind::Link, "a link", "it was closed"),
    ];

    fn text(self) -> &'static str {
        Self::ALL[self as usize - 1].1
    }

    /// The tag of a place that was never used. The generation starts at the number of this copy's page in
    /// memory, so a handle of another copy of the library in the same process is valid in neither.
    pub(crate) fn first_tag(self) -> u32 {
        let page = ((&raw const FREE).addr() >> 12) as u32;
        self.bits() | ((page << 1) & !(u32::MAX << KIND_SHIFT))
    }

    const fn bits(self) -> u32 {
        (self as u32) << KIND_SHIFT
    }

    /// The tag for the next thing in a place whose last one had `tag`.
    pub(crate) fn next_tag(self, tag: u32) -> u32 {
        self.bits() | (tag.wrapping_add(2) & !(u32::MAX << KIND_SHIFT)) | IN_USE
    }

    /// The reason why `handle` is refused.
    #[cold]
    pub(crate) fn refusal<H>(self, handle: *const H, name: impl Display) -> Refusal {
        if handle.is_null() {
            return Refusal::invalid(format!("{name} is NULL"));
        }
        let (tag, _) = parts(handle);
        let is_other = |kind: HandleKind| kind as u32 == tag >> KIND_SHIFT && kind != self;
        let end = Self::ALL[self as usize - 1].2;
        Refusal::invalid(match Self::ALL.into_iter().find(|(kind, ..)| is_other(*kind)) {
            Some((_, other, _)) if tag & IN_USE != 0 => format!("{name}: this is the handle of {other}"),
            _ => format!("{name}: this handle is not in use; {end}, or is of another copy of the library"),
        })
    }
}

pub(crate) fn handle<H>(tag: u32, number: u32) -> *mut H {
    std::ptr::without_provenance_mut(((u64::from(tag) << 32) | u64::from(number)) as usize)
}

/// The tag and the number of a handle.
pub(crate) fn parts<H>(handle: *const H) -> (u32, u32) {
    let bits = handle.addr() as u64;
    ((bits >> 32) as u32, bits as u32)
}

/// Places in the first chunk; each further one has twice as many as the one before.
const FIRST: u32 = 64;
/// At most so many chunks: a billion places.
const CHUNKS: usize = 24;
/// Places of all chunks.
const PLACES_MAX: u32 = FIRST * ((1 << CHUNKS) - 1);

/// So many free places of a kind are kept by a thread.
const KEPT_MAX: usize = 128;

/// Free places that any thread may take, by kind.
static FREE: [Mutex<Vec<u32>>; KINDS] = [const { Mutex::new(Vec::new()) }; KINDS];

/// Free places that a thread keeps, so that it need not take the lock for each; free for all when the thread
/// ends.
#[derive(Default)]
struct FreePlaces([Vec<u32>; KINDS]);

impl Drop for FreePlaces {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever.
        if is_forked() {
            return;
        }
        for (kept, free) in self.0.iter_mut().zip(&FREE) {
            if !kept.is_empty() {
                free.lock().append(kept);
            }
        }
    }
}

thread_local! {
    static KEPT: RefCell<FreePlaces> = RefCell::default();
}

pub(crate) struct Places<S> {
    kind: HandleKind,
    chunks: [OnceLock<Box<[S]>>; CHUNKS],
    made: AtomicU32,
}

impl<S> Places<S> {
    pub(crate) const fn new(kind: HandleKind) -> Self {
        Self { kind, chunks: [const { OnceLock::new() }; CHUNKS], made: AtomicU32::new(0) }
    }

    pub(crate) fn kind(&self) -> HandleKind {
        self.kind
    }

    /// The place with that number, if it was made.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&S> {
        let (chunk, at) = locate(number);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// A free place; `make` makes one.
    pub(crate) fn take(&self, make: impl Fn() -> S) -> Result<(u32, &S), Refusal> {
        let number = self.free(make);
        number.and_then(|number| Some((number, self.get(number)?))).ok_or_else(|| {
            let message = format!("{PLACES_MAX} handles of {} are in use already", self.kind.text());
            Refusal::new(estafette_status::ESTAFETTE_IN_FLIGHT_LIMIT, message)
        })
    }

    fn free(&self, make: impl Fn() -> S) -> Option<u32> {
        let kind = self.kind as usize;
        if let Ok(Some(number)) = KEPT.try_with(|kept| kept.borrow_mut().0[kind].pop()) {
            return Some(number);
        }
        if let Some(number) = self.shared() {
            return Some(number);
        }
        let number = self
            .made
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |made| (made < PLACES_MAX).then(|| made + 1));
        let number = number.ok()?;
        let (chunk, _) = locate(number);
        self.chunks[chunk].get_or_init(|| (0..FIRST << chunk).map(|_| make()).collect());
        Some(number)
    }

    /// A free place that any thread may have, and some more for this one.
    fn shared(&self) -> Option<u32> {
        let kind = self.kind as usize;
        let mut free = FREE[kind].lock();
        let number = free.pop()?;
        let more = free.len().saturating_sub(KEPT_MAX / 2);
        let more = free.split_off(more);
        drop(free);
        if KEPT.try_with(|kept| kept.borrow_mut().0[kind].extend(&more)).is_err() {
            FREE[kind].lock().extend(more);
        }
        Some(number)
    }

    /// Frees a place.
    pub(crate) fn release(&self, number: u32) {
        let kind = self.kind as usize;
        let surplus = KEPT.try_with(|kept| {
            let kept = &mut kept.borrow_mut().0[kind];
            kept.push(number);
            if kept.len() > KEPT_MAX { kept.split_off(KEPT_MAX / 2) } else { Vec::new() }
        });
        match surplus {
            Ok(surplus) if surplus.is_empty() => {}
            Ok(surplus) => FREE[kind].lock().extend(surplus),
            // The thread is ending.
            Err(_) => FREE[kind].lock().push(number),
        }
    }
}

/// The chunk of a place, and the place's index in the chunk.
#[inline]
fn locate(number: u32) -> (usize, usize) {
    let from_first = number.saturating_add(FIRST);
    let chunk = from_first.ilog2() - FIRST.ilog2();
    (chunk as usize, (from_first - (FIRST << chunk.min(CHUNKS as u32 - 1))) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_hold_every_number_once() {
        assert_eq!(locate(0), (0, 0));
        assert_eq!(locate(63), (0, 63));
        assert_eq!(locate(64), (1, 0));
        assert_eq!(locate(191), (1, 127));
        assert_eq!(locate(192), (2, 0));
        let (chunk, at) = locate(PLACES_MAX - 1);
        assert_eq!((chunk, at), (CHUNKS - 1, (FIRST << (CHUNKS - 1)) as usize - 1));
        // A number without a place finds nothing.
        let places: Places<u8> = Places::new(HandleKind::Promise);
        for number in [0, PLACES_MAX, u32::MAX - 1, u32::MAX] {
            assert!(places.get(number).is_none());
        }
    }

    #[test]
    fn kinds_are_in_the_order_of_their_numbers() {
        for (at, (kind, ..)) in HandleKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at + 1);
        }
    }

    #[test]
    fn tags_say_the_kind_and_never_make_null() {
        let kind = HandleKind::Engine;
        let first = kind.next_tag(kind.first_tag());
        let second = kind.next_tag(first & !IN_USE);
        assert_ne!(first, second);
        assert_eq!(
            kind.next_tag(u32::MAX) >> KIND_SHIFT,
            kind as u32,
            "generations wrap around below the kind"
        );
        assert!(!handle::<u8>(first, 0).is_null());
        assert_eq!(parts(handle::<u8>(second, 77)), (second, 77));
    }
}
