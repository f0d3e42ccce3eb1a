//! Causes for which a driver lets calls and streams wait: few hardware connections, queues of limited depth,
//! one lock for a context, and calls that wait for the whole context.

mod harness;

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUcontext, CUresult, CUstream};
use harness::*;

/// Long enough to notice what should not happen.
const MOMENT: Duration = Duration::from_millis(40);
/// A call that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes `call` on another thread, in the first device's context, and checks whether it returns before
/// `stream` is unblocked. Returns once the call has.
#[track_caller]
fn assert_waits(bench: &Bench, stream: CUstream, waits: bool, call: impl FnOnce() + Send) {
    let (context, (returned, returns)) = (bench.context as usize, channel());
    thread::scope(|scope| {
        scope.spawn(move || {
            // SAFETY: the context stays.
            ok(unsafe { sys::cuCtxSetCurrent(context as CUcontext) });
            call();
            returned.send(()).expect("the test listens");
        });
        if waits {
            assert!(returns.recv_timeout(MOMENT).is_err(), "the call does not wait");
        } else {
            returns.recv_timeout(PATIENCE).expect("the call waits for the stream");
        }
        bench.simulator.unblock(handle(stream));
    });
    synchronize(stream);
}

/// A stream that is blocked and has work.
fn blocked_with(bench: &Bench, memory: u64, commands: usize) -> CUstream {
    let stream = non_blocking();
    bench.simulator.block(handle(stream));
    (0..commands).for_each(|_| fill(stream, memory, 1, 8));
    stream
}

#[test]
fn streams_of_one_connection_hold_each_other_up() {
    let bench = bench();
    bench.simulator.connections(2);
    bench.simulator.virtual_clock(1);
    // The first and the third share a connection.
    let [first, second, third] = [(); 3].map(|()| non_blocking());
    let memory = [(); 3].map(|()| device_memory(8));
    bench.simulator.block(handle(first));
    for (stream, memory) in [first, second, third].into_iter().zip(memory) {
        fill(stream, memory, 1, 8);
    }
    let ends = [first, second, third].map(record);
    bench.simulator.advance(1_000);
    let not_ready = CUresult::CUDA_ERROR_NOT_READY;
    assert_eq!(ends.map(query), [not_ready, CUresult::CUDA_SUCCESS, not_ready]);
    bench.simulator.unblock(handle(first));
    bench.simulator.advance(1_000);
    assert_eq!(ends.map(query), [CUresult::CUDA_SUCCESS; 3]);
    // With a connection for each stream the third waits for nothing.
    bench.simulator.connections(0);
    bench.simulator.block(handle(first));
    fill(first, memory[0], 2, 8);
    fill(third, memory[2], 2, 8);
    let ends = [first, third].map(record);
    bench.simulator.advance(1_000);
    assert_eq!(ends.map(query), [not_ready, CUresult::CUDA_SUCCESS]);
    bench.simulator.unblock(handle(first));
    bench.simulator.advance(1_000);
    assert_eq!(bench.simulator.violations(), [""; 0]);
}

#[test]
fn work_that_has_begun_holds_up_nothing_on_its_connection() {
    let bench = bench();
    bench.simulator.connections(1);
    bench.simulator.virtual_clock(1);
    let (slow, fast) = (non_blocking(), non_blocking());
    delay(slow, 1_000_000);
    let end = record(fast);
    bench.simulator.advance(1_000);
    ok(query(end));
    bench.simulator.advance(1_000_000);
    assert_eq!(bench.simulator.violations(), [""; 0]);
}

#[test]
fn a_full_stream_makes_its_caller_wait() {
    let bench = bench();
    let memory = device_memory(8);
    bench.simulator.depth(2);
    let stream = blocked_with(&bench, memory, 1);
    let address = stream as usize;
    assert_waits(&bench, stream, false, || fill(address as CUstream, memory, 2, 8));
    let stream = blocked_with(&bench, memory, 2);
    let address = stream as usize;
    assert_waits(&bench, stream, true, || fill(address as CUstream, memory, 2, 8));
    assert_eq!(fetch(memory, 8), [2; 8]);
}

