//! The "driver": the functions that the library calls. A stream is a handle that `another_stream` made.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use super::backend::DEVICE;
use super::device::Stream;

/// True once the library is imported.
pub static LOADED: AtomicBool = AtomicBool::new(false);

fn with<R>(stream: usize, use_it: impl FnOnce(&Stream) -> R) -> R {
    // SAFETY: the library calls with streams that it has made, or that it was given, for as long as they
    // live.
    use_it(unsafe { &*ptr::with_exposed_provenance::<Stream>(stream) })
}

#[unsafe(no_mangle)]
extern "C" fn another_load() {
    LOADED.store(true, Ordering::Relaxed);
}

#[unsafe(no_mangle)]
extern "C" fn another_stream() -> usize {
    Arc::into_raw(Stream::new(Arc::clone(&DEVICE.records_fail))).expose_provenance()
}

#[unsafe(no_mangle)]
extern "C" fn another_stream_free(stream: usize) {
    // SAFETY: made by `another_stream`, and freed once.
    drop(unsafe { Arc::from_raw(ptr::with_exposed_provenance::<Stream>(stream)) });
}

/// Copies bytes on the stream. Either range may be the host's.
#[unsafe(no_mangle)]
extern "C" fn another_copy(stream: usize, to: usize, from: usize, bytes: usize) {
    with(stream, |stream| {
        stream.submit(move || {
            let from = ptr::with_exposed_provenance::<u8>(from);
            // SAFETY: the library keeps both ranges until the work is done, and orders their uses.
            unsafe { from.copy_to(ptr::with_exposed_provenance_mut(to), bytes) }
        });
    });
}

/// Holds up what is enqueued on the stream later, until the result is passed to `another_unblock`.
#[unsafe(no_mangle)]
extern "C" fn another_block(stream: usize) -> *mut c_void {
    let (release, released) = channel::<()>();
    with(stream, |stream| {
        stream.submit(move || {
            let _ = released.recv();
        });
    });
    Box::into_raw(Box::new(release)).cast()
}

#[unsafe(no_mangle)]
extern "C" fn another_unblock(block: *mut c_void) {
    // SAFETY: made by `another_block`, and passed here once.
    drop(unsafe { Box::from_raw(block.cast::<Sender<()>>()) });
}

/// Waits until what was enqueued is done.
#[unsafe(no_mangle)]
extern "C" fn another_synchronize(stream: usize) {
    let (done, is_done) = channel::<()>();
    with(stream, |stream| stream.submit(move || drop(done)));
    let _ = is_done.recv();
}
