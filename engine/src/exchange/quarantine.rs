//! Memory whose last use is unknown: a consumer has released the memory, and the consumer's work may still
//! run on a stream that the engine may not access any more.
//!
//! # The way of such memory
//! 1. *Admitted* by `admit`, which gives the fence of its last use: a promise. Engine writes of the memory,
//!    and its deleter, wait for that promise; no other thread does.
//! 2. *Covered* by a barrier over everything that its device has been given ([`Device::barrier`]), on a
//!    thread per device: the barrier may block. A barrier covers all memory that entered before it, so a busy
//!    device gets one barrier for many allocations.
//! 3. *Released* when the barrier is done. If it has failed, or cannot be had, or is not done in time, the
//!    promise fails as broken, and the reaper leaks the memory: *given up*, and logged. Writes that waited
//!    for it go on then.
//!
//! A driver may refuse a barrier for the time being: CUDA does during a capture of a graph in the context,
//! and then that capture is lost without a warning. So the quarantine retries refused barriers, less and less
//! often, and a program that captures graphs while consumers release memory can hold barriers off by
//! [`pause`]. The engine's own captures do so (`CudaDevice::barrier`).
//!
//! # Why it is the whole device
//! The streams that are known would not do. A consumer may have used the memory on others than the one that
//! it named; those of PyTorch's pool and CuPy's are non-blocking, so that the default stream does not wait
//! for them; and a handle may be another stream's by now. Nothing less than the device covers streams that
//! the engine does not know.
//!
//! A device whose thread does not start, or that is not known any more, counts as one that cannot be asked.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use estafette_devices::host::{self, Completer};
use estafette_devices::{Device, DeviceError, DeviceErrorKind, Fence, Outcome, Reactor};
use estafette_sync::essential::essential;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use estafette_sync::sync::{Condvar, Mutex};
use estafette_sync::time::{Duration, Instant};
use estafette_sync::{daemon, stack, thread};

/// The time that the thread of a device stays when nothing comes.
const IDLE: Duration = Duration::from_secs(10);

/// The time after which a barrier that was refused for the time being is requested again.
const AGAIN: Duration = Duration::from_millis(20);

/// The longest such wait. Each refusal in a row doubles the wait: the request has spoilt the capture of a
/// graph, and the program captures it anew.
const AGAIN_MAX: Duration = Duration::from_secs(2);

/// The wait after so many refusals in a row, the last one included.
fn wait_after(refusals: u32) -> Duration {
    AGAIN.saturating_mul(1 << refusals.saturating_sub(1).min(16)).min(AGAIN_MAX)
}

/// The time that a pause waits for a barrier that is being asked for just then: asking takes microseconds,
/// but for drivers that have no event of a device, which wait for it.
const ASKING: Duration = Duration::from_secs(1);

/// The threads that hold barriers off, and those that request one.
#[derive(Default)]
struct Pauses {
    pauses: usize,
    asking: usize,
}

estafette_sync::per_process! {
    static PAUSES: Mutex<Pauses> = Mutex::new(Pauses { pauses: 0, asking: 0 });
    static ASKED: Condvar = Condvar::new();
}

/// Holds off barriers until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the pause"]
pub struct Pause(());

/// Asks no device for a barrier until the result is dropped: for the time in which a graph is captured, which
/// a barrier would spoil. Memory in quarantine stays there meanwhile, and its time runs. Waits for a barrier
/// that is being asked for, a second at most.
pub fn pause() -> Pause {
    let mut pauses = PAUSES.lock();
    pauses.pauses += 1;
    let deadline = Instant::now() + ASKING;
    drop(ASKED.wait_while(pauses, Some(deadline), |pauses| pauses.asking > 0));
    Pause(())
}

impl Drop for Pause {
    fn drop(&mut self) {
        PAUSES.lock().pauses -= 1;
    }
}

/// While this lives, a pause waits.
struct Asking(());

impl Asking {
    /// `None` during a pause.
    fn begin() -> Option<Self> {
        let mut pauses = PAUSES.lock();
        (pauses.pauses == 0).then(|| {
            pauses.asking += 1;
            Self(())
        })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        PAUSES.lock().asking -= 1;
        ASKED.notify_all();
    }
}

/// Counts of what went through, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuarantineStats {
    /// Uses that wait for a barrier.
    pub waiting: u64,
    /// Uses that a barrier has shown to be over.
    pub released: u64,
    /// Uses whose end can never be known. Their memory was leaked.
    pub given_up: u64,
    /// Barriers that were asked for.
    pub barriers: u64,
}

