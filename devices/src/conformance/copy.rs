use crate::{DeviceErrorKind, host};

use super::{Check, Skip, bench::Bench};

pub(super) const CHECKS: &[Check] = &[
    ("copy: host to device and back, of any size and place", there_and_back),
    ("copy: is ordered like any work of its queue", ordered_like_work),
    ("copy: a queue of another device is refused", foreign_queue),
];

fn there_and_back(bench: &Bench<'_>) -> Result<(), Skip> {
    let queue = bench.queue();
    let whole = bench.memory(8_192);
    for (offset, bytes) in [(0, 0), (0, 1), (1, 3), (63, 130), (5, 4_096), (0, 8_192)] {
        let sent: Vec<u8> = (0..bytes).map(|index| (index * 7 + offset + 1) as u8).collect();
        let mut received = vec![0; bytes];
        // SAFETY: the range is inside of the allocation.
        let device = unsafe { whole.ptr().as_ptr().add(offset) };
        // SAFETY: valid for `bytes`, and settled before either is used again.
        unsafe { bench.device.copy(&*queue, sent.as_ptr(), device, bytes) }.expect("the queue works");
        let arrived = bench.record(&*queue);
        bench.order(&*queue, &arrived);
        // SAFETY: as above.
        unsafe { bench.device.copy(&*queue, device, received.as_mut_ptr(), bytes) }.expect("the queue works");
        assert!(bench.settle(&bench.record(&*queue)).is_ok());
        assert_eq!(sent, received);
    }
    Ok(())
}

fn ordered_like_work(bench: &Bench<'_>) -> Result<(), Skip> {
    let (queue, source, target) = (bench.queue(), bench.memory(512), bench.memory(512));
    for value in 1..=20 {
        bench.fill(&*queue, &source, value);
        bench.order(&*queue, &bench.record(&*queue));
        bench.copy(&*queue, &source, &target);
        bench.order(&*queue, &bench.record(&*queue));
    }
    assert!(bench.settle(&bench.record(&*queue)).is_ok());
    bench.assert_filled(&target, 20);
    Ok(())
}

fn foreign_queue(bench: &Bench<'_>) -> Result<(), Skip> {
    use crate::sim::{SimDevice, SimOptions};
    use crate::{DLDevice, Device};

    let foreign = if bench.device.id() == DLDevice::CPU {
        SimDevice::new(SimOptions::default()).expect("no thread is needed").default_queue()
    } else {
        host::HostDevice::new().default_queue()
    };
    let (source, target) = (bench.memory(64), bench.memory(64));
    // SAFETY: both ranges are valid; nothing else uses them.
    let copied = unsafe { bench.device.copy(&*foreign, source.ptr().as_ptr(), target.ptr().as_ptr(), 64) };
    assert_eq!(copied.expect_err("not its queue").kind(), DeviceErrorKind::Invalid);
    Ok(())
}
