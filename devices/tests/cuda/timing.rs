//! Device time: what a queue says of when its work ran.

use std::thread;
use std::time::{Duration, Instant};

use estafette_cuda_sim_client::Kind;
use estafette_devices::{DeviceSpan, Queue, Timing, host_now_ns};

use super::harness::{bench, block, fill, order, record, settle};

/// The span of work that has ended. The event that times are counted from is on a stream of its own, which
/// may be late.
fn ended(timing: &dyn Timing) -> DeviceSpan {
    let started = Instant::now();
    loop {
        match timing.span() {
            Some(span) => return span,
            None => assert!(started.elapsed() < Duration::from_secs(30), "it has ended"),
        }
        thread::yield_now();
    }
}

/// Time of a fill here.
const WORK: Duration = Duration::from_millis(20);
/// More than a time in single precision is off.
const PRECISION: Duration = Duration::from_micros(20);

#[test]
fn a_measured_interval_is_as_long_as_its_work_and_lies_where_the_host_saw_it() {
    let bench = bench();
    let Some(simulator) = bench.simulator("how long a fill takes cannot be said there") else { return };
    let (memory, queue) = (bench.memory(64), bench.queue());
    // On a clock that the test moves, the fill takes just as long as is said.
    simulator.virtual_clock(1);
    simulator.latency(Some(queue.native()), Some(Kind::Set), WORK.as_nanos() as u64);

    let before = host_now_ns();
    let timing = queue.time().expect("a stream can be measured");
    fill(&queue, &memory, 1);
    assert!(timing.span().is_none(), "it has not ended");
    let fence = record(&queue);
    // Nor does the host see its end earlier.
    thread::sleep(WORK);
    while simulator.step() {}
    bench.assert_nothing_wrong();
    // From here on time passes by itself again.
    simulator.reset();
    assert!(settle(&fence).is_ok());
    let span = ended(&*timing);
    let after = host_now_ns();

    let took = Duration::from_nanos(span.ended_ns - span.began_ns);
    assert!(took.abs_diff(WORK) < PRECISION, "{took:?}");
    assert!(before <= span.began_ns && span.ended_ns <= after, "{before} {span:?} {after}");
    bench.assert_nothing_wrong();
}

#[test]
fn work_that_waits_for_another_queue_begins_when_that_ends() {
    let bench = bench();
    let Some(simulator) = bench.simulator("how long a fill takes cannot be said there") else { return };
    let (memory, first, second) = (bench.memory(64), bench.queue(), bench.queue());
    simulator.latency(Some(first.native()), Some(Kind::Set), WORK.as_nanos() as u64);

    let earlier = first.time().expect("a stream can be measured");
    fill(&first, &memory, 1);
    let fence = record(&first);
    order(&second, &fence);
    let later = second.time().expect("a stream can be measured");
    fill(&second, &memory, 2);
    assert!(settle(&record(&second)).is_ok());

    // A statement of either about the clocks counts for both once both were asked.
    ended(&*earlier);
    let (later, earlier) = (ended(&*later), ended(&*earlier));
    assert!(later.began_ns + PRECISION.as_nanos() as u64 >= earlier.ended_ns, "{earlier:?} {later:?}");
    bench.assert_nothing_wrong();
}

#[test]
fn nobody_pays_for_what_is_not_measured_and_a_measurement_ends_with_the_next_record() {
    let bench = bench();
    let (memory, queue) = (bench.memory(64), bench.queue());
    let recorded = || bench.device.counters().events_recorded;

    let before = recorded();
    fill(&queue, &memory, 1);
    let unmeasured = record(&queue);
    assert_eq!(recorded(), before, "a chain records no event");
    assert!(settle(&unmeasured).is_ok());

    let timing = queue.time().expect("a stream can be measured");
    fill(&queue, &memory, 2);
    assert!(settle(&record(&queue)).is_ok());
    let span = ended(&*timing);
    fill(&queue, &memory, 3);
    assert!(settle(&record(&queue)).is_ok());
    let again = ended(&*timing);
    let moved = again.ended_ns.abs_diff(span.ended_ns);
    assert!(
        moved < 1_000_000,
        "what came later is not in it, though the clocks are known better now: {moved}"
    );
    bench.assert_nothing_wrong();
}

#[test]
fn work_of_a_foreign_stream_is_measured_and_unfinished_work_is_not_reported() {
    let bench = bench();
    let (memory, stream) = (bench.memory(64), bench.foreign_stream());
    // SAFETY: the stream lives as long as the test.
    let queue = unsafe { bench.device.foreign(stream.handle()) }.expect("it is of this context");
    // The first measurement of a device makes a stream.
    drop(queue.time().expect("a stream can be measured"));
    let blocked = block(&*queue);
    let timing = queue.time().expect("a stream can be measured");
    fill(&queue, &memory, 1);
    let fence = record(&queue);
    assert!(timing.span().is_none());
    blocked.release();
    assert!(settle(&fence).is_ok());
    ended(&*timing);
    bench.assert_nothing_wrong();
}
