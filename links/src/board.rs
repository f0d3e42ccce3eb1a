//! Boards: what one process says to another. A board is an array of words that its owner writes and its peer maps read-only.
//! PROTOCOL.md has the steps.
//!
//! | words | meaning |
//! |---|---|
//! | [`HEAD`] | words of messages that the owner has put into its ring, since the beginning |
//! | [`TAIL`] | words of messages that the owner has taken from its peer's ring |
//! | [`LISTENING`] | not 0: the owner wants a wake-up at the next change, and of which kind; each time another number |
//! | [`CLOSED`] | see its constants |
//! | [`SETTLED`] | how many slots the owner has settled that its peer may wait for |
//! | ready, used | slots: how the owner's promise of an index settled; how its use of the peer's went |
//! | ring | messages, one behind the other |
//! | texts | why slots have failed |
//! | [`MISSED`] | for each segment that the peer shows at a time, how often the owner has lost what came of one there |
//!
//! The liveness lock and the event count of the peer's wake-ups are behind the words, in a page of their own, since they are half words.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use estafette_devices::{DeviceError, DeviceErrorKind, Outcome};
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering, fence};

use crate::LinkError;
use crate::platform::Memory;

/// Slots of each kind, and so the most that one process may have sent without it being used and over.
pub(crate) const SLOTS: usize = if cfg!(estafette_loom) { 2 } else { 16_384 };
/// Segments that one process may show to the other.
pub(crate) const SEGMENTS: usize = if cfg!(estafette_loom) { 2 } else { 1024 };
/// Words of the ring, a power of two.
pub(crate) const RING: u64 = if cfg!(estafette_loom) { 4 } else { 8192 };
/// Failures whose texts are held at the same time.
const TEXTS: usize = if cfg!(estafette_loom) { 1 } else { 64 };
/// Words of a text. The first has the length of the text in bytes, and in its upper half the length of the operation's name, which comes
/// before the text.
const TEXT_WORDS: usize = if cfg!(estafette_loom) { 2 } else { 64 };
/// Bytes of a name and of a text together. What is longer is cut.
const TEXT_BYTES: usize = (TEXT_WORDS - 1) * 8;
/// Bytes of a name.
const NAME_BYTES: usize = TEXT_BYTES / 2;
/// The text of a failure beyond.
pub(crate) const TEXTLESS: &str = "the reason is unknown, as too many failures came at once";
/// In the place of the number of a text: what was sent was not received before the link was closed.
const UNRECEIVED: u64 = 0xffff;
/// The end of a text that is longer.
const CUT: &str = "…";

/// Each in a cache line of its own.
pub(crate) const HEAD: usize = 0;
pub(crate) const TAIL: usize = 8;
pub(crate) const LISTENING: usize = 16;
pub(crate) const CLOSED: usize = 24;
pub(crate) const SETTLED: usize = 32;
pub(crate) const SLOTS_AT: usize = 40;
const RING_AT: usize = SLOTS_AT + 2 * SLOTS;
const TEXTS_AT: usize = RING_AT + RING as usize;
const MISSED: usize = TEXTS_AT + TEXTS * TEXT_WORDS;
pub(crate) const WORDS: usize = MISSED + SEGMENTS;

/// Offset of the liveness lock in bytes: in the page behind the words.
pub(crate) const LIVENESS: usize = (WORDS * 8).next_multiple_of(4096);
/// Offset of the event count in bytes, in a cache line of its own.
pub(crate) const EVENT_COUNT: usize = LIVENESS + 64;
/// Bytes of a board.
pub(crate) const BYTES: usize = LIVENESS + 4096;

/// The part that each link uses from the beginning, in bytes: the page with the first words, and the ring. The other slots are for links
/// that have much under way.
const USED: [Range<usize>; 2] = [0..4096, RING_AT * 8 / 4096 * 4096..TEXTS_AT * 8];

pub(crate) fn populate(board: &Memory) {
    USED.into_iter().for_each(|range| board.populate(range));
}

