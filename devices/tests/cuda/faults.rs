//! A fault breaks all of its context. Only a simulator can be broken and go on.

use std::ptr;

use estafette_devices::{Device, DeviceErrorKind, FenceState, Queue, Reactor};

use cudarc::driver::sys;

use crate::harness::{
    ForeignStream, PATIENCE, assert_ok, bench, block, break_next, fill, hold, inside, intact_devices, order,
    record, settle,
};

const OUT_OF_MEMORY: i64 = 2;
const ILLEGAL_ADDRESS: i64 = 700;
const WHY: &str = "a fault ends a process's use of a GPU for good";

/// Successors that were issued before the fault was observed fail with its cause, on other streams too.
#[test]
fn a_fault_is_seen_after_its_successors_were_issued() {
    let bench = bench();
    let Some(simulator) = bench.simulator(WHY) else { return };
    let (broken, waiting, aside) = (bench.queue(), bench.queue(), bench.queue());
    let [memory, copy] = [(); 2].map(|()| bench.memory(64));
    let blocked = block(&*broken);
    break_next(simulator, &broken);
    fill(&broken, &memory, 1);
    let faulty = record(&broken);
    order(&waiting, &faulty);
    bench.copy(&waiting, &memory, &copy);
    let successor = record(&waiting);
    let aside_blocked = block(&*aside);
    let unrelated = record(&aside);
    blocked.release();
    let root = settle(&faulty).expect_err("its work failed");
    assert_eq!((root.kind(), root.code()), (DeviceErrorKind::Fault, Some(ILLEGAL_ADDRESS)));
    assert!(root.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{root}");
    for fence in [&successor, &unrelated, &faulty] {
        let error = settle(fence).expect_err("the context is broken");
        assert!(error.same_root(&root), "{error} is not {root}");
    }
    assert!(broken.record().is_err_and(|error| error.same_root(&root)));
    assert!(bench.device.create_queue().is_err_and(|error| error.same_root(&root)));
    assert!(bench.device.allocate(64, 64).is_err_and(|error| error.same_root(&root)));
    assert!(bench.device.fault().is_some_and(|error| error.same_root(&root)));
    aside_blocked.release();
    bench.assert_nothing_wrong();
}

/// Work from before the fault that was seen done stays done; nothing after it is.
#[test]
fn a_fault_in_the_middle_of_a_chain() {
    let bench = bench();
    let Some(simulator) = bench.simulator(WHY) else { return };
    let (first, second) = (bench.queue(), bench.queue());
    let memory = bench.memory(64);
    fill(&first, &memory, 1);
    let before = record(&first);
    settle(&before).expect("nothing failed yet");
    let blocked = block(&*first);
    fill(&first, &memory, 2);
    let earlier = record(&first);
    break_next(simulator, &first);
    fill(&first, &memory, 3);
    let middle = record(&first);
    order(&second, &middle);
    fill(&second, &memory, 4);
    let crossed = record(&second);
    order(&first, &crossed);
    fill(&first, &memory, 5);
    let last = record(&first);
    let (sender, receiver) = std::sync::mpsc::channel();
    Reactor::global().when_settled([&middle, &last], move |outcome| {
        sender.send(outcome).expect("the test listens");
    });
    blocked.release();
    let told = receiver.recv_timeout(PATIENCE).expect("no thread hangs").expect_err("the chain broke");
    for fence in [&middle, &crossed, &last] {
        let FenceState::Failed(error) = fence.state() else { panic!("{fence:?} cannot be done") };
        assert!(error.same_root(&told));
        // As often as it is asked.
        assert!(matches!(fence.state(), FenceState::Failed(again) if again.same_root(&error)));
    }
    assert!(before.is_done());
    // This fence was not queried before: it may be known to be done, or lost with the rest, and stays what it
    // is.
    let known = matches!(settle(&earlier), Ok(()));
    assert_eq!(known, earlier.is_done());
}

/// Memory that broken work may still write to is leaked, never used again.
#[test]
fn memory_of_a_broken_device_is_leaked_and_counted() {
    let bench = bench();
    let Some(simulator) = bench.simulator(WHY) else { return };
    let queue = bench.queue();
    let (memory, pinned) = (bench.memory(640), bench.device.allocate_pinned(64, 64).expect("there is room"));
    let blocked = block(&*queue);
    break_next(simulator, &queue);
    fill(&queue, &memory, 1);
    blocked.release();
    assert!(settle(&record(&queue)).is_err());
    let freed = ["cuMemFreeAsync", "cuMemFree_v2", "cuMemFreeHost"].map(|function| simulator.calls(function));
    drop((memory, pinned));
    let counters = bench.device.counters();
    assert_eq!((counters.leaked_allocations, counters.leaked_bytes), (2, 704));
    let after = ["cuMemFreeAsync", "cuMemFree_v2", "cuMemFreeHost"].map(|function| simulator.calls(function));
    assert_eq!(freed, after);
}

/// A queue of a sound device that waits for work of a broken one would wait for ever.
#[test]
fn a_queue_of_another_device_that_waits_for_a_broken_one_fails() {
    let bench = bench();
    let Some(simulator) = bench.simulator(WHY) else { return };
    let Some(other) = bench.another_device() else { return };
    let [there, behind, free] = [(); 3].map(|()| other.queue().expect("it works"));
    let (broken, stranger) = (bench.queue(), ForeignStream::new(&other));
    // SAFETY: the stream lives to the end of the test.
    let foreign = unsafe { other.foreign(stranger.handle()) }.expect("it is of the device");
    let memory = bench.memory(64);
    let blocked = block(&*broken);
    break_next(simulator, &broken);
    fill(&broken, &memory, 1);
    let faulty = record(&broken);
    order(&there, &faulty);
    let dependent = record(&there);
    order(&behind, &dependent);
    order(&foreign, &dependent);
    let fences = [dependent, record(&behind), record(&foreign)];
    blocked.release();
    let root = settle(&faulty).expect_err("its work failed");
    for fence in fences {
        assert!(settle(&fence).is_err_and(|error| error.same_root(&root)), "{fence:?}");
    }
    assert!(other.fault().is_none(), "its own context is sound");
    settle(&record(&free)).expect("and so are its other queues");
}

/// The same where others enqueue on both streams, and on a third behind them.
#[test]
fn a_foreign_stream_that_waits_for_one_of_a_broken_device_fails() {
    let bench = bench();
    let Some(simulator) = bench.simulator(WHY) else { return };
    let Some(other) = bench.another_device() else { return };
    let broken = bench.queue();
    let strangers = [&bench.device, &other, &other].map(|device| (device, ForeignStream::new(device)));
    // SAFETY: the streams live to the end of the test.
    let [there, near, far] = [0, 1, 2].map(|at| unsafe {
        let (device, stream) = &strangers[at];
        device.foreign(stream.handle()).expect("it is of the device")
    });
    let memory = bench.memory(64);
    let blocked = block(&*broken);
    break_next(simulator, &broken);
    fill(&broken, &memory, 1);
    let faulty = record(&broken);
    order(&there, &faulty);
    order(&near, &record(&there));
    let direct = record(&near);
    order(&far, &direct);
    let fences = [direct, record(&far)];
    blocked.release();
    let root = settle(&faulty).expect_err("its work failed");
    for fence in fences {
        assert!(settle(&fence).is_err_and(|error| error.same_root(&root)), "{fence:?}");
    }
    assert!(other.fault().is_none(), "its own context is sound");
}

/// Without a host wait, the host finds the fault by querying what is pending.
#[test]
fn whoever_asks_again_and_again_finds_the_fault() {
    let bench = bench();
    let Some(simulator) = bench.simulator(WHY) else { return };
    let queue = bench.queue();
    let memory = bench.memory(64);
    let blocked = block(&*queue);
    fill(&queue, &memory, 1);
    let fence = record(&queue);
    assert!(fence.state().is_pending(), "and a number is on its way");
    break_next(simulator, &queue);
    fill(&queue, &memory, 2);
    simulator.fault_device(bench.device.ordinal() as u32, 719);
    let deadline = std::time::Instant::now() + PATIENCE;
    let error = loop {
        match fence.state() {
            FenceState::Failed(error) => break error,
            FenceState::Done => panic!("it was held back"),
            FenceState::Pending => assert!(std::time::Instant::now() < deadline, "the fault is never seen"),
        }
    };
    assert_eq!(error.code(), Some(719));
    blocked.release();
}

/// An allocation whose order cannot be kept is released, and another device's fault is not its own.
#[test]
fn an_allocation_is_neither_lost_nor_refused_beside_a_broken_device() {
    let bench = bench();
    let Some(simulator) = bench.simulator(WHY) else { return };
    let Some(other) = bench.another_device() else { return };
    if !bench.device.has_pool() {
        eprintln!("skipped: without a pool each release waits for the device");
        return;
    }
    let queue = bench.queue();
    let blocked = block(&*queue);
    simulator.connections(1);
    let ordinal = bench.device.ordinal() as u32;
    let used = simulator.used(ordinal);
    simulator.fail_call("cuEventRecord", OUT_OF_MEMORY as i32);
    let refused = bench.device.allocate(64, 64).expect_err("no queue could wait for it");
    assert_eq!(refused.code(), Some(OUT_OF_MEMORY));
    simulator.fault_device(other.ordinal() as u32, 719);
    let memory = bench.device.allocate(64, 64).expect("its own device is sound");
    assert!(other.fault().is_some() && bench.device.fault().is_none());
    blocked.release();
    drop(memory);
    settle(&record(&queue)).expect("nothing of it failed");
    drop(bench.memory(64));
    assert_eq!(simulator.used(ordinal), used);
    bench.assert_nothing_wrong();
}

/// A context that turns out to be broken while the last stream of it is dropped.
#[test]
fn a_wait_that_drops_what_was_waited_for_may_find_a_fault() {
    let bench = bench();
    if bench.simulator(WHY).is_none() {
        return;
    }
    let Some(other) = bench.another_device() else { return };
    let first = bench.queue();
    let (waiting, aside) = (other.queue().expect("it works"), other.queue().expect("it works"));
    let blocked = block(&*first);
    let fence = record(&first);
    order(&waiting, &fence);
    blocked.release();
    settle(&fence).expect("nothing failed");
    drop((first, fence));
    let third = intact_devices().into_iter().find(|device| device.ordinal() > other.ordinal());
    let (sender, receiver) = std::sync::mpsc::channel();
    let unrelated = third.expect("there are more").queue().expect("it works");
    let blocked = block(&*unrelated);
    let pending = record(&unrelated);
    // SAFETY: the device is there, and nothing of it is used afterwards.
    unsafe { assert_ok(sys::cuDevicePrimaryCtxReset_v2(bench.device.ordinal())) };
    let after = pending.clone();
    std::thread::spawn(move || sender.send(waiting.order_after(&after)).expect("the test listens"));
    receiver.recv_timeout(PATIENCE).expect("the thread does not wait for itself").expect("both are sound");
    assert!(bench.device.fault().is_some(), "and the fault was found");
    blocked.release();
    settle(&record(&aside)).expect("nothing of it failed");
}

/// Work goes on after an error that breaks no context, so its memory must not be released.
#[test]
fn work_that_can_no_longer_be_observed_has_a_fault() {
    let bench = bench();
    let Some(simulator) = bench.simulator("a driver refuses no call on request") else { return };
    let stranger = bench.foreign_stream();
    // SAFETY: the stream lives to the end of the test.
    let foreign = unsafe { bench.device.foreign(stranger.handle()) }.expect("it is of the device");
    let mark = if bench.device.counts() { "cuStreamWriteValue64_v2" } else { "cuEventRecord" };
    for (function, queue) in
        [("cuStreamQuery", bench.queue()), (mark, bench.queue()), ("cuEventQuery", foreign)]
    {
        let memory = bench.memory(64);
        let blocked = hold(&bench.device, ptr::with_exposed_provenance_mut(queue.native()));
        fill(&queue, &memory, 1);
        let fence = record(&queue);
        simulator.fail_call(function, OUT_OF_MEMORY as i32);
        let FenceState::Failed(error) = fence.state() else { panic!("{function} was refused") };
        assert_eq!((error.kind(), error.code()), (DeviceErrorKind::Fault, Some(OUT_OF_MEMORY)), "{function}");
        assert!(error.message().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
        assert!(matches!(fence.state(), FenceState::Failed(again) if again.same_root(&error)));
        blocked.release();
        let stream = ptr::with_exposed_provenance_mut(queue.native());
        // SAFETY: a live stream.
        inside(&bench.device, || unsafe { assert_ok(sys::cuStreamSynchronize(stream)) });
    }
    assert!(bench.device.fault().is_none(), "the device is sound");
    settle(&record(&bench.queue())).expect("and so are its other queues");
    bench.assert_nothing_wrong();
}

/// Another library resets the device without a word to the engine: that is a fault of the device.
#[test]
fn a_context_that_another_library_resets_fails_all_that_was_under_way_and_all_that_comes() {
    let bench = bench();
    if bench.simulator(WHY).is_none() {
        return;
    }
    let (queue, waiting) = (bench.queue(), bench.queue());
    let memory = bench.memory(64);
    let blocked = block(&*queue);
    fill(&queue, &memory, 1);
    let pending = record(&queue);
    order(&waiting, &pending);
    let behind = record(&waiting);
    // SAFETY: the device is there. That nothing of it is used afterwards is what the test looks at.
    unsafe { assert_ok(sys::cuDevicePrimaryCtxReset_v2(bench.device.ordinal())) };
    blocked.release();
    let root = settle(&pending).expect_err("its stream is gone");
    assert_eq!(root.kind(), DeviceErrorKind::Fault);
    // `CUDA_ERROR_INVALID_CONTEXT` or `CUDA_ERROR_CONTEXT_IS_DESTROYED`, by the call that met it first.
    assert!(matches!(root.code(), Some(201 | 709)), "{root}");
    assert!(settle(&behind).is_err_and(|error| error.same_root(&root)));
    assert!(queue.record().is_err_and(|error| error.same_root(&root)));
    assert!(bench.device.create_queue().is_err_and(|error| error.same_root(&root)));
    assert!(bench.device.allocate(64, 64).is_err_and(|error| error.same_root(&root)));
    drop((queue, waiting, memory));
    bench.assert_nothing_wrong();
}

/// A process under MPS whose server ends it, or is gone.
#[test]
fn a_client_that_its_server_ends_has_a_fault_by_the_drivers_name() {
    for (code, name) in [(810, "CUDA_ERROR_MPS_CLIENT_TERMINATED"), (806, "CUDA_ERROR_MPS_RPC_FAILURE")] {
        let bench = bench();
        let Some(simulator) = bench.simulator(WHY) else { return };
        let queue = bench.queue();
        let memory = bench.memory(64);
        let blocked = block(&*queue);
        fill(&queue, &memory, 1);
        let pending = record(&queue);
        simulator.fault(queue.native(), 0, code);
        blocked.release();
        let root = settle(&pending).expect_err("the context is broken");
        assert_eq!((root.kind(), root.code()), (DeviceErrorKind::Fault, Some(code.into())));
        assert!(root.to_string().contains(name), "{root}");
        assert!(bench.device.fault().is_some_and(|error| error.same_root(&root)));
        bench.assert_nothing_wrong();
    }
}
