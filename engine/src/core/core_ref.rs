//! A counted reference to a core that is copied and dropped without locked instructions, as every operation
//! does twice.
//!
//! A thread has a *thread cache* at the core that it used last. The cache has one counted reference of its
//! own, spare references to hand out and take back, and the thread's shard in the sharded counter of
//! operations in flight. The core counts references only when the spare references run out or over, [`BATCH`]
//! at a time. When the thread goes to another core, or ends, the cache returns everything.
//!
//! So a core's memory may outlive its engine by as long as a thread that used it sits idle. Threads and the
//! asynchronous runtime must not live so long: the end of the last operation releases them.

use std::cell::Cell;
use std::ops::Deref;
use std::ptr::{self, NonNull};

use estafette_sync::sharded_counter::Shard;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering, fence};
use estafette_sync::thread_local;

use crate::core::engine_core::Core;

/// References that move between a cache and its core at once.
const BATCH: usize = 64;

/// Beyond this count the process aborts, as with `Arc`: a counter that wraps would free memory in use.
const REFS_MAX: usize = usize::MAX / 2;

struct Counted {
    refs: AtomicUsize,
    core: Core,
}

impl Counted {
    fn add(&self, count: usize) {
        if self.refs.fetch_add(count, Ordering::Relaxed) > REFS_MAX {
            std::process::abort();
        }
    }
}

/// A counted reference to a core.
pub(crate) struct CoreRef {
    counted: NonNull<Counted>,
}

// SAFETY: a core is shared between threads (asserted below) and may be dropped by any.
unsafe impl Send for CoreRef {}
// SAFETY: as above.
unsafe impl Sync for CoreRef {}

/// The address of a core that may be gone: no counted reference. The drop of the core takes it out of the
/// list that it is kept in.
#[derive(Clone, Copy)]
pub(crate) struct CoreAddress(NonNull<Counted>);

// SAFETY: only an address. See `upgrade`.
unsafe impl Send for CoreAddress {}

impl CoreAddress {
    pub(crate) fn is_of(self, core: &Core) -> bool {
        // SAFETY: the address of a field, which nothing reads.
        ptr::eq(unsafe { &raw const (*self.0.as_ptr()).core }, core)
    }

    /// Another reference, unless the last one is gone.
    ///
    /// # Safety
    /// The core's drop has not returned.
    pub(crate) unsafe fn upgrade(self) -> Option<CoreRef> {
        // SAFETY: by contract.
        let refs = unsafe { &self.0.as_ref().refs };
        let mut known = refs.load(Ordering::Relaxed);
        while known != 0 {
            match refs.compare_exchange_weak(known, known + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(CoreRef { counted: self.0 }),
                Err(now) => known = now,
            }
        }
        None
    }
}

const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Core>();
};

thread_local! {
    /// Has no destructor, which would have to be looked for at every use; [`CLEARING`] has it.
    static THREAD_CACHE: ThreadCache = const { ThreadCache { core: Cell::new(ptr::null()), spare_refs: Cell::new(0), shard: Cell::new(None) } };
    static CLEARING: Clearing = const { Clearing };
}

/// See the module's description.
struct ThreadCache {
    /// Counts as one reference, and keeps the shard. Null at the start and at the end of the thread.
    core: Cell<*const Counted>,
    spare_refs: Cell<usize>,
    shard: Cell<Option<NonNull<Shard>>>,
}

/// Clears the cache of a thread that ends.
struct Clearing;

impl Drop for Clearing {
    fn drop(&mut self) {
        // Under loom the cache goes at the same time; there threads clear theirs before they end.
        let _ = THREAD_CACHE.try_with(ThreadCache::detach);
    }
}

impl CoreRef {
    pub(crate) fn new(core: Core) -> Self {
        let counted = Box::new(Counted { refs: AtomicUsize::new(1), core });
        Self { counted: NonNull::from(Box::leak(counted)) }
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        self.counted == other.counted
    }

    pub(crate) fn address(&self) -> CoreAddress {
        CoreAddress(self.counted)
    }

    /// Lends the calling thread's shard in the core's sharded counter. Returns `None` when there are more
    /// threads than shards, and at the end of the thread.
    #[inline(always)]
    pub(crate) fn with_shard<R>(&self, f: impl FnOnce(Option<&Shard>) -> R) -> R {
        let shard = THREAD_CACHE.with(|cache| {
            if cache.core.get() == self.counted.as_ptr() { cache.shard.get() } else { cache.attach(self) }
        });
        // SAFETY: `self` keeps the core, and the core its shards. The shard belongs to this thread while the
        // cache is at this core, which only this thread changes.
        f(shard.map(|shard| unsafe { shard.as_ref() }))
    }

    /// As [`with_shard`](Self::with_shard), but does not take a shard for the purpose.
    #[inline(always)]
    pub(crate) fn with_own_shard<R>(&self, f: impl FnOnce(Option<&Shard>) -> R) -> R {
        let shard = THREAD_CACHE.with(|cache| self.is_at(cache).then(|| cache.shard.get()).flatten());
        // SAFETY: as in `with_shard`.
        f(shard.map(|shard| unsafe { shard.as_ref() }))
    }

    /// Removes this thread's cache from this core, if the cache is at this core.
    pub(crate) fn clear_thread_cache(&self) {
        THREAD_CACHE.with(|cache| {
            if self.is_at(cache) {
                cache.detach();
            }
        });
    }

    #[inline(always)]
    fn is_at(&self, cache: &ThreadCache) -> bool {
        cache.core.get() == self.counted.as_ptr()
    }