/// Values of [`CLOSED`], which only rises. The owner sends nothing more, and settles what it has sent.
pub(crate) const CLOSING: u64 = 1;
/// The owner uses nothing of the peer's any more, and settles nothing more.
pub(crate) const LEFT: u64 = 2;

/// The memory of a board's words: mapped memory, or in models an array.
pub(crate) trait Words: Send + Sync {
    /// [`WORDS`] words at least.
    fn words(&self) -> &[AtomicU64];
}

impl Words for Memory {
    fn words(&self) -> &[AtomicU64] {
        Memory::words(self)
    }
}

#[cfg(test)]
impl<W: Words> Words for &W {
    fn words(&self) -> &[AtomicU64] {
        (**self).words()
    }
}

#[cfg(test)]
impl Words for Vec<AtomicU64> {
    fn words(&self) -> &[AtomicU64] {
        self
    }
}

impl<W: Words> Words for Arc<W> {
    fn words(&self) -> &[AtomicU64] {
        (**self).words()
    }
}

/// One of the two slots of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of what the owner of the board has sent.
    Ready = 0,
    /// Of what the owner of the board has received.
    Used = 1,
}

impl Kind {
    /// The slot with which the peer answers.
    fn answer(self) -> Self {
        match self {
            Kind::Ready => Kind::Used,
            Kind::Used => Kind::Ready,
        }
    }

    fn place(self, index: usize) -> usize {
        assert!(index < SLOTS, "indices are checked where they are read");
        SLOTS_AT + self as usize * SLOTS + index
    }
}

/// A slot: which index, and which use of that index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId {
    pub(crate) kind: Kind,
    pub(crate) index: usize,
    pub(crate) generation: u32,
}

/// The fields of a slot's word: the generation in the upper half, then the kind of a failure, the number of its text from 1 on, and the
/// state.
const FREE: u64 = 0;
const PENDING: u64 = 1;
const DONE: u64 = 2;
const FAILED: u64 = 3;

fn word(generation: u32, state: u64, failure: u64) -> u64 {
    u64::from(generation) << 32 | failure << 8 | state
}

fn is_settled(word: u64, generation: u32) -> bool {
    word >> 32 == u64::from(generation) && matches!(word & 0xff, DONE | FAILED)
}

/// The kinds of failures, by their numbers on boards.
pub(crate) const KINDS: [DeviceErrorKind; 6] = [
    DeviceErrorKind::Other,
    DeviceErrorKind::Fault,
    DeviceErrorKind::OutOfMemory,
    DeviceErrorKind::Invalid,
    DeviceErrorKind::Cancelled,
    DeviceErrorKind::PeerDied,
];

/// The board of the peer. Its content is whatever the peer has put there: each word is loaded once, and checked.
#[derive(Debug)]
pub(crate) struct PeerBoard<W>(pub(crate) W);

impl<W: Words> PeerBoard<W> {
    /// A word, and what the peer did before it stored it.
    #[inline]
    pub(crate) fn load(&self, place: usize) -> u64 {
        let word = self.load_relaxed(place);
        // Memory that is mapped read-only allows relaxed loads only.
        fence(Ordering::Acquire);
        word
    }

    #[inline]
    fn load_relaxed(&self, place: usize) -> u64 {
        self.0.words()[place].load(Ordering::Relaxed)
    }

    /// Another value each time that the owner of the board has missed a segment of this process.
    pub(crate) fn missed(&self, segment: u32) -> u64 {
        self.load(MISSED + segment as usize % SEGMENTS)
    }

    /// A word of the ring, whose `position` the head has passed.
    pub(crate) fn ring(&self, position: u64) -> u64 {
        self.load_relaxed(RING_AT + (position % RING) as usize)
    }

