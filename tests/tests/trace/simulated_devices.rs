//! Attribution against truth worked out by hand. The recorder's clock is the simulated device's, which stands
//! still unless a test moves it, so every nanosecond is known.

use std::sync::{Arc, MutexGuard};
use tests::ops::exclusive;

use estafette::devices::sim::{SimDevice, SimOptions, SimQueue};
use estafette::devices::{Device, DeviceError, DeviceErrorKind, Queue};
use estafette::trace::{Recorder, TraceOptions};
use estafette::{Access, DType, Engine, Tensor};
use estafette_report::Trace;
use estafette_report::model::{Blocker, Cause, Hazard, Nanos, Operation, Outcome, TrackKind};
use futures::executor::block_on;
use tests::watchdog::Watchdog;

struct Bench {
    device: Arc<SimDevice>,
    engine: Engine,
    queues: [Arc<dyn Queue>; 2],
    recorder: Recorder,
    _watchdog: Watchdog,
    _alone: MutexGuard<'static, ()>,
}

fn bench() -> Bench {
    let alone = exclusive();
    let device = SimDevice::new(SimOptions::default()).unwrap();
    let engine = Engine::builder().workers(0).device(device.clone()).build().unwrap();
    let queues = [0, 1].map(|_| device.create_queue().unwrap());
    let watchdog = Watchdog::of(&engine);
    let clock = Arc::clone(&device);
    let options = TraceOptions { clock: Some(Arc::new(move || clock.now_ns())), ..TraceOptions::default() };
    let recorder = Recorder::open(options).unwrap();
    Bench { device, engine, queues, recorder, _watchdog: watchdog, _alone: alone }
}

impl Bench {
    fn tensor(&self) -> Tensor {
        self.engine.empty(&[1], DType::F32, self.device.id()).unwrap()
    }

    /// Device work that takes `ns`.
    fn launch(&self, name: &'static str, queue: usize, ns: u64, reads: &[Tensor], writes: &[Tensor]) {
        let op = self.engine.op(name).reads(reads).writes(writes).on(&self.queues[queue]);
        op.run_on(move |queue, _, _| Ok(SimQueue::from_queue(queue).unwrap().launch(name, ns, || {})?))
            .unwrap();
        self.pump();
    }

    fn host(&self, name: &'static str, reads: &[Tensor], writes: &[Tensor]) {
        self.engine.op(name).reads(reads).writes(writes).run(|_, _| Ok(())).unwrap();
    }

    /// Runs what is ready, now.
    fn pump(&self) {
        self.engine.run_ready();
    }

    fn at(&self, ns: u64) {
        self.device.advance(ns - self.device.now_ns());
    }

    fn finish(self) -> Trace {
        let trace = self.recorder.finish();
        tiles(&trace);
        trace
    }
}

/// The critical stalls of an operation: since when, until when, why, because of which operation.
type CriticalStall = (Nanos, Nanos, Cause, Option<Hazard>, String);

fn critical_stalls(trace: &Trace, name: &str, access: Option<usize>) -> Vec<CriticalStall> {
    let waiter = operation(trace, name).id;
    let stalls = trace.stalls.iter().filter(|stall| stall.waiter == waiter);
    let stalls = stalls.filter(|stall| access.map_or(stall.critical, |access| stall.access == access));
    stalls
        .map(|stall| {
            let blocker = match stall.blocker {
                Blocker::Operation(id) => trace.operation(id).unwrap().name.to_string(),
                Blocker::Lease(id) => format!("lease of {}", trace.lease(id).unwrap().owner),
                Blocker::Queue(track) => {
                    assert_eq!(trace.tracks[track].kind, TrackKind::Queue);
                    "queue".into()
                }
                other => format!("{other:?}").to_lowercase(),
            };
            (stall.from, stall.to, stall.cause, stall.hazard, blocker)
        })
        .collect()
}

fn operation<'a>(trace: &'a Trace, name: &str) -> &'a Operation {
    trace.operations.iter().find(|operation| operation.name == name).unwrap()
}

/// The critical stalls of each operation neither overlap nor leave a gap before it began.
fn tiles(trace: &Trace) {
    for operation in &trace.operations {
        let mut at = operation.submitted;
        let began = operation.awake.or(operation.began).or(operation.resumed).unwrap_or(trace.duration);
        for stall in trace.stalls.iter().filter(|stall| stall.waiter == operation.id && stall.critical) {
            assert!(stall.from >= at && stall.to > stall.from, "{stall:?} overlaps");
            assert!(stall.from == at || stall.from >= began, "a gap before {stall:?} of {operation:?}");
            at = stall.to;
        }
    }
}

