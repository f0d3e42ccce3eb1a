//! Damaged files of every kind, from seeds that are always the same: a report never panics, hangs, or takes
//! memory that the file bears no relation to; and what is missing is said.
//!
//! `ESTAFETTE_FUZZ_SECONDS` makes it go on with other seeds for as long.

use std::io::Write;
use std::time::{Duration, Instant};

use estafette_report::terminal::{Style, text};
use estafette_report::{Trace, chrome, html, perfetto, report};
use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::made_up;

/// Damaged files in a usual run, and in `cargo xtask test` without `--all`.
const ROUNDS: u64 = 200;
const ROUNDS_OF_FEW: u64 = 50;

/// A small generator of Marsaglia's xorshift family ("Xorshift RNGs", 2003): the same numbers everywhere.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn written(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    perfetto::write(trace, &mut bytes).expect("a vector takes everything");
    bytes
}

/// The packets of a file: where each begins and ends.
fn packets(file: &[u8]) -> Vec<(usize, usize)> {
    let mut packets = Vec::new();
    let mut at = 0;
    while let Some((0x0a, mut after)) = file.get(at..).and_then(<[u8]>::split_first) {
        let Ok(length) = prost::encoding::decode_varint(&mut after) else { break };
        if length > after.len() as u64 {
            break;
        }
        let end = file.len() - after.len() + length as usize;
        packets.push((at, end));
        at = end;
    }
    packets
}

/// A packet with its tag and length.
fn framed(body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x0a];
    prost::encoding::encode_varint(body.len() as u64, &mut packet);
    packet.extend(body);
    packet
}

/// A compressed block with what it should not have: its packets, changed before they were compressed.
fn compressed(packets: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(packets).expect("a vector takes everything");
    let block = encoder.finish().expect("a vector takes everything");
    let mut body = vec![0x92, 0x03]; // field 50, bytes
    prost::encoding::encode_varint(block.len() as u64, &mut body);
    body.extend(block);
    framed(&body)
}

/// The same file without compression: what was in its blocks.
fn inflated(file: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    for (begin, end) in packets(file) {
        let mut body = &file[begin..end];
        body = &body[1..];
        prost::encoding::decode_varint(&mut body).expect("its length");
        if body.starts_with(&[0x92, 0x03]) {
            body = &body[2..];
            prost::encoding::decode_varint(&mut body).expect("its length");
            std::io::Read::read_to_end(&mut flate2::read::ZlibDecoder::new(body), &mut plain)
                .expect("a block");
        } else {
            plain.extend(&file[begin..end]);
        }
    }
    plain
}

/// Does some harm.
fn damage(file: &mut Vec<u8>, dice: &mut Dice) {
    let end = file.len();
    match dice.below(8) {
        0 => (0..=dice.below(20)).for_each(|_| file[dice.below(end)] ^= 1 << dice.below(8)),
        1 => file.truncate(dice.below(end)),
        2 => {
            // A varint that never ends, or names more than there is.
            let at = dice.below(end);
            let huge = [0xff; 12];
            let end = (at + 1 + dice.below(huge.len())).min(end);
            file[at..end].copy_from_slice(&huge[..end - at]);
        }
        3 => {
            // Two packets change places.
            let all = packets(file);
            if all.is_empty() {
                return;
            }
            let (one, other) = (all[dice.below(all.len())], all[dice.below(all.len())]);
            let swap = |packet: (usize, usize)| match packet {
                it if it == one => other,
                it if it == other => one,
                it => it,
            };
            let swapped: Vec<u8> = all
                .iter()
                .flat_map(|it| {
                    let (begin, end) = swap(*it);
                    file[begin..end].to_vec()
                })
                .collect();
            *file = swapped;
        }
        4 => {
            // A piece of it again, somewhere else.
            let (from, at) = (dice.below(end), dice.below(end));
            let piece = file[from..(from + dice.below(5_000)).min(end)].to_vec();
            file.splice(at..at, piece);
        }
        5 => {
            let from = dice.below(end);
            file.drain(from..(from + dice.below(5_000)).min(end));
        }
        6 => {
            // Messages in messages, deeper than any reader should follow.
            let mut nested = vec![0x62, 0x00]; // an array of annotations in itself
            for _ in 0..dice.below(2_000) {
                let mut outer = vec![0x62];
                prost::encoding::encode_varint(nested.len() as u64, &mut outer);
                outer.extend(nested);
                nested = outer;
            }
            let mut event = vec![0x5a]; // a track event
            prost::encoding::encode_varint(nested.len() as u64, &mut event);
            event.extend(nested);
            let all = packets(file);
            let at = all.get(dice.below(all.len())).map_or(0, |packet| packet.0);
            file.splice(at..at, framed(&event));
        }
        _ => {
            let at = dice.below(end);
            (at..(at + dice.below(64)).min(end)).for_each(|at| file[at] = dice.next() as u8);
        }
    }
}

/// All that is ever made of a trace.
fn inspect(bytes: &[u8], whole: &Trace) {
    let left = perfetto::read(bytes);
    let there = left.operations.len() + left.stalls.len() + left.edges.len();
    let bound = 4 * (whole.operations.len() + whole.stalls.len() + whole.edges.len());
    assert!(there <= bound, "{there} things of a file that had {}", bound / 4);
    if left.operations.len() < whole.operations.len() {
        assert!(!left.losses.damage.is_empty(), "what is missing is said");
    }
    let told = report(&left);
    assert!(!text(&told, Style::default()).is_empty());
    chrome::write(&left, std::io::sink()).expect("a sink takes everything");
    html::write(&left, &told, std::io::sink()).expect("a sink takes everything");
    perfetto::write(&left, std::io::sink()).expect("a sink takes everything");
}

fn inspect_damaged(seed: u64, whole: &Trace, file: &[u8], plain: &[u8]) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    // The file as it is; without compression, where damage goes unseen; and damage that has a right checksum.
    let mut bytes = if dice.below(3) == 0 { file.to_vec() } else { plain.to_vec() };
    for _ in 0..=dice.below(3) {
        if !bytes.is_empty() {
            damage(&mut bytes, &mut dice);
        }
    }
    if dice.below(3) == 0 {
        bytes = compressed(&bytes);
    }
    inspect(&bytes, whole);
}

#[test]
fn a_damaged_file_gives_a_partial_report_and_never_more() {
    let whole = made_up::trace(120);
    let file = written(&whole);
    let plain = inflated(&file);
    assert_eq!(perfetto::read(&plain), whole, "a file need not be compressed");
    let few = std::env::var_os("ESTAFETTE_FEW_EXAMPLES").is_some();
    let rounds = if few { ROUNDS_OF_FEW } else { ROUNDS };
    (0..rounds).for_each(|seed| inspect_damaged(seed, &whole, &file, &plain));
    let seconds = std::env::var("ESTAFETTE_FUZZ_SECONDS").ok().and_then(|it| it.parse().ok()).unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(seconds);
    let more = (rounds..).take_while(|_| Instant::now() < end);
    let more = more.inspect(|&seed| inspect_damaged(seed, &whole, &file, &plain));
    if let Some(last) = more.last() {
        println!("{last} damaged files");
    }
}