    /// The outcome of the use of a slot; `None` before its end. Another generation, or a state that is none, counts as not.
    pub(crate) fn outcome(&self, slot: SlotId, process: u32) -> Option<Outcome> {
        let word = self.load(slot.kind.place(slot.index));
        if !is_settled(word, slot.generation) {
            return None;
        }
        if word & 0xff == DONE {
            return Some(Ok(()));
        }
        let kind = KINDS.get((word >> 8 & 0xff) as usize).copied().unwrap_or(DeviceErrorKind::Other);
        if word >> 16 & 0xffff == UNRECEIVED {
            return Some(Err((&LinkError::Closed { process }).into()));
        }
        let (name, text) = self.text((word >> 16 & 0xffff) as usize);
        let error = DeviceError::new(kind, format!("{text} (in process {process})"));
        Some(Err(if name.is_empty() { error } else { error.with_operation(&name) }))
    }

    /// The name of an operation, empty for none, and a text, which their owner leaves alone until the answer to their slot is settled.
    fn text(&self, number: usize) -> (String, String) {
        let Some(place) = text_place(number) else { return (String::new(), TEXTLESS.to_owned()) };
        let lengths = self.load_relaxed(place);
        let words = (place + 1..place + TEXT_WORDS).map(|at| self.load_relaxed(at).to_le_bytes());
        let mut bytes = words.flatten();
        let mut take = |length: u64| {
            let bytes: Vec<u8> = bytes.by_ref().take(length as usize).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        (take(lengths >> 32), take(lengths & 0xffff_ffff))
    }
}

/// At most so many bytes of a text.
fn cut(text: &str, bytes: usize) -> Cow<'_, str> {
    if text.len() <= bytes {
        return text.into();
    }
    [&text[..text.floor_char_boundary(bytes - CUT.len())], CUT].concat().into()
}

fn text_place(number: usize) -> Option<usize> {
    (1..=TEXTS).contains(&number).then(|| TEXTS_AT + (number - 1) * TEXT_WORDS)
}

/// The board of this process.
#[derive(Debug)]
pub(crate) struct OwnBoard<W> {
    pub(crate) words: W,
    /// The slot that each text is of.
    texts: Mutex<[Option<SlotId>; TEXTS]>,
}

impl<W: Words> OwnBoard<W> {
    /// A board on words that are all zero.
    pub(crate) fn new(words: W) -> Self {
        Self { words, texts: Mutex::new([None; TEXTS]) }
    }

    /// Publishes a word, with everything that was done before.
    #[inline]
    pub(crate) fn store(&self, place: usize, value: u64) {
        self.words.words()[place].store(value, Ordering::Release);
    }

    /// The value that this process stored last.
    #[inline]
    pub(crate) fn load(&self, place: usize) -> u64 {
        self.words.words()[place].load(Ordering::Relaxed)
    }

    /// The peer is to show a segment again. One thread at a time does this.
    pub(crate) fn miss(&self, segment: u32) {
        let place = MISSED + segment as usize % SEGMENTS;
        self.store(place, self.load(place) + 1);
    }

    /// Stores a word of the ring, which a store to [`HEAD`] publishes.
    pub(crate) fn set_ring(&self, position: u64, value: u64) {
        self.words.words()[RING_AT + (position % RING) as usize].store(value, Ordering::Relaxed);
    }

    /// The number of the next use of an index.
    pub(crate) fn next_generation(&self, kind: Kind, index: usize) -> u32 {
        ((self.load(kind.place(index)) >> 32) as u32).wrapping_add(1)
    }

    /// Of a promise that is about to be sent, which may have settled.
    pub(crate) fn begin<P: Words>(&self, slot: SlotId, settled: Option<&Outcome>, peer: &PeerBoard<P>) {
        let word = settled
            .map_or_else(|| word(slot.generation, PENDING, 0), |outcome| self.settled(slot, outcome, peer));
        self.store(slot.kind.place(slot.index), word);
    }

    /// Says that the answer was read, so that the peer may use its text again.
    pub(crate) fn free(&self, slot: SlotId) {
        self.store(slot.kind.place(slot.index), word(slot.generation, FREE, 0));
    }

