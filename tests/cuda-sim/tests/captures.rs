//! Captures and graphs.

mod harness;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUresult, CUstream, CUstreamCaptureMode as Mode};
use harness::*;

fn begin(stream: CUstream, mode: Mode) {
    // SAFETY: the stream is alive.
    ok(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) });
}

fn end(stream: CUstream) -> Result<CUgraph, CUresult> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream is alive, and there is a place for the result.
    match unsafe { sys::cuStreamEndCapture(stream, &mut graph) } {
        CUresult::CUDA_SUCCESS => Ok(graph),
        error => Err(error),
    }
}

fn executable(graph: CUgraph) -> CUgraphExec {
    let mut executable = std::ptr::null_mut();
    // SAFETY: the graph is alive, and there is a place for the result.
    ok(unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) });
    executable
}

#[test]
fn captured_work_happens_when_the_graph_is_launched_and_again() {
    let bench = bench();
    let (a, b) = (non_blocking(), non_blocking());
    let (x, y) = (device_memory(8), device_memory(8));
    fill(a, y, 0, 8);
    begin(a, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    fill(a, x, 5, 8);
    // `b` joins the capture, and comes back to `a`.
    wait(b, record(a));
    copy(b, y, x, 8);
    wait(a, record(b));
    let graph = end(a).unwrap();
    synchronize(a);
    assert_eq!(fetch(y, 8), [0; 8]);
    let executable = executable(graph);
    for _ in 0..2 {
        fill(a, y, 0, 8);
        // SAFETY: both are alive.
        ok(unsafe { sys::cuGraphLaunch(executable, a) });
        synchronize(a);
        assert_eq!(fetch(y, 8), [5; 8]);
    }
    assert_eq!(bench.simulator.violations(), [""; 0]);
}

#[test]
fn asking_for_a_captured_stream_or_event_spoils_the_capture() {
    let bench = bench();
    let stream = non_blocking();
    begin(stream, Mode::CU_STREAM_CAPTURE_MODE_RELAXED);
    // SAFETY: the stream is alive.
    fails(unsafe { sys::cuStreamQuery(stream) }, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(stream), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    begin(stream, Mode::CU_STREAM_CAPTURE_MODE_RELAXED);
    fails(query(record(stream)), CUresult::CUDA_ERROR_CAPTURED_EVENT);
    assert_eq!(end(stream), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    assert_eq!(bench.simulator.violations().len(), 2);
}

#[test]
fn waiting_for_what_is_outside_needs_the_flag_for_it() {
    let bench = bench();
    let (a, b) = (non_blocking(), non_blocking());
    let (x, y) = (device_memory(8), device_memory(8));
    fill(b, x, 3, 8);
    let outside = record(b);
    begin(a, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    // SAFETY: both are alive.
    let refused = unsafe { sys::cuStreamWaitEvent(a, outside, 0) };
    fails(refused, CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert_eq!(end(a), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    begin(a, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    // SAFETY: as above.
    ok(unsafe { sys::cuStreamWaitEvent(a, outside, 1) });
    copy(a, y, x, 8);
    let executable = executable(end(a).unwrap());
    bench.simulator.block(handle(b));
    fill(b, x, 4, 8);
    // SAFETY: as above.
    unsafe {
        ok(sys::cuEventRecord(outside, b));
        ok(sys::cuGraphLaunch(executable, a));
    }
    assert_eq!(bench.simulator.pending(handle(a)), 1);
    bench.simulator.unblock(handle(b));
    synchronize(a);
    assert_eq!(fetch(y, 8), [4; 8]);
    assert_eq!(bench.simulator.violations(), [""; 0]);
}

#[test]
fn a_global_capture_forbids_other_threads_what_may_synchronize_unless_they_relax() {
    let bench = bench();
    let stream = non_blocking();
    let elsewhere = record(non_blocking());
    let (context, event) = (bench.context as usize, elsewhere as usize);
    let ask = move |relaxed: bool| {
        std::thread::spawn(move || {
            let mut mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
            // SAFETY: the context and the event are alive.
            unsafe {
                ok(sys::cuCtxSetCurrent(context as sys::CUcontext));
                if relaxed {
                    ok(sys::cuThreadExchangeStreamCaptureMode(&mut mode));
                    assert_eq!(mode, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
                }
                query(event as sys::CUevent)
            }
        })
        .join()
        .unwrap()
    };
    begin(stream, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_ne!(ask(true), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end(stream).unwrap();
    begin(stream, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_eq!(ask(false), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(stream), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
}

#[test]
fn work_that_does_not_come_back_is_no_graph() {
    let _bench = bench();
    let (a, b) = (non_blocking(), non_blocking());
    let x = device_memory(8);
    begin(a, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    wait(b, record(a));
    fill(b, x, 1, 8);
    assert_eq!(end(a), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
}

#[test]
fn nodes_that_nothing_orders_are_a_race() {
    let bench = bench();
    let (a, b) = (non_blocking(), non_blocking());
    let x = device_memory(8);
    begin(a, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    wait(b, record(a));
    fill(a, x, 1, 8);
    fill(b, x, 2, 8);
    wait(a, record(b));
    end(a).unwrap();
    let found = bench.simulator.violations();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("captured graph"), "{found:?}");
}

#[test]
fn nodes_that_nothing_orders_run_in_any_order_and_at_the_same_time() {
    const BRANCHES: usize = 3;
    let bench = bench();
    bench.simulator.virtual_clock(7);
    let delays = kernel(c"delay_ns");
    let origin = non_blocking();
    let branches: [CUstream; BRANCHES] = std::array::from_fn(|_| non_blocking());
    let memory: [_; BRANCHES] = std::array::from_fn(|_| device_memory(8));
    begin(origin, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    let fork = record(origin);
    for (at, stream) in branches.into_iter().enumerate() {
        wait(stream, fork);
        // SAFETY: the stream is alive; it appends to what the host looks at afterwards.
        ok(unsafe { sys::cuLaunchHostFunc(stream, Some(note), std::ptr::without_provenance_mut(at)) });
        let mut nanoseconds = 1_000_000_u64;
        launch(delays, stream, &mut [(&raw mut nanoseconds).cast()]);
        fill(stream, memory[at], 7, 8);
    }
    for stream in branches {
        wait(origin, record(stream));
    }
    let executable = executable(end(origin).unwrap());
    let mut orders = std::collections::BTreeSet::new();
    for _ in 0..50 {
        SEEN.lock().unwrap().clear();
        let began = bench.simulator.now();
        // SAFETY: both are alive.
        ok(unsafe { sys::cuGraphLaunch(executable, origin) });
        synchronize(origin);
        assert_eq!(bench.simulator.now() - began, 1_000_000, "the branches wait beside each other");
        orders.insert(SEEN.lock().unwrap().clone());
    }
    assert!(orders.iter().all(|order| order.len() == BRANCHES), "each node once per launch: {orders:?}");
    assert!(orders.len() > 1, "always the same order: {orders:?}");
    for place in memory {
        assert_eq!(fetch(place, 8), [7; 8]);
    }
    assert_eq!(bench.simulator.violations(), [""; 0]);
}

static SEEN: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());

unsafe extern "C" fn note(branch: *mut std::ffi::c_void) {
    SEEN.lock().expect("no thread panics with it").push(branch.addr());
}

/// Two launches of one graph, and a launch beside other work, are ordered as any other commands are, or are a
/// race.
#[test]
fn a_launch_takes_part_in_the_order_of_streams() {
    let bench = bench();
    let (a, b) = (non_blocking(), non_blocking());
    let x = device_memory(8);
    begin(a, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    fill(a, x, 1, 8);
    let executable = executable(end(a).unwrap());
    // SAFETY: both are alive.
    let start = |stream| ok(unsafe { sys::cuGraphLaunch(executable, stream) });
    start(a);
    start(a);
    wait(b, record(a));
    fill(b, x, 2, 8);
    assert_eq!(bench.simulator.violations(), [""; 0]);
    start(a);
    let found = bench.simulator.violations();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("Graph"), "{found:?}");
}

#[test]
fn what_is_recorded_in_a_spoilt_capture_is_refused() {
    let _bench = bench();
    let stream = non_blocking();
    let event = record(stream);
    begin(stream, Mode::CU_STREAM_CAPTURE_MODE_RELAXED);
    // SAFETY: the stream is alive.
    fails(unsafe { sys::cuStreamQuery(stream) }, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    // SAFETY: both are alive.
    fails(unsafe { sys::cuEventRecord(event, stream) }, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_eq!(end(stream), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
}

#[test]
fn the_legacy_stream_is_asked_about_a_capture_beside_it_without_harm_and_given_work_with_harm() {
    let bench = bench();
    let (blocking, legacy, memory) = (stream(0), std::ptr::null_mut(), device_memory(8));
    begin(blocking, Mode::CU_STREAM_CAPTURE_MODE_RELAXED);
    let implicit = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let none: *mut u64 = std::ptr::null_mut();
    // SAFETY: the legacy stream is always there, and there are places for results.
    unsafe {
        fails(sys::cuStreamIsCapturing(legacy, &mut status), implicit);
        let (id, graph, first, count) = (none, none.cast(), none.cast(), none.cast());
        fails(sys::cuStreamGetCaptureInfo_v2(legacy, &mut status, id, graph, first, count), implicit);
        // A question about the stream itself is answered.
        ok(sys::cuStreamIsCapturing(blocking, &mut status));
    }
    assert_eq!(status, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    end(blocking).unwrap();
    begin(blocking, Mode::CU_STREAM_CAPTURE_MODE_RELAXED);
    // SAFETY: the memory is the test's.
    fails(unsafe { sys::cuMemsetD8Async(memory, 1, 8, legacy) }, implicit);
    assert_eq!(end(blocking), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    assert_eq!(bench.simulator.violations(), [""; 0]);
}
