//! Refusals of a driver: contexts that were reset, devices that do not reach each other, attributes that say
//! no, pools that keep what others need, managed memory that the host may not use now, and every call after
//! its shutdown.

mod harness;

use std::process::Command;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUmemPool_attribute as PoolAttribute};
use cudarc::driver::sys::{CUcontext, CUmemoryPool, CUresult};
use estafette_cuda_sim_client::codes;
use harness::*;

#[test]
fn a_context_that_was_reset_is_gone_for_all_its_users() {
    let bench = bench();
    let (stream, memory) = (non_blocking(), device_memory(8));
    bench.simulator.block(handle(stream));
    fill(stream, memory, 1, 8);
    let end = record(stream);
    let destroyed = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    // SAFETY: handles that were made above, and places for results.
    unsafe {
        ok(sys::cuDevicePrimaryCtxReset_v2(0));
        fails(sys::cuStreamSynchronize(stream), destroyed);
        fails(query(end), destroyed);
        fails(sys::cuMemFree_v2(memory), destroyed);
        fails(sys::cuCtxSynchronize(), destroyed);
        // A thread that does not have it current cannot make it so.
        fails(sys::cuCtxPushCurrent_v2(bench.context), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(bench.simulator.violations(), [""; 0], "no library could know");
        // A library that retains it gets a new one, without what was in it.
        let mut context = std::ptr::null_mut();
        ok(sys::cuDevicePrimaryCtxRetain(&mut context, 0));
        assert_eq!(context, bench.context);
        synchronize(non_blocking());
        fails(sys::cuMemFree_v2(memory), CUresult::CUDA_ERROR_INVALID_VALUE);
        fails(sys::cuStreamQuery(stream), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    assert_eq!(bench.simulator.violations().len(), 1, "the stream is of the old one");
}

#[test]
fn devices_that_do_not_reach_each_other_say_so_and_fault_if_they_try() {
    let bench = bench();
    let there = device_memory(64);
    let mut elsewhere = std::ptr::null_mut();
    let mut possible = 1;
    // SAFETY: places for results; the contexts stay.
    unsafe {
        ok(sys::cuDevicePrimaryCtxRetain(&mut elsewhere, 1));
        ok(sys::cuCtxSetCurrent(elsewhere));
        ok(sys::cuDeviceCanAccessPeer(&mut possible, 1, 0));
        assert_eq!(possible, 1);
        let _ = sys::cuCtxDisablePeerAccess(bench.context);
        ok(sys::cuCtxEnablePeerAccess(bench.context, 0));
    }
    let stream = non_blocking();
    let uses = || {
        let (mut memory, mut count, mut value) = (there, 64_u64, 1_u32);
        let mut arguments = [(&raw mut memory).cast(), (&raw mut count).cast(), (&raw mut value).cast()];
        launch(kernel(c"fill_u8"), stream, &mut arguments);
        // SAFETY: the stream is alive.
        unsafe { sys::cuStreamSynchronize(stream) }
    };
    ok(uses());
    bench.simulator.peer_access(false);
    // SAFETY: as above.
    unsafe {
        ok(sys::cuDeviceCanAccessPeer(&mut possible, 1, 0));
        assert_eq!(possible, 0);
        ok(sys::cuCtxDisablePeerAccess(bench.context));
        fails(sys::cuCtxEnablePeerAccess(bench.context, 0), CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    fails(uses(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(bench.simulator.violations().len(), 1);
}

#[test]
fn an_attribute_says_what_was_scripted() {
    let bench = bench();
    let ask = || {
        let mut value = -1;
        let attribute = Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1;
        // SAFETY: there is a place for the result.
        ok(unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, 0) });
        value
    };
    bench.simulator.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1 as i32, 0);
    assert_eq!(ask(), 0);
}

#[test]
fn what_an_attribute_denies_is_not_supported() {
    let bench = bench();
    let (stream, word) = (non_blocking(), pinned(8) as u64);
    let unsupported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    bench.simulator.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS as i32, 0);
    bench.simulator.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED as i32, 0);
    // SAFETY: the stream and the word are alive, and there is a place for the result.
    unsafe {
        fails(sys::cuStreamWriteValue64_v2(stream, word, 1, 0), unsupported);
        fails(sys::cuStreamWaitValue64_v2(stream, word, 1, 0), unsupported);
        ok(sys::cuStreamWriteValue32_v2(stream, word, 1, 0));
        let (mut pool, properties) = (std::ptr::null_mut(), std::mem::zeroed());
        fails(sys::cuMemPoolCreate(&mut pool, &properties), unsupported);
    }
    bench.simulator.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1 as i32, 0);
    // SAFETY: as above.
    fails(unsafe { sys::cuStreamWaitValue32_v2(stream, word, 1, 0) }, unsupported);
    synchronize(stream);
}

/// A pool of the first device that keeps `threshold` bytes.
fn pool(threshold: u64) -> CUmemoryPool {
    let (mut pool, mut threshold) = (std::ptr::null_mut(), threshold);
    let attribute = PoolAttribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: places for the result and the value; zeros are the first device's own kind of memory.
    unsafe {
        let mut properties: sys::CUmemPoolProps = std::mem::zeroed();
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        ok(sys::cuMemPoolCreate(&mut pool, &properties));
        ok(sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()));
    }
    pool
}

