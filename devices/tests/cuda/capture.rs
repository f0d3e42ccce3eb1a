//! Captures of graphs: those of this library, and foreign ones, which nothing disturbs.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};
use estafette_devices::cuda::CudaQueue;
use estafette_devices::{
    Allocation, Device, DeviceErrorKind, Fence, FenceState, LaunchGraph, Order, Queue, Reactor,
};

use crate::harness::{
    Bench, ForeignStream, MOMENT, PATIENCE, assert_ok, bench, block, fill, inside, order, record, settle,
};

fn begin(stream: &ForeignStream, mode: CUstreamCaptureMode) {
    // SAFETY: a live stream.
    unsafe { assert_ok(sys::cuStreamBeginCapture_v2(stream.raw, mode)) };
}

/// Ends the capture, which must be sound, and destroys what was recorded.
fn end(stream: &ForeignStream) {
    let mut graph: CUgraph = ptr::null_mut();
    // SAFETY: the capture was begun on this thread.
    unsafe {
        assert_ok(sys::cuStreamEndCapture(stream.raw, &raw mut graph));
        assert_ok(sys::cuGraphDestroy(graph));
    }
}

fn is_done(fence: &Fence) -> bool {
    matches!(fence.state(), FenceState::Done)
}

#[test]
fn work_is_recorded_once_and_launched_often() {
    let bench = bench();
    let queue = bench.queue();
    let [source, target] = [(); 2].map(|()| bench.memory(4_096));
    fill(&queue, &source, 6);
    settle(&record(&queue)).expect("nothing failed");
    let graph = queue
        .capture(&[], |_| {
            bench.copy(&queue, &source, &target);
            fill(&queue, &source, 7);
            Ok(())
        })
        .expect("the driver has graphs");
    bench.assert_filled(&target, 0);
    let before = bench.device.counters().graph_launches;
    let blocked = block(&*queue);
    let first = graph.launch(&*queue).expect("it works");
    let second = graph.launch(&*queue).expect("it works");
    assert!(!is_done(&first));
    blocked.release();
    settle(&first).expect("nothing failed");
    settle(&second).expect("nothing failed");
    bench.assert_filled(&target, 7);
    assert_eq!(bench.device.counters().graph_launches - before, 2);
    // A graph may go while it runs.
    let blocked = block(&*queue);
    let third = graph.launch(&*queue).expect("it works");
    drop(graph);
    blocked.release();
    settle(&third).expect("nothing failed");
    bench.assert_nothing_wrong();
}

#[test]
fn a_capture_waits_for_nothing_outside_and_is_not_disturbed_by_queries() {
    let bench = bench();
    let (queue, other) = (bench.queue(), bench.queue());
    let memory = bench.memory(64);
    let blocked = block(&*other);
    let outside = record(&other);
    let held = block(&*queue);
    fill(&queue, &memory, 1);
    let before = record(&queue);
    let mut inner = None;
    let graph = queue.capture(&[], |_| {
        assert!(queue.is_capturing()?);
        fill(&queue, &memory, 2);
        assert_eq!(queue.order_after(&outside).expect_err("outside").kind(), DeviceErrorKind::Invalid);
        // Asking for what came before is answered without touching the capture.
        assert!(!before.is_done());
        assert_eq!(other.order_after(&before)?, Order::Device);
        assert!(other.allocates_beside(&*bench.device));
        inner = Some(queue.record()?);
        Ok(())
    });
    let graph = graph.expect("nothing disturbed it");
    let inner = inner.expect("it was recorded");
    assert!(!inner.is_done(), "it has no time");
    let error = settle(&inner).expect_err("no thread waits for it for ever");
    assert!(error.message().contains("graph"), "{error}");
    assert!(queue.order_after(&inner).is_err(), "it means nothing outside");
    held.release();
    blocked.release();
    settle(&before).expect("nothing failed");
    settle(&graph.launch(&*queue).expect("it works")).expect("nothing failed");
    bench.assert_filled(&memory, 2);
    bench.assert_nothing_wrong();
}

trait Beside {
    fn allocates_beside(&self, device: &dyn Device) -> bool;
}

impl Beside for CudaQueue {
    /// Makes and frees memory, which a capture must not notice.
    fn allocates_beside(&self, device: &dyn Device) -> bool {
        device.allocate(64, 64).is_ok() && device.create_queue().is_ok()
    }
}