estafette_sync::per_process! {
    static ENTERED: AtomicU64 = AtomicU64::new(0);
    static RELEASED: AtomicU64 = AtomicU64::new(0);
    static GIVEN_UP: AtomicU64 = AtomicU64::new(0);
    static BARRIERS: AtomicU64 = AtomicU64::new(0);
}

/// Counts of what went through so far in this process.
pub(crate) fn stats() -> QuarantineStats {
    let (released, given_up) = (RELEASED.load(Ordering::Acquire), GIVEN_UP.load(Ordering::Acquire));
    QuarantineStats {
        waiting: ENTERED.load(Ordering::Acquire).saturating_sub(released + given_up),
        released,
        given_up,
        barriers: BARRIERS.load(Ordering::Relaxed),
    }
}

/// The promise of the end of a use. Dropped unsettled it fails as broken, so that the memory is leaked and
/// not released early.
pub(crate) struct LastUse(Option<Completer>);

impl LastUse {
    pub(crate) fn promised(name: &'static str) -> (Self, Fence) {
        let (completer, fence) = host::promise(name);
        (Self(Some(completer)), fence)
    }

    pub(crate) fn settle(mut self, outcome: Outcome) {
        if let Some(completer) = self.0.take() {
            completer.settle(outcome);
        }
    }
}

impl Drop for LastUse {
    fn drop(&mut self) {
        if let Some(completer) = self.0.take() {
            completer.fail(unknowable("the use was dropped before it reported its end"));
        }
    }
}

/// One use, which settles once.
struct Use {
    last: Mutex<Option<LastUse>>,
    deadline: Instant,
}

impl Use {
    fn waits(&self) -> bool {
        self.last.lock().is_some()
    }

    fn settle(&self, outcome: Outcome) {
        let last = self.last.lock().take();
        let Some(last) = last else { return };
        match &outcome {
            Ok(()) => RELEASED.fetch_add(1, Ordering::AcqRel),
            Err(error) => {
                tracing::error!(%error, "the last use of memory on a device is unknown: the memory is leaked");
                GIVEN_UP.fetch_add(1, Ordering::AcqRel)
            }
        };
        last.settle(outcome);
    }
}

/// The uses of one device that no barrier covers yet, and the thread that requests barriers.
struct DeviceQuarantine {
    device: Arc<dyn Device>,
    uses: Mutex<Vec<Arc<Use>>>,
    arrived: Condvar,
    /// True if the thread has started. The system may refuse it.
    is_started: AtomicBool,
}

/// The quarantines of the process.
#[derive(Default)]
struct Quarantines {
    /// By the address of the device, which its quarantine keeps alive.
    devices: HashMap<usize, Arc<DeviceQuarantine>>,
    /// Uses that wait, and whether the thread runs that looks at the time.
    timed: Vec<Arc<Use>>,
    clock: bool,
}

estafette_sync::per_process! {
    static QUARANTINES: Mutex<Option<Quarantines>> = Mutex::new(None);
    static CHANGED: Condvar = Condvar::new();
}

/// The fence of a use of memory on `device` that a consumer has just released. It is given up after
/// `timeout`.
pub(crate) fn admit(device: Option<Arc<dyn Device>>, timeout: Duration) -> Fence {
    let (last, fence) = LastUse::promised("the end of a quarantine");
    ENTERED.fetch_add(1, Ordering::AcqRel);
    let deadline = Instant::now().checked_add(timeout).unwrap_or_else(far);
    let consumer_use = Arc::new(Use { last: Mutex::new(Some(last)), deadline });
    match device {
        Some(device) => add(device, &consumer_use),
        None => consumer_use.settle(Err(unknowable("its device is not known here any more"))),
    }
    fence
}

/// Later than the end of any wait.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(1 << 32)
}

pub(crate) fn unknowable(why: &str) -> DeviceError {
    DeviceError::new(
        DeviceErrorKind::Fault,
        format!("the end of a consumer's device work cannot be known: {why}"),
    )
}

fn add(device: Arc<dyn Device>, consumer_use: &Arc<Use>) {
    let key = Arc::as_ptr(&device).cast::<()>().addr();
    let started = {
        let mut quarantines = QUARANTINES.lock();
        let quarantines = quarantines.get_or_insert_default();
        quarantines.timed.retain(|other| other.waits());
        quarantines.timed.push(Arc::clone(consumer_use));
        if !quarantines.clock {
            let clock = || essential("the clock of the quarantine", watch_time);
            quarantines.clock = stack::thread("estafette-quarantine").spawn(clock).map(daemon).is_ok();
        }
        let quarantine = quarantines.devices.entry(key).or_insert_with(|| DeviceQuarantine::open(device));
        // Under both locks, so that no quarantine closes with a use in it.
        quarantine.uses.lock().push(Arc::clone(consumer_use));
        quarantine.arrived.notify_one();
        quarantine.start()
    };
    CHANGED.notify_one();
    // A use that entered is given up in its time, unless a later use gets the thread.
    if let Err(error) = started {
        tracing::error!(%error, "the quarantine of a device does not start");
    }
}

