use std::mem;
use std::sync::Arc;

use estafette_sync::essential::essential;
use estafette_sync::sleeper::has_spare_cores;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use estafette_sync::time::{Duration, Instant};
use estafette_sync::{daemon, platform, stack, thread};

use crate::fence::source::deliver;
use crate::fence::waiting::Ready;
use crate::{DeviceError, DeviceErrorKind};

use super::poll_list::{Armed, PollList};

/// Sweeps with a busy pause between them after something settled: most work that is nearly done is done
/// within them. (Models nap at once, since they check falling asleep.)
const SPIN_SWEEPS: u32 = if cfg!(estafette_loom) { 1 } else { 64 };
/// Sweeps with a yield between them after that: on a machine with two cores the work itself may need ours.
const YIELD_SWEEPS: u32 = if cfg!(estafette_loom) { 0 } else { 64 };
/// On a machine with cores to spare, yields go on this long where an answer is a load. A nap ends late by
/// what the system takes to wake a thread: a nap of 50 µs takes 110 µs on a virtual machine.
const YIELD_TIME: Duration = Duration::from_millis(20);
/// The same where the query calls a driver. A query takes a microsecond, and delays other calls of the
/// driver: beside a thread that queries without pause, `cuLaunchKernel` takes 19 µs instead of 4.
const DRIVER_YIELD_TIME: Duration = Duration::from_micros(200);
const NAP_MIN: Duration = Duration::from_micros(50);
/// The longest nap, and so the longest that a settled fence goes unobserved.
const NAP_MAX: Duration = Duration::from_millis(1);
/// A nap is this fraction of the time waited so far, so observing late costs about an eighth of the wait at
/// most.
const NAP_FRACTION: u32 = 8;

/// The state that the arming threads and the reactor thread share.
#[derive(Default)]
pub(super) struct ReactorState {
    /// Subscriptions in the inbox and in the poll list. See the module's protocol.
    armed: AtomicUsize,
    /// True if the thread naps, or is about to.
    naps: AtomicBool,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    arrived: Vec<Armed>,
    /// The thread, once it has been started.
    thread: Option<thread::Thread>,
}

impl ReactorState {
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
            let first = self.armed.fetch_add(1, Ordering::Relaxed) == 0;
            let sleeps = first || {
                fence(Ordering::SeqCst);
                self.naps.load(Ordering::Relaxed)
            };
            if sleeps { inbox.thread.clone() } else { None }
        };
        if let Some(thread) = parked {
            thread.unpark();
        }
        Ok(())
    }

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
        let mut observed = Observed::default();
        loop {
            self.turn(&mut observed);
        }
    }

    /// Takes in what has arrived, sweeps once, and delivers what has settled; sleeps if there is nothing to
    /// poll, or if nothing has settled for a while.
    fn turn(&self, observed: &mut Observed) {
        let Observed { poll_list, ready, pace, held } = observed;
        let armed = self.armed.load(Ordering::Relaxed);
        if armed != *held {
            let arrived = mem::take(&mut self.inbox.lock().arrived);
            *held += arrived.len();
            *pace = SweepPace::default();
            arrived.into_iter().for_each(|armed| poll_list.add(armed));
        }
        if armed == 0 && *held == 0 {
            return thread::park();
        }
        let loads = poll_list.sweep(pace.is_driver_due(), ready);
        if ready.is_empty() {
            if let Some(nap) = pace.pause(loads) {
                self.nap(nap, *held);
            }
            return;
        }
        *pace = SweepPace::default();
        let count = ready.len();
        for (subscriber, outcome) in ready.drain(..) {
            deliver(subscriber, outcome);
        }
        *held -= count;
        self.armed.fetch_sub(count, Ordering::Relaxed);
    }

    /// Sleeps, unless something has arrived beyond the `held` subscriptions, or until something does.
    fn nap(&self, nap: Duration, held: usize) {
        self.naps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) == held {
            thread::park_timeout(nap);
        }
        self.naps.store(false, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Observed {
    poll_list: PollList,
    ready: Vec<Ready>,
    pace: SweepPace,
    /// Subscriptions in the poll list: what is armed beyond them is in the inbox, so a sweep that finds as
    /// many takes no lock.
    held: usize,
}

debug_as!(shared: ReactorState, "Shared({:?})", shared.armed);

/// The pause between sweeps: spin, then yield, then nap.
#[derive(Default)]
struct SweepPace {
    sweeps: u32,
    since: Option<Instant>,
    /// The time at which drivers are asked again, while only loads are made.
    drivers_at: Option<Instant>,
}

impl SweepPace {
    fn is_driver_due(&self) -> bool {
        self.drivers_at.is_none_or(|at| Instant::now() >= at)
    }

    /// Pauses, or says for how long to nap. `loads`: an answer is awaited that is a load.
    fn pause(&mut self, loads: bool) -> Option<Duration> {
        self.sweeps = self.sweeps.saturating_add(1);
        if self.sweeps < SPIN_SWEEPS {
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

/// Models: `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette-devices --profile model --lib models::`.
///
/// No timeout ends a nap: a wake-up that is lost is a deadlock, which loom reports.
#[cfg(all(test, estafette_loom))]
mod models {
    use super::super::double::Driver;
    use super::*;
    use crate::fence::source::{Outcome, Subscriber};
    use crate::{Clock, Fence};

    struct Waiter(AtomicUsize);

    impl Subscriber for Waiter {
        fn settled(self: Arc<Self>, _outcome: Outcome) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs `arming` beside the thread of the reactor, which is this one, until `count` subscriptions are
    /// delivered.
    fn observe(count: usize, arming: fn(&dyn Fn(&Arc<Driver>))) {
        loom::model(move || {
            let shared = Arc::new(ReactorState::default());
            shared.inbox.lock().thread = Some(thread::current());
            let waiter = Arc::new(Waiter(AtomicUsize::new(0)));
            let arming = thread::spawn({
                let (shared, waiter) = (shared.clone(), waiter.clone());
                move || {
                    arming(&|driver| {
                        let fence = Fence::point(driver.clone(), 1, Clock::default());
                        let armed = shared.arm(Armed { fence, subscriber: waiter.clone() });
                        assert!(armed.is_ok(), "the thread is there");
                    });
                }
            });
            let mut observed = Observed::default();
            while waiter.0.load(Ordering::Relaxed) < count {
                shared.turn(&mut observed);
            }
            arming.join().expect("it does not panic");
            assert_eq!((waiter.0.load(Ordering::Relaxed), observed.held), (count, 0));
            assert_eq!(shared.armed.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn a_subscription_that_meets_the_thread_falling_asleep_is_observed() {
        observe(1, |arm| {
            let done = Driver::new();
            done.completed.store(1, Ordering::Release);
            arm(&done);
        });
    }

    #[test]
    fn a_subscription_that_meets_the_thread_settling_another_one_is_observed() {
        observe(2, |arm| {
            let done = Driver::new();
            done.completed.store(1, Ordering::Release);
            arm(&done);
            arm(&done);
        });
    }

    #[test]
    fn a_subscription_ends_a_nap() {
        observe(2, |arm| {
            let (late, done) = (Driver::new(), Driver::new());
            arm(&late);
            [&late, &done].into_iter().for_each(|driver| driver.completed.store(1, Ordering::Release));
            arm(&done);
        });
    }
}
