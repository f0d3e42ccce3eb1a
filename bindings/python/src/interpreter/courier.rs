//! Work for the Python lock that threads of the engine hand to a thread of its own: they may hold locks, and
//! must not wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use estafette_sync::panic::contain_panic;
use estafette_sync::process::Generation;
use estafette_sync::sync::{Condvar, Mutex};
use estafette_sync::thread;
use pyo3::prelude::*;

use crate::interpreter::guard;

/// A call that is made with the Python lock. With the guard closed it is left to the interpreter that is
/// going away.
pub type Job = Box<dyn FnOnce(Python<'_>) + Send>;

/// A queue of jobs and the thread that does them, one after the other. The thread starts with the first job
/// and lasts as long as the process. Each process has its own.
pub struct Courier {
    /// Name of the thread.
    name: &'static str,
    /// Jobs that wait at most.
    limit: usize,
    state: Mutex<CourierState>,
    sent: Condvar,
    /// Notified when no job waits, and when one is expected no more.
    idle: Condvar,
}

struct CourierState {
    waiting: VecDeque<Job>,
    has_thread: bool,
    /// True if a job is being done.
    is_busy: bool,
    /// Jobs that are not here yet.
    expected: usize,
}

/// A job that will be handed over before this is dropped, or never.
pub struct Expected(&'static Courier, Generation);

impl Drop for Expected {
    fn drop(&mut self) {
        if self.1.is_inherited() {
            return;
        }
        self.0.state.lock().expected -= 1;
        self.0.idle.notify_all();
    }
}

impl CourierState {
    fn is_idle(&self) -> bool {
        !self.is_busy && self.expected == 0 && self.waiting.is_empty()
    }
}

impl Courier {
    pub const fn new(name: &'static str, limit: usize) -> Self {
        let state = CourierState { waiting: VecDeque::new(), has_thread: false, is_busy: false, expected: 0 };
        Self { name, limit, state: Mutex::new(state), sent: Condvar::new(), idle: Condvar::new() }
    }

    /// Makes [`flush`](Self::flush) wait for one more job.
    pub fn expect(&'static self) -> Expected {
        self.state.lock().expected += 1;
        Expected(self, Generation::current())
    }

    /// Hands over a job; false if there is no room for it.
    pub fn send(&'static self, job: Job) -> bool {
        let mut state = self.state.lock();
        if state.waiting.len() >= self.limit {
            return false;
        }
        state.waiting.push_back(job);
        if !state.has_thread {
            // Without a thread jobs wait for the next one.
            let spawned = thread::Builder::new().name(self.name.into()).spawn(|| self.run());
            state.has_thread = spawned.is_ok();
        }
        drop(state);
        self.sent.notify_one();
        true
    }

    /// Waits until every job is done, also those that are expected, for at most `timeout`.
    pub fn flush(&self, py: Python<'_>, timeout: Duration) {
        py.detach(|| {
            let until = Instant::now() + timeout;
            drop(self.idle.wait_while(self.state.lock(), Some(until), |state| !state.is_idle()));
        });
    }

    /// True if neither has a job, also none that is expected. Jobs of each may hand jobs to the other.
    pub fn are_idle(one: &Self, other: &Self) -> bool {
        // Meanwhile a job of the other one that hands over a job here goes on being done.
        let state = one.state.lock();
        state.is_idle() && other.state.lock().is_idle()
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            state.is_busy = false;
            let Some(job) = state.waiting.pop_front() else {
                self.idle.notify_all();
                state = self.sent.wait(state);
                continue;
            };
            state.is_busy = true;
            drop(state);
            let mut job = Some(job);
            // A panic would end the thread, which later jobs wait for. It is not logged here, as the job may
            // be a message of the log.
            let _ = contain_panic(|| guard::attach(|py| job.take().map(|job| job(py))));
            std::mem::forget(job);
            state = self.state.lock();
        }
    }
}
