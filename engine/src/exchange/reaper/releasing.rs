//! Threads that have reported the end of an operation and still hold its operands. A flush waits for them.
//!
//! The report comes first: what it leaves on the variables decides when memory may go. But a waiter that it
//! notifies may release the last handle of its own and flush before the operands are dropped. So a thread
//! sets its *mark* before the report, and clears the mark after the drop. The report orders the mark before
//! all that its waiters do, so plain stores are enough.

use std::cell::Cell;
use std::marker::PhantomData;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use estafette_sync::thread_local;

/// The mark of one thread, which alone writes `count`.
#[derive(Default)]
pub(super) struct Mark {
    /// Odd while set.
    count: AtomicU64,
    /// True if a thread has this mark.
    taken: AtomicBool,
}

estafette_sync::per_process! {
    /// A forked child leaves those of threads that do not exist there.
    static MARKS: Mutex<Vec<&'static Mark>> = Mutex::new(Vec::new());
}

thread_local! {
    /// Without a destructor, which each access would look after.
    static OWN: Cell<Option<&'static Mark>> = const { Cell::new(None) };
}

thread_local! {
    static OWNER: MarkOwner = MarkOwner::take();
}

/// Gives the thread's mark back when the thread ends.
struct MarkOwner(&'static Mark);

impl MarkOwner {
    fn take() -> Self {
        let mut marks = MARKS.lock();
        let free = marks.iter().copied().find(|mark| !mark.taken.load(Ordering::Acquire));
        let mark = free.unwrap_or_else(|| {
            let mark: &'static Mark = Box::leak(Box::default());
            marks.push(mark);
            mark
        });
        mark.taken.store(true, Ordering::Relaxed);
        Self(mark)
    }
}

impl Drop for MarkOwner {
    fn drop(&mut self) {
        let _ = OWN.try_with(|own| own.set(None));
        self.0.taken.store(false, Ordering::Release);
    }
}

/// The mark of this thread. `None` while the thread ends, and in models of loom, which flush beside no
/// operation.
#[inline]
fn own() -> Option<&'static Mark> {
    if cfg!(estafette_loom) {
        return None;
    }
    OWN.try_with(Cell::get).ok().flatten().or_else(first_use)
}

#[cold]
fn first_use() -> Option<&'static Mark> {
    let mark = OWNER.try_with(|owner| owner.0).ok()?;
    OWN.set(Some(mark));
    Some(mark)
}

impl Mark {
    /// The count, if the mark is set.
    fn set_at(&self) -> Option<u64> {
        Some(self.count.load(Ordering::Acquire)).filter(|count| count % 2 == 1)
    }
}

/// Until dropped, this thread reports the end of an operation and then drops the operands.
pub(crate) struct Releasing {
    /// `None` inside of another one.
    mark: Option<&'static Mark>,
    _of_this_thread: PhantomData<*const ()>,
}

/// Sets the mark of this thread.
#[inline]
pub(crate) fn releasing() -> Releasing {
    let mark = own().filter(|mark| {
        let count = mark.count.load(Ordering::Relaxed);
        if count.is_multiple_of(2) {
            mark.count.store(count + 1, Ordering::Relaxed);
        }
        count.is_multiple_of(2)
    });
    Releasing { mark, _of_this_thread: PhantomData }
}

impl Drop for Releasing {
    #[inline]
    fn drop(&mut self) {
        if let Some(mark) = self.mark {
            mark.count.store(mark.count.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
    }
}

/// Marks that other threads have set, until each was cleared once.
pub(super) struct Others(Vec<(&'static Mark, u64)>);

impl Others {
    pub(super) fn now() -> Self {
        let own = own();
        let marks = MARKS.lock();
        let others = marks.iter().filter(|mark| own.is_none_or(|own| !std::ptr::eq(own, **mark)));
        Self(others.filter_map(|mark| Some((*mark, mark.set_at()?))).collect())
    }

    /// True if all of them were cleared.
    pub(super) fn are_through(&mut self) -> bool {
        self.0.retain(|(mark, count)| mark.set_at() == Some(*count));
        self.0.is_empty()
    }
}

/// True if this thread reports an end: a flush here may be what the end of another thread's mark waits for.
pub(crate) fn is_releasing() -> bool {
    own().is_some_and(|mark| mark.set_at().is_some())
}