    pub(crate) fn is_settled(&self, slot: SlotId) -> bool {
        is_settled(self.load(slot.kind.place(slot.index)), slot.generation)
    }

    /// Settles a slot, with everything that was done before.
    pub(crate) fn settle<P: Words>(&self, slot: SlotId, outcome: &Outcome, peer: &PeerBoard<P>) {
        self.store_settled(slot, self.settled(slot, outcome, peer));
    }

    /// The peer polls a slot once it has seen the count, which so comes after the slot.
    fn store_settled(&self, slot: SlotId, word: u64) {
        self.store(slot.kind.place(slot.index), word);
        step!("settle, slot");
        self.words.words()[SETTLED].fetch_add(1, Ordering::Release);
    }

    /// The word of a settled slot. Writes the text of a failure.
    fn settled<P: Words>(&self, slot: SlotId, outcome: &Outcome, peer: &PeerBoard<P>) -> u64 {
        match outcome {
            Ok(()) => word(slot.generation, DONE, 0),
            Err(error) => {
                let kind = KINDS.iter().position(|kind| *kind == error.kind()).unwrap_or(0);
                let text = self.write_text(slot, error.operation().unwrap_or(""), &error.to_string(), peer);
                step!("settle, text");
                word(slot.generation, FAILED, (text << 8 | kind) as u64)
            }
        }
    }

    /// Answers what was sent, and is not received any more.
    pub(crate) fn refuse(&self, slot: SlotId) {
        self.store_settled(slot, word(slot.generation, FAILED, UNRECEIVED << 8));
    }

    /// The number of a text for this slot; 0 if the peer has yet to read all of them.
    fn write_text<P: Words>(&self, slot: SlotId, name: &str, text: &str, peer: &PeerBoard<P>) -> usize {
        let mut texts = self.texts.lock();
        let free = texts.iter().position(|text| text.is_none_or(|its| self.has_been_read(its, peer)));
        let Some(at) = free else { return 0 };
        texts[at] = Some(slot);
        let place = text_place(at + 1).expect("a number of a text");
        let name = cut(name, NAME_BYTES);
        let text = cut(text, TEXT_BYTES - name.len());
        let words = self.words.words();
        words[place].store((name.len() << 32 | text.len()) as u64, Ordering::Relaxed);
        let bytes = [name.as_bytes(), text.as_bytes()].concat();
        for (word, bytes) in words[place + 1..].iter().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
        at + 1
    }

    /// True if the peer has read how `slot` failed: it has answered a promise, or it has gone on from the answer.
    fn has_been_read<P: Words>(&self, slot: SlotId, peer: &PeerBoard<P>) -> bool {
        let is_answer = is_settled(peer.load(slot.kind.answer().place(slot.index)), slot.generation);
        match slot.kind {
            Kind::Ready => is_answer || self.is_in_use_again(slot),
            Kind::Used => !is_answer,
        }
    }

    /// True if a later use of the index has begun, so that the answer to this one was read.
    fn is_in_use_again(&self, slot: SlotId) -> bool {
        let now = (self.load(slot.kind.place(slot.index)) >> 32) as u32;
        now.wrapping_sub(slot.generation).cast_signed() > 0
    }
}

#[cfg(all(test, not(estafette_loom)))]
mod tests {
    use super::*;