fn row(from: Nanos, to: Nanos, cause: Cause, hazard: Option<Hazard>, blocker: &str) -> CriticalStall {
    (from, to, cause, hazard, blocker.into())
}

#[test]
fn a_wait_that_queue_order_elides_is_time_that_the_producer_computes() {
    let bench = bench();
    let (x, y) = (bench.tensor(), bench.tensor());
    bench.launch("produce", 0, 1_000, &[], std::slice::from_ref(&x));
    bench.launch("consume", 0, 500, &[x], &[y]);
    bench.at(2_000);
    let trace = bench.finish();
    assert_eq!(critical_stalls(&trace, "produce", None), []);
    let truth = [row(0, 1_000, Cause::Computing, Some(Hazard::Raw), "produce")];
    assert_eq!(critical_stalls(&trace, "consume", None), truth);
    assert_eq!(operation(&trace, "consume").done, Some(1_500));
}

#[test]
fn device_work_waits_for_its_input_and_then_for_its_queue() {
    let bench = bench();
    let (x, y, z) = (bench.tensor(), bench.tensor(), bench.tensor());
    bench.launch("other", 1, 3_000, &[], &[z]);
    bench.launch("produce", 0, 1_000, &[], std::slice::from_ref(&x));
    bench.launch("consume", 1, 500, &[x], &[y]);
    bench.at(5_000);
    let trace = bench.finish();
    let truth = [
        row(0, 1_000, Cause::Computing, Some(Hazard::Raw), "produce"),
        row(1_000, 3_000, Cause::NoWorker, Some(Hazard::Raw), "queue"),
    ];
    assert_eq!(critical_stalls(&trace, "consume", None), truth);
}

#[test]
fn the_device_says_when_it_was_busy_with_what_no_operation_tells_of() {
    let bench = bench();
    let x = bench.tensor();
    // Other code enqueues without the engine.
    SimQueue::from_queue(&*bench.queues[0]).unwrap().launch("unknown", 2_000, || {}).unwrap();
    bench.at(300);
    let pieces = bench.engine.op("two pieces").writes(std::slice::from_ref(&x)).on(&bench.queues[0]);
    let body = move |queue: &dyn Queue| {
        let queue = SimQueue::from_queue(queue).unwrap();
        queue.launch("one", 400, || {})?;
        queue.launch("two", 600, || {})
    };
    pieces.run_on(move |queue, _, _| Ok(body(queue)?)).unwrap();
    bench.pump();
    bench.launch("next", 0, 500, &[x], &[]);
    bench.at(5_000);
    let trace = bench.finish();
    assert_eq!(operation(&trace, "two pieces").ran, Some((2_000, 3_000)));
    assert_eq!(operation(&trace, "next").ran, Some((3_000, 3_500)));
    let truth = [row(300, 2_000, Cause::NoWorker, None, "queue")];
    assert_eq!(critical_stalls(&trace, "two pieces", None), truth);
    let truth = [row(300, 3_000, Cause::Computing, Some(Hazard::Raw), "two pieces")];
    assert_eq!(critical_stalls(&trace, "next", None), truth);
    // The file keeps it.
    let mut file = Vec::new();
    estafette_report::perfetto::write(&trace, &mut file).unwrap();
    let read = estafette_report::perfetto::read(&file);
    assert_eq!(operation(&read, "two pieces").ran, Some((2_000, 3_000)));
}

#[test]
fn a_host_operation_waits_for_the_device_and_then_for_a_worker() {
    let bench = bench();
    let x = bench.tensor();
    bench.launch("produce", 0, 1_000, &[], std::slice::from_ref(&x));
    bench.at(200);
    bench.host("consume", &[x], &[]);
    bench.pump();
    bench.at(1_500);
    bench.pump();
    let trace = bench.finish();
    let truth = [
        row(200, 1_000, Cause::Computing, Some(Hazard::Raw), "produce"),
        row(1_000, 1_500, Cause::NoWorker, None, "pool"),
    ];
    assert_eq!(critical_stalls(&trace, "consume", None), truth);
}

#[test]
fn of_shared_readers_the_last_to_end_is_the_blocker() {
    let bench = bench();
    let x = bench.tensor();
    let lease = block_on(x.lease(Access::Read, "numpy")).unwrap();
    bench.launch("read", 0, 1_000, std::slice::from_ref(&x), &[]);
    bench.at(100);
    bench.host("write", &[], std::slice::from_ref(&x));
    bench.at(700);
    drop(lease);
    bench.pump();
    bench.at(1_000);
    bench.pump();
    let lease = block_on(x.lease(Access::Read, "torch")).unwrap();
    bench.at(1_200);
    bench.host("write again", &[], &[x]);
    bench.at(1_900);
    drop(lease);
    bench.pump();
    let trace = bench.finish();
    let truth = [row(100, 1_000, Cause::Computing, Some(Hazard::War), "read")];
    assert_eq!(critical_stalls(&trace, "write", None), truth);
    let truth = [row(1_200, 1_900, Cause::Leased, Some(Hazard::War), "lease of torch")];
    assert_eq!(critical_stalls(&trace, "write again", None), truth);
}

