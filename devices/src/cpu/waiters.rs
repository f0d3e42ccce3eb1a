//! Jobs that are left to the thread that waits for them.
//!
//! A thread that submits one job and then waits for it runs that job itself, if it comes first. A worker that
//! is woken for the job comes too late, or takes the job, and then the thread sleeps and has to be woken in
//! turn: either costs more than a short job takes. So where the waits of a thread have been of that kind a
//! few times in a row, the next job is *left*: no worker is woken for it. A worker that has nothing to do
//! then stands by: it sleeps for [`OVERDUE`] at a time, and takes a job only where none was pushed meanwhile.
//! After that, and where a thread takes its time before it waits, jobs are not left for the next [`PENALTY`]
//! waits.

use std::num::Wrapping;

use estafette_sync::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering, fence};
use estafette_sync::time::Duration;

/// Jobs are left after so many waits in a row.
const IN_A_ROW: i32 = 8;
/// After a job that was left in vain, so many further waits are needed.
const PENALTY: i32 = 64;
/// A wait is at once if it begins within this after the submission, in nanoseconds. A thread submits a few
/// more operations meanwhile, which come behind the first.
const AT_ONCE_NS: u64 = 100_000;
/// The time that a job is left at least. The worker that stands by sleeps for so long at a time.
pub(super) const OVERDUE: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(super) struct Waiters {
    /// The number of waits in a row that began at once, each with one new job.
    in_a_row: AtomicI32,
    /// Jobs that were pushed before the last wait ended.
    pushes: AtomicU64,
    /// The time at which a job was last pushed, in nanoseconds.
    pushed: AtomicU64,
    /// True if the last wait had one new job at most.
    was_single: AtomicBool,
    /// True if a job is left that no thread has taken since.
    is_left: AtomicBool,
    has_stand_by: AtomicBool,
}

impl Waiters {
    /// True if jobs are left to waiting threads.
    #[inline]
    pub(super) fn are_expected(&self) -> bool {
        self.in_a_row.load(Ordering::Relaxed) >= IN_A_ROW
    }

    /// As after [`IN_A_ROW`] waits that began at once.
    #[cfg(all(test, estafette_loom))]
    pub(super) fn expect_waits(&self) {
        self.in_a_row.store(IN_A_ROW, Ordering::Relaxed);
    }

    /// True if a worker stands by, and finds out what is overdue.
    pub(super) fn have_stand_by(&self) -> bool {
        self.has_stand_by.load(Ordering::Relaxed)
    }

    /// A job was pushed at the time `now`. True if it is left; else a worker has to be woken.
    pub(super) fn leaves(&self, now: u64) -> bool {
        self.pushed.store(now, Ordering::Relaxed);
        if !self.are_expected() {
            return false;
        }
        // A worker that stops standing by looks for jobs after that.
        fence(Ordering::SeqCst);
        if !self.have_stand_by() {
            return false;
        }
        // The worker that is woken for a second job takes the first one too.
        let is_second = self.is_left.swap(true, Ordering::Relaxed);
        if is_second {
            self.is_left.store(false, Ordering::Relaxed);
            self.in_a_row.store(0, Ordering::Relaxed);
        }
        !is_second
    }

    /// A thread that may run jobs waits for one, at the time `now`; `pushes` is the number of all jobs so
    /// far. False where several are new: a worker, which is woken for them anyway, runs them one after the
    /// other, while two threads would take the lock from each other.
    pub(super) fn begin(&self, now: u64, pushes: u64) -> bool {
        let new = Wrapping(pushes) - Wrapping(self.pushes.load(Ordering::Relaxed));
        let is_late = now.saturating_sub(self.pushed.load(Ordering::Relaxed)) > AT_ONCE_NS;
        let before = self.in_a_row.load(Ordering::Relaxed);
        let in_a_row = match new.0 {
            0 => before,
            1 if !is_late => (before + 1).min(IN_A_ROW),
            _ if self.is_left.load(Ordering::Relaxed) => -PENALTY,
            _ => before.min(0),
        };
        self.in_a_row.store(in_a_row, Ordering::Relaxed);
        // A job that was not new runs as it would have in the wait before.
        let is_single = new.0 == 1 || (new.0 == 0 && self.was_single.load(Ordering::Relaxed));
        self.was_single.store(is_single, Ordering::Relaxed);
        is_single
    }

    /// The wait is over.
    pub(super) fn end(&self, pushes: u64) {
        self.pushes.store(pushes, Ordering::Relaxed);
    }

    /// A waiting thread has taken a job, or a worker was woken. Where that thread leaves other jobs, it wakes
    /// a worker.
    pub(super) fn none_is_left(&self) {
        self.is_left.store(false, Ordering::Relaxed);
    }

    /// A thread waits that runs no job. True if one is left, so that a worker has to be woken.
    pub(super) fn gives_up(&self) -> bool {
        self.is_left.load(Ordering::Relaxed) && self.is_left.swap(false, Ordering::Relaxed)
    }

