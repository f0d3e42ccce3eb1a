//! Memory of every kind.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use cudarc::driver::sys;
use estafette_devices::cuda::CudaDevice;
use estafette_devices::{DLDevice, Device, DeviceErrorKind, DeviceType, Viewer, table};
use estafette_sync::sync::Mutex;

use crate::harness::{
    MOMENT, PATIENCE, assert_ok, bench, block, fill, inside, intact_devices, record, settle,
};

/// Limit of what is kept of each kind of memory.
const KEPT: u64 = 256 << 20;

/// A device whose memory no other test uses.
fn apart(number: usize) -> Arc<CudaDevice> {
    let devices = intact_devices();
    Arc::clone(&devices[devices.len() - 1 - number])
}

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

/// The pool's stream may share a hardware connection with a stream that is blocked for any time. Then the
/// streams that use the memory wait, and no thread does.
#[test]
fn an_allocation_behind_a_blocked_connection_holds_up_no_thread() {
    let bench = bench();
    let Some(simulator) = bench.simulator("connections are the driver's own business") else { return };
    let (blocked, other) = (bench.queue(), bench.queue());
    let stranger = bench.foreign_stream();
    let held = block(&*blocked);
    simulator.connections(1);
    let (sender, receiver) = mpsc::channel();
    let device = Arc::clone(&bench.device);
    thread::spawn(move || {
        let memory = [(); 3].map(|()| device.allocate(64, 64).expect("there is room"));
        sender.send(memory).expect("the test listens");
    });
    let [first, second, third] = receiver.recv_timeout(PATIENCE).expect("the call does not wait");
    fill(&other, &first, 7);
    let ours = record(&other);
    // A queue that is made later, and a stream of another library.
    let later = bench.queue();
    fill(&later, &second, 8);
    let new = record(&later);
    // SAFETY: the stream lives to the end of the test.
    let acquired = unsafe { bench.device.foreign_queue(stranger.handle()) }.expect("it is of the device");
    stranger.fill(&third, 9);
    let theirs = acquired.record().expect("it works");
    for fence in [&ours, &new, &theirs] {
        assert!(fence.wait_timeout(Some(MOMENT)).is_none(), "its stream waits for the memory");
    }
    held.release();
    for fence in [&ours, &new, &theirs] {
        settle(fence).expect("nothing failed");
    }
    bench.assert_filled(&first, 7);
    bench.assert_filled(&second, 8);
    bench.assert_filled(&third, 9);
    assert_eq!(simulator.calls("cuStreamSynchronize"), 0);
    bench.assert_nothing_wrong();
}

#[test]
fn a_pool_keeps_little_of_what_was_released() {
    let bench = bench();
    let Some(simulator) = bench.simulator("what a pool keeps is known of the simulator only") else { return };
    let device = apart(0);
    let pieces = [(); 16].map(|()| device.allocate(64 << 20, 64).expect("there is room"));
    assert_eq!(simulator.kept(device.ordinal() as u32), 0);
    drop(pieces);
    // Memory beyond the threshold goes when a thread synchronizes, as other libraries make theirs do.
    // SAFETY: a call without arguments.
    inside(&device, || assert_ok(unsafe { sys::cuCtxSynchronize() }));
    assert_eq!(simulator.kept(device.ordinal() as u32), KEPT);
    simulator.forget_calls();
    bench.assert_nothing_wrong();
}

#[test]
fn what_a_pool_keeps_is_released_before_an_allocation_fails() {
    let bench = bench();
    let Some(simulator) = bench.simulator("the driver fails allocations as it likes") else { return };
    simulator.fail_allocation(1);
    bench.device.allocate(64, 64).expect("there was room after all");
    assert_eq!(simulator.calls("cuMemPoolTrimTo"), 1);
    bench.assert_nothing_wrong();
}