#[test]
fn a_call_that_waits_holds_up_all_others_of_its_context() {
    let bench = bench();
    let memory = device_memory(8);
    bench.simulator.depth(2);
    let stream = blocked_with(&bench, memory, 2);
    let (address, context) = (stream as usize, bench.context as usize);
    let mut elsewhere = std::ptr::null_mut();
    // SAFETY: there is a place for the result.
    ok(unsafe { sys::cuDevicePrimaryCtxRetain(&mut elsewhere, 1) });
    let elsewhere = elsewhere as usize;
    let (simulator, filled) = (bench.simulator, bench.simulator.calls("cuMemsetD8Async"));
    let (made, makes) = channel();
    assert_waits(&bench, stream, true, move || {
        thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: the context stays.
                ok(unsafe { sys::cuCtxSetCurrent(context as CUcontext) });
                fill(address as CUstream, memory, 2, 8);
            });
            // The thread above waits for room, with the context's lock.
            while simulator.calls("cuMemsetD8Async") == filled {
                thread::yield_now();
            }
            // SAFETY: both contexts stay.
            ok(unsafe { sys::cuCtxSetCurrent(elsewhere as CUcontext) });
            event();
            made.send(()).expect("the test listens");
            // SAFETY: as above.
            ok(unsafe { sys::cuCtxSetCurrent(context as CUcontext) });
            event();
        });
    });
    makes.try_recv().expect("the other device's context has a lock of its own");
}

#[test]
fn calls_take_their_time_one_after_the_other() {
    const CALLS: u32 = 5;
    let bench = bench();
    let time = Duration::from_millis(2);
    bench.simulator.call_time(time.as_nanos() as u64);
    let context = bench.context as usize;
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                // SAFETY: the context stays.
                ok(unsafe { sys::cuCtxSetCurrent(context as CUcontext) });
                for _ in 0..CALLS {
                    event();
                }
            });
        }
    });
    assert!(begin.elapsed() >= time * 2 * CALLS, "{:?}", begin.elapsed());
}

#[test]
fn freeing_waits_for_the_whole_context_and_freeing_on_a_stream_does_not() {
    let bench = bench();
    let (busy, free, page) = (device_memory(8), device_memory(8), pinned(8) as usize);
    let stream = blocked_with(&bench, busy, 1);
    // SAFETY: nothing uses the memory.
    assert_waits(&bench, stream, true, || ok(unsafe { sys::cuMemFree_v2(free) }));
    let stream = blocked_with(&bench, busy, 1);
    // SAFETY: as above.
    assert_waits(&bench, stream, true, || ok(unsafe { sys::cuMemFreeHost(page as *mut _) }));
    let (mut pooled, other) = (0, non_blocking());
    // SAFETY: there is a place for the result.
    ok(unsafe { sys::cuMemAllocAsync(&mut pooled, 8, other) });
    let (stream, other) = (blocked_with(&bench, busy, 1), other as usize);
    // SAFETY: as above.
    assert_waits(&bench, stream, false, || ok(unsafe { sys::cuMemFreeAsync(pooled, other as CUstream) }));
    assert_eq!(bench.simulator.violations(), [""; 0]);
}

#[test]
fn what_sets_up_waits_where_the_driver_does() {
    let bench = bench();
    let busy = device_memory(8);
    let setups: [fn(); 4] = [
        || {
            non_blocking();
        },
        || {
            pinned(8);
        },
        || {
            device_memory(8);
        },
        || {
            kernel(c"fill_u8");
        },
    ];
    for waits in [false, true] {
        bench.simulator.setup_waits(waits);
        for setup in setups {
            // The stream is made before, or its own making would wait.
            let stream = blocked_with(&bench, busy, 1);
            assert_waits(&bench, stream, waits, setup);
        }
    }
}
