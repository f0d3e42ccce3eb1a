//! A kind of device that no crate of the project knows (`tests/kinds/another`). The kind passes the
//! conformance suite and every form of exchange, and enters the device table.
//! `tests/kinds/test_another_kind.py` has the same of Python.
//!
//! | part | what it has |
//! |---|---|
//! | `backend` | the kind's entry of the device table |
//! | `device` | its device, queues and memory |

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use estafette::bindings;
use estafette::devices::conformance::{Blocked, Harness, Skip, run};
use estafette::devices::{Allocation, DLDevice, Device, DeviceError, Queue, table};
use estafette::exchange::flush_deleters;
use estafette::{Access, DType, Engine, ExportOptions, Produced, Tensor};
use futures::executor::block_on;
use tests::ops::{tensor, until};
use tests::watchdog::Watchdog;

#[path = "../../kinds/another/backend.rs"]
mod backend;
#[path = "../../kinds/another/device.rs"]
mod device;

use backend::Another;
use device::{Accelerator, ID, Stream};

struct Suite;

impl Harness for Suite {
    fn device(&self) -> Arc<dyn Device> {
        Accelerator::new()
    }

    fn fill(&self, queue: &dyn Queue, memory: &Allocation, value: u8) -> Result<(), DeviceError> {
        let (at, bytes) = (memory.ptr().as_ptr().expose_provenance(), memory.len());
        Stream::of(queue)?.submit(move || {
            // SAFETY: the suite keeps the memory until the work is done, and orders its uses.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_bytes(value, bytes) }
        });
        Ok(())
    }

    fn block(&self, queue: &dyn Queue) -> Result<Blocked, Skip> {
        let (release, released) = channel::<()>();
        Stream::of(queue).unwrap().submit(move || {
            let _ = released.recv();
        });
        Ok(Blocked::new(move || drop(release)))
    }

    fn can_break(&self) -> Result<(), Skip> {
        Err(Skip::because("a thread that runs closures does not fail"))
    }
}

#[test]
fn a_kind_that_nothing_else_knows_passes_the_conformance_suite() {
    let report = run(&Suite);
    assert!(report.passed.len() > 30, "{report:?}");
    let no_failures = "a thread that runs closures does not fail";
    assert!(report.skipped.iter().all(|(_, why)| why.0 == no_failures), "{report:?}");
}

#[test]
fn a_kind_that_nothing_else_knows_is_exchanged_leased_copied_and_computed_on() {
    let device = Accelerator::new();
    let engine = Engine::builder().workers(2).device(device.clone()).build().unwrap();
    let watchdog = Watchdog::of(&engine);

    // From the host to the device and on from tensor to tensor, by the engine's copies.
    let host = engine.from_vec(vec![1_u8, 2, 3, 4], &[4]).unwrap();
    let x = engine.copy(&host, ID).unwrap();
    let y = engine.copy(&x, ID).unwrap();
    block_on(y.ready()).unwrap();
    assert_eq!((y.device().unwrap(), y.dtype().unwrap()), (ID, DType::U8));

    // An operation on a queue of the device.
    let queue = device.create_queue().unwrap();
    let doubled = engine.op("double").writes([&y]).on(&queue).run_on(|queue, [], [mut y]| {
        let at = y.data_mut_ptr().expose_provenance();
        Stream::of(queue)?.submit(move || {
            // SAFETY: the engine keeps four bytes, and other uses away from them, until the work is done.
            let values =
                unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(at), 4) };
            values.iter_mut().for_each(|value| *value *= 2);
        });
        Ok(())
    });
    doubled.unwrap();

    // Out as a DLPack struct, under a read lease, and in again.
    let exported = block_on(y.export(Access::Read)).unwrap();
    assert_eq!((bindings::exchange::device(&exported), exported.flags().read_only), (ID, true));
    let write = engine.op("write").writes([&y]).run_external(|end| end.complete(Ok(()))).unwrap();
    assert!(!write.is_done(), "the lease is open");
    // SAFETY: the engine's own struct; nothing writes while the lease is open.
    let imported = unsafe { engine.import(exported) }.unwrap();
    let copy = engine.copy(&imported, DLDevice::CPU).unwrap();
    assert_eq!(copy.to_vec::<u8>().unwrap(), [2, 4, 6, 8]);
    drop((imported, copy));
    until("the deleter ends the lease", || write.is_done());

    // A write lease keeps readers away until the consumer is done.
    let exported = y.export_wait(&ExportOptions::from(Access::Write)).unwrap();
    assert!(!y.is_ready());
    drop(exported);
    block_on(y.ready()).unwrap();

    // Memory goes back when the last handle does.
    drop((x, y, host));
    assert!(flush_deleters(std::time::Duration::from_secs(10)));
    assert!(watchdog.still_watches());
}

