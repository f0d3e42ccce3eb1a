//! Memory of every kind.

use estafette_devices::{DLDevice, Device, DeviceErrorKind, DeviceType};

use crate::harness::{bench, fill, record, settle};

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
