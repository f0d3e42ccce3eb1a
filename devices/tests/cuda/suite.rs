use std::sync::Arc;

use estafette_devices::conformance::{Blocked, Harness, Skip, run};
use estafette_devices::cuda::CudaQueue;
use estafette_devices::{Allocation, Device, DeviceError, Queue};

use crate::harness::{bench, block, break_next, connections, device, is_gpu, room, simulator};

/// The reason for skipped checks that need queues that do not hold each other up.
const SHARED: &str = "all streams share one hardware connection";

/// Any CUDA device.
struct CudaHarness;

fn cuda(queue: &dyn Queue) -> &CudaQueue {
    CudaQueue::from_queue(queue).expect("a CUDA queue")
}

impl Harness for CudaHarness {
    fn device(&self) -> Arc<dyn Device> {
        device()
    }

    fn fill(&self, queue: &dyn Queue, memory: &Allocation, value: u8) -> Result<(), DeviceError> {
        // SAFETY: the suite keeps the memory alive and orders accesses to it.
        unsafe { cuda(queue).fill(memory.ptr().as_ptr(), value, memory.len()) }
    }

    fn block(&self, queue: &dyn Queue) -> Result<Blocked, Skip> {
        Ok(block(queue))
    }

    fn memory_bytes(&self) -> Option<usize> {
        usize::try_from(device().memory_bytes()).ok()
    }

    fn room(&self) -> usize {
        room()
    }

    fn queues_are_independent(&self) -> Result<(), Skip> {
        if connections() == 1 {
            return Err(Skip::because(SHARED));
        }
        Ok(())
    }

    fn can_break(&self) -> Result<(), Skip> {
        if is_gpu() {
            return Err(Skip::because("a fault of a GPU ends the process's use of it for good"));
        }
        Ok(())
    }

    fn break_queue(&self, queue: &dyn Queue) {
        break_next(simulator().expect("a GPU is not broken"), cuda(queue));
        // The memory of work that fails.
        let memory = Box::leak(Box::new(device().allocate(1, 1).expect("there is room for a byte")));
        self.fill(queue, memory, 0).expect("a queue that has not failed takes work");
    }

    fn breaks_the_device(&self) -> bool {
        true
    }
}

#[test]
fn cuda_devices_pass_the_suite_of_all_devices() {
    let bench = bench();
    let report = run(&CudaHarness);
    if is_gpu() {
        assert!(report.skipped_names().iter().all(|name| name.starts_with("failure: ")), "{report:?}");
    } else if connections() == 1 {
        assert!(report.skipped.iter().all(|(_, why)| why.0 == SHARED), "{report:?}");
        eprintln!("skipped: {:?}: {SHARED}", report.skipped_names());
    } else {
        assert_eq!(report.skipped, [], "nothing is left out");
    }
    assert!(report.passed.len() > 30, "{report:?}");
    bench.assert_nothing_wrong();
}
