//! A device that says of much that it cannot: no waits and writes of 64 bits, no pools, no managed memory
//! that host and device use at the same time. Nothing is tried that was denied, and the order is kept.

#[path = "cuda/harness.rs"]
#[allow(dead_code, reason = "not every test of the driver is here")]
mod harness;
#[path = "cuda/ordering.rs"]
mod ordering;
#[path = "cuda/suite.rs"]
mod suite;

use self::harness::bench;

/// Attributes of devices, by the driver's numbers.
const ATTRIBUTES: &[(i32, i32)] = &[
    (CONCURRENT_MANAGED_ACCESS, 0),
    (CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 0),
    (CAN_USE_64_BIT_STREAM_MEM_OPS, 0),
    (MEMORY_POOLS_SUPPORTED, 0),
];
const CONCURRENT_MANAGED_ACCESS: i32 = 89;
const CAN_USE_64_BIT_STREAM_MEM_OPS_V1: i32 = 93;
const MEMORY_POOLS_SUPPORTED: i32 = 115;
const CAN_USE_64_BIT_STREAM_MEM_OPS: i32 = 122;
/// Functions that the driver lacks: it has everything, and the device denies it.
const MISSING: &[&str] = &[];

#[test]
fn what_a_device_denies_is_not_tried() {
    let bench = bench();
    let Some(simulator) = bench.simulator("the machine's device can do it") else { return };
    assert!(!bench.device.counts() && !bench.device.has_pool());
    drop(bench.memory(64));
    for call in ["cuMemPoolCreate", "cuMemAllocFromPoolAsync", "cuStreamWriteValue64_v2"] {
        assert_eq!(simulator.calls(call), 0, "{call}");
    }
    bench.assert_nothing_wrong();
}
