//! The simulated driver does what a driver does, seen through cudarc's dynamic loading.

mod harness;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUresult};
use harness::*;

#[test]
fn cudarc_finds_two_devices_that_call_themselves_simulated() {
    let bench = bench();
    assert_eq!(result::device::get_count().unwrap(), 2);
    let name = result::device::get_name(1).unwrap();
    assert_eq!(name, "Estafette CUDA simulator 1");
    // SAFETY: the driver is initialized.
    let major = unsafe {
        result::device::get_attribute(
            0,
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        )
    };
    assert_eq!(major.unwrap(), 7);
    assert!(bench.simulator.calls("cuDeviceGetName") > 0);
    let error = result::DriverError(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(format!("{error:?}").contains("an illegal memory access was encountered"));
}

#[test]
fn handles_of_streams_need_64_bits() {
    let _bench = bench();
    assert!(handle(non_blocking()) > u32::MAX as usize);
}

#[test]
fn commands_of_a_stream_happen_in_order() {
    let bench = bench();
    let (stream, memory) = (non_blocking(), device_memory(64));
    bench.simulator.block(handle(stream));
    fill(stream, memory, 1, 64);
    let half = record(stream);
    fill(stream, memory, 2, 32);
    assert_eq!(query(half), CUresult::CUDA_ERROR_NOT_READY);
    bench.simulator.unblock(handle(stream));
    synchronize(stream);
    ok(query(half));
    assert_eq!(fetch(memory, 64), [[2; 32], [1; 32]].concat());
    assert_eq!(bench.simulator.violations(), [""; 0]);
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    let bench = bench();
    let (a, b) = (non_blocking(), non_blocking());
    let (from, to) = (device_memory(64), device_memory(64));
    bench.simulator.block(handle(a));
    fill(a, from, 7, 64);
    wait(b, record(a));
    copy(b, to, from, 64);
    assert_eq!(bench.simulator.pending(handle(b)), 2);
    bench.simulator.unblock(handle(a));
    synchronize(b);
    assert_eq!(fetch(to, 64), [7; 64]);
    assert_eq!(bench.simulator.violations(), [""; 0]);
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    let bench = bench();
    let (blocking, aside) = (stream(0), non_blocking());
    let memory = device_memory(16);
    bench.simulator.block(handle(blocking));
    fill(blocking, memory, 1, 16);
    let legacy = 1 as sys::CUstream;
    fill(legacy, memory, 2, 16);
    let after = record(legacy);
    fill(blocking, memory, 3, 8);
    let free = record(aside);
    synchronize(aside);
    ok(query(free));
    assert_eq!(query(after), CUresult::CUDA_ERROR_NOT_READY);
    bench.simulator.unblock(handle(blocking));
    synchronize(blocking);
    assert_eq!(fetch(memory, 16), [[3; 8], [2; 8]].concat());
    assert_eq!(bench.simulator.violations(), [""; 0]);
}

#[test]
fn the_per_thread_stream_is_another_one_on_each_thread() {
    let bench = bench();
    let id = || {
        let (mut id, mine) = (0, 2 as sys::CUstream);
        // SAFETY: there is a place for the result.
        ok(unsafe { sys::cuStreamGetId(mine, &mut id) });
        id
    };
    let here = id();
    let context = bench.context as usize;
    let there = std::thread::spawn(move || {
        // SAFETY: the context is alive.
        ok(unsafe { sys::cuCtxSetCurrent(context as sys::CUcontext) });
        id()
    });
    assert_ne!(here, there.join().unwrap());
    assert_eq!(here, id());
}

#[test]
fn small_copies_from_pageable_memory_are_not_staged_early() {
    let bench = bench();
    let (stream, memory) = (non_blocking(), device_memory(4));
    let mut source = [1_u8; 4];
    bench.simulator.block(handle(stream));
    // SAFETY: the source outlives the copy.
    ok(unsafe { sys::cuMemcpyHtoDAsync_v2(memory, source.as_ptr().cast(), 4, stream) });
    source.fill(9);
    bench.simulator.unblock(handle(stream));
    synchronize(stream);
    assert_eq!(fetch(memory, 4), [9; 4]);
}

#[test]
fn kernels_compute() {
    let _bench = bench();
    let stream = non_blocking();
    let (mut a, mut out, mut count, mut factor) = (device_memory(16), device_memory(16), 4_u64, 2.5_f32);
    let values = [1.0_f32, 2.0, 3.0, 4.0];
    // SAFETY: the values outlive the copy.
    ok(unsafe { sys::cuMemcpyHtoD_v2(a, values.as_ptr().cast(), 16) });
    let mut arguments =
        [(&raw mut out).cast(), (&raw mut a).cast(), (&raw mut factor).cast(), (&raw mut count).cast()];
    launch(kernel(c"scale_f32"), stream, &mut arguments);
    let mut sum =
        [(&raw mut out).cast(), (&raw mut a).cast(), (&raw mut out).cast(), (&raw mut count).cast()];
    launch(kernel(c"add_f32"), stream, &mut sum);
    synchronize(stream);
    let bytes = fetch(out, 16);
    let result: Vec<f32> =
        bytes.chunks(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(result, [3.5, 7.0, 10.5, 14.0]);
}

#[test]
fn values_are_written_and_waited_for() {
    let _bench = bench();
    let (stream, flag) = (non_blocking(), pinned(16));
    let word = flag.cast::<u64>();
    // SAFETY: the memory is the test's, and so are the addresses.
    unsafe {
        word.write_volatile(0);
        ok(sys::cuStreamWaitValue64_v2(stream, word as u64, 5, 0));
        ok(sys::cuStreamWriteValue64_v2(stream, word.add(1) as u64, 6, 0));
        let event = record(stream);
        assert_eq!(query(event), CUresult::CUDA_ERROR_NOT_READY);
        word.write_volatile(5);
        synchronize(stream);
        assert_eq!(word.add(1).read_volatile(), 6);
    }
}

#[test]
fn pointers_tell_where_they_point() {
    let _bench = bench();
    let address = device_memory(32);
    let mut ordinal = -1;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: there is a place for the result.
    unsafe {
        ok(sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address + 8));
        assert_eq!(ordinal, 0);
        let nowhere = sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, 0x10);
        fails(nowhere, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn the_safe_layer_of_cudarc_runs_on_it() {
    let bench = bench();
    let context = cudarc::driver::CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let numbers = stream.clone_htod(&[1_u32, 2, 3]).unwrap();
    assert_eq!(stream.clone_dtoh(&numbers).unwrap(), [1, 2, 3]);
    drop(numbers);
    context.synchronize().unwrap();
    assert!(bench.simulator.calls("cuCtxSynchronize") > 0);
    assert_eq!(bench.simulator.violations(), [""; 0]);
}
