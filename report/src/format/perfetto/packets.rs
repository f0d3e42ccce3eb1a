//! Takes a trace apart into packets, and finds the way back after damage.

use super::messages::BLOCK;
use super::write::PACKET_TAG;

/// A part of a file.
pub enum PacketPart<'a> {
    Packet(usize, &'a [u8]),
    Damage(String),
    /// The same of the end of the file, and what there is of the last packet.
    Cut(String, &'a [u8]),
}

/// The parts of a file, in order.
pub struct PacketParts<'a> {
    bytes: &'a [u8],
    at: usize,
    count: usize,
}

impl<'a> PacketParts<'a> {
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, count: 0 }
    }

    /// The packet at the current place, and where it ends.
    fn packet(&self) -> Option<(&'a [u8], usize)> {
        let (length, after) = self.frame()?;
        let body = after.get(..length)?;
        Some((body, self.bytes.len() - after.len() + length))
    }

    /// The length of the packet at the current place, and the bytes after its length.
    fn frame(&self) -> Option<(usize, &'a [u8])> {
        let (&PACKET_TAG, mut after) = self.bytes[self.at..].split_first()? else { return None };
        let length = usize::try_from(prost::encoding::decode_varint(&mut after).ok()?).ok()?;
        Some((length, after))
    }

    /// The offset at which the next block begins.
    fn next_block(&self) -> Option<usize> {
        let from = self.at + 1;
        let found = self.bytes.get(from..)?.windows(BLOCK.len()).position(|window| window == BLOCK);
        found.map(|found| from + found)
    }
}

impl<'a> Iterator for PacketParts<'a> {
    type Item = PacketPart<'a>;

    fn next(&mut self) -> Option<PacketPart<'a>> {
        if self.at >= self.bytes.len() {
            return None;
        }
        if let Some((body, end)) = self.packet() {
            let part = PacketPart::Packet(self.at, body);
            self.at = end;
            self.count += 1;
            return Some(part);
        }
        let (at, count) = (self.at, self.count + 1);
        Some(match self.next_block() {
            Some(block) => {
                self.at = block;
                PacketPart::Damage(format!("unreadable from byte {at} (packet {count}) to byte {block}"))
            }
            None => {
                let (_, rest) = self.frame().unwrap_or_default();
                self.at = self.bytes.len();
                let end = self.at;
                let is_other = at == 0 && self.bytes.first() != Some(&PACKET_TAG);
                let words = if is_other {
                    "it does not begin as a trace does".into()
                } else {
                    format!("truncated at byte {at} of packet {count}: the file ends at byte {end}")
                };
                PacketPart::Cut(words, rest)
            }
        })
    }
}
