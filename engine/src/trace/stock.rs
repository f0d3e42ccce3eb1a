//! Pages in stock: memory that the system has handed out before anybody writes to it.
//!
//! The system hands memory out at the first touch, and takes between a tenth of a microsecond and some microseconds for 4 KiB
//! of it: with a hundred events in them, up to half of what an event costs. So while tracing is on, a thread of its own
//! touches memory ahead of those who write, in pieces so large that the system can use its large pages for them. Whoever
//! finds the stock empty does not wait for it.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use estafette_sync::thread::{self, Thread};

use super::page::{PAGE_BYTES, Page, WORDS};

/// Size and alignment of the system's large pages, on x86-64 and mostly on 64-bit Arm.
const SLAB_BYTES: usize = 2 << 20;

/// Pages of one slab.
const PAGES: usize = SLAB_BYTES / PAGE_BYTES;

/// Memory of several pages.
#[repr(C, align(0x20_0000))]
#[derive(Debug)]
pub(super) struct Slab([[AtomicU64; WORDS]; PAGES]);

impl Slab {
    /// Zeros, touched.
    fn touched() -> Arc<Self> {
        let mut slab = Box::<Self>::new_uninit();
        let place: *mut MaybeUninit<Self> = &raw mut *slab;
        #[cfg(target_os = "linux")]
        // SAFETY: whole pages that are ours. The advice changes nothing but how fast they are; whether it was taken is all one.
        let _ = unsafe { libc::madvise(place.cast(), SLAB_BYTES, libc::MADV_HUGEPAGE) };
        // SAFETY: ours, of that size. Zero is a value of every integer.
        let slab = unsafe {
            place.write_bytes(0, 1);
            slab.assume_init()
        };
        slab.into()
    }

    #[inline(always)]
    pub(super) fn page(&self, number: usize) -> &[AtomicU64] {
        &self.0[number]
    }
}

/// The pages that are ready, and the thread that sees to it.
#[derive(Debug)]
pub(super) struct Stock {
    pages: Mutex<Vec<Page>>,
    /// Slabs that may still be made.
    slabs: AtomicUsize,
    closed: AtomicBool,
}

/// The right to take pages. The stock is given up with it.
#[derive(Debug)]
pub(super) struct Stocked {
    stock: Arc<Stock>,
    filler: Option<Thread>,
}

impl Stocked {
    /// A stock for a recorder of that many pages. A recorder with little memory, or a system that gives no thread, has none.
    pub(super) fn of(pages: usize) -> Self {
        let stock = Arc::new(Stock {
            pages: Mutex::default(),
            slabs: AtomicUsize::new(pages / PAGES),
            closed: AtomicBool::new(false),
        });
        let filler = if pages < 2 * PAGES { None } else { stock.filler() };
        Self { stock, filler }
    }

    /// A page, if one is ready.
    pub(super) fn take(&self) -> Option<Page> {
        let filler = self.filler.as_ref()?;
        let mut pages = self.stock.pages.try_lock()?;
        let page = pages.pop();
        let low = pages.len() == PAGES / 2 || page.is_none();
        drop(pages);
        if low {
            filler.unpark();
        }
        page
    }

    /// Ends the filling.
    pub(super) fn close(&self) {
        self.stock.closed.store(true, Ordering::Release);
        if let Some(filler) = &self.filler {
            filler.unpark();
        }
    }
}

impl Stock {
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

    /// Adds a slab's pages if there are few; says whether it did.
    fn fill(&self) -> bool {
        let few = |stock: &Mutex<Vec<Page>>| stock.lock().len() <= PAGES / 2;
        if !few(&self.pages) {
            return false;
        }
        let left = self.slabs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_err() {
            return false;
        }
        let slab = Slab::touched();
        let pages = (0..PAGES).map(|number| Page::stocked(Arc::clone(&slab), number));
        self.pages.lock().extend(pages);
        true
    }
}
