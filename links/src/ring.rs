//! Messages from the owner of a board to its peer. PROTOCOL.md, *send* and *receive*.

use crate::board::{HEAD, OwnBoard, PeerBoard, RING, SLOTS, TAIL, Words};

/// Bytes of a note.
pub(crate) const NOTE_BYTES: usize = 1024;

/// What crosses in the ring: an index whose use begins, and a note for the receiver.
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

/// What the peer has published makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Nonsense(pub(crate) &'static str);

/// The end at which this process writes.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// What is published as [`HEAD`].
    head: u64,
}

impl Writer {
    /// Whether a message with such a note has room.
    pub(crate) fn has_room<P: Words>(
        &self,
        note_bytes: usize,
        peer: &PeerBoard<P>,
    ) -> Result<bool, Nonsense> {
        let used = self.head.wrapping_sub(peer.load(TAIL));
        if used > RING {
            return Err(Nonsense("it has read more than was written"));
        }
        Ok(RING - used >= length(note_bytes))
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
        own.store(HEAD, self.head);
    }
}

/// The end at which this process reads.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// What is published as [`TAIL`].
    tail: u64,
}

impl Reader {
    /// Takes the next message, if there is one.
    pub(crate) fn read<W: Words, P: Words>(
        &mut self,
        own: &OwnBoard<W>,
        peer: &PeerBoard<P>,
    ) -> Result<Option<Message>, Nonsense> {
        let there = peer.load(HEAD).wrapping_sub(self.tail);
        if there == 0 {
            return Ok(None);
        }
        let first = peer.ring(self.tail);
        let (index, bytes) = ((first >> 16 & 0xffff) as usize, (first & 0xffff) as usize);
        if there > RING || length(bytes) > there {
            return Err(Nonsense("a message is longer than what was written"));
        }
        if index >= SLOTS || bytes > NOTE_BYTES {
            return Err(Nonsense("a message names what there is not"));
        }
        let positions = self.tail.wrapping_add(1)..self.tail.wrapping_add(length(bytes));
        let words = positions.flat_map(|position| peer.ring(position).to_le_bytes());
        let note = words.take(bytes).collect();
        self.tail = self.tail.wrapping_add(length(bytes));
        // The words have been copied: their places may be written again.
        own.store(TAIL, self.tail);
        Ok(Some(Message { index, generation: (first >> 32) as u32, note }))
    }
}
