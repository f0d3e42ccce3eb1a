//! The free list: trace buffers whose memory was touched before a thread writes events to it.
//!
//! The system provides memory at its first touch, which takes between a tenth of a microsecond and some
//! microseconds for 4 KiB. With a hundred events in 4 KiB that is up to half of the cost of an event. While a
//! recorder is open, a separate thread therefore touches memory ahead of the writers, in slabs for which the
//! system can use large pages. A writer that finds the free list empty does not wait: it takes a fresh
//! buffer.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use estafette_sync::platform::memory;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use estafette_sync::thread::{self, Thread};

use super::buffer::{BUFFER_BYTES, TraceBuffer, WORDS};

/// Size and alignment of the system's large pages, on x86-64 and mostly on 64-bit Arm.
const SLAB_BYTES: usize = 2 << 20;

/// Buffers of one slab.
const SLAB_BUFFERS: usize = SLAB_BYTES / BUFFER_BYTES;

/// Memory of several buffers.
#[repr(C, align(0x20_0000))]
#[derive(Debug)]
pub(super) struct Slab([[AtomicU64; WORDS]; SLAB_BUFFERS]);

impl Slab {
    /// Zeros, touched.
    fn touched() -> Arc<Self> {
        let mut slab = Box::<Self>::new_uninit();
        let place = NonNull::from(&mut *slab);
        // SAFETY: whole pages that only this function owns.
        unsafe { memory::prefer_large_pages(place.cast(), SLAB_BYTES) };
        // SAFETY: the allocation has the size of `Self`, and only this function owns it. Zero is a value of
        // every integer.
        let slab = unsafe {
            place.write_bytes(0, 1);
            slab.assume_init()
        };
        slab.into()
    }

    #[inline(always)]
    pub(super) fn buffer(&self, number: usize) -> &[AtomicU64] {
        &self.0[number]
    }
}

/// Buffers that are ready to be taken.
#[derive(Debug)]
pub(super) struct FreeList {
    buffers: Mutex<Vec<TraceBuffer>>,
    /// Slabs that the recorder's memory limit still allows.
    slabs: AtomicUsize,
    closed: AtomicBool,
}

/// A recorder's access to its free list, and the thread that fills the list.
#[derive(Debug)]
pub(super) struct FreeListHandle {
    free_list: Arc<FreeList>,
    filler: Option<Thread>,
}

impl FreeListHandle {
    /// The free list of a recorder with `buffers` buffers. The list stays empty for a recorder with little
    /// memory, or where the system starts no thread.
    pub(super) fn of(buffers: usize) -> Self {
        let free_list = Arc::new(FreeList {
            buffers: Mutex::default(),
            slabs: AtomicUsize::new(buffers / SLAB_BUFFERS),
            closed: AtomicBool::new(false),
        });
        let filler = if buffers < 2 * SLAB_BUFFERS { None } else { free_list.filler() };
        Self { free_list, filler }
    }

    /// A buffer, if one is ready.
    pub(super) fn take(&self) -> Option<TraceBuffer> {
        let filler = self.filler.as_ref()?;
        let mut buffers = self.free_list.buffers.try_lock()?;
        let buffer = buffers.pop();
        let low = buffers.len() == SLAB_BUFFERS / 2 || buffer.is_none();
        drop(buffers);
        if low {
            filler.unpark();
        }
        buffer
    }

    /// Ends the filling.
    pub(super) fn close(&self) {
        self.free_list.closed.store(true, Ordering::Release);
        if let Some(filler) = &self.filler {
            filler.unpark();
        }
    }
}

impl FreeList {
    fn filler(self: &Arc<Self>) -> Option<Thread> {
        self.fill();
        let own = Arc::clone(self);
        let spawned = thread::Builder::new().name("estafette-recorder".into()).spawn(move || {
            while !own.closed.load(Ordering::Acquire) {
                if !own.fill() {
                    thread::park();
                }
            }
        });
        Some(spawned.ok()?.thread().clone())
    }

    /// Adds the buffers of a new slab if few are left. Returns whether buffers were added.
    fn fill(&self) -> bool {
        let few = |buffers: &Mutex<Vec<TraceBuffer>>| buffers.lock().len() <= SLAB_BUFFERS / 2;
        if !few(&self.buffers) {
            return false;
        }
        let left = self.slabs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_err() {
            return false;
        }
        let slab = Slab::touched();
        let buffers = (0..SLAB_BUFFERS).map(|number| TraceBuffer::in_slab(Arc::clone(&slab), number));
        self.buffers.lock().extend(buffers);
        true
    }
}
