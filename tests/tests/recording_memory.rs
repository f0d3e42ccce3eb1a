//! What it takes to finish a recording and to read its file, counted by the allocator.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use estafette::journal::{Journal, JournalOptions};
use estafette::{DType, Engine};
use estafette_report::perfetto;

/// The system's allocator; it knows how much there is, and how much there was at most.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all work is the system allocator's; counting touches no memory of its callers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What `f` returns, and the bytes that it took at most beyond what there was.
fn taken<R>(f: impl FnOnce() -> R) -> (R, usize) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let returned = f();
    (returned, MOST.load(Ordering::Relaxed).saturating_sub(before))
}

/// Operations of the recording: enough that what each takes decides.
const OPERATIONS: usize = 100_000;

/// Bytes for each operation with one access, to assemble and attribute it, and again to write it, at most; 2,460 together when this
/// was written. Its entries take some 50 to 100.
const FINISHING_MAX: usize = 3_000;

/// The same to read it; 1,020 when this was written.
const READING_MAX: usize = 1_300;

#[test]
fn finishing_and_reading_a_recording_take_memory_in_proportion_to_its_operations() {
    let engine = Engine::builder().workers(1).build().unwrap();
    let x = engine.zeros(&[4], DType::F32).unwrap();
    let journal = Journal::open(JournalOptions::default()).unwrap();
    for _ in 0..OPERATIONS {
        engine.op("step").updates([&x]).run(|[], [], [_]| Ok(())).unwrap();
    }
    engine.wait_all(None).unwrap();
    let (recording, to_finish) = taken(|| journal.finish());
    assert_eq!((recording.operations.len() / OPERATIONS, recording.losses.is_empty()), (1, true));
    let mut file = Vec::with_capacity(200 * OPERATIONS);
    let recorded = recording.operations.len();
    let (_, to_write) = taken(|| perfetto::write(&recording, &mut file).unwrap());
    drop(recording);
    let (read, to_read) = taken(|| perfetto::read(&file));
    assert_eq!(read.operations.len(), recorded);
    let each = |bytes: usize| bytes / OPERATIONS;
    println!(
        "bytes for each operation: {} to finish, {} more to write {} of a file, {} to read it",
        each(to_finish),
        each(to_write),
        each(file.len()),
        each(to_read)
    );
    assert!(each(to_finish + to_write) <= FINISHING_MAX, "{} + {}", each(to_finish), each(to_write));
    assert!(each(to_read) <= READING_MAX, "{}", each(to_read));
}
