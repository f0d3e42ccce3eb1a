//! How many threads run jobs of a pool at once, where more threads may be slower than fewer.
//!
//! Jobs that share a lock, such as the lock of a Python interpreter, take it from each other, and two threads may get less done than
//! one. So a thread takes a job only when it has a *turn*. There are as many turns as [`limit`](Concurrency::limit) says, from one
//! upwards. The limit follows what was measured: windows with one thread more or less alternate with windows of the present limit, and
//! the better throughput wins (a hill climb; for its use in a thread pool see Hellerstein et al., "Optimizing concurrency levels in the
//! .NET ThreadPool", 2008). Only windows in which no thread ran out of jobs count. Jobs that take long gain by threads and lose little
//! by switches between them: then every worker has a turn.
//!
//! Jobs that are short spend much of their time on code that is not in the caches. They run breadth first, so that jobs which call the
//! same function follow each other. Jobs that take longer work on larger data, and run depth first, while their input is in the caches.
//!
//! A job may wait for another one. So a worker may exceed the limit when no job was started for [`OVERDUE`] while one waits. One idle
//! worker, the *lookout*, sleeps for that long at a time as long as jobs wait and others run.

use std::ops::Range;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use estafette_sync::time::{Duration, Instant};

/// With no job started for so long, a waiting job may exceed the limit.
pub(super) const OVERDUE: Duration = Duration::from_millis(1);
/// Jobs that take longer on average gain by every thread.
const LONG_NS: u64 = 500_000;
/// Jobs whose average is in this range run breadth first. At the rate at which a core reads memory, 10 GB/s, such a job touches less than 1 MB.
/// The code of shorter jobs is little enough to stay in the caches.
const BREADTH_FIRST_NS: Range<u64> = 10_000..80_000;
const WINDOW_NS: u64 = 4_000_000;
/// Fewer jobs than this say nothing about the throughput of a window.
const JOBS_MIN: u64 = 16;
/// Windows of a trial: by turns with the other limit and with the present one.
const TRIAL_WINDOWS: usize = 6;
/// The other limit wins when its throughput is higher by this factor.
const GAIN_MIN: f64 = 1.05;
/// A trial ends early when the other limit has less than this share of the throughput.
const GAIN_HOPELESS: f64 = 0.9;
/// Time from a trial to the next one; it doubles with each trial that changes nothing.
const PAUSE_NS: (u64, u64) = (30_000_000, 2_000_000_000);

pub(super) struct Concurrency {
    workers: usize,
    began: Instant,
    limit: AtomicUsize,
    running: AtomicUsize,
    /// Whether there is a lookout.
    is_watched: AtomicBool,
    /// When a job was last started, in nanoseconds since `began`.
    last_start: AtomicU64,
    /// Of this window: jobs, their nanoseconds, and whether a thread ran out of jobs.
    jobs: AtomicU64,
    busy: AtomicU64,
    starved: AtomicBool,
    /// Whether the jobs of the last window were of such a length.
    breadth_first: AtomicBool,
    ends: AtomicU64,
    control: Mutex<Control>,
}

/// The hill climb.
struct Control {
    window_began: u64,
    /// The limit outside of trials.
    chosen: usize,
    trial: Option<Trial>,
    next_trial: u64,
    pause: u64,
}

/// Windows with another limit by turns with windows of the present one.
struct Trial {
    other: usize,
    windows: usize,
    /// Jobs and nanoseconds with the other limit, and with the present one.
    with_other: (u64, u64),
    with_chosen: (u64, u64),
}

impl Trial {
    /// Whether the window that runs has the other limit.
    fn is_other(&self) -> bool {
        self.windows.is_multiple_of(2)
    }
}

impl Concurrency {
    pub(super) fn new(workers: usize) -> Self {
        let control = Control { window_began: 0, chosen: 1, trial: None, next_trial: 0, pause: PAUSE_NS.0 };
        Self {
            workers,
            began: Instant::now(),
            limit: AtomicUsize::new(1),
            running: AtomicUsize::new(0),
            is_watched: AtomicBool::new(false),
            last_start: AtomicU64::new(0),
            jobs: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            starved: AtomicBool::new(false),
            breadth_first: AtomicBool::new(false),
            ends: AtomicU64::new(WINDOW_NS),
            control: Mutex::new(control),
        }
    }

    /// Takes a turn, if there is one.
    pub(super) fn enter(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let below = |running| (running < limit).then_some(running + 1);
        self.running.fetch_update(Ordering::SeqCst, Ordering::Relaxed, below).is_ok()
    }

