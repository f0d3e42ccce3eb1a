//! Small files that say that much is in them: reading and reporting them takes memory in proportion to the
//! file, counted by the allocator.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

#[path = "../../tests/src/counting.rs"]
#[allow(dead_code, reason = "other tests count allocations with it")]
mod counting;
mod made_up;

use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use estafette_report::terminal::{Style, text};
use estafette_report::{Trace, perfetto, report};
use flate2::Compression;
use flate2::write::ZlibEncoder;

use counting::{Counting, taken};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tests of this file count for the process, so one at a time runs.
static ALONE: Mutex<()> = Mutex::new(());

fn varint(number: u64, into: &mut Vec<u8>) {
    prost::encoding::encode_varint(number, into);
}

/// A field with a length.
fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3 | 2, &mut out);
    varint(content.len() as u64, &mut out);
    out.extend(content);
    out
}

fn number(field: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3, &mut out);
    varint(value, &mut out);
    out
}

fn packet(fields: &[Vec<u8>]) -> Vec<u8> {
    bytes(1, &fields.concat())
}

/// As a file has a compressed block.
fn block(packets: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(packets).unwrap();
    packet(&[bytes(50, &encoder.finish().unwrap())])
}

/// Blocks whose content is split at packets, so that each may grow as little as a reader accepts.
fn blocks(packets: impl Iterator<Item = Vec<u8>>, packets_per_block: usize) -> Vec<u8> {
    let packets: Vec<Vec<u8>> = packets.collect();
    packets.chunks(packets_per_block).flat_map(|some| block(&some.concat())).collect()
}

/// Interned data with one entry.
fn interned(kind: u64, iid: u64, text: &str) -> Vec<u8> {
    bytes(12, &bytes(kind, &[number(1, iid), bytes(2, text.as_bytes())].concat()))
}

/// The texts that packets of [`operation`] refer to.
fn interns(name: &str) -> Vec<u8> {
    const CATEGORY: u64 = 1;
    let mut interns = packet(&[number(13, 1)]);
    interns.extend(packet(&[interned(1, CATEGORY, "operation"), number(13, 2)]));
    interns.extend(packet(&[interned(2, 1, name), number(13, 2)]));
    for (iid, known) in ["id", "kind", "submitted", "outcome"].into_iter().enumerate() {
        interns.extend(packet(&[interned(3, iid as u64 + 1, known), number(13, 2)]));
    }
    for (iid, known) in ["operation", "ok"].into_iter().enumerate() {
        interns.extend(packet(&[interned(29, iid as u64 + 1, known), number(13, 2)]));
    }
    interns
}

fn operation(id: u64) -> Vec<u8> {
    let fact = |name: u64, value: Vec<u8>| bytes(4, &[number(1, name), value].concat());
    let event = [
        number(3, 1),
        fact(1, number(3, id)),
        fact(2, number(17, 1)),
        fact(3, number(3, id)),
        fact(4, number(17, 2)),
        number(9, 3),
        number(10, 1),
        number(11, 1),
    ];
    packet(&[number(8, id), number(13, 2), bytes(11, &event.concat())])
}

/// The most bytes that reading and reporting may take: the budget of the reading, a block, and as much again
/// for the report.
fn most(file: &[u8]) -> usize {
    let budget = (64 * file.len()).max(16 << 20);
    4 * budget + (32 << 20)
}

fn read_within_bounds(file: &[u8]) -> Trace {
    let (trace, for_reading) = taken(|| perfetto::read(file));
    let budget = (64 * file.len()).max(16 << 20);
    // Vectors grow by doubling, and one block of 8 MiB is there at a time.
    assert!(for_reading <= 2 * budget + (32 << 20), "{for_reading} bytes to read {}", file.len());
    let (shown, for_report) = taken(|| text(&report(&trace), Style::default()));
    assert!(for_report <= most(file), "{for_report} bytes to report {}", file.len());
    assert!(shown.len() < 8 << 20, "{} bytes of text", shown.len());
    trace
}

#[test]
fn a_long_name_that_many_operations_share_is_there_once() {
    let _alone = ALONE.lock();
    let mut packets = interns(&"x".repeat(300_000));
    (0..20_000).for_each(|id| packets.extend(operation(id)));
    let file = block(&packets);
    assert!(file.len() < 200_000, "{}", file.len());
    let trace = read_within_bounds(&file);
    assert_eq!(trace.operations.len(), 20_000, "{:?}", trace.losses.damage);
    assert!(trace.operations.iter().all(|operation| operation.name.len() <= 4_096));
}