/// Memory that a stream frees is its pool's until the stream gets there.
#[test]
fn memory_that_a_pool_gets_back_late_makes_room_for_memory_of_other_kinds() {
    const BYTES: usize = 64 << 20;
    let bench = bench();
    let Some(simulator) = bench.simulator("what a device has is known of the simulator only") else { return };
    type Allocate = fn(&CudaDevice) -> estafette_devices::Allocation;
    let managed: Allocate = |device| device.allocate_managed(BYTES, 64).expect("there is room");
    let shared: Allocate =
        |device| device.shared_memory().expect("there is some").allocate(BYTES, 64).expect("there is room");
    for (number, allocate, made) in [(6, managed, "cuMemAllocManaged"), (7, shared, "cuMemCreate")] {
        let device = apart(number);
        let queue = device.queue().expect("it works");
        // The next piece is no larger than what is there, and larger than what is left.
        simulator.capacity(simulator.used(device.ordinal() as u32) + BYTES as u64 * 3 / 2);
        let memory = device.allocate(BYTES, 64).expect("there is room");
        let blocked = block(&*queue);
        simulator.connections(1);
        drop(memory);
        let other = Arc::clone(&device);
        let before = simulator.calls(made);
        let allocated = thread::spawn(move || allocate(&other));
        let deadline = Instant::now() + PATIENCE;
        while simulator.calls(made) == before {
            assert!(Instant::now() < deadline, "there is no room yet");
            thread::yield_now();
        }
        thread::sleep(MOMENT);
        blocked.release();
        drop(allocated.join().expect("the pool has released it"));
        simulator.connections(0);
    }
    bench.assert_nothing_wrong();
}

/// Freeing pinned or managed memory waits for the device, so a little is kept and handed out again.
#[test]
fn pinned_and_managed_memory_is_kept_up_to_a_limit() {
    let bench = bench();
    let Some(simulator) = bench.simulator("which calls were made is known of the simulator only") else {
        return;
    };
    type Allocate = fn(&CudaDevice, usize) -> estafette_devices::Allocation;
    let pinned: Allocate = |device, bytes| device.allocate_pinned(bytes, 64).expect("there is room");
    let managed: Allocate = |device, bytes| device.allocate_managed(bytes, 64).expect("there is room");
    let device = apart(1);
    for (allocate, made, freed) in
        [(pinned, "cuMemHostAlloc", "cuMemFreeHost"), (managed, "cuMemAllocManaged", "cuMemFree_v2")]
    {
        let calls = || (simulator.calls(made), simulator.calls(freed));
        simulator.forget_calls();
        drop([(); 6].map(|()| allocate(&device, 64 << 20)));
        assert_eq!(calls(), (6, 2), "four are kept");
        drop([(); 4].map(|()| allocate(&device, (64 << 20) - 1)));
        assert_eq!(calls(), (6, 2), "and handed out again");
        drop(allocate(&device, (64 << 20) + 1));
        assert_eq!(calls(), (7, 3), "a large piece is not kept");
    }
    bench.assert_nothing_wrong();
}

#[test]
fn memory_of_another_device_is_accessible_once_the_two_are_peers() {
    let bench = bench();
    if bench.simulator("which devices are peers depends on the machine").is_none() {
        return;
    }
    let (device, other) = (apart(2), apart(3));
    let [own, theirs] = [&device, &other].map(|device| device.allocate(64, 64).expect("there is room"));
    let local = [0_u8; 64];
    assert!(device.can_access(own.ptr().as_ptr()));
    assert!(!device.can_access(theirs.ptr().as_ptr()));
    assert!(!device.can_access(local.as_ptr()), "the driver knows nothing of it");
    let queue = device.queue().expect("it works");
    // SAFETY: both live until the copy is settled.
    unsafe { device.copy(&*queue, theirs.ptr().as_ptr(), own.ptr().as_ptr(), 64) }.expect("it takes work");
    settle(&record(&queue)).expect("nothing failed");
    assert!(device.can_access(theirs.ptr().as_ptr()), "the copy has made them peers");
    assert!(!other.can_access(own.ptr().as_ptr()), "in one direction");
    bench.assert_nothing_wrong();
}

