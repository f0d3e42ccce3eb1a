//! Stalls planted on purpose: the first line of the report names the right cause and the right blocker, also
//! after a way through the file.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tests::ops::exclusive;

use estafette::engine::SharedLock;
use estafette::trace::{Recorder, TraceOptions};
use estafette::{Access, DType, Engine, bindings};
use estafette_report::model::Cause;
use estafette_report::{Report, Trace, perfetto, report};
use futures::executor::block_on;
use tests::watchdog::Watchdog;

/// Plants a stall of the given length, compared with which everything else is short. On a machine that is so
/// busy that it is not, a longer one is planted.
fn planted(stall: impl Fn(Duration)) {
    let _alone = exclusive();
    let found =
        |milliseconds| catch_unwind(AssertUnwindSafe(|| stall(Duration::from_millis(milliseconds)))).is_ok();
    if !found(80) && !found(640) {
        stall(Duration::from_secs(5));
    }
}

fn engine(workers: usize) -> (Engine, Watchdog) {
    let engine = Engine::builder().workers(workers).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    (engine, watchdog)
}

/// The report of what a file says.
fn read_report(trace: &Trace) -> Report {
    let mut file = Vec::new();
    perfetto::write(trace, &mut file).unwrap();
    let read = perfetto::read(&file);
    assert!(read.losses.is_empty(), "{:?}", read.losses);
    let read_report = report(&read);
    assert_eq!(read_report, report(trace), "the file tells what was recorded");
    read_report
}

fn assert_first_line(trace: &Trace, parts: &[&str]) {
    let report = read_report(trace);
    let text = estafette_report::terminal::text(
        &report,
        estafette_report::terminal::Style { width: 10_000, ..Default::default() },
    );
    let first = text.lines().next().unwrap();
    for part in parts {
        assert!(first.contains(part), "`{part}` is not in the first line:\n{text}");
    }
    assert!(!report.advice.is_empty(), "{text}");
}

#[test]
fn a_slow_producer() {
    planted(|long| {
        let (engine, _watchdog) = engine(2);
        let batch = engine.zeros(&[4], DType::F32).unwrap();
        let recorder = Recorder::open(TraceOptions::default()).unwrap();
        batch.call_in_report("batch");
        for _ in 0..2 {
            engine
                .op("decode")
                .writes([&batch])
                .run(move |[], [_batch]| {
                    sleep(long);
                    Ok(())
                })
                .unwrap();
            engine.op("train").reads([&batch]).run(|[_batch], []| Ok(())).unwrap();
        }
        engine.wait_all(None).unwrap();
        let trace = recorder.finish();
        assert_first_line(&trace, &["computing (`decode`)", "`batch`", "`decode` was still computing"]);
        let advice = &read_report(&trace).advice[0];
        assert_eq!(advice.change, "make `decode` faster");
        assert!(advice.saves_ns >= 2 * long.as_nanos() as u64, "{advice:?}");
    });
}

#[test]
fn a_slow_on_skip() {
    planted(|long| {
        let (engine, _watchdog) = engine(2);
        let (batch, communicator) = (engine.zeros(&[4], DType::F32).unwrap(), engine.var());
        let recorder = Recorder::open(TraceOptions::default()).unwrap();
        engine.op("backward").writes([&batch]).run(|[], [_batch]| Err("no number".into())).unwrap();
        let op = engine.op("all_reduce").reads([&batch]).writes_vars(&[&communicator]);
        op.on_skip(move |_cause| sleep(long)).run(|[_batch], []| Ok(())).unwrap();
        engine.op("next").writes_vars(&[&communicator]).run(|[], []| Ok(())).unwrap();
        engine.wait_all(None).unwrap();
        batch.wait().unwrap_err();
        let trace = recorder.finish();
        assert_first_line(&trace, &["computing (`all_reduce`)", "`all_reduce` was still computing"]);
    });
}