    /// A worker stands by, if jobs are left and no other one does: `poll` sleeps for [`OVERDUE`], and gives
    /// the number of jobs that were pushed so far; `None` where the worker was woken, or has to leave.
    /// `has_work`: whether a job waits.
    pub(super) fn stand_by(&self, poll: impl Fn() -> Option<u64>, has_work: impl Fn() -> bool, pushes: u64) {
        if !self.are_expected() || self.has_stand_by.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut before = pushes;
        while let Some(pushes) = poll().filter(|_| self.are_expected()) {
            if pushes == before {
                if has_work() {
                    self.in_a_row.store(-PENALTY, Ordering::Relaxed);
                    self.is_left.store(false, Ordering::Relaxed);
                }
                break;
            }
            before = pushes;
        }
        self.has_stand_by.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A pool without threads: `now` moves on only in these tests.
    #[derive(Default)]
    struct WaitersModel {
        waiters: Waiters,
        pushes: Cell<u64>,
        now: Cell<u64>,
    }

    impl WaitersModel {
        /// A model whose threads have waited at once so often that jobs are left.
        fn expecting() -> Self {
            let model = Self::default();
            (0..IN_A_ROW).for_each(|_| assert!(!model.push_and_wait(0)));
            assert!(model.waiters.are_expected());
            model
        }

        fn push(&self) -> bool {
            self.pushes.set(self.pushes.get() + 1);
            self.waiters.leaves(self.now.get())
        }

        /// Pushes a job, waits for it after a pause, and takes it. Whether it was left.
        fn push_and_wait(&self, pause: u64) -> bool {
            let is_left = self.push();
            self.now.set(self.now.get() + pause);
            assert_eq!(self.waiters.begin(self.now.get(), self.pushes.get()), self.is_single());
            self.waiters.none_is_left();
            self.waiters.end(self.pushes.get());
            is_left
        }

        fn is_single(&self) -> bool {
            self.pushes.get() - self.waiters.pushes.load(Ordering::Relaxed) == 1
        }

        /// Calls `poll` while a worker stands by; `has_work` at the end.
        fn stand_by(&self, has_work: bool, polls: usize, poll: impl Fn()) {
            let left = Cell::new(polls);
            let polls = || {
                left.set(left.get().checked_sub(1)?);
                poll();
                Some(self.pushes.get())
            };
            self.waiters.stand_by(polls, || has_work, self.pushes.get());
        }
    }

    #[test]
    fn jobs_are_left_while_a_worker_stands_by() {
        let model = WaitersModel::expecting();
        assert!(!model.push_and_wait(0), "no worker stands by");
        model.stand_by(false, 1, || assert!(model.push_and_wait(0) && model.push_and_wait(AT_ONCE_NS)));
        assert!(!model.push_and_wait(0), "no worker stands by any more");
        assert!(model.waiters.are_expected());
    }

    #[test]
    fn a_worker_stands_by_until_no_job_was_pushed_for_a_while() {
        let model = WaitersModel::expecting();
        let polls = Cell::new(0);
        model.stand_by(false, 100, || {
            polls.set(polls.get() + 1);
            if polls.get() < 5 {
                model.push_and_wait(0);
            }
        });
        assert_eq!(polls.get(), 5);
        assert!(model.waiters.are_expected(), "the next job is left as soon as a worker stands by again");
    }

    #[test]
    fn an_overdue_job_ends_it_for_long() {
        let model = WaitersModel::expecting();
        let polls = Cell::new(0);
        model.stand_by(true, 100, || {
            if polls.replace(polls.get() + 1) == 0 {
                assert!(model.push());
            }
        });
        assert_eq!(polls.get(), 2, "a job is left for a whole pause at least");
        // The first wait finds two new jobs.
        assert!(!model.push_and_wait(0));
        (0..PENALTY + IN_A_ROW)
            .for_each(|_| assert!(!model.waiters.are_expected() && !model.push_and_wait(0)));
        assert!(model.waiters.are_expected());
    }

    #[test]
    fn a_thread_that_takes_its_time_ends_it() {
        let model = WaitersModel::default();
        (0..2 * IN_A_ROW).for_each(|_| assert!(!model.push_and_wait(AT_ONCE_NS + 1)));
        assert!(!model.waiters.are_expected());
        let model = WaitersModel::expecting();
        model.stand_by(false, 1, || assert!(model.push_and_wait(AT_ONCE_NS + 1)));
        (0..PENALTY + IN_A_ROW)
            .for_each(|_| assert!(!model.waiters.are_expected() && !model.push_and_wait(0)));
    }

    #[test]
    fn a_second_job_wakes_a_worker() {
        let model = WaitersModel::expecting();
        model.stand_by(false, 1, || assert!(model.push() && !model.push() && !model.push()));
        assert!(!model.waiters.are_expected());
    }

    #[test]
    fn what_several_jobs_were_pushed_with_is_for_workers_until_one_is_pushed_alone() {
        let model = WaitersModel::default();
        (0..3).for_each(|_| assert!(!model.push()));
        let begin = || {
            let runs = model.waiters.begin(0, model.pushes.get());
            model.waiters.end(model.pushes.get());
            runs
        };
        assert!(!begin() && !begin() && !begin());
        model.push();
        assert!(begin() && begin());
    }

    #[test]
    fn a_thread_that_runs_nothing_wakes_a_worker_once() {
        let model = WaitersModel::expecting();
        model.stand_by(false, 1, || assert!(model.push()));
        assert!(model.waiters.gives_up() && !model.waiters.gives_up());
    }
}
