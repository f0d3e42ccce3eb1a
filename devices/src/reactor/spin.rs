use std::sync::OnceLock;

use estafette_sync::time::{Duration, Instant};

use crate::{Fence, Outcome};

/// How long a waiter asks for a fence again and again before it sleeps: about what going to sleep, being seen by
/// the reactor and waking up would cost. On a virtual machine with 16 cores these are 35 to 50 µs.
const BUDGET: Duration = Duration::from_micros(50);
/// Loads between two looks at the clock.
const ROUND: u32 = 16;

/// Whether a thread that spins takes nothing from those that work: with two cores or fewer it does.
pub(super) fn has_spare_cores() -> bool {
    // A fact about the machine, outside of every protocol: a plain std cell, so that it may be a static under
    // model checkers too.
    static SPARE: OnceLock<bool> = OnceLock::new();
    // An execution of a model must not depend on the machine.
    !cfg!(estafette_shuttle)
        && *SPARE.get_or_init(|| std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 2))
}

/// Asks `fence` for a moment, if asking is as cheap as a load. `None` if it is still pending then.
pub(crate) fn spin(fence: &Fence) -> Option<Outcome> {
    if fence.query_is_cheap() && has_spare_cores() { spin_for(fence, BUDGET) } else { None }
}

fn spin_for(fence: &Fence, budget: Duration) -> Option<Outcome> {
    let deadline = Instant::now() + budget;
    loop {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host;

    #[test]
    fn a_spin_ends_when_the_fence_settles_or_when_the_time_is_up() {
        let (completer, fence) = host::promise("spin");
        let start = Instant::now();
        assert!(spin_for(&fence, BUDGET).is_none());
        assert!(start.elapsed() >= BUDGET);
        assert!(!fence.query_is_cheap(), "who is told need not ask");
        assert!(spin(&fence).is_none());
        let waiter = {
            let fence = fence.clone();
            std::thread::spawn(move || spin_for(&fence, Duration::from_secs(20)))
        };
        completer.complete();
        assert!(waiter.join().expect("it does not panic").is_some_and(|outcome| outcome.is_ok()));
    }
}
