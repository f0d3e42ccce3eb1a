//! The jobs of one thread of the reaper, where other threads can inspect and adopt them.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use estafette_sync::sync::{Mutex, MutexGuard};

use super::REPORT;
use super::queue::{Ready, Receipt};
use super::slow::ReleasedMemory;
use crate::core::clock::Coarse;

/// The books of one thread. Its lock is taken by the thread itself once per deleter, and by others only to
/// look or to overtake; it comes after the lock of the queue.
#[derive(Default)]
pub(super) struct DeleterThread(Mutex<ThreadState>);

#[derive(Default)]
pub(super) struct ThreadState {
    /// Storages that the thread has taken and not begun with, in order.
    pub(super) batch: VecDeque<Ready>,
    /// The deleter that the thread is in.
    pub(super) active: Option<ActiveDeleter>,
    /// Deleters that have returned and are not in the queue's books yet.
    pub(super) returned: Option<Run>,
    /// Another thread leads; this one ends after its deleter.
    pub(super) overtaken: bool,
    /// Storages of the same memory as that of the overtaken deleter: they wait for it.
    pub(super) behind: VecDeque<Ready>,
}

/// Deleters of one epoch: its number, and how many.
pub(super) type Run = (u64, u64);

/// A deleter that has been called.
#[derive(Debug, Clone)]
pub(super) struct ActiveDeleter {
    pub(super) receipt: Receipt,
    /// The time at which it was called.
    pub(super) since: Coarse,
    pub(super) what: ReleasedMemory,
}

/// The next step of a thread.
pub(super) enum NextDeleter {
    Run(Ready),
    /// The batch is empty.
    Over,
    /// Another thread leads.
    Overtaken,
}

impl DeleterThread {
    pub(super) fn lock(&self) -> MutexGuard<'_, ThreadState> {
        // Nothing that can panic runs under the lock but allocation failure, which aborts.
        self.0.lock()
    }

    /// Notes the end of the deleter under way, and takes the next storage. The second value is what the
    /// queue's counters have to include now.
    pub(super) fn step(&self) -> (NextDeleter, [Option<Run>; 2]) {
        let mut books = self.lock();
        if books.overtaken {
            return (NextDeleter::Overtaken, [None; 2]);
        }
        let mut report = None;
        if let Some(ActiveDeleter { receipt, .. }) = books.active.take() {
            // Storages of one epoch stand together nearly always, so runs are counted, not single ones.
            books.returned = match books.returned {
                Some((epoch, count)) if epoch == receipt.epoch && count < REPORT => Some((epoch, count + 1)),
                other => {
                    report = other;
                    Some((receipt.epoch, 1))
                }
            };
        }
        let Some(ready) = books.batch.pop_front() else {
            return (NextDeleter::Over, [report, books.returned.take()]);
        };
        let what = ready.what.at(ready.storage.data());
        books.active = Some(ActiveDeleter { receipt: ready.receipt, since: Coarse::now(), what });
        (NextDeleter::Run(ready), [report, None])
    }

    /// Takes the leadership from the thread of this thread, if its deleter has run for `slow`.
    pub(super) fn overtake(&self, slow: Duration) -> Option<Overtaken> {
        let mut books = self.lock();
        let what = books.active.as_ref().filter(|active| active.since.elapsed() >= slow)?.what;
        books.overtaken = true;
        Some(Overtaken { rest: mem::take(&mut books.batch), returned: books.returned.take(), what })
    }
}

/// The jobs that an overtaken thread leaves to the next one.
pub(super) struct Overtaken {
    /// Jobs that it has not begun.
    pub(super) rest: VecDeque<Ready>,
    /// Counts that the queue's counters do not include yet.
    pub(super) returned: Option<Run>,
    /// Whose deleter it is in.
    pub(super) what: ReleasedMemory,
}