#[test]
fn a_lease_kept_too_long() {
    planted(|long| {
        let (engine, _watchdog) = engine(2);
        let batch = engine.zeros(&[4], DType::F32).unwrap();
        let recorder = Recorder::open(TraceOptions::default()).unwrap();
        batch.call_in_report("batch");
        let lease = block_on(batch.lease(Access::Read, "the plotter")).unwrap();
        engine.op("decode").writes([&batch]).run(|[], [_batch]| Ok(())).unwrap();
        engine.op("train").reads([&batch]).run(|[_batch], []| Ok(())).unwrap();
        sleep(long);
        drop(lease);
        engine.wait_all(None).unwrap();
        let trace = recorder.finish();
        assert_first_line(&trace, &["leased", "a lease taken by the plotter was still open", "`batch`"]);
        let report = read_report(&trace);
        let train = report.worst.iter().find(|row| row.sentence.starts_with("`train`")).unwrap();
        // Not the operation that it waited for, but what that one waited for.
        assert!(
            train
                .sentence
                .contains("for `decode` on `batch`, read after write, because a lease taken by the plotter"),
            "{}",
            train.sentence
        );
        assert!(report.advice[0].change.contains("the plotter"), "{:?}", report.advice);
    });
}

/// Operations that one worker could run at once, in an engine that `prepare` has used before, and the end of
/// their first line.
fn starved(workers: usize, prepare: impl Fn(&Engine), end: &str) {
    planted(|long| {
        let (engine, _watchdog) = engine(workers);
        let recorder = Recorder::open(TraceOptions::default()).unwrap();
        prepare(&engine);
        for _ in 0..8 * workers.max(1) {
            let own = engine.var();
            let op = engine.op("resize").writes_vars(&[&own]);
            op.run(move |[], []| {
                sleep(long / 8);
                Ok(())
            })
            .unwrap();
        }
        sleep(long * 2);
        engine.wait_all(None).unwrap();
        let trace = recorder.finish();
        assert_first_line(&trace, &["no worker (the worker pool)", "`resize` waited", end]);
        let advice = read_report(&trace).advice;
        assert!(advice.iter().any(|its| its.change.starts_with("use more workers")), "{advice:?}");
    });
}

#[test]
fn a_starved_pool() {
    starved(1, |_| (), "one ran everything");
    starved(2, |_| (), "all 2 were busy");
}

fn run_asynchronously(engine: &Engine) {
    let x = engine.zeros(&[1], DType::F32).unwrap();
    engine.op("fetch").writes([&x]).run_future(|[], [_x]| async { Ok(()) }).unwrap().wait().unwrap();
}

/// A spare worker runs what is waited for.
fn wait_inside_of_a_body(engine: &Engine) {
    let [x, y] = [(); 2].map(|()| engine.zeros(&[1], DType::F32).unwrap());
    let inner = engine.clone();
    let outer = engine.op("outer").writes([&x]).run(move |[], [_x]| {
        let inner = bindings::operation::worker_only(inner.op("inner")).writes([&y]).run(|[], [_y]| Ok(()));
        Ok(inner?.wait()?)
    });
    outer.unwrap().wait().unwrap();
}

#[test]
fn a_starved_pool_beside_other_threads_of_the_engine() {
    starved(1, run_asynchronously, "one ran everything");
    starved(1, wait_inside_of_a_body, "one ran everything");
    starved(2, wait_inside_of_a_body, "all 2 were busy");
}

/// Time that operations of that name waited for each of these causes.
fn waited<const N: usize>(trace: &Trace, name: &str, causes: [Cause; N]) -> [u64; N] {
    let is_own = |id| trace.operation(id).is_some_and(|operation| operation.name == name);
    causes.map(|cause| {
        let stalls = trace.stalls.iter().filter(|stall| stall.cause == cause && is_own(stall.waiter));
        stalls.map(|stall| stall.duration()).sum()
    })
}

