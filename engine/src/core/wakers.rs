//! Wakers of futures that wait for the same thing.

use std::collections::BTreeMap;
use std::task::Waker;

use estafette_sync::process::Generation;
#[cfg(feature = "links")]
use estafette_sync::sync::Mutex;

use crate::core::contained::Contained;
use crate::core::one_shot::wake;

/// The wakers of pending futures, for the lock of the thing that the futures wait for. Under that lock no
/// waker is cloned, dropped or woken.
///
/// Most things have one waiting future, which needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    waiting: WakerList,
    /// The last number that was given.
    last: u64,
}

#[derive(Debug, Default)]
struct WakerList {
    /// Filled only while `others` is empty, so that no future is in both.
    first: Option<(u64, Waker)>,
    others: BTreeMap<u64, Waker>,
}

/// The number of a future among those that wait for one thing; 0 before its first pending poll. A number is
/// given once, so the key of a future that was woken never names another one.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WakerKey(u64);

impl WakerKey {
    /// The key of a future that waits alone.
    pub(crate) fn alone() -> Self {
        Self(u64::MAX)
    }

    /// Takes the key of a future that waits no longer, and whose waker has to be removed under a lock of this
    /// `generation`: in a forked child that lock may be held for ever.
    pub(crate) fn take_used(&mut self, generation: Generation) -> Option<Self> {
        Some(std::mem::take(self)).filter(|key| key.is_used() && generation.is_current())
    }

    /// True if the future may have a waker to take out.
    #[inline(always)]
    pub(crate) fn is_used(&self) -> bool {
        self.0 != 0
    }
}

impl Wakers {
    /// True if the future has registered this waker.
    pub(crate) fn has(&self, key: &WakerKey, waker: &Waker) -> bool {
        let known = match &self.waiting.first {
            Some((number, known)) if *number == key.0 => Some(known),
            _ => self.waiting.others.get(&key.0),
        };
        known.is_some_and(|known| known.will_wake(waker))
    }

    /// Registers a waker in place of the future's earlier one, which it returns, to be dropped under no lock.
    #[must_use]
    pub(crate) fn put(&mut self, key: &mut WakerKey, waker: Waker) -> Option<Contained<Waker>> {
        if !key.is_used() {
            self.last += 1;
            key.0 = self.last;
        }
        let WakerList { first, others } = &mut self.waiting;
        let replaced = match first {
            Some((number, known)) if *number == key.0 => Some(std::mem::replace(known, waker)),
            None if others.is_empty() => {
                *first = Some((key.0, waker));
                None
            }
            _ => others.insert(key.0, waker),
        };
        replaced.map(Contained::new)
    }

    /// Takes the future's waker out, to be dropped under no lock.
    #[must_use]
    pub(crate) fn remove(&mut self, key: &WakerKey) -> Option<Contained<Waker>> {
        let WakerList { first, others } = &mut self.waiting;
        let removed = match first.take_if(|(number, _)| *number == key.0) {
            Some((_, waker)) => Some(waker),
            None => others.remove(&key.0),
        };
        removed.map(Contained::new)
    }

    /// Takes the waker of the future out that registered first, to be woken under no lock.
    pub(crate) fn take_first(&mut self) -> Option<(WakerKey, Waker)> {
        let WakerList { first, others } = &mut self.waiting;
        let next = others.first_key_value().map_or(u64::MAX, |(number, _)| *number);
        let taken = first.take_if(|(number, _)| *number <= next).or_else(|| others.pop_first());
        taken.map(|(number, waker)| (WakerKey(number), waker))
    }

    /// Takes all wakers out, to be woken under no lock.
    #[must_use]
    pub(crate) fn take(&mut self) -> Taken {
        Taken(std::mem::take(&mut self.waiting))
    }

    /// The number of futures that have registered a waker.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.waiting.first.is_some()) + self.waiting.others.len()
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        // Tasks that are never woken. The last owner may be any thread of the engine.
        self.take().into_iter().for_each(|waker| drop(Contained::new(waker)));
    }
}

/// Wakers that were taken out.
pub(crate) struct Taken(WakerList);

impl Taken {
    pub(crate) fn wake(self) {
        self.into_iter().for_each(wake);
    }

    fn into_iter(self) -> impl Iterator<Item = Waker> {
        self.0.first.map(|(_, waker)| waker).into_iter().chain(self.0.others.into_values())
    }
}

/// Futures that check a condition again when they are woken, which happens once or never. So both sides take
/// a lock, and a wait costs no barrier of other threads as that of an [event count](crate::core::notifier)
/// does.
#[cfg(feature = "links")]
#[derive(Debug, Default)]
pub(crate) struct LockedWakers(Mutex<Wakers>, Generation);

#[cfg(feature = "links")]
impl LockedWakers {
    pub(crate) fn wake(&self) {
        let taken = self.0.lock().take();
        taken.wake();
    }

    pub(crate) fn listen(&self) -> ListeningLocked<'_> {
        ListeningLocked { wakers: self, key: WakerKey::default() }
    }
}

/// A future that waits.
#[cfg(feature = "links")]
#[derive(Debug)]
pub(crate) struct ListeningLocked<'a> {
    wakers: &'a LockedWakers,
    key: WakerKey,
}

#[cfg(feature = "links")]
impl ListeningLocked<'_> {
    /// Wakes `waker` at the next call of [`LockedWakers::wake`]; check the condition after this call.
    pub(crate) fn register_waker(&mut self, waker: &Waker) {
        if self.wakers.0.lock().has(&self.key, waker) {
            return;
        }
        // Cloning and dropping a waker is foreign code.
        let waker = waker.clone();
        let replaced = self.wakers.0.lock().put(&mut self.key, waker);
        drop(replaced);
    }
}

#[cfg(feature = "links")]
impl Drop for ListeningLocked<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take_used(self.wakers.1) {
            let removed = self.wakers.0.lock().remove(&key);
            drop(removed);
        }
    }
}
