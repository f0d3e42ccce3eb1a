use crate::DeviceErrorKind;

use super::{Check, Skip, bench::Bench};

/// 64 TiB, more than any device has.
const UNKNOWN_MEMORY: usize = 1 << 46;

pub(super) const CHECKS: &[Check] = &[
    ("allocation: is aligned, sized and of its device", aligned_and_sized),
    ("allocation: of no bytes is fine", no_bytes),
    ("allocation: separate ones do not overlap", separate),
    ("allocation: impossible requests are errors", impossible),
    ("allocation: memory that is to be zero is, also where other memory was freed", zeroed),
    ("allocation: memory that was freed can be had again", freed_memory_returns),
];

fn aligned_and_sized(bench: &Bench<'_>) -> Result<(), Skip> {
    for align in [1, 64, 256] {
        for bytes in [1, 63, 64, 4_097] {
            let memory = bench.device.allocate(bytes, align).expect("a device has room for a few bytes");
            assert_eq!(memory.len(), bytes);
            assert_eq!(memory.ptr().addr().get() % align.max(64), 0, "at least a cache line");
            assert_eq!(memory.device(), bench.device.id());
        }
    }
    Ok(())
}

fn no_bytes(bench: &Bench<'_>) -> Result<(), Skip> {
    let memory = bench.device.allocate(0, 64).expect("nothing is always there");
    assert!(memory.is_empty());
    assert_eq!(memory.ptr().addr().get() % 64, 0);
    let queue = bench.queue();
    bench.copy(&*queue, &memory, &memory);
    assert!(bench.settle(&bench.record(&*queue)).is_ok());
    Ok(())
}

fn separate(bench: &Bench<'_>) -> Result<(), Skip> {
    let queue = bench.queue();
    let memories: Vec<_> = (0..20).map(|_| bench.memory(100)).collect();
    for (value, memory) in memories.iter().enumerate() {
        bench.fill(&*queue, memory, value as u8);
    }
    assert!(bench.settle(&bench.record(&*queue)).is_ok());
    for (value, memory) in memories.iter().enumerate() {
        bench.assert_filled(memory, value as u8);
    }
    Ok(())
}

fn impossible(bench: &Bench<'_>) -> Result<(), Skip> {
    for (bytes, align) in [(8, 0), (8, 3), (usize::MAX, 64)] {
        let error = bench.device.allocate(bytes, align).expect_err("no device can do that");
        assert!(matches!(error.kind(), DeviceErrorKind::Invalid | DeviceErrorKind::OutOfMemory), "{error:?}");
    }
    let bytes = bench.harness.memory_bytes().map_or(UNKNOWN_MEMORY, |whole| 2 * whole);
    let error = bench.device.allocate(bytes, 64).expect_err("that is more than the device has");
    assert_eq!(error.kind(), DeviceErrorKind::OutOfMemory);
    bench.memory(64);
    Ok(())
}

fn zeroed(bench: &Bench<'_>) -> Result<(), Skip> {
    if !bench.device.host_accessible() {
        bench.device.allocate_zeroed(64, 64).expect_err("the host cannot write there");
        return Ok(());
    }
    let queue = bench.queue();
    // Small and large ones come from different places.
    for bytes in [64, 100_000, 5 << 20] {
        for _ in 0..4 {
            let memory = bench.device.allocate_zeroed(bytes, 64).expect("there is room");
            bench.assert_filled(&memory, 0);
            bench.fill(&*queue, &memory, 0xff);
            assert!(bench.settle(&bench.record(&*queue)).is_ok());
        }
    }
    Ok(())
}

fn freed_memory_returns(bench: &Bench<'_>) -> Result<(), Skip> {
    // Three times what the device has.
    let (bytes, rounds) = bench.harness.memory_bytes().map_or((64 << 20, 1_024), |whole| (whole / 8, 24));
    for _ in 0..rounds {
        drop(bench.device.allocate(bytes, 64).expect("the memory before has been freed"));
    }
    Ok(())
}
