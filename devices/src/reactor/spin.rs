use estafette_sync::sleeper::has_spare_cores;
use estafette_sync::time::{Duration, Instant};

use crate::{Fence, Outcome};

/// The time that a waiter polls a fence before it sleeps: about what going to sleep, being seen by
/// the reactor and waking up would cost. On a virtual machine with 16 cores these are 35 to 50 µs.
const BUDGET: Duration = Duration::from_micros(50);
/// Loads between two looks at the clock.
const ROUND: u32 = 16;

/// Asks `fence` for a moment, as long as asking is as cheap as a load. `None` if it is still pending then.
pub(crate) fn spin(fence: &Fence) -> Option<Outcome> {
    if has_spare_cores() { spin_for(fence, BUDGET) } else { None }
}

fn spin_for(fence: &Fence, budget: Duration) -> Option<Outcome> {
    let deadline = Instant::now() + budget;
    // The first query may show that only a driver can answer.
    while fence.query_is_cheap() {
        for _ in 0..ROUND {
            if let Some(outcome) = fence.state().outcome() {
                return Some(outcome);
            }
            estafette_sync::hint::spin_loop();
        }
        if Instant::now() >= deadline {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use estafette_sync::sync::atomic::Ordering;

    use super::super::double::Driver;
    use super::*;
    use crate::{Clock, host};

    /// A queue whose answer is a load, a fence of it, and a thread that spins for the fence.
    fn spinning(budget: Duration) -> (Arc<Driver>, std::thread::JoinHandle<Option<Outcome>>) {
        let queue = Driver::new();
        queue.is_cheap.store(true, Ordering::Relaxed);
        let fence = Fence::point(queue.clone(), 1, Clock::default());
        (queue, std::thread::spawn(move || spin_for(&fence, budget)))
    }

    #[test]
    fn a_spin_ends_when_the_fence_settles_or_when_the_time_is_up() {
        let start = Instant::now();
        let (_queue, waiter) = spinning(BUDGET);
        assert!(waiter.join().expect("it does not panic").is_none());
        assert!(start.elapsed() >= BUDGET);
        let (queue, waiter) = spinning(Duration::from_secs(20));
        queue.completed.store(1, Ordering::Release);
        assert!(waiter.join().expect("it does not panic").is_some_and(|outcome| outcome.is_ok()));
    }

    #[test]
    fn a_spin_ends_where_only_a_driver_knows_more() {
        let (queue, waiter) = spinning(Duration::from_secs(600));
        queue.is_cheap.store(false, Ordering::Relaxed);
        assert!(waiter.join().expect("it does not panic").is_none());
        let (_completer, promised) = host::promise("spin");
        assert!(spin(&promised).is_none(), "a source that notifies need not be asked");
    }
}
