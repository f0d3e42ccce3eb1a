//! One event of the recorder: two words and more.
//!
//! ```text
//! word 0   ticks since the start (52 bits: two weeks of a processor's counter), number of words (7 bits), kind (5 bits)
//! word 1   identity: of the operation, or of the variable
//! word 2 … depend on the kind; texts by their number in the thread's list
//! ```
//!
//! Two frequent events have a narrow form: a submission with a few accesses, and a body that ran well. There
//! the upper 24 bits of word 1 carry data as well. Numbers that are too large for it take the wide one.

use estafette_graph::AccessMode;

use crate::exchange::DType;

/// The most words of one event.
pub(super) const WORDS_MAX: usize = 127;

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum EventKind {
    /// Submitted: name and kind of use; its accesses.
    Submitted = 1,
    /// Further accesses of what was submitted before.
    Accesses,
    /// Handed to the thread that runs it.
    Ready,
    /// Its body has begun; of a lease, it is held. The queue, where there is one.
    Began,
    /// Completed: how, whether device work goes on, why it failed.
    Ended,
    /// The device work was seen to be done: how, why it failed; when it ran, in nanoseconds since the start,
    /// where that is known.
    Done,
    /// The waiter was notified.
    Observed,
    /// The waiting thread runs again, or the thread that will run a body.
    Awake,
    /// It has the lock that it needed.
    Locked,
    /// The waiter resumes; whether a thread waited.
    Resumed,
    /// A wait for an operation by name begins: which one; the name of the wait, and whether a task awaits; of
    /// a wait for whatever ends, the engine.
    WaitsFor,
    /// Bytes, name and library of a variable.
    Variable,
    /// The owner of a lease: text, library, line.
    LeaseOwner,
    /// The library that a body lends its operands to, or the holder of a lease its memory.
    Library,
    /// [`Submitted`](Self::Submitted), narrow: name and kind of use beside the identity, two accesses to a
    /// word.
    SubmittedNarrow,
    /// [`Began`](Self::Began) and [`Ended`](Self::Ended) well, on one thread: the ticks between them beside
    /// the identity.
    RanNarrow,
    /// A lease was asked for and had at once: its access, and the words of [`LeaseOwner`](Self::LeaseOwner).
    LeasePinned,
    /// The result of an operation is another process's: that process's number, the line that took it, and its
    /// key. Of another machine: its clock, by how much that is ahead, and how exact that is.
    ImportOrigin,
    /// The engine that this thread submits to and works for from here on; whether the thread is a worker of
    /// that engine; how many workers the engine has, and how many run at once. Belongs to no operation: the
    /// identity is 0.
    Engine,
    /// The waiter is a thread, which blocks from here on.
    Blocks,
    /// The target of a wait that did not know it when it began.
    WaitedFor,
}

/// In a [`WaitsFor`](EventKind::WaitsFor): the wait is for nothing that an engine of this process does.
pub(super) const NO_ENGINE: u64 = u64::MAX;

impl EventKind {
    /// In the order of their numbers, from 1.
    const ALL: [Self; 21] = [
        Self::Submitted,
        Self::Accesses,
        Self::Ready,
        Self::Began,
        Self::Ended,
        Self::Done,
        Self::Observed,
        Self::Awake,
        Self::Locked,
        Self::Resumed,
        Self::WaitsFor,
        Self::Variable,
        Self::LeaseOwner,
        Self::Library,
        Self::SubmittedNarrow,
        Self::RanNarrow,
        Self::LeasePinned,
        Self::ImportOrigin,
        Self::Engine,
        Self::Blocks,
        Self::WaitedFor,
    ];

    /// The kind in this word 0; `None` for what this version does not write.
    #[inline]
    pub(super) fn of(head: u64) -> Option<Self> {
        Self::ALL.get(((head & 0x1f) as usize).wrapping_sub(1)).copied()
    }
}

/// An event, read.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodedEvent<'a> {
    /// `None` for what this version does not write.
    pub(super) kind: Option<EventKind>,
    pub(super) ticks: u64,
    pub(super) id: u64,
    pub(super) words: &'a [u64],
}

impl<'a> DecodedEvent<'a> {
    /// The first event of `words`, and what comes after it.
    pub(super) fn first_of(words: &'a [u64]) -> Option<(Self, &'a [u64])> {
        let (&head, &id) = (words.first()?, words.get(1)?);
        let len = length_of(head);
        let own = words.get(2..len)?;
        let event = Self { kind: EventKind::of(head), ticks: head >> TICKS_SHIFT, id, words: own };
        Some((event, &words[len..]))
    }

    /// Word `at` of those that depend on the kind; 0 where there is none.
    pub(super) fn word(&self, at: usize) -> u64 {
        self.words.get(at).copied().unwrap_or(0)
    }
}

