//! What is ready, and the books about what is not: one state, all of it under the lock of
//! [`Shared`](super::thread::Shared).

use std::collections::VecDeque;

use estafette_sync::thread;

use super::Storage;

pub(super) struct Ready {
    pub(super) storage: Storage,
    pub(super) epoch: u64,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) ready: Vec<Ready>,
    pub(super) phase: Phase,
    pub(super) thread: Option<thread::JoinHandle<()>>,
    pub(super) rest: Rest,
    /// What the thread does first.
    pub(super) on_start: Option<fn()>,
    pub(super) pending: u64,
    pub(super) peak_pending: u64,
    /// Outstanding storages by epoch, `first_epoch` at the front. Each flush closes an epoch; it is over
    /// when its count and all before it are 0. No more entries than outstanding storages plus one, since an
    /// epoch without any is not closed.
    pub(super) epochs: VecDeque<u64>,
    pub(super) first_epoch: u64,
}

/// Running → Stopping (by `stop`) → Stopped (by the thread, or by `stop` when there is none or it hangs).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    #[default]
    Running,
    /// The thread runs what is ready and ends.
    Stopping,
    /// No further deleter will run.
    Stopped,
}

/// What the thread does. See the module's protocol.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Rest {
    #[default]
    Busy,
    Napping,
    Asleep,
}

impl Queue {
    /// Counts a storage in; the answer names the epoch in which to count it out.
    pub(super) fn enter(&mut self) -> u64 {
        self.pending += 1;
        self.peak_pending = self.peak_pending.max(self.pending);
        match self.epochs.back_mut() {
            Some(current) => *current += 1,
            None => self.epochs.push_back(1),
        }
        self.first_epoch + self.epochs.len() as u64 - 1
    }

    pub(super) fn leave(&mut self, epoch: u64, count: u64) {
        self.pending -= count;
        self.epochs[(epoch - self.first_epoch) as usize] -= count;
        while self.epochs.front() == Some(&0) {
            self.epochs.pop_front();
            self.first_epoch += 1;
        }
    }

    /// Begins a new epoch. Everything that has entered is out when `first_epoch` is greater than the answer.
    pub(super) fn close_epoch(&mut self) -> u64 {
        if self.epochs.is_empty() {
            self.first_epoch += 1;
            return self.first_epoch - 1;
        }
        if self.epochs.back() != Some(&0) {
            self.epochs.push_back(0);
        }
        self.first_epoch + self.epochs.len() as u64 - 2
    }

    pub(super) fn on_own_thread(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.thread().id() == thread::current().id())
    }
}
