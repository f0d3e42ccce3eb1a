//! Memory of every kind.

use estafette_devices::{DLDevice, Device, DeviceErrorKind, DeviceType};

use cudarc::driver::sys;

use crate::harness::{PATIENCE, bench, block, fill, order, record, settle};

#[test]
fn memory_from_the_pool_is_freed_without_waiting() {
    let bench = bench();
    assert!(bench.device.has_pool() || bench.simulator("the device has no pools").is_none());
    let Some(simulator) = bench.simulator("which calls were made is known of the simulator only") else {
        return;
    };
    let used = simulator.used(bench.device.ordinal() as u32);
    for _ in 0..100 {
        drop(bench.device.allocate(1 << 20, 256).expect("there is room"));
    }
    assert_eq!(simulator.calls("cuMemAlloc_v2"), 0);
    assert_eq!(simulator.calls("cuMemFree_v2"), 0, "it would wait for the device");
    assert_eq!(simulator.calls("cuMemFreeAsync"), 100);
    // The pool's stream carries nothing that could hold it up.
    let deadline = std::time::Instant::now() + crate::harness::PATIENCE;
    while simulator.used(bench.device.ordinal() as u32) > used {
        assert!(std::time::Instant::now() < deadline, "nothing comes back");
    }
    bench.assert_nothing_wrong();
}

#[test]
fn memory_says_where_it_is() {
    let bench = bench();
    let device = &bench.device;
    let plain = device.allocate(64, 64).expect("there is room");
    let pinned = device.allocate_pinned(64, 64).expect("there is room");
    let managed = device.allocate_managed(64, 64).expect("there is room");
    let kinds = [
        (&plain, device.id(), false),
        (&pinned, DLDevice::new(DeviceType::CUDA_HOST, 0), true),
        (&managed, DLDevice::new(DeviceType::CUDA_MANAGED, 0), true),
    ];
    for (memory, id, host) in kinds {
        assert_eq!(memory.device(), id);
        let info = device.pointer_info(memory.ptr().as_ptr()).expect("the driver knows its memory");
        assert_eq!((info.device, info.ordinal), (id, device.ordinal()));
        assert_eq!(device.host_accessible_at(memory.ptr().as_ptr()), host, "{id}");
    }
    let local = [0_u8; 64];
    assert_eq!(device.pointer_info(local.as_ptr()), None);
    assert!(!device.host_accessible());
}

#[test]
fn pinned_and_managed_memory_take_part_in_copies() {
    let bench = bench();
    let queue = bench.queue();
    let plain = bench.memory(256);
    for host in [
        bench.device.allocate_pinned(256, 64).expect("there is room"),
        bench.device.allocate_managed(256, 64).expect("there is room"),
    ] {
        fill(&queue, &host, 3);
        bench.copy(&queue, &host, &plain);
        settle(&record(&queue)).expect("nothing failed");
        bench.assert_filled(&plain, 3);
        // SAFETY: the host reaches it, and nothing is under way.
        let seen = unsafe { std::slice::from_raw_parts(host.ptr().as_ptr(), 256) };
        assert_eq!(seen, [3; 256]);
    }
    bench.assert_nothing_wrong();
}

