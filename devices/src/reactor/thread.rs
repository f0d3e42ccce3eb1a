use std::{fmt, mem};

use std::sync::Arc;

use estafette_sync::essential::essential;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use estafette_sync::time::{Duration, Instant};
use estafette_sync::{daemon, platform, stack, thread};

use crate::fence::source::deliver;
use crate::fence::waiting::Ready;
use crate::{DeviceError, DeviceErrorKind};

use super::poll_list::{Armed, PollList};
use super::spin::has_spare_cores;

/// Sweeps with a busy pause between them after something settled: most work that is nearly done is done
/// within them.
const SPIN_SWEEPS: u32 = 64;
/// Sweeps with a yield between them after that: on a machine with two cores the work itself may need ours.
const YIELD_SWEEPS: u32 = 64;
/// On a machine with cores to spare, yields go on this long where an answer is a load. A nap ends late by what the
/// system takes to wake a thread: a nap of 50 µs takes 110 µs on a virtual machine.
const YIELD_TIME: Duration = Duration::from_millis(20);
/// The same where a driver has to be asked. Asking takes a microsecond, and holds up other calls of the driver: beside a
/// thread that asks without pause, `cuLaunchKernel` takes 19 µs instead of 4.
const DRIVER_YIELD_TIME: Duration = Duration::from_micros(200);
/// The first nap.
const NAP_MIN: Duration = Duration::from_micros(50);
/// The longest nap, and so the longest that a settled fence goes unobserved.
const NAP_MAX: Duration = Duration::from_millis(1);
/// A nap is this fraction of the time waited so far, so observing late costs about an eighth of the wait at
/// most.
const NAP_FRACTION: u32 = 8;

/// What the arming threads and the reactor thread share.
#[derive(Default)]
pub(super) struct Shared {
    /// Subscriptions in the inbox and in the poll list. See the module's protocol.
    armed: AtomicUsize,
    /// Whether the thread naps, or is about to.
    naps: AtomicBool,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    arrived: Vec<Armed>,
    /// The thread, once it has been started.
    thread: Option<thread::Thread>,
}

impl Shared {
    /// Hands a subscription to the thread, starting it if there is none.
    pub(super) fn arm(self: &Arc<Self>, armed: Armed) -> Result<(), (Armed, DeviceError)> {
        let parked = {
            let mut inbox = self.inbox.lock();
            if inbox.thread.is_none() {
                match self.start() {
                    Ok(thread) => inbox.thread = Some(thread),
                    Err(error) => return Err((armed, error)),
                }
            }
            inbox.arrived.push(armed);
            // Counted under the lock: the thread never takes out a subscription that is not counted yet.
            let first = self.armed.fetch_add(1, Ordering::SeqCst) == 0;
            let sleeps = first || self.naps.load(Ordering::SeqCst);
            if sleeps { inbox.thread.clone() } else { None }
        };
        if let Some(thread) = parked {
            thread.unpark();
        }
        Ok(())
    }

    /// Ends a nap of the thread.
    pub(super) fn wake(&self) {
        let thread = self.inbox.lock().thread.clone();
        if let Some(thread) = thread {
            thread.unpark();
        }
    }

    fn start(self: &Arc<Self>) -> Result<thread::Thread, DeviceError> {
        let shared = self.clone();
        stack::thread("estafette-reactor")
            .spawn(move || essential("the reactor", || shared.run()))
            .map(|handle| daemon(handle).thread().clone())
            .map_err(|error| {
                DeviceError::new(DeviceErrorKind::Other, format!("cannot start the reactor thread: {error}"))
            })
    }

    /// The thread. It lives as long as the process.
    fn run(&self) {
        platform::thread::nap_precisely();
        let mut poll_list = PollList::default();
        let mut ready: Vec<Ready> = Vec::new();
        let mut pace = Pace::new();
        // Subscriptions in the poll list: what is armed beyond them is in the inbox, so a sweep that finds as
        // many takes no lock.
        let mut held = 0;
        loop {
            let armed = self.armed.load(Ordering::SeqCst);
            if armed != held {
                let arrived = mem::take(&mut self.inbox.lock().arrived);
                held += arrived.len();
                pace = Pace::new();
                arrived.into_iter().for_each(|armed| poll_list.add(armed));
            }
            if armed == 0 && held == 0 {
                thread::park();
                continue;
            }
            let loads = poll_list.sweep(pace.is_driver_due(), &mut ready);
            if ready.is_empty() {
                if let Some(nap) = pace.pause(loads) {
                    self.nap(nap, held);
                }
                continue;
            }
            pace = Pace::new();
            let count = ready.len();
            for (subscriber, outcome) in ready.drain(..) {
                deliver(subscriber, outcome);
            }
            held -= count;
            self.armed.fetch_sub(count, Ordering::SeqCst);
        }
    }
}

impl Shared {
    /// Sleeps, unless something has arrived beyond the `held` subscriptions, or until something does.
    fn nap(&self, nap: Duration, held: usize) {
        self.naps.store(true, Ordering::SeqCst);
        if self.armed.load(Ordering::SeqCst) == held {
            thread::park_timeout(nap);
        }
        self.naps.store(false, Ordering::SeqCst);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("armed", &self.armed).finish_non_exhaustive()
    }
}

/// How long to pause between sweeps: spin, then yield, then nap.
struct Pace {
    sweeps: u32,
    since: Option<Instant>,
    /// When drivers are asked again, while only loads are made.
    drivers_at: Option<Instant>,
}

impl Pace {
    fn new() -> Self {
        Self { sweeps: 0, since: None, drivers_at: None }
    }

    fn is_driver_due(&self) -> bool {
        self.drivers_at.is_none_or(|at| Instant::now() >= at)
    }

    /// Pauses, or says for how long to nap. `loads`: an answer is awaited that is a load.
    fn pause(&mut self, loads: bool) -> Option<Duration> {
        self.sweeps = self.sweeps.saturating_add(1);
        if self.sweeps <= SPIN_SWEEPS {
            estafette_sync::hint::spin_loop();
            return None;
        }
        if self.sweeps > SPIN_SWEEPS + YIELD_SWEEPS {
            let now = Instant::now();
            let elapsed = now.saturating_duration_since(*self.since.get_or_insert(now));
            let nap = (elapsed / NAP_FRACTION).clamp(NAP_MIN, NAP_MAX);
            if !has_spare_cores() || elapsed >= if loads { YIELD_TIME } else { DRIVER_YIELD_TIME } {
                self.drivers_at = None;
                return Some(nap);
            }
            if elapsed >= DRIVER_YIELD_TIME && self.is_driver_due() {
                self.drivers_at = Some(now + nap);
            }
        }
        thread::yield_now();
        None
    }
}
