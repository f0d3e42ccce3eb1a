//! One suite for every device: what fences, queues, fence_sets, the reactor, memory and copies owe to their
//! users.
//!
//! A device adds a [`Harness`], a few functions that say how to enqueue a little work, how to hold it back
//! and how to break it, and calls [`run`]. A check that fails panics with its name. A check that the device
//! cannot do (the host cannot hold back work that it does at once) is *skipped*, with the reason, in the
//! [`Report`]; tests assert which.
//!
//! | file | concept |
//! |---|---|
//! | `fence.rs` | pending, done, waiting, dropping |
//! | `ordering.rs` | queues that wait for each other; waits that need not be |
//! | `fence_set.rs` | sets of fences |
//! | `reactor.rs` | callbacks |
//! | `failure.rs` | faults |
//! | `allocation.rs` | memory |
//! | `copy.rs` | copies |
//! | `program.rs` | random programs over several queues against the sequential result |
//! | `bench` | a device, and what checks do with it again and again |

mod allocation;
mod bench;
mod copy;
mod failure;
mod fence;
mod fence_set;
mod ordering;
mod program;
mod reactor;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::{Allocation, Device, DeviceError, Queue};

use self::bench::Bench;

/// The facts about a device that the suite needs.
pub trait Harness {
    /// The device under test. Asked once per check; it may be a fresh one each time.
    fn device(&self) -> Arc<dyn Device>;

    /// Enqueues work that sets every byte of `memory` to `value`.
    ///
    /// # Errors
    /// As for any enqueueing.
    fn fill(&self, queue: &dyn Queue, memory: &Allocation, value: u8) -> Result<(), DeviceError>;

    /// Enqueues work that does not complete before the returned guard is dropped.
    ///
    /// # Errors
    /// The device cannot do that, and why.
    fn block(&self, queue: &dyn Queue) -> Result<Blocked, Skip>;

    /// Fails if [`Harness::break_queue`] does not work. A check asks before it blocks a queue, so that a
    /// check that is skipped leaves no queue blocked.
    ///
    /// # Errors
    /// The device cannot do that, and why.
    fn can_break(&self) -> Result<(), Skip>;

    /// Enqueues work that fails, and with it its queue. Called only where [`Harness::can_break`] agrees.
    fn break_queue(&self, queue: &dyn Queue) {
        panic!("{queue:?} cannot be broken, and `can_break` says so");
    }

    /// True if what [`Harness::break_queue`] breaks is the whole device, all of its queues and memory: then
    /// nothing of it can be looked at afterwards. [`Harness::device`] gives another one next time.
    fn breaks_the_device(&self) -> bool {
        false
    }

    /// The size of the device's memory in bytes; `None` where the harness does not know.
    fn memory_bytes(&self) -> Option<usize> {
        None
    }

    /// The number of commands that a blocked queue takes before enqueueing more waits for it.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Fails if a queue does not go on while others are blocked.
    ///
    /// # Errors
    /// It need not, and why.
    fn queues_are_independent(&self) -> Result<(), Skip> {
        Ok(())
    }

    /// Lets the device make progress, where it does not by itself. Does not wait for anything.
    fn advance(&self) {}
}

/// A queue that is held back. Dropping the guard releases the queue: also where a check fails or is skipped,
/// since a blocked queue can hold up every other queue of its device.
#[must_use = "the queue is released when this is dropped"]
pub struct Blocked {
    release: Option<Box<dyn FnOnce() + Send>>,
}

impl Blocked {
    /// A guard that calls `release` once, when it is dropped.
    pub fn new(release: impl FnOnce() + Send + 'static) -> Self {
        Self { release: Some(Box::new(release)) }
    }

    /// Releases the queue.
    pub fn release(self) {}
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

debug_as!(_blocked: Blocked, "Blocked");

/// The reason why a check does not apply to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(pub String);

impl Skip {
    /// A reason, in lower case.
    pub fn because(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// The report of [`run`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The checks that passed.
    pub passed: Vec<&'static str>,
    /// The checks that do not apply to the device, and why.
    pub skipped: Vec<(&'static str, Skip)>,
}

impl Report {
    /// The names of the skipped checks.
    pub fn skipped_names(&self) -> Vec<&'static str> {
        self.skipped.iter().map(|(name, _)| *name).collect()
    }
}

/// One check: its name, which is the situation, and what to do.
type Check = (&'static str, fn(&Bench<'_>) -> Result<(), Skip>);

/// Runs the whole suite.
///
/// # Panics
/// A check failed; its name is printed before the panic goes on.
pub fn run(harness: &dyn Harness) -> Report {
    let concepts: [&[Check]; 8] = [
        fence::CHECKS,
        ordering::CHECKS,
        fence_set::CHECKS,
        reactor::CHECKS,
        failure::CHECKS,
        allocation::CHECKS,
        copy::CHECKS,
        program::CHECKS,
    ];
    let mut report = Report::default();
    for &(name, check) in concepts.into_iter().flatten() {
        let bench = Bench::new(harness);
        match catch_unwind(AssertUnwindSafe(|| check(&bench))) {
            Ok(Ok(())) => report.passed.push(name),
            Ok(Err(reason)) => report.skipped.push((name, reason)),
            Err(panic) => {
                tracing::error!(check = name, "conformance check failed");
                eprintln!("conformance check failed: {name}");
                resume_unwind(panic)
            }
        }
    }
    report
}