#[test]
fn a_wait_behind_a_shorter_one_is_hidden() {
    let bench = bench();
    let (a, b) = (bench.tensor(), bench.tensor());
    bench.launch("short", 0, 1_000, &[], std::slice::from_ref(&a));
    bench.launch("long", 1, 2_000, &[], std::slice::from_ref(&b));
    bench.host("both", &[a, b], &[]);
    bench.pump();
    bench.at(1_000);
    bench.at(2_000);
    bench.pump();
    let trace = bench.finish();
    let short = row(0, 1_000, Cause::Computing, Some(Hazard::Raw), "short");
    let long = row(0, 2_000, Cause::Computing, Some(Hazard::Raw), "long");
    assert_eq!(critical_stalls(&trace, "both", None), std::slice::from_ref(&long));
    let mut accesses =
        [critical_stalls(&trace, "both", Some(0)), critical_stalls(&trace, "both", Some(1))].concat();
    accesses.sort();
    assert_eq!(accesses, [short, long]);
}

#[test]
fn a_queue_of_operations_leads_back_to_its_root() {
    let bench = bench();
    let x = bench.tensor();
    bench.launch("produce", 0, 1_000, &[], std::slice::from_ref(&x));
    bench.host("write", &[], std::slice::from_ref(&x));
    bench.host("read", &[x], &[]);
    bench.pump();
    bench.at(1_000);
    bench.at(1_300);
    bench.pump();
    let trace = bench.finish();
    let truth = [row(0, 1_300, Cause::Queued, Some(Hazard::Raw), "write")];
    assert_eq!(critical_stalls(&trace, "read", None), truth);
    let reader = operation(&trace, "read").id;
    let roots = estafette_report::roots::roots(&trace);
    let roots: Vec<_> = roots
        .iter()
        .filter(|root| root.waiter == reader)
        .map(|root| (root.from, root.to, root.cause, root.via))
        .collect();
    let via = Some(operation(&trace, "write").id);
    assert_eq!(roots, [(0, 1_000, Cause::Computing, via), (1_000, 1_300, Cause::NoWorker, via)]);
}

#[test]
fn a_device_fault_ends_the_wait_and_the_skipped_operation_says_so() {
    let bench = bench();
    let x = bench.tensor();
    bench.device.fail_named("produce", DeviceError::new(DeviceErrorKind::Fault, "the device broke"));
    bench.launch("produce", 0, 1_000, &[], std::slice::from_ref(&x));
    bench.host("consume", &[x], &[]);
    bench.pump();
    bench.at(1_000);
    bench.pump();
    let trace = bench.finish();
    assert!(matches!(&operation(&trace, "produce").outcome, Outcome::Failed(why) if why.contains("broke")));
    assert!(matches!(operation(&trace, "consume").outcome, Outcome::Skipped(_)));
    let truth = [row(0, 1_000, Cause::Computing, Some(Hazard::Raw), "produce")];
    assert_eq!(critical_stalls(&trace, "consume", None), truth);
}

#[test]
fn entries_that_do_not_fit_are_counted_and_the_rest_still_tiles() {
    let alone = exclusive();
    let engine = Engine::builder().workers(2).build().unwrap();
    let _watchdog = Watchdog::of(&engine);
    let x = engine.var();
    let recorder =
        Recorder::open(TraceOptions { memory_max: Some(512 << 10), ..TraceOptions::default() }).unwrap();
    for _ in 0..20_000 {
        engine.op("step").writes_vars(&[&x]).run_detached(|[], []| Ok(())).unwrap();
    }
    engine.wait_all(None).unwrap();
    let trace = recorder.finish();
    tiles(&trace);
    // Each operation makes two events of two words at least, and half of the memory is four pages, which
    // hold 32,768 words.
    let kept = trace.operations.len();
    assert!(trace.losses.records_lost() >= 2 * 20_000 - 32_768 / 2, "{:?}", trace.losses);
    assert!(kept > 0 && kept < 20_000, "{kept}");
    let report = estafette_report::report(&trace);
    assert!(report.missing.iter().any(|missing| missing.contains("did not fit")), "{:?}", report.missing);
    drop(alone);
}
