//! Memory with whole events, and the places of the events in it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::buffer::{TraceBuffer, WORDS};
use super::super::chain::ChainLink;
use super::super::encoding::{length_of, whole_ticks};

/// Blocks of events that places have numbers for: 32 GiB.
pub(in super::super) const BLOCKS_MAX: usize = u32::MAX as usize / WORDS;

/// Memory with whole events.
pub(super) enum EventBlock {
    /// A buffer, and how many of its words were published.
    Buffer(Arc<ChainLink<TraceBuffer>>, usize),
    /// At most as many words as a buffer has; and, where the upper bits of ticks matter, a moment near them.
    Own(Vec<u64>, Option<u64>),
}

impl EventBlock {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Buffer(_, len) => *len,
            Self::Own(words, _) => words.len(),
        }
    }

    /// The ticks of which an event has the lower bits.
    pub(super) fn ticks(&self, lower: u64) -> u64 {
        match self {
            Self::Buffer(buffer, _) => whole_ticks(lower, buffer.value.began),
            Self::Own(_, near) => near.map_or(lower, |near| whole_ticks(lower, near)),
        }
    }

    /// Adds the words of the event at `at`; fewer where it is damaged.
    pub(super) fn event(&self, at: usize, into: &mut Words) {
        match self {
            Self::Buffer(buffer, len) => {
                let head = buffer.value.read(at..(at + 1).min(*len)).next().unwrap_or(0);
                into.extend(buffer.value.read(at..(at + length_of(head)).min(*len)));
            }
            Self::Own(words, _) => {
                let head = words.get(at).copied().unwrap_or(0);
                into.extend_from_slice(&words[at..(at + length_of(head)).min(words.len())]);
            }
        }
    }

    /// A word of it; 0 where there is none.
    pub(super) fn word(&self, at: usize) -> u64 {
        match self {
            Self::Buffer(buffer, len) if at < *len => buffer.value.read(at..at + 1).next().unwrap_or(0),
            Self::Buffer(..) => 0,
            Self::Own(words, _) => words.get(at).copied().unwrap_or(0),
        }
    }
}

/// The words of an event; most have fewer.
pub(super) type Words = SmallVec<[u64; 16]>;

/// The places of the events of a block.
pub(super) fn places(number: usize, block: &EventBlock) -> impl Iterator<Item = u32> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let length = length_of(block.word(at));
        let own = (number * WORDS + at) as u32;
        at += length;
        // A damaged one ends the block.
        (length >= 2 && at <= block.len()).then_some(own)
    })
}
