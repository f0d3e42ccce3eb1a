//! The suite that every device has to pass, on this one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use estafette::devices::conformance::{self, Blocked, Harness, Skip};
use estafette::devices::cuda::CudaQueue;
use estafette::devices::{Allocation, Device, DeviceError, Queue};

use crate::failure::Failure;
use crate::record::Record;
use crate::setup::Setup;

struct Cuda<'a> {
    setup: &'a Setup,
}

impl Harness for Cuda<'_> {
    fn device(&self) -> Arc<dyn Device> {
        self.setup.device.clone()
    }

    fn fill(&self, queue: &dyn Queue, memory: &Allocation, value: u8) -> Result<(), DeviceError> {
        let queue = CudaQueue::from_queue(queue).expect("the device's own queues");
        // SAFETY: checks keep the memory until they have settled what uses it.
        unsafe { queue.fill(memory.ptr().as_ptr(), value, memory.len()) }
    }

    fn block(&self, queue: &dyn Queue) -> Result<Blocked, Skip> {
        let reason =
            |error| Skip::because(format!("the device does not wait for a word of the host: {error:?}"));
        let flag = self.setup.driver.flag().map_err(reason)?;
        self.setup.driver.wait_for(queue.native(), flag).map_err(reason)?;
        Ok(Blocked::new(move || flag.set(1)))
    }

    fn memory_bytes(&self) -> Option<usize> {
        usize::try_from(self.setup.device.memory_bytes()).ok()
    }

    fn can_break(&self) -> Result<(), Skip> {
        Err(Skip::because(
            "a fault ends the context of the whole process; the step `faults` has a process of its own",
        ))
    }
}

pub fn run(setup: &Setup, record: &mut Record) -> Result<(), Failure> {
    let cuda = Cuda { setup };
    let outcome = catch_unwind(AssertUnwindSafe(|| conformance::run(&cuda)));
    let report = outcome.map_err(|_| Failure::wrong("a check failed; its name is above"))?;
    for (name, Skip(reason)) in &report.skipped {
        record.skipped(&format!("conformance: {name}"), reason);
    }
    record.passed("conformance", &format!("{} checks", report.passed.len()));
    setup.expect_no_violation()
}
