//! Priorities age: urgent operations that submit their successors keep no other one waiting for ever, by
//! counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use estafette::{Engine, Error, View, ViewMut};
use tests::ops::{engine, until};
use tests::watchdog::Watchdog;

/// Of so many operations that are taken one is of each class that waits.
const BOUND: usize = 64;

/// Operations that submit their successors until `stop`.
#[derive(Clone)]
struct Chain {
    engine: Engine,
    priority: i32,
    ran: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Chain {
    fn new(engine: &Engine, priority: i32) -> Self {
        Self { engine: engine.clone(), priority, ran: Arc::default(), stop: Arc::default() }
    }

    fn submit(&self) -> Result<(), Error> {
        let next = self.clone();
        let body = move |[]: [View<'_>; 0], []: [ViewMut<'_>; 0]| {
            next.ran.fetch_add(1, Ordering::SeqCst);
            if !next.stop.load(Ordering::SeqCst) {
                next.submit()?;
            }
            Ok(())
        };
        self.engine.op("urgent").priority(self.priority).run(body)?;
        Ok(())
    }

    /// Submits an operation of `priority` that ends the chain, and gives how many of the chain had run when
    /// it did.
    fn submit_end(&self, priority: i32) -> Arc<AtomicUsize> {
        let (chain, at_end) = (self.clone(), Arc::new(AtomicUsize::new(0)));
        let noted = Arc::clone(&at_end);
        let body = move |[]: [View<'_>; 0], []: [ViewMut<'_>; 0]| {
            noted.store(chain.ran.load(Ordering::SeqCst), Ordering::SeqCst);
            chain.stop.store(true, Ordering::SeqCst);
            Ok(())
        };
        self.engine.op("lower").priority(priority).run(body).unwrap();
        at_end
    }
}

#[test]
fn without_workers_no_class_is_overtaken_by_more_than_63_operations() {
    for (low, urgent) in [(0, 1), (-1, 1), (1, 2), (-2, -1)] {
        let engine = engine(0);
        let _watchdog = Watchdog::of(&engine);
        let chain = Chain::new(&engine, urgent);
        chain.submit().unwrap();
        let at_end = chain.submit_end(low);
        engine.wait_all(None).unwrap();
        let overtaken = at_end.load(Ordering::SeqCst);
        assert!(overtaken < BOUND, "{low} behind {urgent}: {overtaken}");
    }
}

#[test]
fn with_workers_urgent_operations_that_submit_their_successors_keep_no_lower_one_waiting() {
    for workers in [1, 2] {
        for (low, urgent) in [(0, 1), (-1, 0), (-5, 5), (1, 2)] {
            let engine = engine(workers);
            let _watchdog = Watchdog::of(&engine);
            let chain = Chain::new(&engine, urgent);
            (0..workers * 2).for_each(|_| chain.submit().unwrap());
            until("the chains run", || chain.ran.load(Ordering::SeqCst) > 100);
            let at_end = chain.submit_end(low);
            engine.wait_all(Some(Duration::from_secs(30))).unwrap();
            assert_ne!(at_end.load(Ordering::SeqCst), 0, "{low} behind {urgent} with {workers} workers");
        }
    }
}

/// A thread without workers runs what it submits at once, once much is ready; what has a priority must not
/// wait for its end.
#[test]
fn without_workers_a_submitter_that_never_waits_runs_operations_of_low_priority_too() {
    let engine = engine(0);
    let _watchdog = Watchdog::of(&engine);
    // From here on the thread runs what it submits.
    (0..100).for_each(|_| drop(engine.op("first").run(|[], []| Ok(())).unwrap()));
    let ran = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&ran);
    let body = move |[]: [View<'_>; 0], []: [ViewMut<'_>; 0]| {
        noted.store(true, Ordering::SeqCst);
        Ok(())
    };
    engine.op("low").priority(-1).run(body).unwrap();
    for _ in 0..BOUND {
        engine.op("ordinary").run(|[], []| Ok(())).unwrap();
    }
    assert!(ran.load(Ordering::SeqCst), "64 ordinary operations were submitted and run behind it");
    engine.wait_all(None).unwrap();
}
