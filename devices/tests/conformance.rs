//! The devices of this crate pass the suite that every device has to pass.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use estafette_devices::conformance::{Blocked, Harness, Report, Skip, run};
use estafette_devices::host::HostDevice;
use estafette_devices::sim::{SimDevice, SimNotify, SimOptions, SimPace, SimQueue};
use estafette_devices::{Allocation, Device, DeviceError, DeviceErrorKind, Queue};

/// A simulated device per check.
struct SimHarness {
    options: SimOptions,
    device: Mutex<Arc<SimDevice>>,
    blocks: AtomicUsize,
}

impl SimHarness {
    fn new(options: SimOptions) -> Self {
        let device = Mutex::new(new_device(&options));
        Self { options, device, blocks: AtomicUsize::new(0) }
    }

    fn current(&self) -> Arc<SimDevice> {
        self.device.lock().expect("no check panics with the lock").clone()
    }
}

fn new_device(options: &SimOptions) -> Arc<SimDevice> {
    SimDevice::new(options.clone()).expect("a thread can be started")
}

fn sim(queue: &dyn Queue) -> &SimQueue {
    SimQueue::from_queue(queue).expect("a queue of the simulated device")
}

/// Memory that simulated work writes; checks keep it alive until the work is done.
struct Target(*mut u8, usize);

// SAFETY: only a pointer, used by one piece of work.
unsafe impl Send for Target {}

impl Target {
    fn fill(&self, value: u8) {
        // SAFETY: the suite keeps the memory alive and orders accesses to it.
        unsafe { self.0.write_bytes(value, self.1) }
    }
}

impl Harness for SimHarness {
    fn device(&self) -> Arc<dyn Device> {
        let fresh = new_device(&self.options);
        *self.device.lock().expect("no check panics with the lock") = fresh.clone();
        fresh
    }

    fn fill(&self, queue: &dyn Queue, memory: &Allocation, value: u8) -> Result<(), DeviceError> {
        let target = Target(memory.ptr().as_ptr(), memory.len());
        sim(queue).launch("fill", 100, move || target.fill(value))
    }

    fn block(&self, queue: &dyn Queue) -> Result<Blocked, Skip> {
        let device = self.current();
        let name = format!("block {}", self.blocks.fetch_add(1, Ordering::Relaxed));
        device.pause(&name);
        sim(queue).launch(name.clone(), 10, || ()).expect("the queue takes work");
        Ok(Blocked::new(move || assert!(device.release(&name))))
    }

    fn can_break(&self) -> Result<(), Skip> {
        Ok(())
    }

    fn break_queue(&self, queue: &dyn Queue) {
        let error = DeviceError::new(DeviceErrorKind::Fault, "illegal address").with_code(700);
        // Scripted first: a device that runs freely could complete the piece before.
        self.current().fail_named("broken", error);
        sim(queue).launch("broken", 10, || ()).expect("the queue takes work");
    }

    fn memory_bytes(&self) -> Option<usize> {
        Some(self.options.memory_bytes)
    }

    fn advance(&self) {
        if self.options.pace == SimPace::Manual {
            self.current().run_until_idle();
        }
    }
}

#[track_caller]
fn passes(options: SimOptions) -> Report {
    run(&SimHarness::new(options))
}

#[test]
fn simulated_in_order_queues_pass() {
    let report = passes(SimOptions::default());
    assert_eq!(report.skipped_names(), [""; 0]);
    assert!(report.passed.len() > 40, "{report:?}");
}

#[test]
fn simulated_out_of_order_queues_pass_for_many_seeds() {
    for seed in 0..5 {
        let report = passes(SimOptions { out_of_order: true, seed, jitter_ns: 500, ..SimOptions::default() });
        assert_eq!(report.skipped_names(), ["ordering: an in-order queue needs no wait for its own fences"]);
    }
}

#[test]
fn simulated_queues_that_must_be_polled_pass() {
    for out_of_order in [false, true] {
        passes(SimOptions { notify: SimNotify::Poll, out_of_order, latency_ns: 50, ..SimOptions::default() });
    }
}

#[test]
fn free_running_devices_pass() {
    for pace in [SimPace::Immediate, SimPace::RealTime] {
        for notify in [SimNotify::Push, SimNotify::Poll] {
            passes(SimOptions { pace, notify, jitter_ns: 2_000, ..SimOptions::default() });
        }
    }
}

