//! A test leaves nothing behind.

use std::time::Duration;

use estafette::Engine;
use estafette::exchange::flush_deleters;
use estafette_sync::thread;
use estafette_sync::time::Instant;

/// Limit for deleters that are under way.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks.
const PAUSE: Duration = Duration::from_micros(100);

/// For the end of a test that has waited for its operations and has returned its leases: nothing is in flight
/// in `engines`, nothing stands in any queue, be it an operation, a question whether something is ready, or a
/// lease, and the reaper has nothing more to release.
///
/// A value dropped a moment ago may be on its way out on another thread, so the check waits a little.
pub fn assert_nothing_left(engines: &[&Engine]) {
    for engine in engines {
        let idle = || {
            // Without workers, a cancelled operation whose turn came after the last wait is still ready.
            engine.run_ready();
            engine.stats().in_flight == 0 && engine.diagnose().is_idle()
        };
        if !settles(idle) {
            panic!("left behind: {} in flight, {}", engine.stats().in_flight, engine.diagnose());
        }
    }
    assert!(flush_deleters(PATIENCE), "the reaper is stuck");
}

fn settles(idle: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !idle() {
        if Instant::now() > deadline {
            return false;
        }
        // Not a switch alone: in a simulation, time passes only while threads sleep.
        thread::sleep(PAUSE);
    }
    true
}
