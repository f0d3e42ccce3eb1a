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
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// What `f` returns, and the bytes that the calling thread held at most while it ran, beyond those before.
///
/// # Panics
/// When the process has another allocator: nothing would be counted.
pub fn most_of_this_thread<R>(f: impl FnOnce() -> R) -> (R, usize) {
    let counted = of_this_thread();
    drop(std::hint::black_box(Box::new(0_u8)));
    assert_ne!(counted, of_this_thread(), "`Counting` is not the allocator of this process");
    let before = HELD.get();
    MOST.set(before);
    let returned = f();
    (returned, usize::try_from(MOST.get() - before).unwrap_or(0))
}

/// Notes that this thread holds so many bytes more. What another thread frees counts there.
fn held(bytes: isize) {
    let now = HELD.get() + bytes;
    HELD.set(now);
    MOST.set(MOST.get().max(now));
}

fn count() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    OF_THIS_THREAD.set(OF_THIS_THREAD.get() + 1);
}

/// Allocations of the calling thread so far: what others do, as a watchdog that is late to start, is not in it.
pub fn of_this_thread() -> usize {
    OF_THIS_THREAD.get()
}

/// Allocations of the process so far; a block that is made longer is one more.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::Relaxed)
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        held(layout.size() as isize);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        held(-(layout.size() as isize));
        // SAFETY: passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        held(size as isize - layout.size() as isize);
        // SAFETY: passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
