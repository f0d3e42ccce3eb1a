//! Stalls planted on purpose: the first line of the report names the right cause and the right blocker, also
//! after a way through the file.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread::sleep;
use std::time::Duration;
use tests::ops::exclusive;

use estafette::trace::{Recorder, TraceOptions};
use estafette::{Access, DType, Engine, bindings};
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
fn told(trace: &Trace) -> Report {
    let mut file = Vec::new();
    perfetto::write(trace, &mut file).unwrap();
    let read = perfetto::read(&file);
    assert!(read.losses.is_empty(), "{:?}", read.losses);
    let told = report(&read);
    assert_eq!(told, report(trace), "the file tells what was recorded");
    told
}

fn assert_first_line(trace: &Trace, parts: &[&str]) {
    let report = told(trace);
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
        let advice = &told(&trace).advice[0];
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
        let report = told(&trace);
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

#[test]
fn a_starved_pool() {
    planted(|long| {
        let (engine, _watchdog) = engine(1);
        let recorder = Recorder::open(TraceOptions::default()).unwrap();
        for _ in 0..8 {
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
        assert_first_line(&trace, &["no worker (the worker pool)", "`resize` waited", "one ran everything"]);
    });
}

#[test]
fn a_lock_that_a_body_needs_is_taken() {
    planted(|long| {
        let (engine, _watchdog) = engine(1);
        let recorder = Recorder::open(TraceOptions::default()).unwrap();
        let x = engine.var();
        let op = engine.op("score").writes_vars(&[&x]).run_external(move |completion| {
            // What the Python bindings do around each function of Python's.
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
        let report = told(&trace);
        assert!(report.run_time[0].what.contains("event loop"), "{:?}", report.run_time);
    });
}