/// A device whose queues cannot be broken, or do not take the work of a check after so many pieces. It counts
/// the queues that are blocked now.
struct Frail {
    device: SimHarness,
    fills: AtomicUsize,
    blocked: Arc<AtomicUsize>,
    /// Queues that were blocked when a check began.
    left: Mutex<Vec<usize>>,
}

impl Frail {
    fn new(fills: usize) -> Self {
        Self {
            device: SimHarness::new(SimOptions::default()),
            fills: AtomicUsize::new(fills),
            blocked: Arc::default(),
            left: Mutex::default(),
        }
    }
}

impl Harness for Frail {
    fn device(&self) -> Arc<dyn Device> {
        self.left.lock().expect("nothing panics with the lock").push(self.blocked.load(Ordering::Relaxed));
        self.device.device()
    }

    fn fill(&self, queue: &dyn Queue, memory: &Allocation, value: u8) -> Result<(), DeviceError> {
        if self.fills.fetch_sub(1, Ordering::Relaxed) == 1 {
            return Err(DeviceError::new(DeviceErrorKind::Other, "no more work"));
        }
        self.device.fill(queue, memory, value)
    }

    fn block(&self, queue: &dyn Queue) -> Result<Blocked, Skip> {
        let inner = self.device.block(queue)?;
        let blocked = Arc::clone(&self.blocked);
        blocked.fetch_add(1, Ordering::Relaxed);
        Ok(Blocked::new(move || {
            blocked.fetch_sub(1, Ordering::Relaxed);
            drop(inner);
        }))
    }

    fn can_break(&self) -> Result<(), Skip> {
        Err(Skip::because("its queues do not break"))
    }

    fn advance(&self) {
        self.device.advance();
    }
}

#[test]
fn a_check_that_is_skipped_leaves_no_queue_blocked() {
    let frail = Frail::new(usize::MAX);
    let report = run(&frail);
    assert_eq!(report.skipped.len(), 5, "{report:?}");
    let left = frail.left.into_inner().expect("nothing panics with the lock");
    assert!(left.len() > 40 && left.iter().all(|blocked| *blocked == 0), "{left:?}");
}

#[test]
fn a_check_that_fails_leaves_no_queue_blocked() {
    // In the check of a pending fence, which blocks its queue before its second fill.
    let frail = Frail::new(2);
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&frail)));
    assert!(failed.is_err());
    assert_eq!(frail.blocked.load(Ordering::Relaxed), 0);
    assert_eq!(frail.device.blocks.load(Ordering::Relaxed), 1, "a queue was blocked before");
}

/// The host works at once, on the thread that enqueues.
struct HostHarness;

impl Harness for HostHarness {
    fn device(&self) -> Arc<dyn Device> {
        HostDevice::new()
    }

    fn fill(&self, _queue: &dyn Queue, memory: &Allocation, value: u8) -> Result<(), DeviceError> {
        Target(memory.ptr().as_ptr(), memory.len()).fill(value);
        Ok(())
    }

    fn block(&self, _queue: &dyn Queue) -> Result<Blocked, Skip> {
        Err(Skip::because("work of the host is done when it has been enqueued"))
    }

    fn can_break(&self) -> Result<(), Skip> {
        Err(Skip::because("a queue of the host cannot fail"))
    }
}

#[test]
fn the_host_passes_what_applies_to_work_that_is_done_at_once() {
    let report = run(&HostHarness);
    assert_eq!(
        report.passed,
        [
            "fence: of a queue without work is done",
            "fence: stays done and can be asked for ever",
            "ordering: a done fence needs no wait",
            "ordering: a promise of the host is waited for by the host",
            "ordering: a failed promise is refused",
            "reactor: calls at once when nothing is pending",
            "allocation: is aligned, sized and of its device",
            "allocation: of no bytes is fine",
            "allocation: separate ones do not overlap",
            "allocation: impossible requests are errors",
            "allocation: memory that is to be zero is, also where other memory was freed",
            "allocation: memory that was freed can be had again",
            "copy: host to device and back, of any size and place",
            "copy: is ordered like any work of its queue",
            "copy: a queue of another device is refused",
            "program: random programs give the sequential result",
        ]
    );
}