#[test]
fn more_than_the_budget_stops_the_reading_and_is_named() {
    let _alone = ALONE.lock();
    // Small blocks may grow to 64 KiB whatever their size is, so each holds as much again and again.
    let mut packets = interns("x");
    (0..900).for_each(|_| packets.extend(operation(7)));
    let file = block(&packets).repeat(120);
    assert!(file.len() < 100_000, "{}", file.len());
    let trace = read_within_bounds(&file);
    assert_eq!(trace.operations.len(), 1, "they are all one");
    let told = trace.losses.damage.join("\n");
    assert!(told.contains("budget of 16 MiB") && told.contains("64 times its size"), "{told}");
}

#[test]
fn much_damage_is_counted_and_a_hundred_places_are_named() {
    let _alone = ALONE.lock();
    // Garbage, then what a block begins with, again and again.
    let marker = [
        0x0a, 0x13, 0xa2, 0x02, 0x10, 0x82, 0x47, 0x7a, 0x76, 0xb2, 0x8d, 0x42, 0xba, 0x81, 0xdc, 0x33, 0x32,
        0x6d, 0x57, 0xa0, 0x79,
    ];
    let damaged = [&marker[..], b"\xff"].concat().repeat(40_000);
    let compressed = block(&damaged[..60_000]).repeat(20);
    for file in [damaged, compressed] {
        let trace = read_within_bounds(&file);
        let damage = &trace.losses.damage;
        assert!(damage.len() < 110, "{}", damage.len());
        assert!(
            damage.iter().any(|words| words.starts_with("and ") && words.ends_with(" more")),
            "{damage:?}"
        );
    }
}

#[test]
fn packets_of_very_many_writers_are_read_as_those_of_some() {
    let _alone = ALONE.lock();
    let writer = |number_of_it: u64| packet(&[number(10, number_of_it), number(13, 1), number(8, 5)]);
    let trace = read_within_bounds(&blocks((1..200_000).map(writer), 5_000));
    assert!(trace.losses.damage.iter().any(|it| it.contains("more than 1024 writers")), "{:?}", trace.losses);
}

#[test]
fn counters_without_samples_are_none() {
    let _alone = ALONE.lock();
    let track = |uuid: u64| packet(&[bytes(60, &[number(1, uuid), bytes(8, &[])].concat())]);
    let file = blocks((1..200_000).map(track), 20_000);
    let trace = read_within_bounds(&file);
    assert!(trace.counters.is_empty());
}

#[test]
fn a_report_of_many_libraries_has_rows_for_thirty() {
    let _alone = ALONE.lock();
    let mut trace = made_up::trace(8_000);
    trace.libraries = (0..4_000).map(|library| format!("library {library}").into()).collect();
    for (at, operation) in trace.operations.iter_mut().enumerate() {
        operation.library = Some(at % 4_000);
    }
    let mut file = Vec::new();
    perfetto::write(&trace, &mut file).unwrap();
    let trace = read_within_bounds(&file);
    let matrix = report(&trace).matrix;
    assert!((30..=33).contains(&matrix.libraries.len()), "{}", matrix.libraries.len());
    let waited: u64 = matrix.waited_ns.iter().flatten().sum();
    assert_eq!(waited, report(&trace).totals.waited_ns, "what waited least is one row");
}

#[test]
fn a_file_that_grows_a_thousandfold_is_refused() {
    let _alone = ALONE.lock();
    let begin = Instant::now();
    let trace = read_within_bounds(&block(&packet(&[]).repeat(4 << 20)).repeat(50));
    assert!(trace.operations.is_empty());
    let told = trace.losses.damage.join("\n");
    assert!(told.contains("50 times a block could not be read") && told.contains("grows to more"), "{told}");
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}

#[test]
fn messages_in_messages_are_followed_to_no_depth_that_ends_the_thread() {
    let _alone = ALONE.lock();
    // Arrays of annotations in arrays of annotations.
    let nested = (0..20_000).fold(Vec::new(), |inner, _| bytes(12, &inner));
    let trace = read_within_bounds(&packet(&[bytes(11, &nested)]));
    assert!(!trace.losses.damage.is_empty(), "what is missing is said");
}

#[test]
fn a_real_trace_is_far_from_its_budget() {
    let _alone = ALONE.lock();
    let trace = made_up::trace(10_000);
    let mut file = Vec::new();
    perfetto::write(&trace, &mut file).unwrap();
    let (read, bytes) = taken(|| perfetto::read(&file));
    assert_eq!(read, trace);
    assert!(bytes < 64 * file.len() / 2 + (8 << 20), "{bytes} bytes for {} of a file", file.len());
}