    fn words() -> Arc<Vec<AtomicU64>> {
        Arc::new((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    fn failure(text: &str) -> Outcome {
        Err(DeviceError::new(DeviceErrorKind::Fault, text))
    }

    fn text(board: &PeerBoard<Arc<Vec<AtomicU64>>>, slot: SlotId) -> String {
        let outcome = board.outcome(slot, 7).expect("settled");
        let error = outcome.expect_err("failed");
        assert_eq!(error.kind(), DeviceErrorKind::Fault);
        error.message().to_owned()
    }

    #[test]
    fn texts_are_cut_at_a_character_and_used_again_once_they_were_read() {
        let [mine, theirs] = [words(), words()];
        let (own, other) = (OwnBoard::new(Arc::clone(&mine)), OwnBoard::new(Arc::clone(&theirs)));
        let (own_seen, peer) = (PeerBoard(mine), PeerBoard(theirs));
        let slot = |index| SlotId { kind: Kind::Ready, index, generation: 1 };
        let kept = "x".repeat(TEXT_BYTES - 4);
        own.settle(slot(0), &failure(&format!("{kept}ééé")), &peer);
        assert_eq!(text(&own_seen, slot(0)), format!("{kept}… (in process 7)"));
        for index in 1..=TEXTS {
            own.settle(slot(index), &failure(&format!("{kept}éé")), &peer);
        }
        assert_eq!(text(&own_seen, slot(TEXTS - 1)), format!("{kept}éé (in process 7)"));
        assert_eq!(text(&own_seen, slot(TEXTS)), format!("{TEXTLESS} (in process 7)"));
        other.settle(SlotId { kind: Kind::Used, ..slot(3) }, &Ok(()), &own_seen);
        own.settle(slot(TEXTS + 1), &failure("again"), &peer);
        assert_eq!(text(&own_seen, slot(TEXTS + 1)), "again (in process 7)");
    }

    #[test]
    fn names_of_operations_cross_whole_and_leave_room_for_a_text() {
        let [mine, theirs] = [words(), words()];
        let (own, peer) = (OwnBoard::new(Arc::clone(&mine)), PeerBoard(theirs));
        let seen = PeerBoard(mine);
        let long = "y".repeat(NAME_BYTES + 1);
        let names = ["", "load` (twice)", "\0é` (", &long];
        for (index, name) in names.into_iter().enumerate() {
            let slot = SlotId { kind: Kind::Ready, index, generation: 1 };
            let error = DeviceError::new(DeviceErrorKind::Other, "z".repeat(TEXT_BYTES)).with_operation(name);
            own.settle(slot, &Err(error), &peer);
            let error = seen.outcome(slot, 7).expect("settled").expect_err("failed");
            let kept =
                if name.len() > NAME_BYTES { format!("{}…", &long[..NAME_BYTES - 3]) } else { name.into() };
            assert_eq!(error.operation(), Some(&*kept).filter(|name| !name.is_empty()));
            assert!(error.message().starts_with("zzz"), "{error}");
        }
    }

    #[test]
    fn the_text_of_an_index_that_is_in_use_again_is_free() {
        let [mine, theirs] = [words(), words()];
        let (own, other) = (OwnBoard::new(Arc::clone(&mine)), OwnBoard::new(Arc::clone(&theirs)));
        let (own_seen, peer) = (PeerBoard(mine), PeerBoard(theirs));
        for index in 0..=TEXTS {
            let slot = SlotId { kind: Kind::Ready, index, generation: 1 };
            own.settle(slot, &failure("read"), &peer);
            assert_eq!(text(&own_seen, slot), "read (in process 7)");
            other.settle(SlotId { kind: Kind::Used, ..slot }, &Ok(()), &own_seen);
            let again = SlotId { generation: 2, ..slot };
            own.settle(again, &Ok(()), &peer);
            other.settle(SlotId { kind: Kind::Used, ..again }, &Ok(()), &own_seen);
        }
    }

    #[test]
    fn words_of_another_generation_or_of_no_state_are_pending() {
        let mine = words();
        let board = PeerBoard(Arc::clone(&mine));
        let slot = SlotId { kind: Kind::Used, index: 5, generation: 3 };
        for pending in [word(2, DONE, 0), word(3, PENDING, 0), word(3, FREE, 0), word(3, 77, 0)] {
            mine[slot.kind.place(5)].store(pending, Ordering::Relaxed);
            assert!(board.outcome(slot, 7).is_none(), "{pending:x}");
        }
        mine[slot.kind.place(5)].store(word(3, FAILED, 0x00ff_ffff), Ordering::Relaxed);
        assert!(board.outcome(slot, 7).is_some_and(|outcome| outcome.is_err()));
    }
}
