//! Boards: what one process says to another. A board is an array of words that its owner writes and its peer
//! maps read-only. PROTOCOL.md has the steps.
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
//! | [`MISSED`] | for each segment that the peer shows at a time, how often the owner has lost what came of one there |
//! | texts | for each slot, why it has failed |
//!
//! The liveness lock and the event count of the peer's wake-ups are before the texts, in a page of their own,
//! since they are half words. The owner makes the pages of texts when it writes there: links need few of
//! them.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use estafette_devices::{DeviceError, DeviceErrorKind, Outcome};
use estafette_sync::sync::atomic::{AtomicU64, Ordering, fence};

use crate::LinkError;
use crate::platform::{CloseOnFork, Descriptor, Memory};

/// Slots of each kind, and so the most that one process may have sent without it being used and over.
pub(crate) const SLOTS: usize = if cfg!(estafette_loom) { 2 } else { 16_384 };
/// Segments that one process may show to the other.
pub(crate) const SEGMENTS: usize = if cfg!(estafette_loom) { 2 } else { 1024 };
/// Words of the ring, a power of two.
pub(crate) const RING: u64 = if cfg!(estafette_loom) { 4 } else { 8192 };
/// Words of a text. The first has the length of the text in bytes, and in its upper half the length of the
/// operation's name, which comes before the text.
const TEXT_WORDS: usize = if cfg!(estafette_loom) { 2 } else { 64 };
/// Bytes of a name and of a text together. What is longer is cut.
const TEXT_BYTES: usize = (TEXT_WORDS - 1) * 8;
/// Bytes of a name.
const NAME_BYTES: usize = TEXT_BYTES / 2;
/// The text of a failure that has none.
const TEXTLESS: &str = "the reason is unknown, as its process had no memory for a text";
/// Beside the kind of a failure: the slot has a text.
const HAS_TEXT: u64 = 1;
/// What was sent was not received before the link was closed.
const UNRECEIVED: u64 = 2;
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
const MISSED: usize = RING_AT + RING as usize;
pub(crate) const MISSED_END: usize = MISSED + SEGMENTS;

/// Offset of the liveness lock in bytes: in the page behind these words.
pub(crate) const LIVENESS: usize = (MISSED_END * 8).next_multiple_of(PAGE);
/// Offset of the event count in bytes, in a cache line of its own.
pub(crate) const EVENT_COUNT: usize = LIVENESS + 64;
/// Bytes of a board that are there from the beginning.
const BACKED: usize = LIVENESS + PAGE;
/// Models have no memory between.
const TEXTS_AT: usize = if cfg!(estafette_loom) { MISSED_END } else { BACKED / 8 };
pub(crate) const WORDS: usize = TEXTS_AT + 2 * SLOTS * TEXT_WORDS;
/// Bytes of a board.
pub(crate) const BYTES: usize = WORDS * 8;
const PAGE: usize = 4096;

/// The part that each link uses from the beginning, in bytes: the page with the first words, and the ring.
/// The other slots are for links that have much under way.
const USED: [Range<usize>; 2] = [0..PAGE, RING_AT * 8 / PAGE * PAGE..MISSED * 8];

/// The memory of a new board, and the descriptor for the peer.
pub(crate) fn create() -> io::Result<(Memory, CloseOnFork<Descriptor>)> {
    Memory::create("estafette-board", BYTES, BACKED, false)
}

/// The memory of a peer's board.
pub(crate) fn open(descriptor: &Descriptor) -> io::Result<Memory> {
    Memory::open(descriptor, BYTES, BACKED, false)
}

pub(crate) fn populate(board: &Memory) {
    USED.into_iter().for_each(|range| _ = board.populate(range));
}

/// Values of [`CLOSED`], which only rises. The owner sends nothing more, and settles what it has sent.
pub(crate) const CLOSING: u64 = 1;
/// The owner uses nothing of the peer's any more, and settles nothing more.
pub(crate) const LEFT: u64 = 2;

/// The memory of a board's words: mapped memory, or in models an array.
pub(crate) trait Words: Send + Sync {
    /// [`WORDS`] words at least.
    fn words(&self) -> &[AtomicU64];

    /// Makes the memory of some words. False where the system has none.
    fn back(&self, _words: Range<usize>) -> bool {
        true
    }
}

