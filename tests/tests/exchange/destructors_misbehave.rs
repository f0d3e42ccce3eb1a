//! Values of users whose destructors (and other code) panic, take a lock, and use the very tensor and engine
//! that drop them. The engine drops each of them once, under no lock of its own, and goes on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use estafette::bindings::{self, Origin};
use estafette::devices::sim::{SimDevice, SimOptions};
use estafette::devices::{
    DLDevice, DeviceError, Event, Fence, FenceSet, FenceState, Order, Queue, QueueId, Subscriber, Timeline,
    Watch, host,
};
use estafette::exchange::{self, Abi, ExportFlags, flush_deleters};
use estafette::lease::Consumer;
use estafette::{Access, DType, Engine, Error, ExportOptions, ImportOptions, Layout, Produced, Tensor};
use futures::FutureExt;
use tests::foreign::{Deleted, Memory};
use tests::gate::Gate;
use tests::ops::{engine, get, read, set, tensor, until};
use tests::watchdog::Watchdog;

/// The engine and tensors of a test with misbehaving values.
struct Stage {
    engine: Engine,
    x: Tensor,
    dropped: Arc<AtomicUsize>,
    watchdog: Watchdog,
}

impl Stage {
    fn new() -> Self {
        let engine = engine(2);
        let x = tensor(&engine, 0.0);
        Self { watchdog: Watchdog::of(&engine), x, dropped: Arc::default(), engine }
    }

    fn value(&self) -> Misbehaves {
        self.value_for(&self.x)
    }

    fn value_for(&self, tensor: &Tensor) -> Misbehaves {
        let lock = Mutex::new(());
        Misbehaves {
            engine: self.engine.clone(),
            x: tensor.clone(),
            dropped: Arc::clone(&self.dropped),
            lock,
        }
    }

    /// The engine goes on, and `dropped` values were dropped.
    fn ends_with(self, dropped: usize) {
        set(&self.engine, &self.x, 7.0).wait().unwrap();
        assert_eq!(get(&self.x), 7.0);
        until("every value is dropped", || {
            // The engine keeps a failure that was never retrieved, and the error in it.
            self.engine.unretrieved().failures();
            self.dropped.load(Ordering::SeqCst) >= dropped
        });
        self.engine.wait_all(None).unwrap();
        assert_eq!(self.dropped.load(Ordering::SeqCst), dropped, "dropped twice");
        assert!(self.watchdog.still_watches());
    }
}

/// A value that the engine owns.
struct Misbehaves {
    engine: Engine,
    x: Tensor,
    dropped: Arc<AtomicUsize>,
    lock: Mutex<()>,
}

impl Misbehaves {
    /// Calls that any user code may make.
    fn calls_back(&self) {
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.x.version();
        self.engine.stats();
    }
}

impl Drop for Misbehaves {
    fn drop(&mut self) {
        self.calls_back();
        let _ = self.x.wait_timeout(Duration::ZERO);
        let _ = self.x.lease(Access::Read, "a destructor").try_now();
        drop(self.x.ready().now_or_never());
        self.engine.diagnose();
        self.dropped.fetch_add(1, Ordering::SeqCst);
        if !std::thread::panicking() {
            panic!("a destructor");
        }
    }
}

impl std::fmt::Debug for Misbehaves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Misbehaves")
    }
}

impl std::fmt::Display for Misbehaves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.calls_back();
        f.write_str("misbehaves")
    }
}

impl std::error::Error for Misbehaves {}

#[test]
fn errors_that_a_later_version_replaces() {
    let stage = Stage::new();
    for _ in 0..3 {
        let error = stage.value();
        let op = stage.engine.op("fails").writes([&stage.x]).run(move |[], [_x]| Err(Box::new(error)));
        drop(op.unwrap());
        // Skipped by the failure, which it shares.
        drop(read(&stage.engine, &stage.x));
        set(&stage.engine, &stage.x, 1.0).wait().unwrap();
    }
    stage.ends_with(3);
}