#[test]
fn what_a_pool_keeps_others_lack_until_it_is_trimmed() {
    const MIB: u64 = 1 << 20;
    let bench = bench();
    let (pool, stream, mut memory) = (pool(4 * MIB), non_blocking(), 0);
    let used = bench.simulator.used(0);
    bench.simulator.capacity(used + 10 * MIB);
    let allocate = |bytes: u64| {
        let mut memory = 0;
        // SAFETY: there is a place for the result.
        (unsafe { sys::cuMemAlloc_v2(&mut memory, bytes as usize) }, memory)
    };
    // SAFETY: the pool and the stream are alive, and nothing uses the memory.
    unsafe {
        ok(sys::cuMemAllocFromPoolAsync(&mut memory, 8 << 20, pool, stream));
        ok(sys::cuMemFreeAsync(memory, stream));
    }
    assert_eq!(bench.simulator.kept(0), 8 * MIB, "no thread has synchronized");
    fails(allocate(4 * MIB).0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    synchronize(stream);
    assert_eq!(bench.simulator.kept(0), 4 * MIB, "the threshold");
    let (code, memory) = allocate(4 * MIB);
    ok(code);
    fails(allocate(4 * MIB).0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    // SAFETY: the pool is alive, and nothing uses the memory.
    unsafe {
        ok(sys::cuMemPoolTrimTo(pool, 0));
        assert_eq!(bench.simulator.kept(0), 0);
        let (code, second) = allocate(4 * MIB);
        ok(code);
        ok(sys::cuMemFree_v2(memory));
        ok(sys::cuMemFree_v2(second));
        ok(sys::cuMemPoolDestroy(pool));
    }
    assert_eq!(bench.simulator.used(0), used);
}

#[test]
fn the_host_leaves_managed_memory_alone_while_a_device_without_concurrent_access_works() {
    let bench = bench();
    let (stream, mut managed, pinned) = (non_blocking(), 0, pinned(8) as u64);
    // SAFETY: there is a place for the result; 1 attaches the memory to all streams.
    ok(unsafe { sys::cuMemAllocManaged(&mut managed, 8, 1) });
    let memory = device_memory(8);
    let used_while_busy = |address| {
        bench.simulator.block(handle(stream));
        fill(stream, memory, 1, 8);
        bench.simulator.host_uses(address);
        bench.simulator.unblock(handle(stream));
        synchronize(stream);
        bench.simulator.host_uses(address);
        bench.simulator.violations().len()
    };
    assert_eq!(used_while_busy(managed), 0);
    bench.simulator.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS as i32, 0);
    assert_eq!(used_while_busy(pinned), 0);
    assert_eq!(used_while_busy(managed), 1);
}

/// Says to a test that it runs in a process of its own, and what to do there.
const ROLE: &str = "CUDA_SIM_TEST_ROLE";

/// Runs a test of this file in a process of its own.
fn in_a_process(test: &str, role: &str) -> std::process::Output {
    let mut command = Command::new(std::env::current_exe().expect("the test is a program"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.output().expect("the test can be started again")
}

#[test]
fn a_call_after_the_shutdown_ends_the_process() {
    match std::env::var(ROLE).as_deref() {
        Err(_) => {
            let test = "a_call_after_the_shutdown_ends_the_process";
            let quiet = in_a_process(test, "quiet");
            assert_eq!(quiet.status.code(), Some(0), "{quiet:?}");
            let calling = in_a_process(test, "calling");
            assert_eq!(calling.status.code(), Some(86), "{calling:?}");
            let text = String::from_utf8_lossy(&calling.stderr).into_owned();
            assert!(text.contains("cuEventQuery was called after its shutdown began"), "{text}");
        }
        Ok(role) => {
            let bench = bench();
            let (context, event) = (bench.context as usize, event() as usize);
            if role == "calling" {
                std::thread::spawn(move || {
                    // SAFETY: the context stays, which is all that the driver asks before its shutdown.
                    unsafe { ok(sys::cuCtxSetCurrent(context as CUcontext)) };
                    loop {
                        query(event as sys::CUevent);
                    }
                });
                while bench.simulator.calls("cuEventQuery") == 0 {
                    std::thread::yield_now();
                }
            }
            std::process::exit(0);
        }
    }
}

#[test]
fn a_server_of_mps_that_is_not_there_fails_the_start_and_one_that_goes_fails_the_context() {
    match std::env::var(ROLE).as_deref() {
        Err(_) => {
            let test =
                "a_server_of_mps_that_is_not_there_fails_the_start_and_one_that_goes_fails_the_context";
            let child = in_a_process(test, "first");
            assert_eq!(child.status.code(), Some(0), "{child:?}");
        }
        Ok(_) => {
            let simulator =
                estafette_cuda_sim_client::Simulator::load().expect("the simulator is built with the tests");
            for (code, name) in [
                (codes::MPS_CONNECTION_FAILED, CUresult::CUDA_ERROR_MPS_CONNECTION_FAILED),
                (codes::MPS_RPC_FAILURE, CUresult::CUDA_ERROR_MPS_RPC_FAILURE),
                (codes::MPS_SERVER_NOT_READY, CUresult::CUDA_ERROR_MPS_SERVER_NOT_READY),
                (codes::MPS_MAX_CLIENTS_REACHED, CUresult::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED),
                (codes::MPS_MAX_CONNECTIONS_REACHED, CUresult::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED),
            ] {
                simulator.fail_start(code);
                // SAFETY: asks the driver to start, with places for results.
                unsafe {
                    fails(sys::cuInit(0), name);
                    fails(sys::cuDevicePrimaryCtxRetain(&mut std::ptr::null_mut(), 0), NOT_INITIALIZED);
                }
            }
            let bench = bench();
            let stream = non_blocking();
            bench.simulator.fault(handle(stream), 0, codes::MPS_CLIENT_TERMINATED);
            // SAFETY: the stream is alive.
            let code = unsafe { sys::cuStreamSynchronize(stream) };
            fails(code, CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED);
            std::process::exit(0);
        }
    }
}

const NOT_INITIALIZED: CUresult = CUresult::CUDA_ERROR_NOT_INITIALIZED;
