//! Storages that are ready, and the books about those that are not: one state, all of it under the lock of
//! [`ReaperState`](super::thread::ReaperState).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::sync::Arc;

use estafette_sync::thread;

use super::Storage;
use super::slow::ReleasedMemory;
use super::thread_state::DeleterThread;
use crate::core::clock::Coarse;

/// The place of one storage in the books.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receipt {
    pub(super) epoch: u64,
    /// Identity among all storages that this reaper was ever handed.
    pub(super) id: u64,
    /// The time at which it was handed over.
    pub(super) since: Coarse,
}

/// A storage that no fence holds up any more.
pub(super) struct Ready {
    pub(super) storage: Storage,
    pub(super) receipt: Receipt,
    pub(super) what: ReleasedMemory,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) ready: VecDeque<Ready>,
    pub(super) phase: Phase,
    /// The thread that runs deleters.
    pub(super) leader: Option<Arc<DeleterThread>>,
    /// Threads that were in a deleter for too long, so that another one leads in their place.
    pub(super) overtaken: Vec<Arc<DeleterThread>>,
    pub(super) follower: Follower,
    /// Of all threads that have not left.
    pub(super) threads: Vec<thread::JoinHandle<()>>,
    /// The reason why the system has refused a thread, until that is logged.
    pub(super) refused: Option<io::Error>,
    /// The state of the leader.
    pub(super) rest: LeaderState,
    /// True if the leader has to have fences observed that no thread observes.
    pub(super) watch_due: bool,
    /// The call of a thread before its first deleter.
    pub(super) on_start: Option<fn()>,
    /// Storages that wait for fences, the oldest first.
    pub(super) fenced: BTreeMap<u64, (Coarse, ReleasedMemory)>,
    pub(super) entered: u64,
    pub(super) pending: u64,
    /// Outstanding storages by epoch, `first_epoch` at the front. Each flush closes an epoch; it is over
    /// when its count and all before it are 0. No more entries than outstanding storages plus one, since an
    /// epoch without any is not closed.
    pub(super) epochs: VecDeque<u64>,
    pub(super) first_epoch: u64,
}

/// Running → Stopping (by `stop`) → Stopped (by the leader, or by `stop` when there is none or it hangs).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    #[default]
    Running,
    /// The leader runs what is ready and ends.
    Stopping,
    /// No further deleter will run.
    Stopped,
}

/// The state of the leader. See the module's protocol.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum LeaderState {
    #[default]
    Busy,
    Napping,
    Asleep,
}

/// The thread that leads next.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Follower {
    #[default]
    None,
    /// Started, or asleep, with nothing to watch.
    Resting,
    /// Looks again when the leader's deleter is too slow.
    Watching,
}

impl Queue {
    /// True if the leader has something to do.
    pub(super) fn has_work(&self) -> bool {
        self.watch_due || !self.ready.is_empty()
    }

    /// Counts a storage in; the answer is needed to count it out. `within` is the epoch of the deleter that
    /// hands it over, if one does.
    pub(super) fn register(&mut self, within: Option<u64>) -> Receipt {
        self.entered += 1;
        self.pending += 1;
        if self.epochs.is_empty() {
            self.epochs.push_back(0);
        }
        let epoch = within.unwrap_or(self.first_epoch + self.epochs.len() as u64 - 1);
        self.epochs[(epoch - self.first_epoch) as usize] += 1;
        Receipt { epoch, id: self.entered, since: Coarse::now() }
    }

    pub(super) fn complete(&mut self, epoch: u64, count: u64) {
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

    /// Puts storages in front of those that are ready, in their order.
    pub(super) fn put_first(&mut self, mut storages: VecDeque<Ready>) {
        storages.append(&mut self.ready);
        self.ready = storages;
    }

    /// Takes everything whose deleter has not been called, also from threads that hang.
    pub(super) fn take_waiting(&mut self) -> VecDeque<Ready> {
        let mut waiting = mem::take(&mut self.ready);
        for thread in self.overtaken.iter().chain(&self.leader) {
            let mut books = thread.lock();
            waiting.append(&mut books.batch);
            waiting.append(&mut books.behind);
        }
        waiting
    }

    pub(super) fn on_own_thread(&self) -> bool {
        let current = thread::current().id();
        self.threads.iter().any(|thread| thread.thread().id() == current)
    }
}