#[test]
fn a_capture_that_goes_wrong_leaves_the_queue_as_it_was() {
    let bench = bench();
    let queue = bench.queue();
    let memory = bench.memory(64);
    let refused = queue.capture(&[], |_| {
        fill(&queue, &memory, 1);
        Err(estafette_devices::DeviceError::new(DeviceErrorKind::Other, "changed its mind"))
    });
    assert_eq!(refused.expect_err("it said so").message(), "changed its mind");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        queue.capture(&[], |_| -> Result<(), _> { panic!("on purpose") }).map(drop)
    }));
    assert!(panicked.is_err());
    let nested = queue.capture(&[], |_| queue.capture(&[], |_| Ok(())).map(drop));
    assert_eq!(nested.expect_err("it records already").kind(), DeviceErrorKind::Invalid);
    assert!(!queue.is_capturing().expect("it works"));
    fill(&queue, &memory, 3);
    settle(&record(&queue)).expect("nothing failed");
    bench.assert_filled(&memory, 3);
    bench.assert_nothing_wrong();
}

/// PyTorch records in global mode: then a query on any thread, of anything, would break its capture.
#[test]
fn a_foreign_capture_is_not_disturbed() {
    let bench = bench();
    let queue = bench.queue();
    let memory = bench.memory(64);
    let stranger = bench.foreign_stream();
    inside(&bench.device, || {
        begin(&stranger, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
        fill(&queue, &memory, 1);
        let fence = record(&queue);
        assert!(fence.wait_timeout(Some(crate::harness::PATIENCE)).expect("in time").is_ok());
        assert!(queue.allocates_beside(&*bench.device));
        let lone = bench.foreign_stream();
        // SAFETY: the stream lives to the end of the block.
        let acquired = unsafe { bench.device.foreign_queue(lone.handle()) }.expect("it is of the device");
        settle(&acquired.record().expect("it works")).expect("nothing failed");
        end(&stranger);
    });
    bench.assert_nothing_wrong();
}

#[test]
fn a_stream_that_records_gets_waits_and_records_and_no_query() {
    let bench = bench();
    let queue = bench.queue();
    let memory = bench.memory(64);
    let [stranger, joined] = [(); 2].map(|()| bench.foreign_stream());
    let blocked = block(&*queue);
    fill(&queue, &memory, 1);
    let written = record(&queue);
    inside(&bench.device, || {
        begin(&stranger, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        // SAFETY: the streams live to the end of the test.
        let acquired = unsafe { bench.device.foreign_queue(stranger.handle()) }.expect("it is of the device");
        assert!(acquired.is_capturing().expect("the driver says"));
        let before = bench.device.counters();
        assert_eq!(acquired.order_after(&written).expect("a graph may wait for it"), Order::Device);
        assert_eq!(bench.device.counters().events_given_up - before.events_given_up, 1);
        stranger.fill(&memory, 2);
        let point = acquired.record().expect("it works");
        assert!(!point.observed_done());
        assert!(settle(&point).is_err(), "it has no time");
        // Within the same capture it means something: another stream joins, and is joined again.
        // SAFETY: as above.
        let second = unsafe { bench.device.foreign_queue(joined.handle()) }.expect("it is of the device");
        assert!(second.order_after(&point).is_err(), "a stream that does not record does not join unasked");
        let after = bench.device.counters();
        assert_eq!(after.event_queries, before.event_queries, "nothing of it was queried");
        end(&stranger);
    });
    blocked.release();
    settle(&written).expect("nothing failed");
    assert_eq!(order(&queue, &written), Order::Nothing);
    bench.assert_nothing_wrong();
}

/// A barrier is over the whole context, so the driver refuses it while any library captures there, and the
/// recording is lost.
#[test]
fn a_barrier_leaves_an_own_capture_alone_and_comes_later() {
    let bench = bench();
    let queue = bench.queue();
    let memory = bench.memory(64);
    let mut refused = None;
    let graph = queue.capture(&[], |_| {
        refused = Some(bench.device.barrier());
        fill(&queue, &memory, 4);
        Ok(())
    });
    let graph = graph.expect("nothing disturbed it");
    let error = refused.expect("it was asked for").expect_err("a graph is being captured");
    assert_eq!(error.code(), Some(900), "the driver's word for it, which says that it may work later");
    assert!(error.message().contains("is being captured"), "{error}");
    let blocked = block(&*queue);
    let launched = graph.launch(&*queue).expect("it works");
    let barrier = bench.device.barrier().expect("nothing is recorded any more");
    assert!(!is_done(&barrier) && !is_done(&launched));
    blocked.release();
    settle(&barrier).expect("nothing failed");
    // The mark that tells of it was asked for after the barrier, so it may come a little later.
    settle(&launched).expect("nothing failed");
    // A capture that failed is over as well.
    queue
        .capture(&[], |_| Err(estafette_devices::DeviceError::new(DeviceErrorKind::Other, "no")))
        .expect_err("it said so");
    settle(&bench.device.barrier().expect("it works")).expect("nothing failed");
    bench.assert_nothing_wrong();
}

/// A foreign capture is not known beforehand: the driver refuses the barrier, the capture is lost, and the
/// barrier works afterwards.
#[test]
fn a_barrier_that_meets_a_foreign_capture_is_refused_and_waits_for_nothing() {
    let bench = bench();
    let stranger = bench.foreign_stream();
    inside(&bench.device, || {
        begin(&stranger, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
        let waits = bench.device.counters().context_waits;
        let error = bench.device.barrier().expect_err("a graph is being captured");
        assert_eq!(error.code(), Some(900));
        assert_eq!(bench.device.counters().context_waits, waits, "nor is the context waited for instead");
        let mut graph: CUgraph = ptr::null_mut();
        // SAFETY: the capture was begun on this thread.
        let ended = unsafe { sys::cuStreamEndCapture(stranger.raw, &raw mut graph) };
        assert_eq!(ended, sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    });
    settle(&bench.device.barrier().expect("it works")).expect("nothing failed");
    bench.assert_nothing_wrong();
}

/// An own stream whose handle was given out may be captured. Queries during the capture are answered
/// afterwards.
#[test]
fn a_stream_of_ours_that_somebody_records_on_is_left_alone() {
    let bench = bench();
    let (queue, other) = (bench.queue(), bench.queue());
    let memory = bench.memory(64);
    let blocked = block(&*queue);
    fill(&queue, &memory, 1);
    let before = record(&queue);
    let (sender, receiver) = std::sync::mpsc::channel();
    let stream = ptr::with_exposed_provenance_mut(queue.native());
    inside(&bench.device, || {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a live stream.
        unsafe { assert_ok(sys::cuStreamBeginCapture_v2(stream, mode)) };
        assert!(queue.is_capturing().expect("the driver says"));
        assert!(!before.is_done());
        Reactor::global().when_settled([&before], move |outcome| {
            sender.send(outcome).expect("the test listens");
        });
        assert!(other.order_after(&before).is_err(), "no event can be recorded for it now");
        let mut graph: CUgraph = ptr::null_mut();
        // SAFETY: the capture was begun on this thread.
        unsafe {
            assert_ok(sys::cuStreamEndCapture(stream, &raw mut graph));
            assert_ok(sys::cuGraphDestroy(graph));
        }
    });
    assert_eq!(order(&other, &before), Order::Device);
    blocked.release();
    let told = receiver.recv_timeout(PATIENCE).expect("a thread that queried meanwhile is notified");
    assert!(told.is_ok());
    settle(&record(&other)).expect("nothing failed");
    bench.assert_nothing_wrong();
}

/// A stream that captures cannot wait for memory that is allocated meanwhile, so it does afterwards.
#[test]
fn memory_that_was_allocated_during_a_capture_is_waited_for_after_it() {
    let bench = bench();
    let Some(simulator) = bench.simulator("connections are the driver's own business") else { return };
    let [queue, joined, busy] = [(); 3].map(|()| bench.queue());
    let blocked = block(&*busy);
    simulator.connections(1);
    let mut memory = None;
    let graph = queue.capture(&[&joined], |_| {
        memory = Some([(); 2].map(|()| bench.device.allocate(64, 64).expect("there is room")));
        Ok(())
    });
    graph.expect("nothing disturbed it");
    let [first, second] = memory.expect("it was allocated");
    fill(&queue, &first, 7);
    fill(&joined, &second, 8);
    let fences = [record(&queue), record(&joined)];
    blocked.release();
    for fence in &fences {
        settle(fence).expect("nothing failed");
    }
    bench.assert_nothing_wrong();
}

/// Another library captures on an own stream of the crate, and on a second one that it has joined again when
/// memory is allocated: the graph fills the first piece.
fn captured_by_another(
    bench: &Bench,
    queue: &CudaQueue,
    joined: &CudaQueue,
    allocate: impl FnOnce() -> [Allocation; 2],
) -> (CUgraphExec, [Allocation; 2]) {
    let [stream, branch] =
        [queue, joined].map(|queue| ptr::with_exposed_provenance_mut::<sys::CUstream_st>(queue.native()));
    let mut event: sys::CUevent = ptr::null_mut();
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let (mut graph, mut executable): (CUgraph, CUgraphExec) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the stream is live, and the capture is ended on this thread; writes handles.
    let memory = inside(&bench.device, || unsafe {
        assert_ok(sys::cuStreamBeginCapture_v2(stream, mode));
        assert_ok(sys::cuEventCreate(&raw mut event, 2));
        for (from, to) in [(stream, branch), (branch, stream)] {
            assert_ok(sys::cuEventRecord(event, from));
            assert_ok(sys::cuStreamWaitEvent(to, event, 0));
        }
        let memory = allocate();
        let at = memory[0].ptr().as_ptr().expose_provenance() as u64;
        assert_ok(sys::cuMemsetD8Async(at, 7, 64, stream));
        assert_ok(sys::cuStreamEndCapture(stream, &raw mut graph));
        assert_ok(sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0));
        assert_ok(sys::cuGraphDestroy(graph));
        assert_ok(sys::cuEventDestroy_v2(event));
        memory
    });
    (executable, memory)
}

/// The crate sees neither the end of a foreign capture on one of its streams, nor the launches of its graph,
/// and must not add to it.
#[test]
fn memory_that_is_allocated_during_a_foreign_capture_is_waited_for_on_the_host() {
    let bench = bench();
    let Some(simulator) = bench.simulator("connections are the driver's own business") else { return };
    let [busy, queue, joined] = [(); 3].map(|()| bench.queue());
    let stranger = bench.foreign_stream();
    let blocked = block(&*busy);
    simulator.connections(1);
    let is_released = AtomicBool::new(false);
    let (graph, memory) = captured_by_another(&bench, &queue, &joined, || {
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(MOMENT);
                is_released.store(true, Ordering::SeqCst);
                blocked.release();
            });
            let memory = [(); 2].map(|()| bench.device.allocate(64, 64).expect("there is room"));
            assert!(is_released.load(Ordering::SeqCst), "the memory was not there");
            memory
        })
    });
    fill(&queue, &memory[1], 8);
    // SAFETY: the graph and the stream are live.
    inside(&bench.device, || unsafe { assert_ok(sys::cuGraphLaunch(graph, stranger.raw)) });
    // SAFETY: the stream lives to the end of the test.
    let theirs = unsafe { bench.device.foreign_queue(stranger.handle()) }.expect("it is of the device");
    let fences = [record(&queue), theirs.record().expect("it works")];
    fences.iter().for_each(|fence| settle(fence).expect("nothing failed"));
    simulator.connections(0);
    bench.assert_filled(&memory[0], 7);
    bench.assert_filled(&memory[1], 8);
    bench.assert_nothing_wrong();
}