#[test]
fn errors_that_nobody_keeps_do_not_lose_what_was_granted() {
    let stage = Stage::new();
    let variable = stage.engine.var();
    for _ in 0..3 {
        let (host, elsewhere) = (stage.value(), stage.value());
        let op = stage.engine.op("fails").reads_vars(&[&variable]);
        op.run_detached(|[], []| Err(Box::new(host))).unwrap();
        stage.engine.op("after").writes_vars(&[&variable]).run(|[], []| Ok(())).unwrap().wait().unwrap();
        let op = stage.engine.op("fails elsewhere").reads_vars(&[&variable]);
        drop(op.run_external(|completion| completion.complete(Err(Box::new(elsewhere)))).unwrap());
        stage.engine.op("after").writes_vars(&[&variable]).run(|[], []| Ok(())).unwrap().wait().unwrap();
    }
    stage.ends_with(6);
}

#[test]
fn errors_of_the_nodes_of_a_program() {
    let stage = Stage::new();
    let (errors, there) = (Mutex::new(Vec::new()), tensor(&stage.engine, 0.0));
    for _ in 0..4 {
        errors.lock().unwrap().push(stage.value());
    }
    let errors = Arc::new(errors);
    let mut builder = stage.engine.program("fails");
    for _ in 0..2 {
        let errors = Arc::clone(&errors);
        let node = builder.op("node").writes([&there]);
        node.run(move |[], [_there]| Err(Box::new(errors.lock().unwrap().pop().unwrap()))).unwrap();
    }
    let program = builder.finish().unwrap();
    for _ in 0..2 {
        drop(program.replay().unwrap());
        set(&stage.engine, &there, 1.0).wait().unwrap();
    }
    stage.ends_with(4);
}

#[test]
fn errors_of_produced_and_cancelled_tensors() {
    let stage = Stage::new();
    let (error, why, unused) = (stage.value(), stage.value(), stage.value());
    let fails = |error: Misbehaves| {
        let op = stage.engine.op("produces").reads([&stage.x]);
        op.produce::<_, Produced>(move |[_x]| Err(Box::new(error))).unwrap()
    };
    drop(fails(error));
    let called_off = stage.engine.op("called off").reads([&stage.x]);
    drop(called_off.run_external(move |completion| completion.cancel(Box::new(why))).unwrap());
    // Its input fails, so its own error is never made: the value is a capture.
    let failed = stage.engine.op("fails").produce::<_, Produced>(|[]| Err("no".into())).unwrap();
    let skipped = stage.engine.op("skipped").reads([&failed]);
    drop(skipped.produce::<_, Produced>(move |[_failed]| Err(Box::new(unused))).unwrap());
    stage.ends_with(3);
}

#[test]
fn errors_of_tensors_that_collapse() {
    let stage = Stage::new();
    let memory = Memory::of(&[0.0; 40]);
    let deleted = Deleted::default();
    let import = |start, len| {
        // SAFETY: the memory is as described.
        unsafe { stage.engine.import(memory.tensor(start, len, &deleted)) }.unwrap()
    };
    let parts: Vec<Tensor> = (0..20).map(|at| import(2 * at, 2)).collect();
    for part in &parts[3..5] {
        let error = stage.value_for(part);
        let op = stage.engine.op("fails").writes([part]).run(move |[], [_part]| Err(Box::new(error)));
        assert!(op.unwrap().wait().is_err());
    }
    let whole = import(0, 40);
    assert!(whole.wait().is_err(), "a part has failed");
    set(&stage.engine, &whole, 1.0).wait().unwrap();
    assert_eq!(get(&whole), 1.0);
    // An error in place of the members drops them there as well.
    for part in &parts {
        part.clear_error().unwrap();
    }
    assert!(stage.watchdog.still_watches());
}

#[test]
fn a_panic_whose_payload_misbehaves() {
    let stage = Stage::new();
    let payload = stage.value();
    let op = stage.engine.op("panics").writes([&stage.x]);
    let op = op.run(move |[], [_x]| std::panic::panic_any(payload)).unwrap();
    assert!(op.wait().is_err());
    stage.ends_with(1);
}