#[test]
fn what_there_is_no_room_for_is_an_error_and_no_more() {
    let bench = bench();
    let huge = bench.device.allocate(1 << 50, 64).expect_err("a petabyte");
    assert_eq!(huge.kind(), DeviceErrorKind::OutOfMemory);
    assert!(huge.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{huge}");
    assert_eq!(bench.device.allocate(64, 3).expect_err("3").kind(), DeviceErrorKind::Invalid);
    assert_eq!(bench.device.allocate(64, 512).expect_err("512").kind(), DeviceErrorKind::Invalid);
    if let Some(simulator) = bench.simulator("the driver fails allocations as it likes") {
        simulator.capacity(simulator.used(0));
        assert!(bench.device.allocate(64, 64).is_err());
        simulator.capacity(4 << 30);
    }
    assert!(bench.device.allocate(64, 64).is_ok(), "the device is unharmed");
}

/// The pool's stream may share a hardware connection with a stream that another library has blocked for hours.
#[test]
fn allocating_waits_for_nothing_where_the_only_connection_is_blocked_and_uses_come_later() {
    let bench = bench();
    let Some(simulator) = bench.simulator("connections are scripted") else { return };
    if !bench.device.has_pool() {
        return eprintln!("skipped: there is no pool");
    }
    let (stuck, queue) = (bench.queue(), bench.queue());
    simulator.connections(1);
    let blocked = block(&*stuck);
    let (sender, receiver) = std::sync::mpsc::channel();
    let device = std::sync::Arc::clone(&bench.device);
    let allocating = std::thread::spawn(move || {
        let memory = device.allocate(1 << 20, 64).expect("there is room");
        sender.send(memory).expect("the test listens");
    });
    let allocated = receiver.recv_timeout(PATIENCE);
    if allocated.is_err() {
        blocked.release();
        panic!("allocating waits for a stream that it has nothing to do with");
    }
    let memory = allocated.expect("just asked");
    fill(&queue, &memory, 7);
    // A stream that is made later comes after the allocation too.
    let later = bench.queue();
    order(&later, &record(&queue));
    let copy = bench.device.allocate(1 << 20, 64).expect("there is room");
    bench.copy(&later, &memory, &copy);
    let end = record(&later);
    assert!(end.state().is_pending(), "all of it is behind the blocked stream");
    blocked.release();
    settle(&end).expect("nothing failed");
    bench.assert_filled(&copy, 7);
    allocating.join().expect("it has sent what it made");
    bench.assert_nothing_wrong();
}

/// Other libraries of the process need what the pool does not use.
#[test]
fn a_pool_keeps_little_and_gives_it_back_when_memory_runs_out() {
    const MIB: u64 = 1 << 20;
    let bench = bench();
    let Some(simulator) = bench.simulator("only the simulator counts what a pool keeps") else { return };
    if !bench.device.has_pool() {
        return eprintln!("skipped: there is no pool");
    }
    let ordinal = bench.device.ordinal() as u32;
    drop(bench.device.allocate(1 << 30, 64).expect("there is room"));
    // Any library of the process synchronizes now and then.
    let stranger = bench.foreign_stream();
    crate::harness::inside(&bench.device, || {
        // SAFETY: the stream is alive.
        unsafe { crate::harness::assert_ok(sys::cuStreamSynchronize(stranger.raw)) };
    });
    assert!(simulator.kept(ordinal) <= 256 * MIB, "{} MiB", simulator.kept(ordinal) / MIB);
    simulator.fail_allocation(1);
    drop(bench.device.allocate(64, 64).expect("there is room once the pool has given back what it kept"));
    assert_eq!(simulator.calls("cuMemPoolTrimTo"), 1);
    simulator.fail_allocation(1);
    simulator.capacity(simulator.used(ordinal));
    let error = bench.device.allocate(64, 64).expect_err("there is no room");
    assert_eq!(error.kind(), DeviceErrorKind::OutOfMemory);
    bench.assert_nothing_wrong();
}

/// Pinning memory and freeing pinned memory wait for the whole device.
#[test]
fn pinned_memory_is_used_again_and_freeing_it_waits_for_nothing() {
    let bench = bench();
    let Some(simulator) = bench.simulator("calls are counted by the simulator only") else { return };
    let queue = bench.queue();
    drop(bench.device.allocate_pinned(100_000, 64).expect("there is room"));
    let blocked = block(&*queue);
    let before = simulator.calls("cuMemHostAlloc");
    for bytes in [100_000, 70_000, 131_072] {
        drop(bench.device.allocate_pinned(bytes, 64).expect("there is room"));
    }
    assert_eq!(simulator.calls("cuMemHostAlloc"), before, "of one size in powers of two");
    assert_eq!(simulator.calls("cuMemFreeHost"), 0);
    blocked.release();
    settle(&record(&queue)).expect("nothing failed");
    bench.assert_nothing_wrong();
}
