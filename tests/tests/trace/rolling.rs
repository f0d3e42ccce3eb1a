//! Several recorders at once, and those that keep only the end.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use estafette::trace::{self, Recorder, TraceOptions};
use estafette::{Access, DType, Engine};
use estafette_report::model::{Blocker, OperationKind};
use estafette_report::{Trace, report};
use tests::ops::exclusive;

use crate::files::Folder;

fn count(trace: &Trace, name: &str) -> usize {
    trace.operations.iter().filter(|operation| operation.name == name).count()
}

fn run(engine: &Engine, name: &'static str) {
    engine.op(name).run(|[], []| Ok(())).unwrap().wait().unwrap();
}

#[test]
fn each_of_several_recorders_has_what_happened_while_it_was_open() {
    let _alone = exclusive();
    let engine = Engine::builder().workers(1).build().unwrap();
    let x = engine.zeros(&[2], DType::F32).unwrap();
    let step =
        |name: &'static str| engine.op(name).updates([&x]).run(|[], [], [_]| Ok(())).unwrap().wait().unwrap();
    let first = Recorder::open(TraceOptions::default()).unwrap();
    step("one");
    let second = Recorder::open(TraceOptions::default()).unwrap();
    step("both");
    let third = Recorder::open(TraceOptions::default()).unwrap();
    drop(third);
    let first = first.finish();
    step("two");
    let second = second.finish();
    step("none");
    let names = |trace: &Trace| ["one", "both", "two", "none"].map(|name| count(trace, name));
    assert_eq!((names(&first), names(&second)), ([1, 1, 0, 0], [0, 1, 1, 0]));
    for trace in [first, second] {
        // Each describes the tensor for itself.
        let variable = trace.variables.iter().find(|variable| variable.bytes == Some(8)).unwrap();
        assert!(variable.name.starts_with("float32[2] #"), "{}", variable.name);
        assert!(trace.losses.is_empty() && trace.duration > 0);
    }
}

#[test]
fn what_keeps_nothing_is_refused() {
    let refused = |options| Recorder::open(options).unwrap_err().to_string();
    let said = refused(TraceOptions { memory_max: Some(10), ..TraceOptions::default() });
    assert!(said.contains("at least 131072 bytes"), "{said}");
    let said = refused(TraceOptions { last: Some(Duration::ZERO), ..TraceOptions::default() });
    assert!(said.contains("the last 0 seconds"), "{said}");
}

/// A recorder of the last 100 ns of a clock that the test sets.
fn rolling(memory_max: usize) -> (Arc<AtomicU64>, Recorder) {
    let clock = Arc::new(AtomicU64::new(0));
    let its = Arc::clone(&clock);
    let options = TraceOptions {
        memory_max: Some(memory_max),
        last: Some(Duration::from_nanos(100)),
        clock: Some(Arc::new(move || its.load(Ordering::Relaxed))),
        ..TraceOptions::default()
    };
    (clock, Recorder::open(options).unwrap())
}

fn snapshot(recorder: &Recorder, folder: &Folder) -> Trace {
    let path = folder.0.join("snapshot");
    recorder.snapshot(&path).unwrap();
    trace::read(&path).unwrap()
}

#[test]
fn the_end_has_what_happened_in_it_and_what_went_on() {
    let folder = Folder::new("the-end");
    let (clock, recorder) = rolling(4 << 20);
    let engine = Engine::builder().workers(1).build().unwrap();
    let x = engine.zeros(&[4], DType::F32).unwrap();
    run(&engine, "early");
    let held = x.lease(Access::Read, "a holder").try_now().unwrap().unwrap();
    let late = engine.op("late").writes([&x]).run(|[], [_]| Ok(())).unwrap();
    assert_eq!(count(&snapshot(&recorder, &folder), "early"), 1, "nothing is older than what is kept");
    // Days later the upper bits of the time are others.
    for now in [1_000, 1 << 53, (1 << 53) + 1_000] {
        clock.store(now - 30, Ordering::Relaxed);
        run(&engine, "newer");
        clock.store(now, Ordering::Relaxed);
        run(&engine, "newest");
        let trace = snapshot(&recorder, &folder);
        assert_eq!(
            ["early", "newer", "newest", "late"].map(|name| count(&trace, name)),
            [0, 1, 1, 1],
            "at {now}"
        );
        let at =
            |name: &str| trace.operations.iter().find(|operation| operation.name == name).unwrap().submitted;
        assert_eq!((trace.duration, at("newer"), at("newest"), at("late")), (100, 70, 100, 0), "at {now}");
        let lease = trace.leases.iter().find(|lease| *lease.owner == *"a holder").unwrap();
        assert_eq!((lease.opened, lease.closed), (0, None));
        clock.store(now + 200, Ordering::Relaxed);
    }
    drop(held);
    late.wait().unwrap();
    clock.fetch_add(500, Ordering::Relaxed);
    assert!(recorder.finish().operations.is_empty(), "all of it was over long before the end");
}

