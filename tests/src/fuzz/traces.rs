//! The file of a trace: reading any bytes, and all that is made of what was read, ends, does not panic,
//! and takes memory in proportion to the file.

use std::io::Write;

use estafette_report::terminal::{Style, text};
use estafette_report::{chrome, html, perfetto, report};
use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::counting::most_of_this_thread;

/// Blocks that one input becomes, at most.
const BLOCKS_MAX: usize = 32;
/// The bytes that a text in a terminal has at most, whatever the trace has.
const TEXT_MAX: usize = 8 << 20;
/// Bytes that each step may take beside its budget: a block is inflated to 8 MiB, and a vector is twice as
/// long while it grows.
const SLACK: usize = 32 << 20;

/// The budget of the documentation of `perfetto::read`.
fn budget(file: &[u8]) -> usize {
    (64 * file.len()).max(16 << 20)
}

/// The file that an input stands for. Mutations of compressed bytes reach the decompressor only, so most
/// inputs are packets that are compressed here, in so many copies as the first byte says.
fn file(bytes: &[u8]) -> Vec<u8> {
    let Some((&form, packets)) = bytes.split_first() else { return Vec::new() };
    if form % 4 == 0 {
        return packets.to_vec();
    }
    let copies = 1 + usize::from(form / 4) % BLOCKS_MAX;
    let within = if form % 4 == 3 { packets.repeat(copies) } else { packets.to_vec() };
    let block = framed(&compressed(&within));
    if form % 4 == 2 { block.repeat(copies) } else { block }
}

fn compressed(packets: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(packets).expect("a vector takes everything");
    encoder.finish().expect("a vector takes everything")
}

/// A packet whose only field is a compressed block.
fn framed(block: &[u8]) -> Vec<u8> {
    let field = [&[0x92, 0x03][..], &length(block.len()), block].concat();
    [&[0x0a][..], &length(field.len()), &field].concat()
}

/// A length as protobuf writes numbers.
fn length(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

pub(super) fn run(bytes: &[u8]) {
    let file = file(bytes);
    let budget = budget(&file);
    let (trace, reading) = most_of_this_thread(|| perfetto::read(&file));
    assert!(reading <= 2 * budget + SLACK, "{reading} bytes to read a file of {}", file.len());
    let (report, reporting) = most_of_this_thread(|| report(&trace));
    let told = text(&report, Style::default());
    assert!(reporting <= 4 * budget + SLACK, "{reporting} bytes to report a file of {}", file.len());
    assert!(!told.is_empty() && told.len() <= TEXT_MAX, "a text of {} bytes", told.len());
    let (_, rendering) = most_of_this_thread(|| {
        chrome::write(&trace, std::io::sink()).expect("a sink takes everything");
        html::write(&trace, &report, std::io::sink()).expect("a sink takes everything");
    });
    assert!(rendering <= 4 * budget + SLACK, "{rendering} bytes to show a file of {}", file.len());
    let mut again = Vec::new();
    perfetto::write(&trace, &mut again).expect("a vector takes everything");
    let reread = perfetto::read(&again);
    assert_eq!(reread.operations.len(), trace.operations.len(), "operations are lost by writing");
}