    /// Takes a turn whatever the limit is.
    pub(super) fn exceed(&self) {
        self.running.fetch_add(1, Ordering::SeqCst);
    }

    /// Gives a turn back. The caller looks for jobs afterwards: a push while all turns were taken wakes no thread.
    pub(super) fn leave(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// As [`leave`](Self::leave), if there are more turns than the limit allows.
    pub(super) fn leave_if_exceeded(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let above = |running| (running > limit).then(|| running - 1);
        self.running.load(Ordering::Relaxed) > limit
            && self.running.fetch_update(Ordering::SeqCst, Ordering::Relaxed, above).is_ok()
    }

    /// Whether a thread that wakes up for a new job would be of use: with a turn, or as the lookout. The job was pushed before.
    pub(super) fn wants_a_thread(&self) -> bool {
        fence(Ordering::SeqCst);
        self.has_room() || !self.is_watched.load(Ordering::Relaxed)
    }

    pub(super) fn has_room(&self) -> bool {
        self.running.load(Ordering::SeqCst) < self.limit.load(Ordering::Relaxed)
    }

    /// Makes the calling worker the lookout, if others run and there is none.
    pub(super) fn begin_watch(&self) -> bool {
        self.running.load(Ordering::SeqCst) > 0 && !self.is_watched.swap(true, Ordering::SeqCst)
    }

    pub(super) fn end_watch(&self) {
        self.is_watched.store(false, Ordering::SeqCst);
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.now().saturating_sub(self.last_start.load(Ordering::Relaxed)) > OVERDUE.as_nanos() as u64
    }

    pub(super) fn is_breadth_first(&self) -> bool {
        self.breadth_first.load(Ordering::Relaxed)
    }

    /// A thread with a turn found no job.
    pub(super) fn starves(&self) {
        self.starved.store(true, Ordering::Relaxed);
    }

    /// A job is started; gives the time.
    pub(super) fn starts(&self) -> u64 {
        let now = self.now();
        self.last_start.store(now, Ordering::Relaxed);
        now
    }

    /// A job that was started at `start` has ended. True if the limit grew, so that sleeping workers are of use.
    pub(super) fn ends(&self, start: u64) -> bool {
        let now = self.now();
        self.jobs.fetch_add(1, Ordering::Relaxed);
        self.busy.fetch_add(now.saturating_sub(start), Ordering::Relaxed);
        if now < self.ends.load(Ordering::Relaxed) {
            return false;
        }
        let Some(mut control) = self.control.try_lock() else { return false };
        if now < self.ends.load(Ordering::Relaxed) {
            return false;
        }
        let jobs = self.jobs.swap(0, Ordering::Relaxed);
        let busy = self.busy.swap(0, Ordering::Relaxed);
        let starved = self.starved.swap(false, Ordering::Relaxed);
        let length = now - control.window_began;
        self.breadth_first.store(jobs > 0 && BREADTH_FIRST_NS.contains(&(busy / jobs)), Ordering::Relaxed);
        let limit = control.limit_after(now, (jobs, length), busy, starved, self.workers);
        control.window_began = now;
        self.ends.store(now + WINDOW_NS, Ordering::Relaxed);
        self.limit.swap(limit, Ordering::SeqCst) < limit
    }

    fn now(&self) -> u64 {
        if cfg!(estafette_loom) {
            // An execution of a model must not depend on the time that it takes.
            return 0;
        }
        self.began.elapsed().as_nanos() as u64
    }
}

impl Control {
    /// The limit for the next window, after one of so many jobs and nanoseconds.
    fn limit_after(
        &mut self,
        now: u64,
        window: (u64, u64),
        busy: u64,
        starved: bool,
        workers: usize,
    ) -> usize {
        let (jobs, length) = window;
        if busy > jobs * LONG_NS {
            (self.chosen, self.trial) = (workers, None);
            self.next_trial = now;
            return workers;
        }
        if starved || jobs < JOBS_MIN {
            // The window says nothing: what offers the jobs was slower.
            self.trial = None;
            return self.chosen;
        }
        let Some(trial) = &mut self.trial else {
            if now >= self.next_trial && workers > 1 {
                let other = if self.chosen < workers { self.chosen + 1 } else { self.chosen - 1 };
                self.trial = Some(Trial { other, windows: 0, with_other: (0, 0), with_chosen: (0, 0) });
                return other;
            }
            return self.chosen;
        };
        let sum = if trial.is_other() { &mut trial.with_other } else { &mut trial.with_chosen };
        *sum = (sum.0 + jobs, sum.1 + length);
        trial.windows += 1;
        let rate = |(jobs, length): (u64, u64)| jobs as f64 / length as f64;
        let (other, gain) = (trial.other, rate(trial.with_other) / rate(trial.with_chosen));
        if trial.windows == 1 || (trial.windows < TRIAL_WINDOWS && gain > GAIN_HOPELESS) {
            return if trial.is_other() { trial.other } else { self.chosen };
        }
        self.trial = None;
        // Fewer threads win when they are as good.
        if gain > if other > self.chosen { GAIN_MIN } else { 1.0 } {
            (self.chosen, self.pause) = (other, PAUSE_NS.0);
        } else {
            self.pause = (self.pause * 2).min(PAUSE_NS.1);
        }
        self.next_trial = now + self.pause;
        self.chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs windows until `end`, each of as many jobs as `rate` gives for its limit, and gives the last limit outside of trials.
    fn climbs(workers: usize, end: u64, rate: impl Fn(usize) -> u64, job_ns: u64) -> usize {
        let concurrency = Concurrency::new(workers);
        let mut control = concurrency.control.lock();
        let mut limit = 1;
        for now in (WINDOW_NS..end).step_by(WINDOW_NS as usize) {
            let jobs = rate(limit);
            limit = control.limit_after(now, (jobs, WINDOW_NS), jobs * job_ns, false, workers);
            assert!((1..=workers).contains(&limit));
        }
        control.chosen
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn jobs_that_share_a_lock_stay_on_one_thread() {
        assert_eq!(climbs(4, SECOND, |threads| 1_000 / threads as u64, 4_000), 1);
        // As good is not better.
        assert_eq!(climbs(4, SECOND, |_| 1_000, 4_000), 1);
    }

    #[test]
    fn the_limit_climbs_as_long_as_threads_help_and_falls_when_they_do_not() {
        assert_eq!(climbs(8, SECOND, |threads| 1_000 * threads as u64, 4_000), 8);
        assert_eq!(climbs(8, 4 * SECOND, |threads| 1_000 * threads.min(3) as u64, 4_000), 3);
    }

    #[test]
    fn long_jobs_get_every_worker_at_once() {
        assert_eq!(climbs(8, 3 * WINDOW_NS, |_| 4, 2 * LONG_NS), 8);
    }

    #[test]
    fn windows_without_enough_jobs_say_nothing() {
        let concurrency = Concurrency::new(2);
        let mut control = concurrency.control.lock();
        for now in (0..SECOND).step_by(WINDOW_NS as usize) {
            assert_eq!(control.limit_after(now, (1_000, WINDOW_NS), 0, true, 2), 1);
            assert_eq!(control.limit_after(now, (JOBS_MIN - 1, WINDOW_NS), 0, false, 2), 1);
        }
    }

    #[test]
    fn a_trial_of_a_limit_that_loses_much_ends_after_one_window() {
        let concurrency = Concurrency::new(2);
        let mut control = concurrency.control.lock();
        let mut limits = vec![1];
        for window in 1..SECOND / WINDOW_NS {
            let jobs = 1_000 / limits[limits.len() - 1] as u64;
            limits.push(control.limit_after(window * WINDOW_NS, (jobs, WINDOW_NS), 0, false, 2));
        }
        let trials = limits.chunk_by(|a, b| a == b).filter(|chunk| chunk[0] == 2);
        assert!(trials.clone().count() > 1 && trials.clone().all(|chunk| chunk.len() == 1), "{limits:?}");
    }

    #[test]
    fn short_jobs_run_breadth_first_and_others_do_not() {
        let concurrency = Concurrency::new(1);
        let window_of = |job_ns: u64| {
            concurrency.jobs.store(10, Ordering::Relaxed);
            concurrency.busy.store(10 * job_ns, Ordering::Relaxed);
            concurrency.ends.store(0, Ordering::Relaxed);
            concurrency.ends(concurrency.now());
            concurrency.is_breadth_first()
        };
        assert!(!concurrency.is_breadth_first(), "nothing is known yet");
        assert!(window_of(40_000) && !window_of(160_000) && window_of(40_000) && !window_of(2_000));
    }

    #[test]
    fn turns_are_kept_within_the_limit_unless_it_is_exceeded() {
        let concurrency = Concurrency::new(2);
        assert!(concurrency.enter() && !concurrency.enter());
        concurrency.exceed();
        assert!(concurrency.leave_if_exceeded() && !concurrency.leave_if_exceeded());
        concurrency.leave();
        assert!(concurrency.enter());
    }
}
