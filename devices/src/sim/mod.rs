//! A simulated device: virtual time, scripted completion, latencies, reordering and faults.
//!
//! Everything about fences, ordering and failure can be tested without a GPU, and deterministically: the same
//! calls with the same seed give the same trace. Its memory is host memory.
//!
//! | part | what it has |
//! |---|---|
//! | `command` | the commands of a queue |
//! | `device` | [`SimDevice`] and its options |
//! | `foreign` | a queue that another library owns |
//! | `free_running` | the thread that makes time pass |
//! | `mark` | a fence of an out-of-order or foreign queue |
//! | `queue` | [`SimQueue`] |
//! | `schedule` | the commands of all queues, their waits, and the next event; only this file changes a command |
//! | `script` | paused tasks, faults, jitter |
//! | `timeline` | the progress of an in-order queue |
//! | `timing` | when measured tasks ran |
//! | `trace` | the events |
//!
//! # How it runs
//! Work is [launched](SimQueue::launch) on a [`SimQueue`] with a duration in virtual nanoseconds and a
//! closure, its effect. A task *starts* when everything that it waits for is done, and *completes* its
//! latency and duration later; only then does its closure run. So a wait that is missing shows as a wrong
//! value, not as luck.
//! - An in-order queue runs one task after the other. An out-of-order queue runs everything at once that no
//!   wait holds back, and tasks that end at the same time complete in an order drawn from the seed.
//! - A test moves the time by [`SimDevice::advance`], [`SimDevice::step`] or [`SimDevice::run_until_idle`];
//!   in the [free-running](SimPace) modes a thread of the device does.
//! - [`SimDevice::pause`] keeps named tasks from completing until [`SimDevice::release`].
//! - [`SimDevice::fail_next`] and its relatives break things. A failed task poisons its queue: everything
//!   unfinished on it fails with the same root error, as does every queue that was made to wait for it.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU32, Ordering};
//! use estafette_devices::sim::{SimDevice, SimOptions, SimQueue};
//! use estafette_devices::{Device, Order, Queue};
//!
//! let device = SimDevice::new(SimOptions::default())?;
//! let (producer, consumer) = (device.create_queue()?, device.create_queue()?);
//! let value = Arc::new(AtomicU32::new(0));
//!
//! let write = value.clone();
//! let sim = SimQueue::from_queue(&*producer).expect("a queue of this device");
//! sim.launch("write", 1_000, move || write.store(42, Ordering::SeqCst))?;
//! let written = producer.record()?;
//!
//! // The consumer is made to wait on the device; the host goes on at once.
//! assert_eq!(consumer.order_after(&written)?, Order::Device);
//! let read = value.clone();
//! let sim = SimQueue::from_queue(&*consumer).expect("a queue of this device");
//! sim.launch("read", 1, move || assert_eq!(read.load(Ordering::SeqCst), 42))?;
//! let done = consumer.record()?;
//!
//! device.advance(999);
//! assert!(!written.is_done());
//! device.run_until_idle();
//! assert!(done.is_done());
//! assert_eq!(device.now_ns(), 1_001);
//! # Ok::<(), estafette_devices::DeviceError>(())
//! ```

mod command;
mod device;
mod foreign;
mod free_running;
mod mark;
mod queue;
mod schedule;
mod script;
mod timeline;
mod timing;
mod trace;

pub use self::{
    device::{SimDevice, SimNotify, SimOptions, SimPace},
    queue::SimQueue,
    trace::{DriverCalls, TraceEvent, TraceKind},
};
