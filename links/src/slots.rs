//! The indices of slots that a process gives out to what it sends. PROTOCOL.md, *slot*.

use std::collections::VecDeque;

use estafette_devices::Outcome;

use crate::board::{Kind, OwnBoard, SLOTS, SlotId, Words};
use crate::watched::take_from_ends;

/// The answer to what was sent.
pub(crate) trait Answer {
    /// `None` before the end of the use.
    fn outcome(&self) -> Option<Outcome>;
}

/// The indices of one process on one link.
pub(crate) struct Indices<A> {
    /// Indices from here on were never used.
    fresh: usize,
    free: Vec<usize>,
    /// The oldest first.
    unanswered: VecDeque<(SlotId, A)>,
    /// Of the count of what has settled: so much has led to a free index, or to none.
    counted: u64,
}

impl<A> Default for Indices<A> {
    fn default() -> Self {
        Self { fresh: 0, free: Vec::new(), unanswered: VecDeque::new(), counted: 0 }
    }
}

impl<A: Answer> Indices<A> {
    /// The next use of an index that is not in use, if more than `kept` are not. `count` grows by one at
    /// least after each answer, and after each promise that settles later than it was sent.
    pub(crate) fn take<W: Words>(
        &mut self,
        own: &OwnBoard<W>,
        count: impl FnOnce() -> u64,
        kept: usize,
    ) -> Option<SlotId> {
        self.reclaim(own, count, kept);
        if self.room() <= kept {
            return None;
        }
        let fresh = (self.fresh < SLOTS).then_some(self.fresh);
        let index = self.free.pop().or_else(|| fresh.inspect(|_| self.fresh += 1))?;
        let generation = own.next_generation(Kind::Ready, index);
        Some(SlotId { kind: Kind::Ready, index, generation })
    }

    /// Keeps the index in use until the promise in its slot and `answer` are settled.
    pub(crate) fn note_sent(&mut self, slot: SlotId, answer: A) {
        self.unanswered.push_back((slot, answer));
    }

    /// Indices that are not in use.
    fn room(&self) -> usize {
        self.free.len() + SLOTS - self.fresh
    }

    /// Takes back indices whose promise and answer are settled: the oldest, or any where all but `kept` are
    /// in use. A search finds no more than have settled since the last one.
    fn reclaim<W: Words>(&mut self, own: &OwnBoard<W>, count: impl FnOnce() -> u64, kept: usize) {
        let is_over = |(slot, answer): &(SlotId, A)| own.is_settled(*slot) && answer.outcome().is_some();
        while self.unanswered.front().is_some_and(is_over) {
            self.free.extend(self.unanswered.pop_front().map(|(slot, _)| slot.index));
            self.counted = self.counted.wrapping_add(1);
        }
        if self.room() > kept {
            return;
        }
        let count = count();
        // What was found before it was counted makes this negative.
        let new = count.wrapping_sub(self.counted).cast_signed();
        if new > 0 {
            let most = usize::try_from(new).unwrap_or(usize::MAX);
            let over = take_from_ends(&mut self.unanswered, most, is_over);
            self.free.extend(over.into_iter().map(|(slot, _)| slot.index));
            self.counted = count;
        }
    }

    /// True if the use of all that was sent is over.
    pub(crate) fn are_answered(&self) -> bool {
        self.unanswered.iter().all(|(_, answer)| answer.outcome().is_some())
    }

    /// Returns the pending answers, to be dropped under no lock. Nothing is sent after this.
    pub(crate) fn close(&mut self) -> impl Sized + use<A> {
        std::mem::take(&mut self.unanswered)
    }
}

#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::board::BYTES;
    use crate::platform::Memory;

    struct Answered<'a>(usize, &'a [Cell<bool>], &'a Cell<usize>);

    impl Answer for Answered<'_> {
        fn outcome(&self) -> Option<Outcome> {
            self.2.set(self.2.get() + 1);
            self.1[self.0].get().then_some(Ok(()))
        }
    }

    #[test]
    fn that_all_are_in_use_is_known_without_a_search_until_something_settles() {
        let (board, _) = Memory::create("board", BYTES, BYTES, false).expect("memory");
        let own = OwnBoard::new(&board);
        let (answered, looks) = (vec![Cell::new(false); SLOTS], Cell::new(0));
        let mut indices = Indices::default();
        let mut take = |count| {
            looks.set(0);
            let slot = indices.take(&own, || count, 0)?;
            own.begin(slot, Some(&Ok(())));
            answered[slot.index].set(false);
            indices.note_sent(slot, Answered(slot.index, &answered, &looks));
            Some(slot.index)
        };
        (0..SLOTS).for_each(|index| assert_eq!(take(0), Some(index)));
        let few = || assert!(looks.get() < 8, "{} looks", looks.get());
        assert_eq!(take(0), None);
        few();
        answered[SLOTS - 1].set(true);
        assert_eq!(take(1), Some(SLOTS - 1), "the newest");
        few();
        answered[0].set(true);
        assert_eq!(take(2), Some(0), "the oldest");
        few();
        assert_eq!(take(2), None);
        few();
        answered[SLOTS / 2].set(true);
        assert_eq!(take(3), Some(SLOTS / 2), "wherever it is");
        assert_eq!((take(4), take(4)), (None, None), "something else has settled");
        few();
    }
}