impl Words for Memory {
    fn words(&self) -> &[AtomicU64] {
        Memory::words(self)
    }

    fn back(&self, words: Range<usize>) -> bool {
        self.populate(words.start * 8 / PAGE * PAGE..(words.end * 8).next_multiple_of(PAGE))
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

    fn back(&self, words: Range<usize>) -> bool {
        (**self).back(words)
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
    fn number(self, index: usize) -> usize {
        assert!(index < SLOTS, "indices are checked where they are read");
        self as usize * SLOTS + index
    }

    fn place(self, index: usize) -> usize {
        SLOTS_AT + self.number(index)
    }
}

/// A slot: which index, and which use of that index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId {
    pub(crate) kind: Kind,
    pub(crate) index: usize,
    pub(crate) generation: u32,
}

impl SlotId {
    /// The words of its text.
    fn text(self) -> Range<usize> {
        let at = TEXTS_AT + self.kind.number(self.index) * TEXT_WORDS;
        at..at + TEXT_WORDS
    }
}

/// The fields of a slot's word: the generation in the upper half, then whether a failure has a text, its
/// kind, and the state, which is 0 before the first use.
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

/// The board of the peer. Its content is whatever the peer has put there: each word is loaded once, and
/// checked.
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

    /// The outcome of the use of a slot; `None` before its end. Another generation, or a state that is none,
    /// counts as not.
    pub(crate) fn outcome(&self, slot: SlotId, process: u32) -> Option<Outcome> {
        let word = self.load(slot.kind.place(slot.index));
        if !is_settled(word, slot.generation) {
            return None;
        }
        if word & 0xff == DONE {
            return Some(Ok(()));
        }
        let kind = KINDS.get((word >> 8 & 0xff) as usize).copied().unwrap_or(DeviceErrorKind::Other);
        let (name, text) = match word >> 16 & 0xffff {
            UNRECEIVED => return Some(Err((&LinkError::Closed { process }).into())),
            HAS_TEXT => self.text(slot),
            _ => (String::new(), TEXTLESS.to_owned()),
        };
        let error = DeviceError::new(kind, format!("{text} (in process {process})"));
        Some(Err(if name.is_empty() { error } else { error.with_operation(&name) }))
    }