#[test]
fn a_starved_pool_beside_a_body_that_waits_all_the_time() {
    planted(|long| {
        let (engine, _watchdog) = engine(2);
        let recorder = Recorder::open(TraceOptions::default()).unwrap();
        let (begun, has_begun) = channel();
        let gate = engine.op("gate").run_external(move |completion| begun.send(completion).unwrap());
        let (gate, completion) = (gate.unwrap(), has_begun.recv().unwrap());
        // A spare worker takes its place.
        engine.op("outer").run(move |[], []| Ok(gate.wait()?)).unwrap();
        sleep(long / 8);
        for _ in 0..16 {
            engine
                .op("resize")
                .run(move |[], []| {
                    sleep(long / 8);
                    Ok(())
                })
                .unwrap();
        }
        sleep(long * 2);
        completion.complete(Ok(()));
        engine.wait_all(None).unwrap();
        let trace = recorder.finish();
        let [no_worker, late] = waited(&trace, "resize", [Cause::NoWorker, Cause::NotResumed]);
        assert!(no_worker > 8 * late, "{no_worker} {late}");
    });
}

#[test]
fn an_engine_without_workers_whose_stand_in_ran_something() {
    starved(0, wait_inside_of_a_body, "no worker was free");
}

/// A lock that bodies share and none waits for.
#[derive(Debug)]
struct NoLock;

impl SharedLock for NoLock {
    fn lock_while(&self, next: &mut dyn FnMut() -> bool) {
        while next() {}
    }
}

#[test]
fn a_pool_whose_workers_share_a_lock_and_run_one_at_a_time() {
    planted(|long| {
        let (engine, _watchdog) = engine(4);
        bindings::engine::share_lock(&engine, Arc::new(NoLock));
        let recorder = Recorder::open(TraceOptions::default()).unwrap();
        // Bodies that are short: fewer than all workers run at once, but several of them take turns.
        let until = Instant::now() + long;
        while Instant::now() < until {
            let ops: Vec<_> = (0..64)
                .map(|_| {
                    let own = engine.var();
                    let op = bindings::operation::needs_lock(engine.op("short").writes_vars(&[&own]));
                    op.run(|[], []| {
                        sleep(Duration::from_micros(60));
                        Ok(())
                    })
                    .unwrap()
                })
                .collect();
            sleep(Duration::from_millis(1));
            drop(ops);
            engine.wait_all(None).unwrap();
        }
        let trace = recorder.finish();
        let [no_worker, late] = waited(&trace, "short", [Cause::NoWorker, Cause::NotResumed]);
        assert!(no_worker > 4 * late, "{no_worker} {late}");
        let report = read_report(&trace);
        let sentence = &report.worst[0].sentence;
        assert!(sentence.contains("of 4, as few as 1 ran at once"), "{sentence}");
    });
}

#[test]
fn a_lock_that_a_body_needs_is_taken() {
    planted(|long| {
        let (engine, _watchdog) = engine(1);
        let recorder = Recorder::open(TraceOptions::default()).unwrap();
        let x = engine.var();
        let op = engine.op("score").writes_vars(&[&x]).run_external(move |completion| {
            // As the Python bindings around each function of Python's.
            bindings::body_wants_lock(completion.scope().id());
            sleep(long);
            bindings::body_has_lock(completion.scope().id());
            completion.complete(Ok(()));
        });
        op.unwrap().wait().unwrap();
        let trace = recorder.finish();
        assert_first_line(
            &trace,
            &["not resumed (the Python lock)", "`score`", "the Python lock was held elsewhere"],
        );
    });
}

#[test]
fn a_consumer_that_comes_late() {
    planted(|long| {
        let (engine, _watchdog) = engine(1);
        let batch = engine.zeros(&[4], DType::F32).unwrap();
        let recorder = Recorder::open(TraceOptions::default()).unwrap();
        bindings::on_event_loop();
        let op = engine.op("decode").writes([&batch]).run(move |[], [_batch]| {
            sleep(long / 8);
            Ok(())
        });
        op.unwrap();
        let mut ready = pin!(batch.ready());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(ready.as_mut().poll(&mut cx).is_pending());
        // The loop is busy with something else while its task could go on.
        sleep(long);
        assert!(matches!(ready.poll(&mut cx), Poll::Ready(Ok(()))));
        let trace = recorder.finish();
        assert_first_line(&trace, &["not resumed (the event loop)", "the event loop was busy"]);
        let report = read_report(&trace);
        assert!(report.run_time[0].what.contains("event loop"), "{:?}", report.run_time);
    });
}
