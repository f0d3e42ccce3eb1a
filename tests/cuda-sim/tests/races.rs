//! Uses of memory that nothing orders are found, also when they happened to go well; what is ordered is left
//! alone.

mod harness;

use cudarc::driver::sys::{self, CUresult};
use harness::*;

#[track_caller]
fn expect_one(bench: &Bench, beginning: &str) {
    let found = bench.simulator.violations();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(beginning), "{found:?}");
}

#[test]
fn a_missing_wait_is_found_although_timing_hides_it() {
    let bench = bench();
    let (a, b) = (non_blocking(), non_blocking());
    let (from, to) = (device_memory(64), device_memory(64));
    fill(a, from, 7, 64);
    // By now the command is surely over, but the host has not observed that.
    while bench.simulator.pending(handle(a)) > 0 {
        std::thread::yield_now();
    }
    copy(b, to, from, 64);
    synchronize(b);
    expect_one(&bench, "race: Copy 1");
}

#[test]
fn events_and_what_the_host_observed_are_orders() {
    let bench = bench();
    let (a, b, c) = (non_blocking(), non_blocking(), non_blocking());
    let (x, y) = (device_memory(64), device_memory(64));
    fill(a, x, 7, 64);
    wait(b, record(a));
    copy(b, y, x, 64);
    wait(c, record(b));
    // Knows of `a` by way of `b`.
    fill(c, x, 8, 64);
    synchronize(c);
    fill(a, y, 9, 64);
    assert_eq!(bench.simulator.violations(), [""; 0]);
}

#[test]
fn two_readers_then_a_writer_that_waits_for_one_of_them_only() {
    let bench = bench();
    let (a, b, c) = (non_blocking(), non_blocking(), non_blocking());
    let (x, y, z) = (device_memory(64), device_memory(64), device_memory(64));
    fill(a, x, 1, 64);
    let written = record(a);
    wait(b, written);
    wait(c, written);
    copy(b, y, x, 64);
    copy(c, z, x, 64);
    assert_eq!(bench.simulator.violations(), [""; 0]);
    wait(a, record(b));
    fill(a, x, 2, 64);
    expect_one(&bench, "race: Set");
    [a, b, c].into_iter().for_each(synchronize);
}

#[test]
fn other_bytes_of_the_same_memory_are_no_race() {
    let bench = bench();
    let (a, b) = (non_blocking(), non_blocking());
    let memory = device_memory(64);
    fill(a, memory, 1, 32);
    fill(b, memory + 32, 2, 32);
    assert_eq!(bench.simulator.violations(), [""; 0]);
    fill(b, memory + 31, 2, 1);
    expect_one(&bench, "race: Set");
    [a, b].into_iter().for_each(synchronize);
}

#[test]
fn a_value_that_landed_tells_the_host() {
    let bench = bench();
    let (a, b) = (non_blocking(), non_blocking());
    let (memory, flag) = (device_memory(64), pinned(8).cast::<u64>());
    // SAFETY: the memory is the test's.
    unsafe { flag.write_volatile(0) };
    fill(a, memory, 1, 64);
    // SAFETY: as above.
    unsafe {
        ok(sys::cuStreamWriteValue64_v2(a, flag as u64, 1, 0));
        while flag.read_volatile() == 0 {
            std::thread::yield_now();
        }
    }
    while bench.simulator.pending(handle(a)) > 0 {
        std::thread::yield_now();
    }
    fill(b, memory, 2, 64);
    assert_eq!(bench.simulator.violations(), [""; 0]);
    synchronize(b);
}

#[test]
fn memory_is_not_used_after_its_release() {
    let bench = bench();
    let (a, b) = (non_blocking(), non_blocking());
    let mut memory = 0;
    // SAFETY: there is a place for the result.
    ok(unsafe { sys::cuMemAllocAsync(&mut memory, 64, a) });
    fill(a, memory, 1, 64);
    wait(b, record(a));
    fill(b, memory, 2, 64);
    assert_eq!(bench.simulator.violations(), [""; 0]);
    // Not ordered after what `b` does with it.
    // SAFETY: nothing refers to the memory but the commands under way.
    ok(unsafe { sys::cuMemFreeAsync(memory, a) });
    expect_one(&bench, "race: Memory");
    bench.simulator.forget_violations();
    wait(b, record(a));
    fill(b, memory, 3, 64);
    expect_one(&bench, "use after release: Set");
    [a, b].into_iter().for_each(synchronize);
}

#[test]
fn memory_from_a_pool_is_there_for_other_streams_only_after_a_wait() {
    let bench = bench();
    let (a, b) = (non_blocking(), non_blocking());
    let mut memory = 0;
    // SAFETY: there is a place for the result.
    ok(unsafe { sys::cuMemAllocAsync(&mut memory, 64, a) });
    fill(b, memory, 1, 64);
    expect_one(&bench, "race: Set");
    synchronize(b);
}

#[test]
fn the_driver_may_not_be_called_from_a_host_function() {
    extern "C" fn calls(_: *mut std::ffi::c_void) {
        // SAFETY: it is what this test is about.
        fails(unsafe { sys::cuCtxSynchronize() }, CUresult::CUDA_ERROR_NOT_PERMITTED);
    }
    let bench = bench();
    let stream = non_blocking();
    // SAFETY: the function may be called with anything.
    ok(unsafe { sys::cuLaunchHostFunc(stream, Some(calls), std::ptr::null_mut()) });
    synchronize(stream);
    expect_one(&bench, "cuCtxSynchronize was called from a host function");
}