/// The host waits for a while only. Then the stream waits once the capture is over, also where the driver
/// refuses the first try.
#[test]
fn memory_that_is_late_for_a_foreign_capture_is_waited_for_after_it() {
    let bench = bench();
    let Some(simulator) = bench.simulator("connections are the driver's own business") else { return };
    let busy = bench.queue();
    for is_handed in [false, true] {
        let (queue, joined) = (bench.queue(), bench.queue());
        let room = [(); 2].map(|()| bench.memory(64));
        let blocked = block(&*busy);
        simulator.connections(1);
        let mut late = None;
        captured_by_another(&bench, &queue, &joined, || {
            late = Some(bench.device.allocate(64, 64).expect("there is room"));
            room
        });
        let late = late.expect("it was allocated");
        if is_handed {
            let stream = ptr::with_exposed_provenance_mut(queue.native());
            let at = late.ptr().as_ptr().expose_provenance() as u64;
            // SAFETY: the memory and the stream are live.
            inside(&bench.device, || unsafe { assert_ok(sys::cuMemsetD8Async(at, 8, 64, stream)) });
        } else {
            simulator.fail_call("cuStreamWaitEvent", 2);
            // SAFETY: the memory is live.
            assert!(unsafe { queue.fill(late.ptr().as_ptr(), 8, 64) }.is_err());
            fill(&queue, &late, 8);
        }
        let fence = record(&queue);
        assert!(!is_done(&fence));
        blocked.release();
        settle(&fence).expect("nothing failed");
        simulator.connections(0);
        bench.assert_filled(&late, 8);
    }
    bench.assert_nothing_wrong();
}

