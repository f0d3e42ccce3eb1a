//! An allocator that counts. A test of allocations declares one as its `#[global_allocator]`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counted.
#[derive(Debug)]
pub struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Without a destructor, so that an allocator may use it at any time.
    static OF_THIS_THREAD: Cell<usize> = const { Cell::new(0) };

    /// Bytes that this thread has allocated, less those that it has freed.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    OF_THIS_THREAD.set(OF_THIS_THREAD.get() + 1);
}

/// Allocations of the calling thread so far: what others do, as a watchdog that is late to start, is not in it.
pub fn of_this_thread() -> usize {
    OF_THIS_THREAD.get()
}

/// Bytes that the calling thread has allocated, less those that it has freed.
pub fn held_by_this_thread() -> isize {
    HELD.get()
}

/// Allocations of the process so far; a block that is made longer is one more.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::Relaxed)
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        HELD.set(HELD.get() + layout.size() as isize);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        HELD.set(HELD.get() + size as isize - layout.size() as isize);
        // SAFETY: passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
