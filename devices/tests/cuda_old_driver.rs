//! A driver that lacks whatever came later than the rest: features are missing, the order is kept and nothing
//! panics.

#[path = "cuda/faults.rs"]
mod faults;
#[path = "cuda/harness.rs"]
#[allow(dead_code, reason = "not every test of the driver is here")]
mod harness;
#[path = "cuda/ordering.rs"]
mod ordering;
#[path = "cuda/suite.rs"]
mod suite;

use estafette_devices::{Device, DeviceErrorKind};

use self::harness::{PATIENCE, bench, block, fill, record, settle};

/// Attributes of devices, by the driver's numbers.
const ATTRIBUTES: &[(i32, i32)] = &[];
/// Functions that the driver lacks.
const MISSING: &[&str] = &[
    "cuStreamWriteValue64_v2",
    "cuStreamGetCaptureInfo_v2",
    "cuStreamBeginCapture_v2",
    "cuMemPoolCreate",
    "cuMemAllocFromPoolAsync",
    "cuDeviceCanAccessPeer",
    "cuCtxEnablePeerAccess",
    "cuGraphInstantiateWithFlags",
    "cuCtxRecordEvent",
    "cuStreamGetCtx_v2",
    "cuMemImportFromShareableHandle",
];

#[test]
fn what_is_missing_is_a_lost_feature() {
    let bench = bench();
    if bench.simulator("the machine's driver is not old").is_none() {
        return;
    }
    assert!(!bench.device.counts() && !bench.device.has_pool());
    let refused = bench.queue().capture(&[], |_| Ok(())).expect_err("there are no graphs");
    assert_eq!((refused.kind(), refused.message()), (DeviceErrorKind::Invalid, "the driver has no graphs"));
    let memory = bench.device.allocate(64, 64).expect("there is memory without a pool");
    drop(memory);
    assert!(bench.device.shared_memory().is_none(), "none crosses processes");
    let huge = bench.device.allocate(1 << 50, 64).expect_err("a petabyte");
    assert_eq!((huge.kind(), huge.code()), (DeviceErrorKind::OutOfMemory, Some(2)));
}

#[test]
fn only_the_oldest_event_of_a_queue_is_queried() {
    let bench = bench();
    if bench.simulator("the machine's driver counts").is_none() {
        return;
    }
    let queue = bench.queue();
    let memory = bench.memory(64);
    let blocked = block(&*queue);
    // A stream takes two commands for each: the work and an event.
    let count = 50.min(bench.room() / 2) as u8;
    let fences: Vec<_> = (0..count)
        .map(|round| {
            fill(&queue, &memory, round);
            let fence = record(&queue);
            assert!(!fence.is_done());
            fence
        })
        .collect();
    let before = bench.device.counters();
    assert_eq!(fences.iter().filter(|fence| fence.is_done()).count(), 0);
    let asked = bench.device.counters().event_queries - before.event_queries;
    assert_eq!(asked, count.into(), "each is answered by one query, of the oldest");
    blocked.release();
    let last = fences.last().expect("there are some");
    assert!(last.wait_timeout(Some(PATIENCE)).expect("in time").is_ok());
    let before = bench.device.counters();
    assert!(fences.iter().all(|fence| fence.is_done()));
    assert_eq!(bench.device.counters(), before, "what is done is known");
    bench.assert_nothing_wrong();
}

#[test]
fn a_barrier_without_an_event_of_the_context_is_a_wait() {
    let bench = bench();
    let queue = bench.queue();
    let memory = bench.memory(64);
    fill(&queue, &memory, 1);
    let fence = record(&queue);
    let before = bench.device.counters().context_waits;
    settle(&bench.device.barrier().expect("there is one")).expect("nothing failed");
    assert!(fence.is_done());
    if bench.simulator("the machine's driver is new").is_some() {
        assert_eq!(bench.device.counters().context_waits - before, 1, "and it is counted");
    }
}