/// The query is refused where the capture has begun since the engine looked whether there is one.
#[test]
fn a_query_that_a_capture_refuses_is_made_again() {
    let bench = bench();
    let Some(simulator) = bench.simulator("a driver refuses no call on request") else { return };
    let queue = bench.queue();
    let blocked = block(&*queue);
    let fence = record(&queue);
    simulator.fail_call("cuStreamQuery", 900);
    assert!(fence.state().is_pending());
    blocked.release();
    settle(&fence).expect("nothing failed");
    bench.assert_nothing_wrong();
}

/// ```text
/// first:  fill x ──┬──────────► copy y to z
/// second:          └─ copy x to y ┘
/// third:  fill w
/// ```
#[test]
fn a_graph_of_several_queues_has_their_branches_and_their_order() {
    let bench = bench();
    let queue = bench.queue();
    let [x, y, z, w] = [(); 4].map(|()| bench.memory(4_096));
    let record_it = |ordered: bool| {
        queue.capture_graph(3, &mut |queues| {
            let [first, second, third] = queues else { panic!("as many as were asked for") };
            let own = |queue| CudaQueue::from_queue(queue).expect("of the same device");
            let before = [first, second, third].map(|queue| queue.id());
            assert!(before.iter().all(|id| *id != queue.id()), "no other queue has them");
            fill(own(&**first), &x, 5);
            let filled = first.record()?;
            if ordered {
                assert_eq!(second.order_after(&filled)?, Order::Device);
            }
            bench.copy(own(&**second), &x, &y);
            let copied = second.record()?;
            assert_eq!(first.order_after(&copied)?, Order::Device);
            bench.copy(own(&**first), &y, &z);
            fill(own(&**third), &w, 6);
            Ok(())
        })
    };
    assert!(queue.supports_capture());
    let graph = record_it(true).expect("the driver has graphs");
    bench.assert_filled(&z, 0);
    let blocked = block(&*queue);
    let launched = graph.launch(&*queue).expect("it works");
    assert!(!is_done(&launched));
    blocked.release();
    settle(&launched).expect("nothing failed");
    bench.assert_filled(&z, 5);
    bench.assert_filled(&w, 6);
    // All of them have left the capture.
    settle(&bench.device.barrier().expect("nothing is recorded any more")).expect("nothing failed");
    bench.assert_nothing_wrong();
    if let Some(simulator) = bench.simulator("it finds what nothing orders") {
        drop(record_it(false).expect("a race is no error of the driver"));
        let found = simulator.violations();
        assert!(found.iter().any(|text| text.contains("captured graph")), "{found:?}");
        simulator.forget_violations();
    }
}

