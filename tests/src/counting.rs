//! An allocator that counts allocations and bytes, but not those that the system refuses. A test of
//! allocations or of memory declares one as its `#[global_allocator]`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The system's allocator, counted.
#[derive(Debug)]
pub struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// Bytes that are allocated, and the most that there were since [`taken`] began.
static BYTES: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

static OVERWRITES: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Without a destructor, so that an allocator may use it at any time.
    static OF_THIS_THREAD: Cell<usize> = const { Cell::new(0) };

    /// Bytes that this thread has allocated, less those that it has freed; and the most that they were.
    static HELD_HERE: Cell<isize> = const { Cell::new(0) };
    static MOST_HERE: Cell<isize> = const { Cell::new(0) };
}

/// Result of `f`, and the bytes that the calling thread held at most while it ran, beyond those before.
pub fn most_of_this_thread<R>(f: impl FnOnce() -> R) -> (R, usize) {
    let counted = of_this_thread();
    drop(std::hint::black_box(Box::new(0_u8)));
    assert_ne!(counted, of_this_thread(), "`Counting` is not the allocator of this process");
    let before = HELD_HERE.get();
    MOST_HERE.set(before);
    let returned = f();
    (returned, usize::try_from(MOST_HERE.get() - before).unwrap_or(0))
}

/// From now on freed memory is overwritten, so that a use of it shows.
pub fn overwrite_freed() {
    OVERWRITES.store(true, Ordering::Relaxed);
}

/// Notes that this thread holds so many bytes more. What another thread frees counts there.
fn held(bytes: isize) {
    let now = HELD_HERE.get() + bytes;
    HELD_HERE.set(now);
    MOST_HERE.set(MOST_HERE.get().max(now));
}

fn count(size: usize) {
    let bytes = BYTES.fetch_add(size, Ordering::Relaxed) + size;
    MOST.fetch_max(bytes, Ordering::Relaxed);
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    OF_THIS_THREAD.set(OF_THIS_THREAD.get() + 1);
}

/// Allocations of the calling thread so far: what others do, as a watchdog that is late to start, is not in
/// it.
pub fn of_this_thread() -> usize {
    OF_THIS_THREAD.get()
}

/// Bytes that the calling thread has allocated, less those that it has freed.
pub fn held_by_this_thread() -> isize {
    HELD_HERE.get()
}

/// Allocations of the process so far; a block that is made longer is one more.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::Relaxed)
}

pub fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

/// Result of `f`, and the most bytes that were allocated beyond those before. A block that is
/// made longer counts twice meanwhile. One call at a time is made.
pub fn taken<R>(f: impl FnOnce() -> R) -> (R, usize) {
    let before = bytes();
    MOST.store(before, Ordering::Relaxed);
    let returned = f();
    (returned, MOST.load(Ordering::Relaxed).saturating_sub(before))
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        let block = unsafe { System.alloc(layout) };
        if !block.is_null() {
            count(layout.size());
            held(layout.size() as isize);
        }
        block
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        held(-(layout.size() as isize));
        if OVERWRITES.load(Ordering::Relaxed) {
            // SAFETY: the block has so many bytes, and nothing uses it any more.
            unsafe { pointer.write_bytes(0xa5, layout.size()) };
        }
        // SAFETY: passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: passed on.
        let longer = unsafe { System.realloc(pointer, layout, size) };
        if !longer.is_null() {
            count(size);
            held(size as isize - layout.size() as isize);
            BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        longer
    }
}