impl DeviceQuarantine {
    fn open(device: Arc<dyn Device>) -> Arc<Self> {
        let (uses, arrived) = (Mutex::default(), Condvar::new());
        Arc::new(Self { device, uses, arrived, is_started: AtomicBool::new(false) })
    }

    /// Starts the thread, unless it runs. To be called under the lock of the quarantines.
    fn start(self: &Arc<Self>) -> io::Result<()> {
        if self.is_started.load(Ordering::Relaxed) {
            return Ok(());
        }
        let own = Arc::clone(self);
        let name = format!("estafette-quarantine-{}", self.device.id());
        let body = move || essential("the quarantine of a device", || own.run());
        stack::thread(name).spawn(body)?;
        self.is_started.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn run(&self) {
        let mut refusals = 0;
        while let Some(mut covered) = self.next() {
            covered.retain(|consumer_use| consumer_use.waits());
            if covered.is_empty() {
                continue;
            }
            let Some(asking) = Asking::begin() else {
                self.later(covered, AGAIN);
                continue;
            };
            BARRIERS.fetch_add(1, Ordering::Relaxed);
            let barrier = self.device.barrier();
            drop(asking);
            refusals = if barrier.is_ok() { 0 } else { refusals + 1 };
            match barrier {
                Ok(barrier) => Reactor::global().when_settled([barrier], move |outcome| {
                    let outcome = outcome.map_err(|error| unknowable(&error.to_string()));
                    covered.iter().for_each(|consumer_use| consumer_use.settle(outcome.clone()));
                }),
                // The driver's own word, and not that it is broken.
                Err(error) if error.code().is_some() && error.kind() != DeviceErrorKind::Fault => {
                    tracing::debug!(%error, "the driver refused a barrier; it will be asked again");
                    self.later(covered, wait_after(refusals));
                }
                Err(error) => {
                    let error = unknowable(&error.to_string());
                    covered.iter().for_each(|consumer_use| consumer_use.settle(Err(error.clone())));
                }
            }
        }
    }

    /// Puts uses back, after `wait`.
    fn later(&self, uses: Vec<Arc<Use>>, wait: Duration) {
        thread::sleep(wait);
        self.uses.lock().extend(uses);
    }

    /// Waits for uses, and takes them; `None` once the queue has closed, because no use came for long.
    fn next(&self) -> Option<Vec<Arc<Use>>> {
        let mut uses = self.uses.lock();
        while uses.is_empty() {
            let (woken, waited) = self.arrived.wait_timeout(uses, IDLE);
            uses = woken;
            if waited.timed_out() && uses.is_empty() {
                drop(uses);
                if self.close() {
                    return None;
                }
                uses = self.uses.lock();
            }
        }
        Some(std::mem::take(&mut *uses))
    }

    /// Releases the device, unless another use has entered in the meantime.
    fn close(&self) -> bool {
        let mut quarantines = QUARANTINES.lock();
        let Some(quarantines) = quarantines.as_mut().filter(|_| self.uses.lock().is_empty()) else {
            return false;
        };
        let key = Arc::as_ptr(&self.device).cast::<()>().addr();
        // The thread has its own reference to the quarantine, so this drops nothing.
        quarantines.devices.remove(&key).is_some()
    }
}

/// Gives up uses whose time has come.
fn watch_time() {
    let mut guard = QUARANTINES.lock();
    loop {
        let now = Instant::now();
        let Some(quarantines) = guard.as_mut() else { return };
        let overdue: Vec<_> =
            quarantines.timed.extract_if(.., |consumer_use| consumer_use.deadline <= now).collect();
        if !overdue.is_empty() {
            drop(guard);
            let error = unknowable("its device was busy for longer than the quarantine lasts");
            overdue.iter().for_each(|consumer_use| consumer_use.settle(Err(error.clone())));
            guard = QUARANTINES.lock();
            continue;
        }
        let next = quarantines.timed.iter().map(|consumer_use| consumer_use.deadline).min();
        guard = match next {
            None => CHANGED.wait(guard),
            Some(next) => CHANGED.wait_timeout(guard, next - now).0,
        };
    }
}

#[cfg(all(test, not(estafette_shuttle)))]
mod tests;
