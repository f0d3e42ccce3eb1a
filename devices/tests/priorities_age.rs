//! Priorities age: how many jobs of a more urgent class are taken before one of a lower class, by counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use estafette_devices::cpu::{Job, Pool, PoolOptions};

/// Of so many takes one is of each class that waits.
const BOUND: usize = 64;

/// A job of a class, for the thread that takes it.
struct Of(i32);

impl Job for Of {
    fn run(self, _: &Pool<Self>) {}
}

fn alone() -> Pool<Of> {
    Pool::new(PoolOptions { workers: 0, name: "test".to_owned(), spare_limit: 0, ..PoolOptions::default() })
        .expect("no thread is needed")
}

/// Number of jobs of priority `urgent` that are taken before the first one of priority `low`, of `count` that
/// wait, if there is always one.
fn overtaken(low: i32, urgent: i32, count: usize, take: impl Fn(&Pool<Of>) -> Option<Of>) -> Vec<usize> {
    let pool = alone();
    (0..count).for_each(|_| pool.push_priority(Of(low), low));
    let (mut found, mut before) = (Vec::new(), 0);
    for _ in 0..BOUND * count * 4 {
        pool.push_priority(Of(urgent), urgent);
        match take(&pool).expect("jobs wait").0 {
            class if class == low => found.push(std::mem::take(&mut before)),
            _ => before += 1,
        }
        if found.len() == count {
            break;
        }
    }
    found
}

#[test]
fn no_class_is_overtaken_by_more_than_63_others() {
    let classes = [(0, 1), (-1, 0), (0, i32::MAX), (i32::MIN, 0), (1, 2), (-2, -1), (-7, 7)];
    for (low, urgent) in classes {
        let found = overtaken(low, urgent, 20, Pool::try_take);
        assert_eq!(found.len(), 20, "{low} behind {urgent} starves: {found:?}");
        assert!(found.iter().all(|&before| before < BOUND), "{low} behind {urgent}: {found:?}");
        // And what is urgent still goes first nearly always.
        assert!(found.iter().all(|&before| before + 2 >= BOUND / 2), "{low} behind {urgent}: {found:?}");
    }
}

#[test]
fn a_search_for_particular_jobs_ages_them_too() {
    for (low, urgent) in [(0, 1), (-1, 0), (1, 2)] {
        let found = overtaken(low, urgent, 5, |pool| pool.take_matching(|_| true));
        assert!(found.len() == 5 && found.iter().all(|&before| before < BOUND), "{low}: {found:?}");
        let found = overtaken(low, urgent, 5, |pool| pool.take_next_matching(|_| true));
        assert!(found.len() == 5 && found.iter().all(|&before| before < BOUND), "{low}: {found:?}");
    }
}

#[test]
fn every_deque_has_its_turn() {
    const THREADS: i32 = 4;
    let pool = alone();
    std::thread::scope(|scope| {
        // Threads outside of the pool stay registered with it, so each has a deque of its own.
        let (ends, handles): (Vec<Sender<()>>, Vec<_>) = (1..=THREADS)
            .map(|thread| {
                let (end, ended) = channel();
                let (pushed, has_pushed) = channel();
                let pool = &pool;
                let handle = scope.spawn(move || {
                    (0..100).for_each(|_| pool.push(Of(-100 * thread)));
                    pushed.send(()).expect("the test listens");
                    let _ = ended.recv();
                });
                has_pushed.recv().expect("it pushes");
                (end, handle)
            })
            .unzip();
        let mut seen = Vec::new();
        for _ in 0..BOUND * 17 {
            pool.push_priority(Of(1), 1);
            match pool.try_take().expect("jobs wait").0 {
                1 => {}
                thread if seen.contains(&thread) => {}
                thread => seen.push(thread),
            }
        }
        assert_eq!(seen.len(), THREADS as usize, "of 17 turns each of at most 17 deques has one: {seen:?}");
        drop(ends);
        handles.into_iter().for_each(|handle| handle.join().expect("it pushes only"));
    });
}

/// A job that pushes its successor until one of a lower class has run, which the hundredth pushes.
enum Chain {
    Link(Arc<Counts>),
    Low(Arc<Counts>),
}

struct Counts {
    urgent: i32,
    low: i32,
    ran: AtomicUsize,
    /// Number of links that had run when the lower one did.
    at_low: AtomicUsize,
    reported: Sender<()>,
}

impl Job for Chain {
    fn run(self, pool: &Pool<Self>) {
        match self {
            Self::Link(counts) => {
                if counts.ran.fetch_add(1, Ordering::SeqCst) + 1 == 100 {
                    pool.push_priority(Self::Low(counts.clone()), counts.low);
                }
                if counts.at_low.load(Ordering::SeqCst) == 0 {
                    pool.push_priority(Self::Link(counts.clone()), counts.urgent);
                }
            }
            Self::Low(counts) => {
                counts.at_low.store(counts.ran.load(Ordering::SeqCst), Ordering::SeqCst);
                counts.reported.send(()).expect("the test listens");
            }
        }
    }
}

#[test]
fn urgent_jobs_that_push_their_successors_let_a_lower_one_through_with_any_number_of_workers() {
    for workers in [1, 2, 4] {
        for (low, urgent) in [(0, 1), (-1, 0), (-3, 3), (1, 2)] {
            let pool = Pool::new(PoolOptions {
                workers,
                name: "test".to_owned(),
                spare_limit: 0,
                ..PoolOptions::default()
            })
            .expect("threads can be started");
            let (reported, has_run) = channel();
            let (ran, at_low) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let counts = Arc::new(Counts { urgent, low, ran, at_low, reported });
            // More chains than workers, so that there is always an urgent job.
            for _ in 0..workers * 2 {
                pool.push_priority(Chain::Link(counts.clone()), urgent);
            }
            has_run.recv_timeout(Duration::from_secs(30)).expect("it starves");
            // With several workers the one that has taken the job may be descheduled before it runs it.
            let overtaken = counts.at_low.load(Ordering::SeqCst) - 100;
            assert!(workers > 1 || overtaken < BOUND, "{low} behind {urgent}: {overtaken}");
        }
    }
}
