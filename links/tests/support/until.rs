//! A wait that polls, and its limit.

use std::time::{Duration, Instant};

/// No wait of a test takes this long, also where the test gets a hundredth of a processor. Test runners wait
/// longer.
pub const HUNG: Duration = Duration::from_secs(300);

/// Waits until `condition` holds.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + HUNG;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