    /// Releases `count` references.
    ///
    /// # Safety
    /// They are the caller's.
    #[cold]
    unsafe fn release(counted: NonNull<Counted>, count: usize) {
        // SAFETY: there is at least one reference, the caller's.
        if unsafe { counted.as_ref() }.refs.fetch_sub(count, Ordering::Release) == count {
            fence(Ordering::Acquire);
            // SAFETY: as above, and that was the last reference.
            if unsafe { counted.as_ref() }.core.generation.is_inherited() {
                // The locks of what it has may be held for ever.
                return;
            }
            // SAFETY: made from a box, and that was the last reference.
            drop(unsafe { Box::from_raw(counted.as_ptr()) });
        }
    }
}

impl ThreadCache {
    /// Takes a shard; `None` also when the thread is ending, which would detach it taken.
    #[cold]
    fn attach(&self, core: &CoreRef) -> Option<NonNull<Shard>> {
        CLEARING.try_with(|_| ()).ok()?;
        self.detach();
        core.counted().add(1 + BATCH);
        self.core.set(core.counted.as_ptr());
        self.spare_refs.set(BATCH);
        self.shard.set(core.sharded_counter.take_shard().map(NonNull::from));
        self.shard.get()
    }

    fn detach(&self) {
        let Some(counted) = NonNull::new(self.core.replace(ptr::null()).cast_mut()) else { return };
        // The cache's own reference.
        let core = CoreRef { counted };
        // SAFETY: the core keeps its shards; the shard is this thread's.
        let shard = self.shard.take().map(|shard| unsafe { shard.as_ref() });
        if shard.is_some_and(Shard::release) && core.generation.is_current() {
            core.permits_released();
        }
        // SAFETY: the spare references are the cache's.
        unsafe { CoreRef::release(counted, self.spare_refs.take()) };
    }

    /// The spare references have run out.
    #[cold]
    fn restock(&self, core: &CoreRef) {
        core.counted().add(BATCH);
        self.spare_refs.set(BATCH);
    }

    /// There are too many spare references.
    #[cold]
    fn reduce(&self, core: &CoreRef) {
        self.spare_refs.set(self.spare_refs.get() - BATCH);
        // SAFETY: these were among the spare references; the cache has one more.
        unsafe { CoreRef::release(core.counted, BATCH) };
    }
}

impl CoreRef {
    fn counted(&self) -> &Counted {
        // SAFETY: a reference is counted for `self`.
        unsafe { self.counted.as_ref() }
    }

    /// Takes a reference out of the spare references of this thread's cache.
    #[inline(always)]
    fn take_from_stock(&self) -> bool {
        THREAD_CACHE.with(|cache| {
            let here = self.is_at(cache);
            if here {
                if cache.spare_refs.get() == 0 {
                    cache.restock(self);
                }
                cache.spare_refs.set(cache.spare_refs.get() - 1);
            }
            here
        })
    }

    /// Puts a reference into the spare references of this thread's cache.
    #[inline(always)]
    fn put_into_stock(&self) -> bool {
        THREAD_CACHE.with(|cache| {
            let here = self.is_at(cache);
            if here {
                cache.spare_refs.set(cache.spare_refs.get() + 1);
                if cache.spare_refs.get() >= 2 * BATCH {
                    cache.reduce(self);
                }
            }
            here
        })
    }
}

impl Clone for CoreRef {
    #[inline(always)]
    fn clone(&self) -> Self {
        if !self.take_from_stock() {
            self.counted().add(1);
        }
        Self { counted: self.counted }
    }
}

impl Drop for CoreRef {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.put_into_stock() {
            // SAFETY: the reference of `self`, which ends.
            unsafe { Self::release(self.counted, 1) };
        }
    }
}

impl Deref for CoreRef {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.counted().core
    }
}

impl std::fmt::Debug for CoreRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

/// Models: `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette --profile model --lib models::`.
#[cfg(all(test, estafette_loom))]
mod models {
    use std::sync::Arc;

    use estafette_sync::cell::UnsafeCell;
    use estafette_sync::thread;

    use super::*;

    /// Loom reports a use that nothing orders before the end of the core.
    struct Content(Arc<UnsafeCell<u32>>);

    // SAFETY: loom checks the accesses.
    unsafe impl Send for Content {}
    // SAFETY: as above.
    unsafe impl Sync for Content {}

    impl Content {
        fn read(&self) {
            // SAFETY: loom checks this.
            assert_eq!(self.0.with(|content| unsafe { *content }), 1);
        }
    }

    impl Drop for Content {
        fn drop(&mut self) {
            // SAFETY: loom checks this.
            self.0.with_mut(|content| unsafe { *content = 0 });
        }
    }

    /// A core of an engine without workers, with a content that its lease hook keeps.
    fn core() -> (CoreRef, Arc<UnsafeCell<u32>>) {
        let engine = crate::Engine::builder().workers(0).build().expect("an engine starts");
        let core = engine.core().clone();
        let cell = Arc::new(UnsafeCell::new(1));
        let content = Content(Arc::clone(&cell));
        assert!(core.on_lease_wait.set(Box::new(move || content.read())).is_ok());
        (core, cell)
    }

    fn read(core: &CoreRef) {
        core.on_lease_wait.get().expect("set above")();
    }

    #[test]
    fn the_last_reference_ends_the_core_after_all_uses() {
        loom::model(|| {
            let (core, cell) = core();
            let other = core.clone();
            // Each thread uses references of its cache, and returns them.
            let user = thread::spawn(move || {
                other.with_shard(|_| ());
                let again = other.clone();
                read(&again);
                drop(again);
                drop(other.clone());
                other.clear_thread_cache();
            });
            read(&core);
            core.clear_thread_cache();
            drop(core);
            user.join().expect("it does not panic");
            // SAFETY: loom checks this.
            assert_eq!(cell.with(|content| unsafe { *content }), 0, "the core is gone");
        });
    }
}