/// User work behind a fence; each method calls back.
#[derive(Debug)]
struct Work {
    value: Misbehaves,
    done: Arc<AtomicBool>,
    queue: Option<QueueId>,
}

impl Work {
    fn is_done(&self) -> bool {
        self.value.calls_back();
        self.done.load(Ordering::SeqCst)
    }
}

impl Event for Work {
    fn device(&self) -> DLDevice {
        self.value.calls_back();
        DLDevice::CPU
    }

    fn queue(&self) -> Option<QueueId> {
        self.value.calls_back();
        self.queue
    }

    fn state(&self) -> FenceState {
        if self.is_done() { FenceState::Done } else { FenceState::Pending }
    }

    fn observed_done(&self) -> bool {
        self.is_done()
    }

    fn watch(&self, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        if self.is_done() { Watch::Settled(Ok(())) } else { Watch::MustPoll }
    }
}

/// The same work as a point of a queue.
impl Timeline for Work {
    fn queue(&self) -> QueueId {
        self.value.calls_back();
        self.queue.unwrap()
    }

    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn completed(&self) -> u64 {
        if self.is_done() { u64::MAX } else { 0 }
    }

    fn failure(&self) -> Option<DeviceError> {
        None
    }

    fn poll(&self) -> u64 {
        self.completed()
    }

    fn watch(&self, _sequence: u64, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        if self.is_done() { Watch::Settled(Ok(())) } else { Watch::MustPoll }
    }
}

#[test]
fn events_that_a_writer_finds_done() {
    let stage = Stage::new();
    for _ in 0..3 {
        let done = Arc::new(AtomicBool::new(false));
        let work = Work { value: stage.value(), done: Arc::clone(&done), queue: None };
        stage.x.used_until(&Fence::event(Arc::new(work))).unwrap();
        done.store(true, Ordering::SeqCst);
        set(&stage.engine, &stage.x, 1.0).wait().unwrap();
    }
    stage.ends_with(3);
}

#[test]
fn events_that_are_added_while_a_writer_runs() {
    let stage = Stage::new();
    let gate = Gate::on_tensors(&stage.engine, std::slice::from_ref(&stage.x)).begun();
    let done = Arc::new(AtomicBool::new(false));
    let work = Work { value: stage.value(), done: Arc::clone(&done), queue: None };
    stage.x.used_until(&Fence::event(Arc::new(work))).unwrap();
    gate.complete(Ok(()));
    let next = set(&stage.engine, &stage.x, 1.0);
    assert!(stage.x.writable().now_or_never().is_none());
    done.store(true, Ordering::SeqCst);
    next.wait().unwrap();
    stage.ends_with(1);
}

#[test]
fn events_and_points_that_a_newer_one_of_their_queue_replaces() {
    let stage = Stage::new();
    let (queue, done) = (QueueId::next(), Arc::new(AtomicBool::new(false)));
    let work = |queue| Arc::new(Work { value: stage.value(), done: Arc::clone(&done), queue: Some(queue) });
    for sequence in 1..4 {
        let fence = Fence::point(work(queue), sequence, Default::default());
        stage.x.used_until(&fence).unwrap();
    }
    let other = QueueId::next();
    for sequence in 1..4 {
        let fence = Fence::recorded_event(work(other), sequence, Default::default());
        stage.x.used_until(&fence).unwrap();
    }
    assert_eq!(stage.dropped.load(Ordering::SeqCst), 4, "the older ones");
    done.store(true, Ordering::SeqCst);
    stage.ends_with(6);
}

#[test]
fn events_that_an_operation_leaves_and_events_that_it_replaces() {
    let stage = Stage::new();
    let (queue, done) = (QueueId::next(), Arc::new(AtomicBool::new(false)));
    for sequence in 1..4 {
        let work = Work { value: stage.value(), done: Arc::clone(&done), queue: Some(queue) };
        let fence = Fence::point(Arc::new(work), sequence, Default::default());
        let op = stage.engine.op("leaves").updates([&stage.x]);
        // It begins once the one before has settled, and replaces its fence.
        op.run_external(move |completion| completion.complete_after(&fence, Ok(()))).unwrap();
    }
    assert!(!stage.x.is_ready());
    done.store(true, Ordering::SeqCst);
    stage.x.wait().unwrap();
    stage.x.clear_error().unwrap();
    stage.ends_with(3);
}