    /// The name of an operation, empty for none, and a text, which their owner leaves alone until the index
    /// is in use again.
    fn text(&self, slot: SlotId) -> (String, String) {
        // The peer may lie about it. Without memory its first use would be a fault.
        if !self.0.back(slot.text()) {
            return (String::new(), TEXTLESS.to_owned());
        }
        let mut words = slot.text().map(|at| self.load_relaxed(at));
        let lengths = words.next().expect("a text has words");
        let mut bytes = words.flat_map(u64::to_le_bytes);
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

/// The board of this process.
#[derive(Debug)]
pub(crate) struct OwnBoard<W> {
    pub(crate) words: W,
}

impl<W: Words> OwnBoard<W> {
    /// A board on words that are all zero.
    pub(crate) fn new(words: W) -> Self {
        Self { words }
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
    pub(crate) fn begin(&self, slot: SlotId, settled: Option<&Outcome>) {
        let word =
            settled.map_or_else(|| word(slot.generation, PENDING, 0), |outcome| self.settled(slot, outcome));
        self.store(slot.kind.place(slot.index), word);
    }

    pub(crate) fn is_settled(&self, slot: SlotId) -> bool {
        is_settled(self.load(slot.kind.place(slot.index)), slot.generation)
    }

    /// Settles a slot, with everything that was done before.
    pub(crate) fn settle(&self, slot: SlotId, outcome: &Outcome) {
        self.store_settled(slot, self.settled(slot, outcome));
    }

    /// The peer polls a slot once it has seen the count, which so comes after the slot.
    fn store_settled(&self, slot: SlotId, word: u64) {
        self.store(slot.kind.place(slot.index), word);
        step!("settle, slot");
        self.words.words()[SETTLED].fetch_add(1, Ordering::Release);
    }

    /// The word of a settled slot. Writes the text of a failure.
    fn settled(&self, slot: SlotId, outcome: &Outcome) -> u64 {
        match outcome {
            Ok(()) => word(slot.generation, DONE, 0),
            Err(error) => {
                let kind = KINDS.iter().position(|kind| *kind == error.kind()).unwrap_or(0);
                let has_text = self.write_text(slot, error.operation().unwrap_or(""), &error.to_string());
                step!("settle, text");
                let text = if has_text { HAS_TEXT } else { 0 };
                word(slot.generation, FAILED, text << 8 | kind as u64)
            }
        }
    }

    /// Answers what was sent, and is not received any more.
    pub(crate) fn refuse(&self, slot: SlotId) {
        self.store_settled(slot, word(slot.generation, FAILED, UNRECEIVED << 8));
    }

    /// Writes why the slot failed, over what an earlier use of it had to say, which the peer has read. False
    /// without memory for that.
    fn write_text(&self, slot: SlotId, name: &str, text: &str) -> bool {
        if !self.words.back(slot.text()) {
            return false;
        }
        let name = cut(name, NAME_BYTES);
        let text = cut(text, TEXT_BYTES - name.len());
        let (lengths, words) = self.words.words()[slot.text()].split_first().expect("a text has words");
        lengths.store((name.len() << 32 | text.len()) as u64, Ordering::Relaxed);
        let bytes = [name.as_bytes(), text.as_bytes()].concat();
        for (word, bytes) in words.iter().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
        true
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
    fn texts_are_cut_at_a_character_and_each_slot_has_its_own() {
        let mine = words();
        let (own, seen) = (OwnBoard::new(Arc::clone(&mine)), PeerBoard(mine));
        let slot = |index| SlotId { kind: Kind::Ready, index, generation: 1 };
        let kept = "x".repeat(TEXT_BYTES - 4);
        own.settle(slot(0), &failure(&format!("{kept}ééé")));
        own.settle(slot(1), &failure(&format!("{kept}éé")));
        let used = |index| SlotId { kind: Kind::Used, ..slot(index) };
        let all: Vec<_> = (2..SLOTS).map(slot).chain((0..SLOTS).map(used)).collect();
        let reason = |slot: &SlotId| format!("{:?} {}", slot.kind, slot.index);
        all.iter().for_each(|slot| own.settle(*slot, &failure(&reason(slot))));
        assert_eq!(text(&seen, slot(0)), format!("{kept}… (in process 7)"));
        assert_eq!(text(&seen, slot(1)), format!("{kept}éé (in process 7)"));
        for slot in all {
            assert_eq!(text(&seen, slot), format!("{} (in process 7)", reason(&slot)));
        }
        let again = SlotId { generation: 2, ..slot(0) };
        own.settle(again, &failure("again"));
        assert_eq!(text(&seen, again), "again (in process 7)");
    }

    #[test]
    fn names_of_operations_cross_whole_and_leave_room_for_a_text() {
        let mine = words();
        let (own, seen) = (OwnBoard::new(Arc::clone(&mine)), PeerBoard(mine));
        let long = "y".repeat(NAME_BYTES + 1);
        let names = ["", "load` (twice)", "\0é` (", &long];
        for (index, name) in names.into_iter().enumerate() {
            let slot = SlotId { kind: Kind::Ready, index, generation: 1 };
            let error = DeviceError::new(DeviceErrorKind::Other, "z".repeat(TEXT_BYTES)).with_operation(name);
            own.settle(slot, &Err(error));
            let error = seen.outcome(slot, 7).expect("settled").expect_err("failed");
            let kept =
                if name.len() > NAME_BYTES { format!("{}…", &long[..NAME_BYTES - 3]) } else { name.into() };
            assert_eq!(error.operation(), Some(&*kept).filter(|name| !name.is_empty()));
            assert!(error.message().starts_with("zzz"), "{error}");
        }
    }

    #[test]
    fn words_of_another_generation_or_of_no_state_are_pending() {
        let mine = words();
        let board = PeerBoard(Arc::clone(&mine));
        let slot = SlotId { kind: Kind::Used, index: 5, generation: 3 };
        for pending in [word(2, DONE, 0), word(3, PENDING, 0), word(3, 0, 0), word(3, 77, 0)] {
            mine[slot.kind.place(5)].store(pending, Ordering::Relaxed);
            assert!(board.outcome(slot, 7).is_none(), "{pending:x}");
        }
        mine[slot.kind.place(5)].store(word(3, FAILED, 0x00ff_ffff), Ordering::Relaxed);
        assert!(board.outcome(slot, 7).is_some_and(|outcome| outcome.is_err()));
    }
}
