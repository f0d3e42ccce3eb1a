//! The number of threads that run jobs of a pool at once, where more threads may be slower than fewer.
//!
//! Jobs that share a lock, such as the lock of a Python interpreter, take it from each other, and two threads
//! may get less done than one. So a thread takes a job only when it has a *slot*. There are as many slots as
//! [`limit`](Concurrency::limit()) says, from one upwards. The limit follows what was measured: windows with
//! one thread more or less alternate with windows of the present limit, and the better throughput wins (a
//! hill climb; for its use in a thread pool see Hellerstein et al., "Optimizing concurrency levels in the
//! .NET ThreadPool", 2008). Jobs differ, so windows do: the present limit is judged by its windows before the
//! trial too, and a trial goes on until the difference is larger than its standard error. Only windows in
//! which no thread ran out of jobs count.
//!
//! Jobs that take long often release the lock, and lose little by switches between threads where they do not.
//! So a trial of all workers begins at once where jobs become long. Their throughput is the number of threads
//! that ran jobs by the mean time of a job, which is known after few jobs, and where threads run out of jobs.
//! Jobs that take very long are too few to be compared: every worker has a slot. A job also takes long where
//! it waits for the lock while another thread submits jobs; that time does not count.
//!
//! Jobs that are short spend much of their time on code that is not in the caches. They run breadth first, so
//! that jobs which call the same function follow each other. Jobs that take longer work on larger data, and
//! run depth first, while their input is in the caches.
//!
//! A job may wait for another one. So a worker may exceed the limit when no job was started for
//! [`OVERDUE_NS`], or for twice the usual time of a job, while one waits, unless another thread submits jobs
//! meanwhile, and so has the lock. One idle worker, the *lookout*, sleeps for that long and more at a time as
//! long as jobs wait and others run.

use std::ops::Range;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use estafette_sync::time::{Duration, Instant};

use super::waiters::Waiters;

/// With no job started for so long, at least, a waiting job may exceed the limit.
const OVERDUE_NS: u64 = 1_000_000;
/// While the lookout finds nothing overdue, it sleeps longer and longer, up to this: each poll takes a core
/// from a job for a moment.
const POLL_NS_MAX: u64 = 8_000_000;
/// Jobs that take longer on average are long. Several threads that wait for each other's lock make jobs as
/// much longer as there are threads, so jobs are long for certain only where they take that much longer.
const LONG_NS: u64 = 500_000;
/// Jobs that take longer on average have every worker. Threads that switch at each interval of an
/// interpreter, 5 ms, lose next to nothing by that.
const VERY_LONG_NS: u64 = 50_000_000;
/// Jobs whose average is in this range run breadth first. At the rate at which a core reads memory, 10 GB/s,
/// such a job touches less than 1 MB. The code of shorter jobs is little enough to stay in the caches.
const BREADTH_FIRST_NS: Range<u64> = 10_000..80_000;
const WINDOW_NS: u64 = 4_000_000;
/// A window in which fewer than [`JOBS_MIN`] short jobs have ended goes on, up to this.
const WINDOW_NS_MAX: u64 = 16_000_000;
/// Fewer jobs than this say nothing about the throughput of a window.
const JOBS_MIN: u64 = 16;
/// While jobs are long, a window ends after so many jobs, or that time.
const LONG_WINDOW: (u64, u64) = (8, 200_000_000);
/// The least standard error of a comparison of long jobs: the first windows are too few to show one.
const LONG_ERROR_MIN: f64 = 0.04;
/// For so long a thread that submits a job keeps the lock.
const PUSH_NS: u64 = 5_000;
/// A trial needs so many windows of the present limit before it.
const KNOWN_MIN: u32 = 6;
/// As if only so many windows had been seen: earlier ones count less and less.
const KNOWN_MAX: u32 = 16;
/// Windows of a trial, at least and at most. One that wins or loses by much ends earlier.
const TRIAL_WINDOWS: (u32, u32) = (4, 12);
/// The other limit wins when its throughput is higher by this factor.
const GAIN_MIN: f64 = 1.05;
/// A trial ends early when the other limit has less than this share of the throughput.
const GAIN_HOPELESS: f64 = 0.9;
/// Time from a trial to the next one; it grows with each trial that changes nothing.
const PAUSE_NS: (u64, u64) = (30_000_000, 2_000_000_000);

