//! Allocations of finishing a trace and of reading its file, counted by the allocator.

use std::path::PathBuf;
use std::sync::LazyLock;
use tests::ops::exclusive;

use estafette::trace::{self, Recorder, TraceOptions};
use estafette::{DType, Engine};
use tests::counting::{self, taken};
use tests::dice::few_examples;

/// Bytes allocated before anything is recorded. Threads release one recorder when they write to the next.
static BEFORE: LazyLock<usize> = LazyLock::new(counting::bytes);

/// Operations of the smaller and of the larger trace. What more operations take decides, so that what
/// every trace takes does not.
const SIZES: [usize; 2] = [10_000, 30_000];

/// The same where the traces' own memory decides. It grows by slabs of 2 MiB, one or two of which are made
/// ready ahead: less of the larger one with more operations.
const SIZES_IN_SLABS: [usize; 2] = [5_000, 50_000];

/// Bytes for each operation with one access, to read its file; 1,030 when this was written.
const READING_MAX: usize = 1_200;

/// The same to finish it in memory; 910 when this was written.
const FINISHING_MAX: usize = 1_100;

/// The same to make its report, where operations wait in queues; 300 when this was written, and 1,000 to
/// 2,200 with the roots of all waits at once.
const REPORTING_MAX: usize = 700;

/// A program that is recorded: so many operations of it.
type Program = fn(&Engine, usize);

/// Each operation waits for the one before.
fn a_chain(engine: &Engine, operations: usize) {
    let x = engine.zeros(&[4], DType::F32).unwrap();
    for _ in 0..operations {
        engine.op("step").updates([&x]).run(|[], [], [_]| Ok(())).unwrap();
    }
}

/// Readers and writers of some tensors, in turn.
fn readers_and_writers(engine: &Engine, operations: usize) {
    let tensors: Vec<_> = (0..8).map(|_| engine.zeros(&[4], DType::F32).unwrap()).collect();
    for at in 0..operations {
        let (x, y) = (&tensors[at % 8], &tensors[(at + 1 + at / 8 % 7) % 8]);
        match at % 5 {
            0 => engine.op("write").writes([x]).run(|[], [_]| Ok(())).unwrap(),
            _ => engine.op("read").reads([x]).updates([y]).run(|[_], [], [_]| Ok(())).unwrap(),
        };
    }
}

/// Every operation has a tensor of its own. Few are in flight, since what waits for workers at once decides
/// what it takes as well.
fn fresh_tensors(engine: &Engine, operations: usize) {
    for at in 0..operations {
        let x = engine.zeros(&[4], DType::F32).unwrap();
        engine.op("fill").updates([&x]).run_detached(|[], [], [_]| Ok(())).unwrap();
        if at % 64 == 63 {
            engine.wait_all(None).unwrap();
        }
    }
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("estafette-memory-{name}-{}.pftrace", std::process::id()))
}

/// A trace of a program, which has ended: its recorder, and the bytes that it holds.
fn recorded(name: &str, program: Program, operations: usize) -> (Recorder, usize) {
    let before = *BEFORE;
    let engine = Engine::builder().workers(1).build().unwrap();
    let options = TraceOptions { memory_max: Some(1 << 30), ..TraceOptions::default() };
    let recorder = Recorder::open(options).unwrap().to_file(file(name)).unwrap();
    program(&engine, operations);
    engine.wait_all(None).unwrap();
    drop(engine);
    (recorder, counting::bytes().saturating_sub(before))
}

#[test]
fn a_trace_is_saved_in_less_than_twice_its_own_memory() {
    let _alone = exclusive();
    let programs: [(&str, Program); 3] =
        [("readers", readers_and_writers), ("chain", a_chain), ("fresh", fresh_tensors)];
    // One in `cargo xtask test` without `--all`.
    for (name, program) in programs.into_iter().take(if few_examples() { 1 } else { 3 }) {
        let [small, large] = SIZES_IN_SLABS.map(|operations| {
            let (recorder, held) = recorded(name, program, operations);
            let (saved, more) = taken(|| recorder.save());
            saved.unwrap();
            (held, held + more)
        });
        let (held, whole) = (large.0 - small.0, large.1 - small.1);
        let each = |bytes: usize| bytes / (SIZES_IN_SLABS[1] - SIZES_IN_SLABS[0]);
        println!("{name}: {} bytes for each operation, {} until it is saved", each(held), each(whole));
        assert!(whole < 2 * held, "{name}: {} bytes for each operation, {}", each(held), each(whole));
        let read = trace::read(&file(name)).unwrap();
        assert!(read.operations.len() >= SIZES_IN_SLABS[1] && read.losses.is_empty(), "{:?}", read.losses);
        std::fs::remove_file(file(name)).unwrap();
    }
}