#[test]
fn a_graph_of_several_queues_that_goes_wrong_leaves_all_of_them_as_they_were() {
    let bench = bench();
    let (one, two, three) = (bench.queue(), bench.queue(), bench.queue());
    let memory = bench.memory(64);
    let busy = three.capture(&[], |_| {
        // A queue that records already cannot take part in another capture; one that had joined before it
        // leaves again.
        let refused = one.capture(&[&two, &three], |_| panic!("it has not begun"));
        assert_eq!(refused.expect_err("it is recording").kind(), DeviceErrorKind::Invalid);
        Ok(())
    });
    busy.expect("nothing disturbed it");
    let refused = one.capture(&[&two], |_| {
        fill(&two, &memory, 1);
        Err(estafette_devices::DeviceError::new(DeviceErrorKind::Other, "changed its mind"))
    });
    assert_eq!(refused.expect_err("it said so").message(), "changed its mind");
    let stranger = bench.foreign_stream();
    // SAFETY: the stream lives to the end of the test.
    let theirs = unsafe { bench.device.foreign_queue(stranger.handle()) }.expect("it is of the device");
    assert!(!theirs.supports_capture());
    assert!(theirs.capture_graph(1, &mut |_| Ok(())).is_err(), "their queues are not ours to record on");
    for queue in [&one, &two, &three] {
        assert!(!queue.is_capturing().expect("it works"));
        fill(queue, &memory, 3);
        settle(&record(queue)).expect("nothing failed");
    }
    bench.assert_filled(&memory, 3);
    bench.assert_nothing_wrong();
}
