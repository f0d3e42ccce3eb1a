//! Pinned words that streams count in: the device writes a number there, the host reads it without asking the driver.

use std::ptr::{self, NonNull};

use cudarc::driver::sys::CUdeviceptr;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};

use crate::DeviceError;

use super::context::Context;

/// Words are a cache line apart: the device writes one while the host reads another.
const STRIDE: usize = 64;
/// Bytes that are pinned at once.
const PAGE: usize = 4_096;
/// `CU_MEMHOSTALLOC_PORTABLE`: every context may write there.
const PORTABLE: u32 = 1;

/// The words of a context. Its pages stay for as long as the process lives.
#[derive(Default)]
pub(super) struct Words {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    free: Vec<Word>,
    /// Words of streams that are gone, with the last number that is on its way to them.
    settling: Vec<(Word, u64)>,
}

/// One word.
#[derive(Clone, Copy)]
pub(super) struct Word(NonNull<AtomicU64>);

// SAFETY: a word is an atomic that stays for ever.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// What the device has written last. What it did before that is visible to whoever reads it here.
    #[inline]
    pub(super) fn read(self) -> u64 {
        // SAFETY: pinned memory that stays, aligned, and written by whole words.
        unsafe { self.0.as_ref() }.load(Ordering::Acquire)
    }

    /// The address for the device. Pinned memory has one address for host and devices.
    pub(super) fn address(self) -> CUdeviceptr {
        self.0.as_ptr().expose_provenance() as CUdeviceptr
    }
}

impl Words {
    /// A word that is 0 and that nothing on its way will change.
    ///
    /// # Errors
    /// No memory could be pinned.
    pub(super) fn take(&self, context: &Context) -> Result<Word, DeviceError> {
        let mut inner = self.inner.lock();
        let settled = inner.settling.extract_if(.., |(word, last)| word.read() == *last);
        let settled: Vec<_> = settled.map(|(word, _)| word).collect();
        inner.free.extend(settled);
        if inner.free.is_empty() {
            inner.free = page(context)?;
        }
        let word = inner.free.pop().expect("a page has words");
        // SAFETY: as in `Word::read`; no stream writes there.
        unsafe { word.0.as_ref() }.store(0, Ordering::Relaxed);
        Ok(word)
    }

    /// The stream is gone; `last` is the last number that it was told to write, or 0.
    pub(super) fn give_back(&self, word: Word, last: u64) {
        let mut inner = self.inner.lock();
        inner.settling.push((word, last));
    }
}

/// Words in memory that is pinned now.
fn page(context: &Context) -> Result<Vec<Word>, DeviceError> {
    let mut page = ptr::null_mut();
    let _entered = context.enter_relaxed()?;
    // SAFETY: writes one pointer; the memory is never freed.
    let code = unsafe { (context.api.host_allocate)(&raw mut page, PAGE, PORTABLE) };
    context.check(code, "cannot pin memory to count in")?;
    let words = (0..PAGE / STRIDE).filter_map(|at| {
        // SAFETY: within the page, which is aligned to more than a word.
        NonNull::new(unsafe { page.cast::<u8>().add(at * STRIDE) }.cast()).map(Word)
    });
    Ok(words.collect())
}