#[test]
fn finishing_in_memory_and_reading_take_memory_in_proportion_to_the_operations() {
    let _alone = exclusive();
    let [small, large] = SIZES.map(|operations| {
        let (recorder, _) = recorded("finish", a_chain, operations);
        let (finished, to_finish) = taken(|| recorder.finish());
        assert_eq!((finished.operations.len() / operations, finished.losses.is_empty()), (1, true));
        drop(finished);
        let (recorder, _) = recorded("read", a_chain, operations);
        recorder.save().unwrap();
        let (read, to_read) = taken(|| trace::read(&file("read")).unwrap());
        assert_eq!(read.operations.len() / operations, 1);
        std::fs::remove_file(file("read")).unwrap();
        (to_finish, to_read)
    });
    let each = |small: usize, large: usize| (large - small) / (SIZES[1] - SIZES[0]);
    let (to_finish, to_read) = (each(small.0, large.0), each(small.1, large.1));
    println!("bytes for each operation: {to_finish} to finish it in memory, {to_read} to read its file");
    assert!(to_finish <= FINISHING_MAX, "{to_finish}");
    assert!(to_read <= READING_MAX, "{to_read}");
}

#[test]
fn a_report_takes_memory_in_proportion_to_the_operations_and_not_to_what_they_waited_for() {
    let _alone = exclusive();
    let [small, large] = SIZES.map(|operations| {
        let (recorder, _) = recorded("report", readers_and_writers, operations);
        let trace = recorder.finish();
        let (report, to_report) = taken(|| estafette_report::report(&trace));
        assert_eq!(report.totals.operations / operations, 1);
        to_report
    });
    let each = large.saturating_sub(small) / (SIZES[1] - SIZES[0]);
    println!("bytes for each operation: {each} to report it");
    assert!(each <= REPORTING_MAX, "{each}");
}

/// An unfinished file: many operations read a variable, then as many waits want to write it. Each wait
/// depends on each reader.
fn many_dependences(operations: u64) -> Vec<u8> {
    const HEAD: u32 = 1;
    const THREAD: u32 = 3;
    const TEXT: u32 = 4;
    const WORDS: u32 = 5;
    const CLOCK: u32 = 8;
    let mut file = b"ESTFREC1".to_vec();
    let mut part = |kind: u32, content: &[u8]| {
        file.extend(kind.to_le_bytes());
        file.extend((content.len() as u32).to_le_bytes());
        file.extend(content);
    };
    part(HEAD, &[&[0; 8], &b"bomb"[..]].concat());
    part(THREAD, &[&[0; 8], &b"main"[..]].concat());
    part(TEXT, &[&[0; 4], &b"x"[..]].concat());
    let entry = |id: u64, is_wait: u64, mode: u64| {
        const SUBMITTED_BRIEFLY: u64 = 15;
        [id << 12 | 3 << 5 | SUBMITTED_BRIEFLY, id | is_wait << 40, 7 << 2 | mode]
            .map(u64::to_le_bytes)
            .concat()
    };
    let readers = (1..=operations).flat_map(|id| entry(id, 0, 1));
    let waits = (operations + 1..=2 * operations).flat_map(|id| entry(id, 1, 2));
    let words: Vec<u8> = [0; 8].into_iter().chain(readers).chain(waits).collect();
    part(WORDS, &words);
    part(CLOCK, &[(1_u64 << 30).to_le_bytes(), 1_f64.to_le_bytes()].concat());
    file
}

#[test]
fn a_small_unfinished_file_with_very_many_dependences_is_read_within_its_budget() {
    let _alone = exclusive();
    let path = file("bomb");
    let read = |operations| {
        std::fs::write(&path, many_dependences(operations)).unwrap();
        taken(|| trace::read(&path).unwrap())
    };
    let (few, _) = read(20);
    assert_eq!((few.operations.len(), few.edges.len()), (40, 400));
    assert_eq!(few.losses.damage.len(), 1, "it is unfinished: {:?}", few.losses.damage);
    let (many, bytes) = read(5_000);
    let damage = many.losses.damage.join("\n");
    assert!(damage.contains("budget of 16 MiB"), "{damage}");
    // A vector that grows has twice what is in it, and half as much again while it moves.
    assert!(bytes < 4 * (16 << 20), "{bytes} bytes");
    std::fs::remove_file(&path).unwrap();
}