#[test]
fn a_kind_of_another_crate_enters_the_device_table_and_engines_find_it_there() {
    table::add(&Another);
    table::add(&Another);
    let entries = table::entries_of(ID.device_type);
    assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), [ID]);
    let all = table::entries();
    assert_eq!(all.iter().filter(|entry| entry.id == ID).count(), 1, "added once");
    assert!(table::resolve(DLDevice::new(ID.device_type, 1)).is_err());

    let engine = Engine::builder().workers(1).build().unwrap();
    let there = engine.copy(&tensor(&engine, 3.0), ID).unwrap();
    assert_eq!(engine.copy(&there, DLDevice::CPU).unwrap().to_vec::<f32>().unwrap(), [3.0]);
}

#[test]
fn a_copy_whose_end_cannot_be_marked_keeps_the_memory_that_it_writes() {
    let device = Accelerator::new();
    let engine = Engine::builder().workers(1).device(device.clone()).build().unwrap();
    let x = engine.empty(&[4], DType::U8, ID).unwrap();
    for copy_to in [ID, DLDevice::CPU] {
        let options = ExportOptions { copy: true, copy_to, ..ExportOptions::from(Access::Read) };
        let lease = block_on(x.lease(Access::Read, "the test")).unwrap();
        device.records_fail.store(true, Ordering::Relaxed);
        let error = lease.export(&options).unwrap_err();
        device.records_fail.store(false, Ordering::Relaxed);
        assert!(error.to_string().contains("no record today"), "{error}");
        drop(lease);
        assert!(flush_deleters(std::time::Duration::from_secs(10)));
        assert_eq!(device.freed.load(Ordering::Relaxed), 0, "a copy may be writing there");
    }
}

/// An engine with the device and the runtime, and a tensor there.
fn with_runtime(device: &Arc<Accelerator>, runtime: &tokio::runtime::Runtime) -> (Engine, Tensor) {
    let engine = Engine::builder().workers(1).device(device.clone()).tokio(runtime.handle().clone());
    let engine = engine.build().unwrap();
    let there = engine.copy(&tensor(&engine, 5.0), ID).unwrap();
    there.wait().unwrap();
    (engine, there)
}

#[test]
fn a_copy_of_a_result_leaves_the_thread_of_its_asynchronous_body_to_other_tasks() {
    let device = Accelerator::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let (engine, there) = with_runtime(&device, &runtime);
    let watchdog = Watchdog::of(&engine);
    device.hold.is_on.store(true, Ordering::SeqCst);
    let result = there.clone();
    let copy =
        engine.op("copies").produce_future(move |[]| async move { Ok(Produced::from(result)) }).unwrap();
    until("the copy is with the device", || device.hold.is_met.load(Ordering::SeqCst));
    let hold = Arc::clone(&device.hold);
    let releases = runtime.spawn(async move { hold.is_on.store(false, Ordering::SeqCst) });
    assert_eq!(copy.to_vec::<f32>().unwrap(), [5.0]);
    runtime.block_on(releases).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn copies_go_on_while_the_one_thread_of_the_given_runtime_waits_for_them() {
    let device = Accelerator::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (engine, there) = with_runtime(&device, &runtime);
    let watchdog = Watchdog::of(&engine);
    device.hold.is_on.store(true, Ordering::SeqCst);
    let hold = Arc::clone(&device.hold);
    let releases = std::thread::spawn(move || {
        until("the copy is with the device", || hold.is_met.load(Ordering::SeqCst));
        hold.is_on.store(false, Ordering::SeqCst);
    });
    runtime.block_on(async {
        let back = engine.copy(&there, DLDevice::CPU).unwrap();
        assert_eq!(back.to_vec::<f32>().unwrap(), [5.0]);
    });
    releases.join().unwrap();
    assert!(watchdog.still_watches());
}