pub(super) struct Concurrency {
    workers: usize,
    began: Instant,
    limit: AtomicUsize,
    running: AtomicUsize,
    /// True if there is a lookout.
    is_watched: AtomicBool,
    /// The time that the lookout sleeps next, in nanoseconds.
    poll_ns: AtomicU64,
    /// The time at which a job was last started, in nanoseconds since `began`.
    last_start: AtomicU64,
    /// Without a job started for so long, a waiting job is overdue.
    overdue: AtomicU64,
    /// Of this window: jobs, their nanoseconds, and whether a thread ran out of jobs.
    jobs: AtomicU64,
    busy: AtomicU64,
    /// Jobs that were pushed, ever.
    pushes: AtomicU64,
    starved: AtomicBool,
    /// Of this window: the most threads that ran jobs at the end of one.
    ran: AtomicUsize,
    /// True if the jobs of the last window were of such a length.
    breadth_first: AtomicBool,
    ends: AtomicU64,
    control: Mutex<Control>,
    pub(super) waiters: Waiters,
}

/// The hill climb.
struct Control {
    window_began: u64,
    /// Jobs that were pushed before the window.
    pushes: u64,
    /// The limit outside of trials.
    chosen: usize,
    /// While jobs are long: what `chosen` was before.
    before_long: Option<usize>,
    with_chosen: Throughput,
    trial: Option<Trial>,
    next_trial: u64,
    pause: u64,
    /// While jobs are long: what `next_trial` and `pause` were before.
    before_pause: (u64, u64),
}

/// Windows with another limit by turns with windows of the present one.
struct Trial {
    other: usize,
    windows: u32,
    with_other: Throughput,
}

impl Trial {
    fn of(other: usize) -> Self {
        Self { other, windows: 0, with_other: Throughput::default() }
    }

    /// True if the window that runs has the other limit. Of four windows the outer ones have it: neither a
    /// trend nor jobs of two kinds by turns favour a limit.
    fn is_other(&self) -> bool {
        matches!(self.windows % 4, 0 | 3)
    }
}

/// Jobs per nanosecond in windows of one limit: mean and variance, by exponential weights once there are
/// many.
#[derive(Clone, Copy, Default)]
struct Throughput {
    windows: u32,
    mean: f64,
    variance: f64,
}

impl Throughput {
    fn add(&mut self, rate: f64) {
        self.windows = (self.windows + 1).min(KNOWN_MAX);
        let (weight, difference) = (1.0 / f64::from(self.windows), rate - self.mean);
        self.mean += weight * difference;
        self.variance = (1.0 - weight) * (self.variance + weight * difference * difference);
    }

    /// `self` as a multiple of `other`, and the standard error of that: by the larger variance, as one window
    /// has none.
    fn gain_over(&self, other: &Self) -> (f64, f64) {
        let variance = self.variance.max(other.variance);
        let error = (variance * (f64::from(self.windows).recip() + f64::from(other.windows).recip())).sqrt();
        (self.mean / other.mean, error / other.mean)
    }
}