#[test]
fn events_of_tensors_that_collapse_and_of_one_that_goes() {
    let stage = Stage::new();
    let (memory, deleted) = (Memory::of(&[0.0; 40]), Deleted::default());
    let done = Arc::new(AtomicBool::new(false));
    let work = |tensor| {
        let work = Work { value: stage.value_for(tensor), done: Arc::clone(&done), queue: None };
        Fence::event(Arc::new(work))
    };
    {
        let import = |start, len, ready| {
            let managed = memory.tensor(start, len, &deleted);
            // SAFETY: the memory is as described.
            unsafe {
                stage.engine.import_with(
                    managed,
                    ImportOptions { ready, origin: Some(&|| Origin::Owner), ..ImportOptions::default() },
                )
            }
            .unwrap()
        };
        let parts: Vec<Tensor> = (0..20).map(|at| import(2 * at, 2, FenceSet::default())).collect();
        parts[3].used_until(&work(&stage.x)).unwrap();
        let whole = import(0, 40, FenceSet::from(work(&stage.x)));
        whole.used_until(&work(&stage.x)).unwrap();
        assert!(!whole.is_ready());
        set(&stage.engine, &parts[5], 2.0);
    }
    done.store(true, Ordering::SeqCst);
    deleted.settle_at(21);
    stage.ends_with(3);
}

/// A task that misbehaves when woken and when dropped.
struct Task {
    value: Misbehaves,
    panics: bool,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.value.calls_back();
        assert!(!self.panics, "a waker");
    }
}

#[test]
fn wakers_that_are_called_and_wakers_that_are_left() {
    let stage = Stage::new();
    let gate = Gate::on_tensors(&stage.engine, std::slice::from_ref(&stage.x));
    let op = gate.op().clone();
    let gate = gate.begun();
    let mut waits = Vec::new();
    for panics in [false, true, false] {
        let waker = Waker::from(Arc::new(Task { value: stage.value(), panics }));
        let mut context = Context::from_waker(&waker);
        let (mut ready, mut writable) = (stage.x.ready().boxed(), stage.x.writable().boxed());
        let (mut ended, mut lease) = (op.clone().boxed(), stage.x.lease(Access::Write, "a task").boxed());
        assert!(ready.poll_unpin(&mut context).is_pending());
        assert!(writable.poll_unpin(&mut context).is_pending());
        assert!(ended.poll_unpin(&mut context).is_pending());
        assert!(lease.poll_unpin(&mut context).is_pending());
        waits.push((ready, writable, ended));
        // From here on the engine owns the task.
        drop((waker, lease));
    }
    // One task has left.
    drop(waits.pop());
    gate.complete(Ok(()));
    op.wait().unwrap();
    for (mut ready, _, _) in waits {
        let mut context = Context::from_waker(Waker::noop());
        until("the version is known", || matches!(ready.poll_unpin(&mut context), Poll::Ready(Ok(()))));
    }
    stage.ends_with(3);
}

