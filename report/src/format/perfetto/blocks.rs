//! Blocks of packets, compressed as Perfetto's own writers do it: one packet that holds others.
//!
//! The checksum at the end of a block finds damage that would otherwise be read as something else.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

/// The size that a block may grow to when it is read; a larger one is written as it is.
const INFLATED_MAX: usize = 8 << 20;

/// The factor by which a block may grow, and the bytes that it may grow by besides, however small it is. So a
/// file takes memory in relation to its size, whatever its origin. Blocks of traces grow to some ten times
/// their size.
const GROWTH_MAX: usize = 100;
const GROWTH_FREE: usize = 1 << 16;

/// The greatest inflated size of a block of so many bytes.
fn inflated_max(compressed: usize) -> usize {
    compressed.saturating_mul(GROWTH_MAX).saturating_add(GROWTH_FREE).min(INFLATED_MAX)
}

/// Of zlib's levels: the least that finds matches well. Level 6 takes three times as long for a tenth less.
const LEVEL: u32 = 3;

/// The compressed form, unless [`inflate`] would refuse it.
pub fn deflate(block: &[u8]) -> Option<Vec<u8>> {
    // A vector takes everything.
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(LEVEL));
    let compressed = encoder.write_all(block).and_then(|()| encoder.finish()).ok()?;
    (block.len() <= inflated_max(compressed.len())).then_some(compressed)
}

/// The result of inflating a block.
pub enum Inflated {
    Whole(Vec<u8>),
    /// Its beginning: it ends too early.
    Beginning(Vec<u8>),
    /// Nothing that could be trusted, and why.
    Nothing(&'static str),
}

/// Undoes [`deflate`].
pub fn inflate(compressed: &[u8]) -> Inflated {
    let most = inflated_max(compressed.len());
    let mut block = Vec::new();
    let read = ZlibDecoder::new(compressed).take(most as u64 + 1).read_to_end(&mut block);
    match read {
        Ok(_) if block.len() > most => Inflated::Nothing("it grows to more than any block has"),
        Ok(_) => Inflated::Whole(block),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Inflated::Beginning(block),
        Err(_) => Inflated::Nothing("its checksum or its compression is wrong"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compressed_comes_back() {
        let block = b"worker 0 worker 1 worker 2 ".repeat(100);
        let compressed = deflate(&block).expect("a small block");
        assert!(compressed.len() < block.len() / 10);
        assert!(matches!(inflate(&compressed), Inflated::Whole(whole) if whole == block));
    }

    #[test]
    fn a_beginning_is_true_and_a_changed_byte_costs_all() {
        let block: Vec<u8> = (0..10_000_u32).flat_map(|number| (number * number).to_le_bytes()).collect();
        let compressed = deflate(&block).expect("a small block");
        let Inflated::Beginning(part) = inflate(&compressed[..compressed.len() / 2]) else {
            panic!("half of it is a beginning");
        };
        assert!(part.len() > 1_000 && block.starts_with(&part));
        for at in (2..compressed.len()).step_by(97) {
            let mut changed = compressed.clone();
            changed[at] ^= 0x10;
            assert!(!matches!(inflate(&changed), Inflated::Whole(_)), "byte {at}");
        }
    }

    #[test]
    fn a_block_that_grows_without_end_is_refused_and_never_made() {
        let zeros = vec![0_u8; INFLATED_MAX];
        assert!(deflate(&zeros).is_none());
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&zeros).expect("a vector takes everything");
        let bomb = encoder.finish().expect("a vector takes everything");
        assert!(matches!(inflate(&bomb), Inflated::Nothing(_)));
    }
}
