//! Counting the instructions of calls.

use std::ffi::CString;
use std::hint::black_box;
use std::time::Duration;

use estafette_sync::valgrind::callgrind;

use super::table::CALLS;
use super::world::{Alive, World};

/// Numbers of things alive. At the largest size, five instructions for each thing alive show in every call,
/// and one shows in most. 100,000 things alive took two thirds of the time.
pub const SIZES: [usize; 3] = [100, 2_000, 40_000];

/// Each call is counted so often, unless that takes long; the least counts, since now and then a list grows,
/// and what other threads do meanwhile is counted too.
const TIMES: usize = 5;

/// A call whose cost grows is not made again once it has taken so long of the calling thread's processor
/// time. A machine that is busy with other things leaves each call as many counts.
const LONG: Duration = Duration::from_millis(500);

/// Counts one call at one size.
#[derive(Debug)]
pub struct Meter {
    name: CString,
}

impl Meter {
    /// Counts the instructions of `call`, of all threads.
    pub fn count<R>(&self, call: impl FnOnce() -> R) -> R {
        callgrind::zero();
        let result = black_box(call());
        callgrind::dump(&self.name);
        result
    }
}

/// Processor time of the calling thread.
fn own_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0, "every thread has a clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Counts every call of the table with `alive` alive, at each size.
pub fn measure(alive: Alive) {
    for n in SIZES {
        let world = World::new(alive, n);
        // Once for all calls, since each switch makes callgrind translate all code anew.
        callgrind::start();
        for call in CALLS.iter().filter(|call| call.is_made_with(alive)) {
            let name = CString::new(format!("{} @{n}", call.name)).expect("names have no zeros");
            let meter = Meter { name };
            let began = own_time();
            for time in 0..TIMES {
                if time == 0 || call.exponent(alive) == 0 || own_time() - began < LONG {
                    (call.run)(&world, &meter);
                }
            }
        }
        callgrind::stop();
    }
}
