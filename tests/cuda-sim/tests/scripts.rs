//! Scripts of tests: faults, shortage, the virtual clock and its seeds.

mod harness;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::{self, CUresult};
use estafette_cuda_sim_client::{Kind, codes};
use harness::*;

#[test]
fn a_fault_is_sticky_and_nothing_behind_it_happens() {
    static CALLED: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn called(_: *mut std::ffi::c_void) {
        CALLED.fetch_add(1, Ordering::Relaxed);
    }
    let bench = bench();
    let (stream, other) = (non_blocking(), non_blocking());
    let (memory, flag) = (device_memory(8), pinned(8).cast::<u64>());
    // SAFETY: the memory is the test's.
    unsafe { flag.write_volatile(0) };
    bench.simulator.block(handle(stream));
    fill(stream, memory, 1, 8);
    let before = record(stream);
    fill(stream, memory, 2, 8);
    // SAFETY: as above, and the function may be called with anything.
    unsafe {
        ok(sys::cuLaunchHostFunc(stream, Some(called), std::ptr::null_mut()));
        ok(sys::cuStreamWriteValue64_v2(stream, flag as u64, 1, 0));
    }
    bench.simulator.fault(handle(stream), 3, codes::ILLEGAL_ADDRESS);
    bench.simulator.unblock(handle(stream));
    // SAFETY: the streams are alive.
    unsafe {
        let code = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        fails(sys::cuStreamSynchronize(stream), code);
        fails(sys::cuStreamQuery(other), code);
        fails(sys::cuCtxSynchronize(), code);
        fails(sys::cuMemFree_v2(memory), code);
        // Also of what had happened before.
        fails(query(before), code);
        assert_eq!(flag.read_volatile(), 0);
    }
    assert_eq!(CALLED.load(Ordering::Relaxed), 0);
    // The other device is well.
    let mut context = std::ptr::null_mut();
    // SAFETY: there is a place for the result.
    unsafe {
        ok(sys::cuDevicePrimaryCtxRetain(&mut context, 1));
        ok(sys::cuCtxSetCurrent(context));
    }
    synchronize(non_blocking());
    assert_eq!(bench.simulator.violations(), [""; 0]);
}

#[test]
fn a_kernel_that_reaches_beyond_its_memory_takes_the_context_along() {
    let bench = bench();
    let stream = non_blocking();
    let (mut memory, mut count, mut value) = (device_memory(64), 65_u64, 1_u32);
    let mut arguments = [(&raw mut memory).cast(), (&raw mut count).cast(), (&raw mut value).cast()];
    launch(kernel(c"fill_u8"), stream, &mut arguments);
    // SAFETY: the stream is alive.
    fails(unsafe { sys::cuStreamSynchronize(stream) }, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(bench.simulator.violations().len(), 1);
}

#[test]
fn memory_runs_out() {
    let bench = bench();
    let mut memory = 0;
    let mut allocate = |bytes| {
        // SAFETY: there is a place for the result.
        unsafe { sys::cuMemAlloc_v2(&mut memory, bytes) }
    };
    bench.simulator.fail_allocation(2);
    ok(allocate(64));
    fails(allocate(64), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    ok(allocate(64));
    bench.simulator.capacity(bench.simulator.used(0) + 100);
    fails(allocate(101), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    ok(allocate(100));
    // SAFETY: it is the last one, and unused.
    ok(unsafe { sys::cuMemFree_v2(memory) });
}

#[test]
fn one_call_of_a_function_is_refused() {
    let bench = bench();
    let stream = non_blocking();
    bench.simulator.fail_call("cuStreamQuery", 900);
    // SAFETY: the stream is alive.
    let query = || unsafe { sys::cuStreamQuery(stream) };
    fails(query(), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ok(query());
}

#[test]
fn on_the_virtual_clock_nothing_happens_by_itself() {
    let bench = bench();
    bench.simulator.virtual_clock(1);
    let (a, b) = (non_blocking(), non_blocking());
    let memory = device_memory(8);
    bench.simulator.latency(Some(handle(a)), Some(Kind::Set), 500);
    bench.simulator.latency(Some(handle(b)), None, 200);
    fill(a, memory, 1, 8);
    let (slow, fast) = (record(a), record(b));
    assert_eq!(query(fast), CUresult::CUDA_ERROR_NOT_READY);
    bench.simulator.advance(200);
    ok(query(fast));
    assert_eq!(query(slow), CUresult::CUDA_ERROR_NOT_READY);
    bench.simulator.advance(299);
    assert_eq!(query(slow), CUresult::CUDA_ERROR_NOT_READY);
    bench.simulator.advance(1);
    ok(query(slow));
    // A thread that waits lets time pass.
    let start = bench.simulator.now();
    delay(a, 1_000_000_000);
    synchronize(a);
    assert_eq!(bench.simulator.now() - start, 1_000_000_000);
}

#[test]
fn seeds_choose_the_order_of_what_nothing_orders() {
    let bench = bench();
    let memory = device_memory(1);
    let streams: Vec<_> = (0..4).map(|_| non_blocking()).collect();
    let last = |seed| {
        bench.simulator.virtual_clock(seed);
        for (value, stream) in streams.iter().enumerate() {
            fill(*stream, memory, value as u8, 1);
        }
        while bench.simulator.step() {}
        fetch(memory, 1)[0]
    };
    let results: Vec<u8> = (0..40).map(last).collect();
    assert_eq!(results.iter().collect::<HashSet<_>>().len(), 4, "{results:?}");
    assert_eq!(last(7), last(7));
}
