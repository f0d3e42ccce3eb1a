//! Slots of the peer with subscribers. PROTOCOL.md, *dispatch*.

use std::collections::VecDeque;

use crate::slots::Answer;

/// Events, the oldest first.
#[derive(Debug)]
pub(crate) struct Watched<E> {
    events: VecDeque<E>,
    /// The peer's count of settled slots at the last poll.
    counted: u64,
}

impl<E> Default for Watched<E> {
    fn default() -> Self {
        Self { events: VecDeque::new(), counted: 0 }
    }
}

impl<E: Answer> Watched<E> {
    /// Adds an event, which the caller polls afterwards, unless it has settled: a poll before may have
    /// counted its slot, and the next one would take it for another.
    pub(crate) fn push(&mut self, event: E) {
        if event.outcome().is_none() {
            self.events.push_back(event);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Removes an event: one of the newest, mostly.
    pub(crate) fn remove(&mut self, is_it: impl Fn(&E) -> bool) -> Option<E> {
        let at = self.events.iter().rposition(is_it)?;
        self.events.remove(at)
    }

    /// True if events may have settled since the last poll, at which the peer's count was another one.
    pub(crate) fn may_have_settled(&self, count: u64) -> bool {
        !self.events.is_empty() && count != self.counted
    }

    /// Removes the events that have settled. `count` is the peer's count of settled slots, which the caller
    /// reads under the lock of these events. Each slot that settles changes the count by one, so no more
    /// events are found than that, unless `all` may have settled.
    pub(crate) fn take_settled(&mut self, count: u64, all: bool) -> Vec<E> {
        let new = count.wrapping_sub(std::mem::replace(&mut self.counted, count));
        if all {
            let events = std::mem::take(&mut self.events).into_iter();
            let (settled, open) = events.partition::<Vec<_>, _>(|event| event.outcome().is_some());
            self.events = open.into();
            return settled;
        }
        let most = usize::try_from(new).unwrap_or(usize::MAX);
        take_from_ends(&mut self.events, most, |event| event.outcome().is_some())
    }
}

/// Removes at most so many events that are over. The search begins at both ends: most uses end in the order
/// in which they began, or they began last, beside some that last.
pub(crate) fn take_from_ends<E>(
    events: &mut VecDeque<E>,
    most: usize,
    is_over: impl Fn(&E) -> bool,
) -> Vec<E> {
    let mut over = Vec::new();
    // Events at each end that are not over.
    let (mut oldest, mut newest) = (0, 0);
    while over.len() < most && oldest + newest < events.len() {
        let is_old = oldest <= newest;
        let at = if is_old { oldest } else { events.len() - 1 - newest };
        if is_over(&events[at]) {
            over.extend(events.remove(at));
        } else if is_old {
            oldest += 1;
        } else {
            newest += 1;
        }
    }
    over
}

#[cfg(all(test, not(estafette_loom)))]
mod tests {
    use std::cell::Cell;

    use estafette_devices::Outcome;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    struct Slot<'a>(usize, &'a [Cell<bool>], &'a Cell<usize>);

    impl Answer for Slot<'_> {
        fn outcome(&self) -> Option<Outcome> {
            self.2.set(self.2.get() + 1);
            self.1[self.0].get().then_some(Ok(()))
        }
    }

    #[test]
    fn a_poll_looks_at_few_beside_many_that_are_held() {
        let (slots, looks) = (vec![Cell::new(false); 1000], Cell::new(0));
        let mut watched = Watched::default();
        (0..slots.len()).for_each(|at| watched.push(Slot(at, &slots, &looks)));
        let mut count = 0;
        let mut settle = |watched: &mut Watched<Slot<'_>>, numbers: &[usize]| {
            numbers.iter().for_each(|at| slots[*at].set(true));
            count += numbers.len() as u64;
            assert!(watched.may_have_settled(count));
            looks.set(0);
            let settled: Vec<_> = watched.take_settled(count, false).into_iter().map(|slot| slot.0).collect();
            assert!(!watched.may_have_settled(count) && watched.take_settled(count, false).is_empty());
            (settled, looks.get())
        };
        assert_eq!(settle(&mut watched, &[0]), (vec![0], 1));
        assert_eq!(settle(&mut watched, &[999]), (vec![999], 2));
        assert_eq!(settle(&mut watched, &[998, 1, 2, 997]), (vec![1, 2, 998, 997], 5));
        assert_eq!(settle(&mut watched, &[500]).0, [500], "wherever it is");
    }

    #[test]
    fn what_was_not_counted_is_polled_once_all_may_have_settled() {
        let (slots, looks) = (vec![Cell::new(false); 3], Cell::new(0));
        let mut watched = Watched::default();
        (0..slots.len()).for_each(|at| watched.push(Slot(at, &slots, &looks)));
        slots.iter().for_each(|slot| slot.set(true));
        watched.push(Slot(0, &slots, &looks));
        assert!(!watched.may_have_settled(0) && watched.take_settled(0, false).is_empty());
        assert_eq!(watched.remove(|slot| slot.0 == 1).map(|slot| slot.0), Some(1));
        assert_eq!(watched.take_settled(0, true).len(), 2);
        assert!(watched.is_empty() && !watched.may_have_settled(1));
    }
}