#[test]
fn what_is_in_flight_and_was_submitted_in_the_part_that_is_kept_has_its_own_times() {
    let folder = Folder::new("own-times");
    let (clock, recorder) = rolling(4 << 20);
    let engine = Engine::builder().workers(1).build().unwrap();
    let x = engine.zeros(&[4], DType::F32).unwrap();
    clock.store(960, Ordering::Relaxed);
    engine.op("before").writes([&x]).run(|[], [_]| Ok(())).unwrap().wait().unwrap();
    clock.store(970, Ordering::Relaxed);
    let ((begun, has_begun), (resume, may_go_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let stuck = engine.op("stuck").writes([&x]).run(move |[], [_]| {
        begun.send(()).unwrap();
        let _ = may_go_on.recv();
        Ok(())
    });
    has_begun.recv().unwrap();
    clock.store(980, Ordering::Relaxed);
    let ready = x.ready();
    clock.store(1_000, Ordering::Relaxed);
    let trace = snapshot(&recorder, &folder);
    drop(resume);
    let operation = |name: &str| trace.operations.iter().find(|operation| operation.name == name).unwrap();
    let (stuck_then, wait) = (operation("stuck"), operation("ready"));
    assert_eq!((stuck_then.submitted, stuck_then.granted, stuck_then.ready), (70, Some(70), Some(70)));
    let stalls: Vec<_> = trace.stalls.iter().filter(|stall| stall.waiter == wait.id).collect();
    let blockers: Vec<_> = stalls.iter().map(|stall| (stall.from, stall.to, stall.blocker)).collect();
    assert_eq!(blockers, [(80, 100, Blocker::Operation(stuck_then.id))]);
    let headline = report(&trace).headline;
    assert!(headline.contains("computing (`stuck`)"), "{headline}");
    drop(ready);
    stuck.unwrap().wait().unwrap();
}

#[test]
fn a_successor_that_runs_at_once_was_granted_when_it_began() {
    let folder = Folder::new("at-once");
    let (clock, recorder) = rolling(4 << 20);
    let engine = Engine::builder().workers(1).build().unwrap();
    let x = engine.zeros(&[4], DType::F32).unwrap();
    let gated = |name: &'static str| {
        let ((begun, has_begun), (resume, may_go_on)) = (mpsc::channel(), mpsc::channel::<()>());
        let op = engine.op(name).writes([&x]).run(move |[], [_]| {
            begun.send(()).unwrap();
            let _ = may_go_on.recv();
            Ok(())
        });
        (op.unwrap(), has_begun, resume)
    };
    // Submitted before the part that is kept, or in it.
    for (now, submitted) in [(1_000, 970), (2_000, 1_870)] {
        clock.store(submitted - 10, Ordering::Relaxed);
        let (_first, first_begun, first_goes_on) = gated("first");
        first_begun.recv().unwrap();
        clock.store(submitted, Ordering::Relaxed);
        let (second, second_begun, second_goes_on) = gated("second");
        clock.store(now - 15, Ordering::Relaxed);
        drop(first_goes_on);
        second_begun.recv().unwrap();
        clock.store(now, Ordering::Relaxed);
        let trace = snapshot(&recorder, &folder);
        drop(second_goes_on);
        second.wait().unwrap();
        let operation = trace.operations.iter().find(|operation| operation.name == "second").unwrap();
        let times = (operation.granted, operation.ready, operation.began);
        assert_eq!(times, (Some(85), Some(85), Some(85)), "at {now}");
    }
}

#[test]
fn memory_is_bounded_and_the_newest_is_there() {
    let _alone = exclusive();
    // Four buffers; the clock stands still, so nothing is too old.
    let (_, recorder) = rolling(512 << 10);
    let engine = Engine::builder().workers(1).build().unwrap();
    for number in 0..20_000 {
        // More names than a thread keeps would be too slow here; a third of them shows that others are given
        // up.
        engine.op(format!("step {number}")).run(|[], []| Ok(())).unwrap();
    }
    engine.wait_all(None).unwrap();
    run(&engine, "the newest");
    let trace = recorder.finish();
    assert_eq!(count(&trace, "the newest"), 1);
    assert_eq!(count(&trace, "step 0"), 0);
    assert!(trace.losses.is_empty(), "{:?}", trace.losses);
}

#[test]
fn threads_that_come_and_go_leave_nothing_behind() {
    let _alone = exclusive();
    let (clock, recorder) = rolling(1 << 20);
    let engine = Engine::builder().workers(1).build().unwrap();
    // More threads than there are buffers.
    for _ in 0..200 {
        std::thread::scope(|scope| {
            scope.spawn(|| run(&engine, "step"));
        });
        clock.fetch_add(1, Ordering::Relaxed);
    }
    let trace = recorder.finish();
    assert!(trace.losses.is_empty(), "{:?}", trace.losses);
    assert!(trace.tracks.len() < 20 && count(&trace, "step") > 0, "{} tracks", trace.tracks.len());
}

#[test]
fn more_texts_than_a_thread_keeps() {
    let _alone = exclusive();
    let (_, recorder) = rolling(512 << 10);
    let engine = Engine::builder().workers(0).build().unwrap();
    let texts = 70_000;
    for number in 0..texts {
        engine.op(format!("step {number}")).run(|[], []| Ok(())).unwrap();
    }
    engine.wait_all(None).unwrap();
    for number in 0..100 {
        engine.op(format!("last {number}")).run(|[], []| Ok(())).unwrap().wait().unwrap();
    }
    let trace = recorder.finish();
    assert_eq!((0..100).filter(|number| count(&trace, &format!("last {number}")) == 1).count(), 100);
}

#[test]
fn a_thread_whose_wait_has_left_its_buffer_waits_still() {
    let _alone = exclusive();
    let (clock, recorder) = rolling(1 << 20);
    let engine = Engine::builder().workers(0).in_flight_limit(20_000).build().unwrap();
    let x = engine.zeros(&[1], DType::F32).unwrap();
    // More than a buffer has room for. The thread that waits runs them.
    for _ in 0..10_000 {
        let its = Arc::clone(&clock);
        let op = engine.op("step").updates([&x]).run(move |[], [], [_x]| {
            its.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        op.unwrap();
    }
    let (begun, has_begun) = mpsc::channel();
    let last = engine.op("last").updates([&x]);
    let last = last.run_external(move |completion| begun.send(completion).unwrap()).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| x.wait().unwrap());
        let completion = has_begun.recv().unwrap();
        let trace = recorder.finish();
        let wait = trace.operations.iter().find(|operation| operation.name == "ready").unwrap();
        let submitter = wait.submitter.map(|track| trace.tracks[track].name.to_string());
        assert_eq!(submitter.as_deref(), Some("before what is kept"), "its buffer is given up");
        assert_eq!((wait.kind, wait.resumed), (OperationKind::Wait, None));
        completion.complete(Ok(()));
        waits.join().unwrap();
    });
    last.wait().unwrap();
}