#[test]
fn captures_of_bodies_that_run_and_of_bodies_that_never_do() {
    let stage = Stage::new();
    let run = stage.value();
    let op = stage.engine.op("runs").writes([&stage.x]);
    let op = op.run(move |[], [_x]| {
        // Dropped at the end of the body, whose failure that is.
        let _value = run;
        Ok(())
    });
    assert!(op.unwrap().wait().is_err());
    let gate = Gate::on_tensors(&stage.engine, std::slice::from_ref(&stage.x)).begun();
    let (cancelled, elsewhere, node) = (stage.value(), stage.value(), stage.value());
    let op = stage.engine.op("cancelled").reads([&stage.x]);
    let op = op
        .run(move |[_x], []| {
            drop(cancelled);
            Ok(())
        })
        .unwrap();
    assert!(op.cancel());
    let failed = stage.engine.op("fails").produce::<_, Produced>(|[]| Err("no".into())).unwrap();
    let skipped = stage.engine.op("skipped").reads([&failed]);
    drop(skipped.run_external(move |_completion| drop(elsewhere)).unwrap());
    gate.complete(Ok(()));
    let mut builder = stage.engine.program("never");
    let node = Mutex::new(Some(node));
    let recorded = builder.op("node").reads([&stage.x]).run(move |[_x], []| {
        drop(node.lock().unwrap().take());
        Ok(())
    });
    recorded.unwrap();
    let program = builder.finish().unwrap();
    // Dropped by the node of the first replay, which fails by it.
    assert!(program.replay().unwrap().wait().is_err());
    drop(program);
    stage.ends_with(4);
}

#[test]
fn a_capture_of_a_skipped_body_that_waits_for_its_own_operation_is_refused() {
    /// Waits for everything in its engine when it is dropped, and says how that ended.
    struct Waits(Engine, std::sync::mpsc::Sender<Result<(), Error>>);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.1.send(self.0.wait_all(None)).unwrap();
        }
    }
    let stage = Stage::new();
    let (sender, outcomes) = channel();
    let waits = Waits(stage.engine.clone(), sender);
    let gate = Gate::on_tensors(&stage.engine, std::slice::from_ref(&stage.x)).begun();
    let read = stage.engine.op("read").reads([&stage.x]).run(move |[_x], []| {
        let _waits = &waits;
        Ok(())
    });
    gate.complete(Err("no ink".into()));
    let outcome = outcomes.recv_timeout(Duration::from_secs(30)).expect("the wait ends");
    assert!(matches!(outcome, Err(Error::WouldDeadlock(_))), "{outcome:?}");
    assert!(read.unwrap().wait().is_err());
    stage.ends_with(0);
}

#[test]
fn callbacks_and_hooks() {
    let stage = Stage::new();
    let gate = Gate::on_tensors(&stage.engine, std::slice::from_ref(&stage.x)).begun();
    let (sender, have_called) = channel();
    for panics in [false, true] {
        let (value, called) = (stage.value(), sender.clone());
        stage.x.on_ready(move |outcome| {
            value.calls_back();
            called.send(outcome.is_ok()).unwrap();
            assert!(!panics, "a callback");
        });
        let (value, called) = (stage.value(), sender.clone());
        bindings::tensor::on_end(&stage.x, move |_| {
            value.calls_back();
            called.send(true).unwrap();
            assert!(!panics, "a callback");
        });
    }
    gate.complete(Ok(()));
    assert!((0..4).all(|_| have_called.recv().unwrap()));
    stage.ends_with(4);
}

#[test]
fn owners_of_imported_memory() {
    let stage = Stage::new();
    for _ in 0..3 {
        let (owner, mut memory) = (stage.value(), vec![1.0_f32; 4]);
        let layout = Layout::contiguous(DType::F32, DLDevice::CPU, &[4]).unwrap();
        let (data, flags) = (memory.as_mut_ptr().cast(), ExportFlags { read_only: false, is_copied: false });
        // SAFETY: the memory is as described, and goes with the closure.
        let managed = unsafe {
            exchange::export(&layout, data, flags, Abi::Versioned, move || {
                drop(memory);
                drop(owner);
            })
        };
        // SAFETY: as above.
        let y = unsafe { stage.engine.import(managed) }.unwrap();
        assert_eq!(get(&y), 1.0);
        drop(y);
    }
    assert!(flush_deleters(Duration::from_secs(30)));
    stage.ends_with(3);
}