/// Bits of word 0 below the ticks.
pub(super) const TICKS_SHIFT: u32 = 12;

/// The ticks of which an event has the lower bits, noted within a week of `near`.
pub(super) fn whole_ticks(lower: u64, near: u64) -> u64 {
    let since = (lower.wrapping_sub(near) << TICKS_SHIFT) as i64 >> TICKS_SHIFT;
    near.saturating_add_signed(since)
}

/// Word 0 of an event of `len` words.
#[inline(always)]
pub(super) fn head(kind: EventKind, len: usize, ticks: u64) -> u64 {
    ticks << TICKS_SHIFT | (len as u64) << 5 | kind as u64
}

/// The number of words of the event with this word 0.
#[inline]
pub(super) fn length_of(head: u64) -> usize {
    (head >> 5 & 0x7f) as usize
}

/// No text, no library.
pub(super) const NONE: u32 = u32::MAX;

/// Bits of an identity in an event of narrow form; the rest of the word is for others.
const NARROW: u32 = 40;

/// An identity, and 24 bits more in the same word; `None` if they do not fit.
#[inline(always)]
pub(super) fn narrow(id: u64, more: u64) -> Option<u64> {
    (id >> NARROW == 0 && more >> (64 - NARROW) == 0).then_some(id | more << NARROW)
}

/// The inverse of [`narrow`].
pub(super) fn widened(word: u64) -> (u64, u64) {
    (word & ((1 << NARROW) - 1), word >> NARROW)
}

/// Name and kind of use in the 24 bits of a narrow event; too large for them if the name's number is.
#[inline(always)]
pub(super) fn name_and_use(name: u32, what: UseKind) -> u64 {
    u64::from(name) << 2 | what as u64
}

/// The inverse of [`name_and_use`].
pub(super) fn name_and_use_of(about: u64) -> (u32, UseKind) {
    ((about >> 2) as u32, UseKind::from_bits((about & 3) as u8))
}

/// Two texts in one word.
#[inline(always)]
pub(super) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The two halves of a word.
pub(super) fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// An engine and whether a thread is one of its workers, in one word.
pub(super) fn engine(id: u64, is_worker: bool) -> u64 {
    id << 1 | u64::from(is_worker)
}

/// The inverse of [`engine`].
pub(super) fn engine_of(word: u64) -> (u64, bool) {
    (word >> 1, word & 1 != 0)
}

/// An element type in half a word.
pub(super) fn element(dtype: DType) -> u32 {
    let DType { code, bits, lanes } = dtype;
    u32::from(code) | u32::from(bits) << 8 | u32::from(lanes) << 16
}

/// The element type in half a word.
pub(super) fn element_of(half: u32) -> DType {
    DType { code: half as u8, bits: (half >> 8) as u8, lanes: (half >> 16) as u16 }
}

/// The outcome of an operation, a flag for device work that goes on, and the number of the reason of a
/// failure, in one word.
pub(super) fn ended(how: OutcomeCode, device_work: bool, why: u32) -> u64 {
    pair(u32::from(how as u8) | u32::from(device_work) << 8, why)
}

/// The inverse of [`ended`].
pub(super) fn ended_of(word: u64) -> (OutcomeCode, bool, u32) {
    let (about, why) = halves(word);
    (OutcomeCode::from_bits(about as u8), about & 1 << 8 != 0, why)
}

/// An access in one word; never 0.
#[inline(always)]
pub(super) fn access(var: u64, mode: AccessMode) -> u64 {
    let mode = match mode {
        AccessMode::Read => 1,
        AccessMode::Write => 2,
        AccessMode::Update => 3,
    };
    var << 2 | mode
}

/// Variable and mode of an access.
pub(super) fn access_of(word: u64) -> Option<(u64, estafette_report::model::AccessMode)> {
    use estafette_report::model::AccessMode;
    let mode = match word & 3 {
        1 => AccessMode::Read,
        2 => AccessMode::Write,
        3 => AccessMode::Update,
        _ => return None,
    };
    Some((word >> 2, mode))
}

/// The kind of use that was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum UseKind {
    Body = 0,
    Wait = 1,
    Lease = 2,
    Copy = 3,
}

impl UseKind {
    /// The kind in the two lower bits.
    pub(super) fn from_bits(bits: u8) -> Self {
        [Self::Body, Self::Wait, Self::Lease, Self::Copy][usize::from(bits & 3)]
    }
}

/// The outcome of an operation or of its device work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum OutcomeCode {
    Well = 0,
    Failed = 1,
    Cancelled = 2,
    Skipped = 3,
}

impl OutcomeCode {
    /// The code in the two lower bits.
    pub(super) fn from_bits(bits: u8) -> Self {
        [Self::Well, Self::Failed, Self::Cancelled, Self::Skipped][usize::from(bits & 3)]
    }
}