#[test]
fn the_unfinished_file_is_written_anew_and_stays_small() {
    let folder = Folder::new("anew");
    let path = folder.0.join("run");
    let (clock, recorder) = rolling(1 << 20);
    let recorder = recorder.to_file(&path).unwrap();
    let engine = Engine::builder().workers(1).build().unwrap();
    let x = engine.zeros(&[4], DType::F32).unwrap();
    x.call_in_report("batch");
    let held = x.lease(Access::Read, "a holder").try_now().unwrap().unwrap();
    let late = engine.op("late").writes([&x]).run(|[], [_]| Ok(())).unwrap();
    let unfinished = folder.0.join(format!("run.{}.unfinished", std::process::id()));
    // As a killed process leaves it.
    let left = |unfinished: &Path| {
        let copy = folder.0.join("copy");
        fs::copy(unfinished, &copy).unwrap();
        (fs::metadata(&copy).unwrap().len(), trace::read(&copy))
    };
    let (mut most, mut steps) = (0, 0);
    // It is written anew at four MiB and some; several times as much is noted.
    let trace = loop {
        for _ in 0..5_000 {
            clock.fetch_add(1, Ordering::Relaxed);
            run(&engine, "step");
        }
        steps += 5_000;
        let (bytes, read) = left(&unfinished);
        most = most.max(bytes);
        if let Ok(trace) = read
            && count(&trace, "step") < steps / 4
            && steps > 100_000
        {
            break trace;
        }
        assert!(steps < 1_000_000, "it is written several times a second");
    };
    assert!(most < 8 << 20, "{most} bytes");
    assert!(
        trace.losses.damage.iter().all(|what| what.contains("before the trace was finished")),
        "{:?}",
        trace.losses
    );
    assert!(count(&trace, "step") > 0 && count(&trace, "late") == 1, "what is in flight is there");
    assert!(trace.variables.iter().any(|variable| *variable.name == *"batch"));
    drop(held);
    late.wait().unwrap();
    recorder.save().unwrap();
    assert_eq!(folder.names(), ["copy", "run"]);
    assert!(trace::read(&path).unwrap().losses.is_empty());
}