impl Concurrency {
    pub(super) fn new(workers: usize) -> Self {
        let control = Control {
            window_began: 0,
            pushes: 0,
            chosen: 1,
            before_long: None,
            with_chosen: Throughput::default(),
            trial: None,
            next_trial: 0,
            pause: PAUSE_NS.0,
            before_pause: (0, PAUSE_NS.0),
        };
        Self {
            workers,
            began: Instant::now(),
            limit: AtomicUsize::new(1),
            running: AtomicUsize::new(0),
            is_watched: AtomicBool::new(false),
            poll_ns: AtomicU64::new(OVERDUE_NS),
            last_start: AtomicU64::new(0),
            overdue: AtomicU64::new(OVERDUE_NS),
            jobs: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            pushes: AtomicU64::new(0),
            starved: AtomicBool::new(false),
            ran: AtomicUsize::new(0),
            breadth_first: AtomicBool::new(false),
            ends: AtomicU64::new(WINDOW_NS),
            control: Mutex::new(control),
            waiters: Waiters::default(),
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Takes a slot, if there is one.
    pub(super) fn acquire(&self) -> bool {
        let limit = self.limit();
        let below = |running| (running < limit).then_some(running + 1);
        self.running.fetch_update(Ordering::SeqCst, Ordering::Relaxed, below).is_ok()
    }

    /// Takes a slot whatever the limit is.
    pub(super) fn exceed(&self) {
        self.running.fetch_add(1, Ordering::SeqCst);
    }

    /// Releases a slot. The caller looks for jobs afterwards: a push while all slots were taken wakes no
    /// thread.
    pub(super) fn release(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// As [`release`](Self::release), if there are more slots than the limit allows.
    pub(super) fn release_if_exceeded(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let above = |running| (running > limit).then(|| running - 1);
        self.running.load(Ordering::Relaxed) > limit
            && self.running.fetch_update(Ordering::SeqCst, Ordering::Relaxed, above).is_ok()
    }

    /// Notes that jobs were pushed, by a thread that may wait for them or not. True if they are left to such
    /// a thread.
    pub(super) fn pushed(&self, may_wait: bool) -> bool {
        // Some may be missing: several threads rarely push at once.
        self.pushes.store(self.pushes() + 1, Ordering::Relaxed);
        may_wait && self.waiters.leaves(self.now())
    }

    /// Registers a thread that waits for a job and can run jobs meanwhile. False: it must run none.
    pub(super) fn begin_wait(&self) -> bool {
        self.waiters.begin(self.now(), self.pushes())
    }

    pub(super) fn end_wait(&self) {
        self.waiters.end(self.pushes());
    }

    /// True if a thread that wakes up for a new job would be of use: with a slot, or as the lookout. The job
    /// was pushed before.
    pub(super) fn wants_a_thread(&self) -> bool {
        fence(Ordering::SeqCst);
        self.has_room() || !(self.is_watched.load(Ordering::Relaxed) || self.waiters.have_stand_by())
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

    /// The lookout sleeps by `sleep`. True if then a job is overdue, although no thread was submitting for
    /// half of the time.
    pub(super) fn watch(&self, sleep: impl FnOnce(Duration)) -> bool {
        let (before, slept) = (self.pushes(), self.poll_ns.load(Ordering::Relaxed));
        sleep(Duration::from_nanos(slept));
        let submitting = self.pushes().saturating_sub(before) * PUSH_NS;
        let since_start = self.now().saturating_sub(self.last_start.load(Ordering::Relaxed));
        let is_overdue = since_start > self.overdue.load(Ordering::Relaxed) && submitting < slept / 2;
        self.poll_ns
            .store(if is_overdue { OVERDUE_NS } else { (slept * 2).min(POLL_NS_MAX) }, Ordering::Relaxed);
        is_overdue
    }

    pub(super) fn pushes(&self) -> u64 {
        self.pushes.load(Ordering::Relaxed)
    }

    pub(super) fn is_breadth_first(&self) -> bool {
        self.breadth_first.load(Ordering::Relaxed)
    }

    /// A thread with a slot found no job.
    pub(super) fn starves(&self) {
        self.starved.store(true, Ordering::Relaxed);
    }

    /// A job is started; gives the time.
    pub(super) fn starts(&self) -> u64 {
        let now = self.now();
        self.last_start.store(now, Ordering::Relaxed);
        now
    }

    /// A job that was started at `start` has ended. True if the limit grew, so that sleeping workers are of
    /// use.
    pub(super) fn ends(&self, start: u64) -> bool {
        let now = self.now();
        self.jobs.fetch_add(1, Ordering::Relaxed);
        self.busy.fetch_add(now.saturating_sub(start), Ordering::Relaxed);
        let running = self.running.load(Ordering::Relaxed);
        if running > self.ran.load(Ordering::Relaxed) {
            self.ran.fetch_max(running, Ordering::Relaxed);
        }
        if now < self.ends.load(Ordering::Relaxed) {
            return false;
        }
        let Some(mut control) = self.control.try_lock() else { return false };
        if now < self.ends.load(Ordering::Relaxed) {
            return false;
        }
        let limit = self.limit.load(Ordering::Relaxed);
        let (jobs, busy) = (self.jobs.load(Ordering::Relaxed), self.busy.load(Ordering::Relaxed));
        let length = now - control.window_began;
        let (jobs_min, length_max) = control.window_size();
        // The first window of long jobs ends at once.
        let long_ns = if control.before_long.is_some() { VERY_LONG_NS } else { LONG_NS };
        if jobs < jobs_min && busy < jobs * long_ns * limit as u64 && length < length_max {
            return false;
        }
        let jobs = self.jobs.swap(0, Ordering::Relaxed);
        let pushes = self.pushes();
        let waited = pushes.saturating_sub(control.pushes) * PUSH_NS;
        control.pushes = pushes;
        let busy = self.busy.swap(0, Ordering::Relaxed).saturating_sub(waited);
        let starved = self.starved.swap(false, Ordering::Relaxed);
        let ran = self.ran.swap(0, Ordering::Relaxed).max(1);
        let usual = busy / jobs.max(1);
        self.overdue.store((2 * usual).clamp(OVERDUE_NS, VERY_LONG_NS), Ordering::Relaxed);
        self.breadth_first.store(BREADTH_FIRST_NS.contains(&usual), Ordering::Relaxed);
        let limit = control.limit_after(now, (jobs, length), busy, starved, (limit, ran, self.workers));
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
    /// Keeps what is known of short jobs while jobs are long.
    fn note_short(&mut self) {
        if self.before_long.is_none() {
            self.before_long = Some(self.chosen);
            self.before_pause = (self.next_trial, self.pause);
        }
    }

    /// The limit for the next window, after one of so many jobs and nanoseconds, with this limit and so many
    /// threads that ran jobs.
    fn limit_after(
        &mut self,
        now: u64,
        window: (u64, u64),
        busy: u64,
        starved: bool,
        (limit, ran, workers): (usize, usize, usize),
    ) -> usize {
        let (jobs, length) = window;
        if busy > jobs * VERY_LONG_NS * limit as u64 {
            self.note_short();
            self.choose(workers, Throughput::default());
            return workers;
        }
        if busy < jobs * LONG_NS
            && let Some(before) = self.before_long.take()
        {
            self.choose(before, Throughput::default());
            // The results of the trials of long jobs say nothing of short ones.
            (self.next_trial, self.pause) = self.before_pause;
            return before;
        }
        if self.before_long.is_none() && busy > jobs * LONG_NS * limit as u64 {
            self.note_short();
            self.choose(self.chosen, Throughput::default());
            self.trial = (self.chosen < workers).then(|| Trial::of(workers));
            return workers;
        }
        let is_long = self.before_long.is_some();
        if !is_long && (starved || jobs < JOBS_MIN) {
            // The window says nothing: what offers the jobs was slower.
            if self.trial.take().is_some() {
                self.next_trial = now + self.pause;
            }
            return self.chosen;
        }
        let mut rate = jobs as f64 / length as f64;
        if is_long {
            // As many threads as ran jobs: with fewer ready jobs than slots, each of them takes no longer
            // than beside so many others.
            rate = rate.max((jobs * ran as u64) as f64 / busy.max(1) as f64);
        }
        let Some(trial) = &mut self.trial else {
            self.with_chosen.add(rate);
            if now >= self.next_trial && workers > 1 && self.with_chosen.windows >= KNOWN_MIN {
                let other = if self.chosen < workers { self.chosen + 1 } else { self.chosen - 1 };
                self.trial = Some(Trial::of(other));
                return other;
            }
            return self.chosen;
        };
        if trial.is_other() {
            trial.with_other.add(rate)
        } else {
            self.with_chosen.add(rate)
        }
        trial.windows += 1;
        let (gain, error) = trial.with_other.gain_over(&self.with_chosen);
        let error = if is_long { error.max(LONG_ERROR_MIN) } else { error };
        // Fewer threads win when they are as good.
        let wanted = if trial.other > self.chosen { GAIN_MIN } else { 1.0 };
        let is_hopeless = gain < GAIN_HOPELESS;
        let is_decided = self.with_chosen.windows > 0
            && (is_hopeless
                || gain - wanted > 3.0 * error
                || trial.windows >= TRIAL_WINDOWS.1
                || (trial.windows >= TRIAL_WINDOWS.0 && (gain - wanted).abs() > error));
        if !is_decided {
            return if trial.is_other() { trial.other } else { self.chosen };
        }
        if gain > wanted {
            let (other, with_other) = (trial.other, trial.with_other);
            self.choose(other, with_other);
            self.pause = if is_long { LONG_WINDOW.1 } else { PAUSE_NS.0 };
        } else {
            self.trial = None;
            self.pause = (self.pause * if is_hopeless { 8 } else { 2 }).min(PAUSE_NS.1);
        }
        self.next_trial = now + self.pause;
        self.chosen
    }

    /// Jobs and nanoseconds after which a window ends, whichever comes first.
    fn window_size(&self) -> (u64, u64) {
        if self.before_long.is_some() { LONG_WINDOW } else { (JOBS_MIN, WINDOW_NS_MAX) }
    }

    fn choose(&mut self, limit: usize, throughput: Throughput) {
        (self.chosen, self.with_chosen, self.trial) = (limit, throughput, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs windows until `end`, each of as many jobs as `rate` gives for its limit, and gives the last limit
    /// outside of trials.
    fn climbs(workers: usize, end: u64, rate: impl Fn(usize) -> u64, job_ns: u64) -> usize {
        let concurrency = Concurrency::new(workers);
        let mut control = concurrency.control.lock();
        let mut limit = 1;
        for now in (WINDOW_NS..end).step_by(WINDOW_NS as usize) {
            let jobs = rate(limit);
            limit =
                control.limit_after(now, (jobs, WINDOW_NS), jobs * job_ns, false, (limit, limit, workers));
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

    /// Runs so many long jobs, where a limit gives each this mean time, and gives the last limit outside of
    /// trials and the share of jobs that ran with all workers.
    fn runs_long_jobs(workers: usize, count: u64, job_ns: impl Fn(usize) -> u64) -> (usize, f64) {
        runs_few_long_jobs(workers, workers, count, job_ns)
    }

    /// As [`runs_long_jobs`], with so many jobs ready at a time.
    fn runs_few_long_jobs(
        workers: usize,
        ready: usize,
        count: u64,
        job_ns: impl Fn(usize) -> u64,
    ) -> (usize, f64) {
        let mut control = Concurrency::new(workers).control.into_inner();
        let (mut limit, mut now, mut ran, mut with_all) = (1, 0, 0, 0);
        while ran < count {
            let (jobs_max, length_max) = control.window_size();
            let threads = limit.min(ready);
            let gap = job_ns(threads) / threads as u64;
            let jobs = jobs_max.min((length_max / gap).max(1));
            (now, ran) = (now + jobs * gap, ran + jobs);
            with_all += if limit == workers { jobs } else { 0 };
            let busy = jobs * job_ns(threads);
            let starved = threads < limit;
            limit = control.limit_after(now, (jobs, jobs * gap), busy, starved, (limit, threads, workers));
            assert!((1..=workers).contains(&limit));
        }
        (control.chosen, with_all as f64 / count as f64)
    }

    #[test]
    fn long_jobs_that_keep_the_lock_stay_on_one_thread() {
        for job_ns in [2_000_000, 8_000_000, 20_000_000] {
            for workers in [2, 4] {
                let (chosen, with_all) = runs_long_jobs(workers, 2_000, |threads| job_ns * threads as u64);
                assert!(
                    chosen == 1 && with_all < 0.2,
                    "{job_ns} ns, {workers} workers: {chosen}, {with_all}"
                );
            }
        }
    }

    #[test]
    fn long_jobs_that_keep_the_lock_stay_on_one_thread_where_few_are_ready() {
        for ready in [2, 4, 8] {
            let (chosen, with_all) =
                runs_few_long_jobs(16, ready, 2_000, |threads| 2_000_000 * threads as u64);
            assert!(chosen == 1 && with_all < 0.2, "{ready} ready: {chosen}, {with_all}");
            // Bodies that release the lock gain by each thread that has a job.
            let (chosen, _) = runs_few_long_jobs(16, ready, 2_000, |_| 2_000_000);
            assert!(chosen >= ready, "{ready} ready: {chosen}");
        }
    }

    #[test]
    fn a_window_counts_the_threads_that_ran_jobs() {
        let concurrency = Concurrency::new(16);
        assert!(concurrency.acquire());
        for _ in 0..3 {
            concurrency.exceed();
        }
        concurrency.ends.store(u64::MAX, Ordering::Relaxed);
        assert!(!concurrency.ends(0));
        (0..3).for_each(|_| assert!(concurrency.release_if_exceeded()));
        assert!(!concurrency.ends(0));
        assert_eq!(concurrency.ran.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn short_jobs_have_trials_soon_after_long_ones() {
        let mut control = Concurrency::new(2).control.into_inner();
        (control.before_long, control.pause, control.next_trial) = (Some(1), PAUSE_NS.1, PAUSE_NS.1);
        let mut limit = 1;
        let window = |now| {
            limit = control.limit_after(now, (1_000, WINDOW_NS), 1_000 * 4_000, false, (limit, limit, 2));
            limit
        };
        let limits: Vec<_> = (1..16).map(|window| window * WINDOW_NS).map(window).collect();
        assert!(limits.contains(&2), "{limits:?}");
    }

    #[test]
    fn long_jobs_that_release_the_lock_get_every_worker() {
        for job_ns in [1_000_000, 8_000_000, 100_000_000] {
            for workers in [2, 8] {
                let (chosen, with_all) = runs_long_jobs(workers, 200, |_| job_ns);
                assert!(
                    chosen == workers && with_all > 0.8,
                    "{job_ns} ns: {chosen} of {workers}, {with_all}"
                );
            }
        }
        // Threads share the bandwidth of the memory.
        let (chosen, with_all) = runs_long_jobs(2, 200, |threads| 6_000_000 + 2_000_000 * threads as u64);
        assert!(chosen == 2 && with_all > 0.8, "{chosen}, {with_all}");
    }

    #[test]
    fn long_jobs_get_every_worker_at_once() {
        let mut control = Concurrency::new(8).control.into_inner();
        assert_eq!(control.limit_after(WINDOW_NS, (2, WINDOW_NS), 2 * 2 * LONG_NS, false, (1, 1, 8)), 8);
    }

    /// The limits of windows in which each of `lengths`, in nanoseconds, was the mean time of 16 jobs, in
    /// turn.
    fn limits_after(lengths: &[u64], from: usize) -> Vec<usize> {
        let mut control = Concurrency::new(2).control.into_inner();
        let mut limit = from;
        let window = |at: usize| (at as u64 + 1) * WINDOW_NS;
        let after = |(at, length): (usize, &u64)| {
            limit = control.limit_after(window(at), (16, WINDOW_NS), 16 * length, false, (limit, limit, 2));
            limit
        };
        lengths.iter().enumerate().map(after).collect()
    }

    #[test]
    fn one_window_of_long_jobs_gives_every_worker_a_slot_only_for_the_next() {
        assert_eq!(limits_after(&[200_000, 2 * LONG_NS, 200_000, 200_000], 1), [1, 2, 1, 1]);
    }

    #[test]
    fn jobs_that_two_threads_make_long_for_each_other_are_not_long() {
        // Jobs that are short with two threads are short.
        assert_eq!(limits_after(&[300_000, 300_000], 2), [1, 1]);
        let mut control = Concurrency::new(2).control.into_inner();
        (control.chosen, control.before_long) = (2, Some(1));
        let mut limit = 2;
        for window in 1..50 {
            let (jobs, length) = if limit == 2 { (16, LONG_NS + 3_000) } else { (20, 200_000) };
            limit = control.limit_after(
                window * WINDOW_NS,
                (jobs, WINDOW_NS),
                jobs * length,
                false,
                (limit, limit, 2),
            );
        }
        assert_eq!(control.chosen, 1);
    }

    #[test]
    fn a_job_that_waits_while_another_thread_submits_is_neither_long_nor_overdue() {
        let concurrency = Concurrency::new(2);
        let nap = || estafette_sync::thread::sleep(Duration::from_nanos(2 * OVERDUE_NS));
        let submit = || (0..2 * OVERDUE_NS / PUSH_NS).for_each(|_| assert!(!concurrency.pushed(true)));
        let ended_after = |busy_ns| {
            concurrency.busy.store(busy_ns, Ordering::Relaxed);
            concurrency.ends.store(0, Ordering::Relaxed);
            concurrency.ends(concurrency.now())
        };
        concurrency.starts();
        let other_submits = |_| {
            nap();
            submit();
        };
        assert!(!concurrency.watch(other_submits), "the other thread has the lock");
        assert!(!ended_after(2 * OVERDUE_NS), "its time is that of the other thread");
        assert!(concurrency.watch(|_| nap()), "the job waits for something else");
        assert!(ended_after(2 * OVERDUE_NS), "long jobs get every worker");
    }

    #[test]
    fn windows_without_enough_jobs_say_nothing() {
        let concurrency = Concurrency::new(2);
        let mut control = concurrency.control.lock();
        for now in (0..SECOND).step_by(WINDOW_NS as usize) {
            assert_eq!(control.limit_after(now, (1_000, WINDOW_NS), 0, true, (1, 1, 2)), 1);
            assert_eq!(control.limit_after(now, (JOBS_MIN - 1, WINDOW_NS), 0, false, (1, 1, 2)), 1);
        }
    }

    #[test]
    fn a_trial_of_a_limit_that_loses_much_ends_after_one_window() {
        let concurrency = Concurrency::new(2);
        let mut control = concurrency.control.lock();
        let mut limits = vec![1];
        for window in 1..SECOND / WINDOW_NS {
            let limit = limits[limits.len() - 1];
            let jobs = 1_000 / limit as u64;
            limits.push(control.limit_after(
                window * WINDOW_NS,
                (jobs, WINDOW_NS),
                0,
                false,
                (limit, limit, 2),
            ));
        }
        let trials = limits.chunk_by(|a, b| a == b).filter(|chunk| chunk[0] == 2);
        assert!(trials.clone().count() > 1 && trials.clone().all(|chunk| chunk.len() == 1), "{limits:?}");
    }

    #[test]
    fn short_jobs_run_breadth_first_and_others_do_not() {
        let concurrency = Concurrency::new(1);
        let window_of = |job_ns: u64| {
            concurrency.jobs.store(JOBS_MIN, Ordering::Relaxed);
            concurrency.busy.store(JOBS_MIN * job_ns, Ordering::Relaxed);
            concurrency.ends.store(0, Ordering::Relaxed);
            concurrency.ends(concurrency.now());
            concurrency.is_breadth_first()
        };
        assert!(!concurrency.is_breadth_first(), "nothing is known yet");
        assert!(window_of(40_000) && !window_of(160_000) && window_of(40_000) && !window_of(2_000));
    }

    #[test]
    fn slots_are_kept_within_the_limit_unless_it_is_exceeded() {
        let concurrency = Concurrency::new(2);
        assert!(concurrency.acquire() && !concurrency.acquire());
        concurrency.exceed();
        assert!(concurrency.release_if_exceeded() && !concurrency.release_if_exceeded());
        concurrency.release();
        assert!(concurrency.acquire());
    }
}