/// A copy asks the driver where both its ends are until it has seen all devices.
#[test]
fn a_copy_within_a_device_asks_little_about_its_memory() {
    let bench = bench();
    let Some(simulator) = bench.simulator("calls are counted by the simulator only") else { return };
    let queue = bench.queue();
    let [from, to] = [(); 2].map(|()| bench.memory(64));
    simulator.forget_calls();
    bench.copy(&queue, &from, &to);
    settle(&record(&queue)).expect("nothing failed");
    assert_eq!(simulator.calls("cuPointerGetAttribute"), 2, "one for each end");
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

/// The segments that are over.
#[derive(Default)]
struct Told(Mutex<Vec<u64>>);

impl Viewer for Told {
    fn is_over(&self, number: u64) {
        self.0.lock().push(number);
    }
}

#[test]
fn memory_for_other_processes_is_divided_and_another_mapping_of_it_has_the_same_bytes() {
    let bench = bench();
    let device = &bench.device;
    let Some(shared) = device.shared_memory() else { return eprintln!("skipped: the driver has none") };
    let queue = bench.queue();
    let [first, second] = [(); 2].map(|()| shared.allocate(1_000, 64).expect("there is room"));
    let (segment, at) = shared.find(first.ptr().as_ptr(), 1_000).expect("it is there");
    let (same, other) = shared.find(second.ptr().as_ptr(), 1_000).expect("it is there");
    assert!(Arc::ptr_eq(&segment, &same) && at.abs_diff(other) >= 1_000);
    assert_eq!(table::identified(segment.identity()).expect("this device").id(), device.id());
    fill(&queue, &first, 7);
    settle(&record(&queue)).expect("nothing failed");
    let opened = shared.open(segment.descriptor(), segment.memory().len()).expect("its own memory");
    let (target, source) = (bench.memory(1_000), opened.ptr().as_ptr().wrapping_add(at));
    // SAFETY: all of it lives until the copy is settled.
    unsafe { device.copy(&*queue, source, target.ptr().as_ptr(), 1_000) }.expect("it takes work");
    settle(&record(&queue)).expect("nothing failed");
    bench.assert_filled(&target, 7);
    let told = Arc::new(Told::default());
    let viewer: Arc<dyn Viewer> = told.clone();
    segment.at_end(Arc::downgrade(&viewer));
    let (number, larger) = (segment.number(), 4 * segment.memory().len());
    drop((opened, first, second, segment, same));
    assert!(told.0.lock().is_empty(), "the largest segment that is empty stays");
    drop(shared.allocate(larger, 256).expect("there is room"));
    assert_eq!(*told.0.lock(), [number], "a larger one is");
    bench.assert_nothing_wrong();
}

#[test]
fn what_is_no_memory_of_another_process_is_refused_and_breaks_nothing() {
    let bench = bench();
    let Some(shared) = bench.device.shared_memory() else { return eprintln!("skipped: the driver has none") };
    let file = File::open("/proc/self/maps").expect("a file of every process");
    let block = shared.allocate(64, 64).expect("there is room");
    let (segment, _) = shared.find(block.ptr().as_ptr(), 64).expect("it is there");
    let longer = 2 * segment.memory().len();
    for (descriptor, bytes) in
        [(&OwnedFd::from(file), 2 << 20), (segment.descriptor(), longer), (segment.descriptor(), 0)]
    {
        let refused = shared.open(descriptor, bytes).expect_err("it is not that");
        assert_eq!(refused.kind(), DeviceErrorKind::Invalid);
        assert!(refused.message().starts_with("cannot open memory of another process on cuda:"), "{refused}");
    }
    assert_eq!(shared.allocate(64, 3).expect_err("3").kind(), DeviceErrorKind::Invalid);
    for bytes in [1 << 50, usize::MAX] {
        let huge = shared.allocate(bytes, 64).expect_err("more than there is");
        assert_eq!(huge.kind(), DeviceErrorKind::OutOfMemory, "{bytes}");
    }
    assert!(bench.device.fault().is_none());
    bench.assert_nothing_wrong();
}

#[test]
fn a_copy_from_another_device_reaches_memory_for_other_processes() {
    let bench = bench();
    if bench.simulator("which devices are peers depends on the machine").is_none() {
        return;
    }
    let (device, other) = (apart(4), apart(5));
    let shared = other.shared_memory().expect("the simulator has it");
    let (before, own) =
        (shared.allocate(64, 64).expect("there is room"), device.allocate(64, 64).expect("there is room"));
    let queue = device.queue().expect("it works");
    fill(&queue, &own, 3);
    let copy = |target: &estafette_devices::Allocation| {
        // SAFETY: both live until the copy is settled.
        unsafe { device.copy(&*queue, own.ptr().as_ptr(), target.ptr().as_ptr(), 64) }
            .expect("it takes work");
        settle(&record(&queue)).expect("nothing failed");
    };
    copy(&before);
    // In a segment that is made once the two are peers.
    copy(&shared.allocate(100 << 20, 64).expect("there is room"));
    bench.assert_nothing_wrong();
}
