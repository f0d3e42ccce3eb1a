//! The indices of slots that a process gives out to what it sends. PROTOCOL.md, *slot*.

use std::collections::VecDeque;

use estafette_devices::Outcome;

use crate::board::{Kind, OwnBoard, SLOTS, SlotId, Words};

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
}

impl<A> Default for Indices<A> {
    fn default() -> Self {
        Self { fresh: 0, free: Vec::new(), unanswered: VecDeque::new() }
    }
}

impl<A: Answer> Indices<A> {
    /// The next use of an index that is not in use, if more than `kept` are not.
    pub(crate) fn take<W: Words>(&mut self, own: &OwnBoard<W>, kept: usize) -> Option<SlotId> {
        self.reclaim(own, kept);
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

    /// Takes back indices whose promise and answer are settled: the oldest, or where all but `kept` are in use any.
    fn reclaim<W: Words>(&mut self, own: &OwnBoard<W>, kept: usize) {
        let is_over = |(slot, answer): &(SlotId, A)| own.is_settled(*slot) && answer.outcome().is_some();
        let free = |free: &mut Vec<usize>, (slot, answer): (SlotId, A)| {
            if !matches!(answer.outcome(), Some(Ok(()))) {
                own.free(slot);
            }
            free.push(slot.index);
        };
        while self.unanswered.front().is_some_and(is_over) {
            self.unanswered.pop_front().into_iter().for_each(|over| free(&mut self.free, over));
        }
        if self.room() <= kept {
            let (over, open) =
                std::mem::take(&mut self.unanswered).into_iter().partition::<Vec<_>, _>(is_over);
            self.unanswered = open.into();
            over.into_iter().for_each(|over| free(&mut self.free, over));
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
