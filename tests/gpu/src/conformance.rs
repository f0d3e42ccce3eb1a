//! The suite that every device has to pass, on this one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use estafette::devices::conformance::{self, Harness, Skip};
use estafette::devices::cuda::CudaQueue;
use estafette::devices::{Allocation, Device, DeviceError, Queue};
use estafette_sync::sync::Mutex;

use crate::driver::Flag;
use crate::failure::Failure;
use crate::record::Record;
use crate::setup::Setup;

struct Cuda<'a> {
    setup: &'a Setup,
    /// What blocked queues wait for.
    flags: Mutex<Vec<Flag>>,
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

    fn block(&self, queue: &dyn Queue) -> Result<Box<dyn FnOnce() + Send>, Skip> {
        let reason =
            |error| Skip::because(format!("the device does not wait for a word of the host: {error:?}"));
        let flag = self.setup.driver.flag().map_err(reason)?;
        self.setup.driver.wait_for(queue.native(), flag).map_err(reason)?;
        self.flags.lock().push(flag);
        Ok(Box::new(move || flag.set(1)))
    }

    fn break_queue(&self, _queue: &dyn Queue) -> Result<(), Skip> {
        Err(Skip::because(
            "a fault ends the context of the whole process; the step `faults` has a process of its own",
        ))
    }
}

pub fn run(setup: &Setup, record: &mut Record) -> Result<(), Failure> {
    let cuda = Cuda { setup, flags: Mutex::new(Vec::new()) };
    let outcome = catch_unwind(AssertUnwindSafe(|| conformance::run(&cuda)));
    // Some checks leave their queue blocked. A later step that waits for the whole context, as cudarc does when it makes a
    // stream, would never come back.
    cuda.flags.into_inner().into_iter().for_each(|flag| flag.set(1));
    let report = outcome.map_err(|_| Failure::wrong("a check failed; its name is above"))?;
    for (name, Skip(reason)) in &report.skipped {
        record.skipped(&format!("conformance: {name}"), reason);
    }
    record.passed("conformance", &format!("{} checks", report.passed.len()));
    setup.expect_no_violation()
}