#[test]
fn what_keeps_the_queue_of_a_consumer() {
    let stage = Stage::new();
    let device = SimDevice::new(SimOptions::default()).unwrap();
    let consumer = || Consumer::KeptQueue(device.queue(false), Arc::new(stage.value()));
    let lease = stage.x.lease(Access::Write, "a consumer").for_consumer(&consumer()).wait(None).unwrap();
    drop(lease);
    set(&stage.engine, &stage.x, 1.0).wait().unwrap();
    // A pin: the variable's list points to it until it has ended.
    let exported = stage.x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    // SAFETY: the struct describes its memory truly.
    let derived = unsafe { stage.engine.import(exported) }.unwrap();
    bindings::lease::hand_to(&bindings::lease::imported_under(&derived).unwrap(), &consumer()).unwrap();
    drop(derived);
    stage.ends_with(2);
}

/// A keeper that uses the tensor finds the lease ended.
#[test]
fn what_keeps_the_queue_of_a_consumer_is_dropped_after_the_lease() {
    struct Writes(Tensor, Arc<AtomicUsize>);
    impl Drop for Writes {
        fn drop(&mut self) {
            let lease = self.0.lease(Access::Write, "a keeper").try_now();
            self.1.fetch_add(usize::from(lease.unwrap().is_some()), Ordering::SeqCst);
        }
    }
    let (engine, granted) = (engine(1), Arc::<AtomicUsize>::default());
    let x = tensor(&engine, 0.0);
    let device = SimDevice::new(SimOptions::default()).unwrap();
    let keeper = Arc::new(Writes(x.clone(), Arc::clone(&granted)));
    let consumer = Consumer::KeptQueue(device.queue(false), keeper);
    let lease = x.lease(Access::Write, "a consumer").for_consumer(&consumer).wait(None).unwrap();
    drop((consumer, lease));
    assert_eq!(granted.load(Ordering::SeqCst), 1);
}

/// A queue that panics where it is called.
#[derive(Debug)]
struct Breaks(QueueId);

impl Queue for Breaks {
    fn id(&self) -> QueueId {
        self.0
    }

    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn in_order(&self) -> bool {
        true
    }

    fn order_after(&self, _: &Fence) -> Result<Order, DeviceError> {
        panic!("a queue that breaks")
    }

    fn record(&self) -> Result<Fence, DeviceError> {
        panic!("a queue that breaks")
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[test]
fn queues_of_consumers() {
    let stage = Stage::new();
    let queue: Arc<dyn Queue> = Arc::new(Breaks(QueueId::next()));
    let consumer = Consumer::Queue(queue);
    drop(stage.x.lease(Access::Write, "a consumer").for_consumer(&consumer).wait(None).unwrap());
    stage.ends_with(0);
}

/// Work whose state is a panic.
#[derive(Debug)]
struct Unknown;

impl Event for Unknown {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn state(&self) -> FenceState {
        panic!("an event that breaks")
    }

    fn observed_done(&self) -> bool {
        false
    }

    fn watch(&self, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        Watch::MustPoll
    }
}

#[test]
fn events_and_queues_that_granted_operations_ask() {
    let stage = Stage::new();
    let leave = |fence: Fence| {
        let op = stage.engine.op("leaves").writes([&stage.x]);
        op.run_external(move |end| end.complete_after(&fence, Ok(()))).unwrap().wait().unwrap();
    };
    leave(Fence::event(Arc::new(Unknown)));
    let error = read(&stage.engine, &stage.x).wait().unwrap_err().to_string();
    assert!(error.contains("an event that breaks"), "{error}");
    leave(Fence::event(Arc::new(Unknown)));
    let refused = stage.x.lease(Access::Write, "a consumer").wait(None);
    assert!(refused.is_err());
    // The work of a queue cannot come after what is pending.
    let (completer, fence) = host::promise("never kept");
    leave(fence);
    let queue: Arc<dyn Queue> = Arc::new(Breaks(QueueId::next()));
    let op = stage.engine.op("on a queue").reads([&stage.x]).on(&queue).run_on(|_, [_x], []| Ok(()));
    let error = op.unwrap().wait().unwrap_err().to_string();
    assert!(error.contains("a queue that breaks"), "{error}");
    completer.complete();
    stage.ends_with(0);
}
