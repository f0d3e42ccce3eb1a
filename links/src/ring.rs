//! Messages from the owner of a board to its peer. PROTOCOL.md, *send* and *receive*.

use crate::board::{HEAD, OwnBoard, PeerBoard, RING, SLOTS, TAIL, Words};

/// Words of the ring after which a peer that waits for room looks again.
const EIGHTH: u64 = if RING < 8 { 1 } else { RING / 8 };
/// Bytes of a note. The description of a tensor of 64 dimensions, with the number of a request before it, has
/// 1,073.
pub(crate) const NOTE_BYTES: usize = 1088;

/// A message in the ring: an index whose use begins, and a note for the receiver.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) index: usize,
    pub(crate) generation: u32,
    pub(crate) note: Vec<u8>,
}

/// Words of a message: one that says what it is, and the note.
fn length(note_bytes: usize) -> u64 {
    1 + note_bytes.div_ceil(8) as u64
}

/// The peer has published what breaks the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// The end at which this process writes.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// The value that is published as [`HEAD`].
    head: u64,
    /// The peer's tail when this process read it last.
    read: u64,
}

impl Writer {
    /// True if a message with such a note has room.
    pub(crate) fn has_room<P: Words>(
        &mut self,
        note_bytes: usize,
        peer: &PeerBoard<P>,
    ) -> Result<bool, Violation> {
        let room = |read| (self.head - read) + length(note_bytes) <= RING;
        if !room(self.read) {
            let read = peer.load(TAIL);
            if !(self.read..=self.head).contains(&read) {
                return Err(Violation("it has read what was not written"));
            }
            self.read = read;
        }
        Ok(room(self.read))
    }

    /// Publishes a message, which has room.
    pub(crate) fn write<W: Words>(&mut self, index: usize, generation: u32, note: &[u8], own: &OwnBoard<W>) {
        let first = u64::from(generation) << 32 | (index as u64) << 16 | note.len() as u64;
        own.set_ring(self.head, first);
        for (position, bytes) in (self.head + 1..).zip(note.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            own.set_ring(position, u64::from_le_bytes(whole));
        }
        self.head += length(note.len());
        step!("send 4, ring");
        own.store(HEAD, self.head);
    }
}

/// The end at which this process reads.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The value that is published as [`TAIL`].
    tail: u64,
    /// The peer's head when this process read it last.
    written: u64,
}

impl Reader {
    /// Takes the next message, if there is one, and says whether a peer without room is to hear of it: at
    /// every eighth of the ring, so that the many messages of a fast peer need no fence each.
    pub(crate) fn read<W: Words, P: Words>(
        &mut self,
        own: &OwnBoard<W>,
        peer: &PeerBoard<P>,
    ) -> Result<Option<(Message, bool)>, Violation> {
        if self.written == self.tail {
            self.written = peer.load(HEAD);
        }
        let there = self.written.wrapping_sub(self.tail);
        if there == 0 {
            return Ok(None);
        }
        step!("receive 1");
        let first = peer.ring(self.tail);
        let (index, bytes) = ((first >> 16 & 0xffff) as usize, (first & 0xffff) as usize);
        if there > RING || length(bytes) > there {
            return Err(Violation("a message is longer than what was written"));
        }
        if index >= SLOTS || bytes > NOTE_BYTES {
            return Err(Violation("a message names what there is not"));
        }
        let positions = self.tail.wrapping_add(1)..self.tail.wrapping_add(length(bytes));
        let words = positions.flat_map(|position| peer.ring(position).to_le_bytes());
        let note = words.take(bytes).collect();
        let before = self.tail;
        self.tail = self.tail.wrapping_add(length(bytes));
        // The words have been copied: their places may be written again.
        step!("receive 2, copied");
        own.store(TAIL, self.tail);
        step!("receive 2");
        let message = Message { index, generation: (first >> 32) as u32, note };
        Ok(Some((message, before / EIGHTH != self.tail / EIGHTH)))
    }
}
