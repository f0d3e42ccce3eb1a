//! Memory handed to a consumer on a device: where earlier work is waited for, and what the end of the lease
//! waits for. The tests use the simulated device, whose clock they advance.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use estafette::bindings;
use estafette::devices::sim::{SimDevice, SimOptions, SimQueue};
use estafette::devices::{DLDevice, Device, DeviceError, Fence, Order, Queue, QueueId, host};
use estafette::lease::Consumer;
use estafette::{Access, Engine, Error, ExportOptions, Lease, Tensor};
use futures::FutureExt;
use futures::executor::block_on;
use tests::gate::Gate;
use tests::on_device::{Element, copy_on, fault, on_device, queue, sim, started, write_on};
use tests::ops::{exclusive, get, set, tensor, until, waits};

/// A device like CUDA's: a foreign queue's handle is valid within one call only.
fn raw() -> SimOptions {
    SimOptions { raw_handles: true, ..SimOptions::default() }
}

/// The foreign queue `theirs` as a consumer, acquired now.
fn acquired(device: &SimDevice, theirs: &SimQueue) -> Consumer {
    // SAFETY: the queue lives.
    Consumer::Queue(unsafe { device.foreign_queue(theirs.native()) }.unwrap())
}

fn lease(tensor: &Tensor, access: Access, consumer: &Consumer) -> Lease {
    // The host has no time to wait: the queue must do all waiting.
    tensor.lease(access, "a consumer").for_consumer(consumer).wait(Some(Duration::ZERO)).unwrap()
}

/// The value that the consumer's work reads.
fn reads_on(theirs: &SimQueue, name: &'static str, tensor: &Tensor) -> std::sync::mpsc::Receiver<f32> {
    let (told, telling) = channel();
    let element = Element::of(tensor);
    theirs.launch(name, 10, move || told.send(element.get()).unwrap()).unwrap();
    telling
}

#[test]
fn a_consumer_with_a_queue_gets_waits_there_and_the_host_goes_on() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let (ours, theirs) = (queue(&device), device.queue(false));
    let x = on_device(&device, &engine);
    write_on(&engine, &ours, "produce", &x, 5.0).wait().unwrap();
    let options = ExportOptions {
        consumer: acquired(&device, &theirs),
        timeout: Some(Duration::ZERO),
        ..ExportOptions::from(Access::Read)
    };
    let exported = x.export_wait(&options).unwrap();
    drop(options);
    let read = reads_on(&theirs, "consume", &x);
    assert_eq!(device.now_ns(), 0, "the lease is granted before any work has run");
    device.run_until_idle();
    assert_eq!(read.recv().unwrap(), 5.0);
    assert_eq!(started(&device), ["produce", "consume"]);
    drop(exported);
    assert!(watchdog.still_watches());
}

#[test]
fn a_set_of_leases_for_one_queue_is_granted_at_once_and_both_memories_wait_for_the_consumer() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let (ours, last) = (queue(&device), queue(&device));
    let theirs = device.queue(false);
    let (x, y) = (on_device(&device, &engine), on_device(&device, &engine));
    write_on(&engine, &ours, "produce x", &x, 1.0).wait().unwrap();
    write_on(&engine, &ours, "produce y", &y, 2.0).wait().unwrap();
    let wanted = [(x.clone(), Access::Read), (y.clone(), Access::Write)];
    let consumer = acquired(&device, &theirs);
    let leases = engine.lease_all(&wanted, "a consumer").for_consumer(&consumer).try_now().unwrap().unwrap();
    assert_eq!((leases.len(), device.now_ns()), (2, 0), "no work has run");
    let (read_x, read_y) = (reads_on(&theirs, "consume x", &x), reads_on(&theirs, "consume y", &y));
    drop(leases);
    write_on(&engine, &last, "overwrite x", &x, 3.0).wait().unwrap();
    write_on(&engine, &last, "overwrite y", &y, 4.0).wait().unwrap();
    device.run_until_idle();
    assert_eq!((read_x.recv().unwrap(), read_y.recv().unwrap()), (1.0, 2.0));
    assert!(watchdog.still_watches());
}

#[test]
fn an_export_waits_on_the_host_until_the_producer_is_issued_and_no_longer() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let (ours, theirs) = (queue(&device), device.queue(false));
    let x = on_device(&device, &engine);
    let (source, on_gate) = (tensor(&engine, 3.0), Element::of(&x));
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&source));
    let produce = engine.op("produce").reads([&source]).writes([&x]).on(&ours);
    produce
        .run_on(move |queue, [source], [_x]| {
            let value = source.as_slice::<f32>()?[0];
            let work = move || on_gate.set(value);
            Ok(SimQueue::from_queue(queue).unwrap().launch("produce", 100, work)?)
        })
        .unwrap();
    let consumer = acquired(&device, &theirs);
    assert!(x.lease(Access::Read, "a consumer").for_consumer(&consumer).try_now().unwrap().is_none());
    let late =
        x.lease(Access::Read, "a consumer").for_consumer(&consumer).wait(Some(Duration::from_millis(5)));
    assert!(matches!(late, Err(Error::Timeout(_))), "{late:?}");
    let mut later = std::pin::pin!(x.lease(Access::Read, "a consumer").for_consumer(&consumer));
    assert!(later.as_mut().now_or_never().is_none());
    gate.open();
    let lease = block_on(later).unwrap();
    assert_eq!((device.now_ns(), device.unfinished()), (0, 1), "the work is issued, and has not run");
    let read = reads_on(&theirs, "consume", &x);
    drop(lease);
    device.run_until_idle();
    assert_eq!(read.recv().unwrap(), 3.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_write_waits_for_a_consumer_that_has_released_the_memory_before_its_work_ran() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let (ours, theirs) = (queue(&device), device.queue(false));
    let x = on_device(&device, &engine);
    write_on(&engine, &ours, "produce", &x, 5.0).wait().unwrap();
    let held = lease(&x, Access::Read, &acquired(&device, &theirs));
    let read = reads_on(&theirs, "consume", &x);
    drop(held);
    // The write is issued at once: the queues wait for each other.
    write_on(&engine, &ours, "overwrite", &x, 6.0).wait().unwrap();
    assert_eq!(device.now_ns(), 0);
    device.run_until_idle();
    assert_eq!(read.recv().unwrap(), 5.0);
    assert_eq!(started(&device), ["produce", "consume", "overwrite"]);
    assert_eq!(engine.stats().quarantine.waiting, 0);
    assert!(watchdog.still_watches());
}

#[test]
fn memory_whose_last_use_is_on_a_raw_queue_goes_through_quarantine() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, raw());
    let (ours, theirs) = (queue(&device), device.queue(false));
    let (x, other) = (on_device(&device, &engine), on_device(&device, &engine));
    let before = engine.stats().quarantine;
    let held = lease(&x, Access::Read, &acquired(&device, &theirs));
    let read = reads_on(&theirs, "consume", &x);
    drop(held);
    let overwrite = write_on(&engine, &ours, "overwrite", &x, 6.0);
    // The quarantine keeps only writes of this memory waiting.
    write_on(&engine, &ours, "elsewhere", &other, 1.0).wait().unwrap();
    until("a barrier was asked for", || engine.stats().quarantine.barriers > before.barriers);
    assert!(!overwrite.is_done());
    assert_eq!(engine.stats().quarantine.waiting, 1);
    let free = device.free_bytes();
    let elsewhere = engine.empty(&[4], estafette::DType::F32, device.id()).unwrap();
    drop(elsewhere);
    until("memory of others is released meanwhile", || device.free_bytes() == free);
    device.run_until_idle();
    overwrite.wait().unwrap();
    device.run_until_idle();
    assert_eq!(read.recv().unwrap(), 0.0);
    assert_eq!(get(&x), 6.0);
    assert_eq!(engine.stats().quarantine.released, before.released + 1);
    assert!(watchdog.still_watches());
}

#[test]
fn memory_that_is_dropped_with_a_raw_consumer_behind_it_is_freed_after_the_barrier() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, raw());
    let theirs = device.queue(false);
    let x = on_device(&device, &engine);
    let free = device.free_bytes();
    let options = ExportOptions { consumer: acquired(&device, &theirs), ..ExportOptions::from(Access::Read) };
    let exported = x.export_wait(&options).unwrap();
    let read = reads_on(&theirs, "consume", &x);
    let barriers = engine.stats().quarantine.barriers;
    drop((exported, x, options));
    until("a barrier was asked for", || engine.stats().quarantine.barriers > barriers);
    assert_eq!(device.free_bytes(), free, "the consumer may still read it");
    device.run_until_idle();
    assert_eq!(read.recv().unwrap(), 0.0);
    until("the memory is free", || device.free_bytes() > free);
    assert!(watchdog.still_watches());
}

#[test]
fn a_quarantine_that_is_paused_asks_no_device_until_the_pause_is_over() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, raw());
    let (ours, theirs) = (queue(&device), device.queue(false));
    let x = on_device(&device, &engine);
    let before = engine.stats().quarantine;
    let pause = estafette::exchange::quarantine::pause();
    drop(lease(&x, Access::Read, &acquired(&device, &theirs)));
    let overwrite = write_on(&engine, &ours, "overwrite", &x, 6.0);
    assert!(overwrite.wait_timeout(Some(Duration::from_millis(60))).is_err());
    assert_eq!(engine.stats().quarantine.barriers, before.barriers);
    drop(pause);
    overwrite.wait().unwrap();
    assert_eq!(engine.stats().quarantine.released, before.released + 1);
    assert!(watchdog.still_watches());
}

#[test]
fn a_quarantine_that_does_not_end_leaks_the_memory_and_lets_writes_go_on() {
    let _alone = exclusive();
    let device = SimDevice::new(raw()).unwrap();
    let engine = Engine::builder().workers(1).device(device.clone());
    let engine = engine.quarantine_timeout(Duration::from_millis(20)).build().unwrap();
    let (ours, theirs) = (queue(&device), device.queue(false));
    let x = on_device(&device, &engine);
    let before = engine.stats();
    device.pause("endless");
    let held = lease(&x, Access::Read, &acquired(&device, &theirs));
    theirs.launch("endless", 10, || ()).unwrap();
    drop(held);
    let overwrite = write_on(&engine, &ours, "overwrite", &x, 6.0);
    overwrite.wait().unwrap();
    until("it was given up", || engine.stats().quarantine.given_up > before.quarantine.given_up);
    device.run_until_idle();
    let free = device.free_bytes();
    drop(x);
    until("it was leaked", || engine.stats().leaked > before.leaked);
    assert_eq!(device.free_bytes(), free);
}

#[test]
fn a_consumer_that_orders_himself_waits_for_nothing_and_is_followed_by_a_quarantine() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let ours = queue(&device);
    let x = on_device(&device, &engine);
    write_on(&engine, &ours, "produce", &x, 5.0).wait().unwrap();
    let waits_before = device.driver_calls().waits;
    let held = lease(&x, Access::Read, &Consumer::Unordered);
    assert_eq!(device.driver_calls().waits, waits_before);
    // The export is a lease too.
    let overwrite = write_on(&engine, &ours, "overwrite", &x, 6.0);
    device.run_until_idle();
    assert!(waits(&engine, &overwrite));
    let released = engine.stats().quarantine.released;
    drop(held);
    overwrite.wait().unwrap();
    assert_eq!(engine.stats().quarantine.released, released + 1);
    assert!(watchdog.still_watches());
}

#[test]
fn a_consumer_who_says_when_he_is_done_needs_no_quarantine() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, raw());
    let (ours, theirs) = (queue(&device), device.queue(false));
    let x = on_device(&device, &engine);
    let before = engine.stats().quarantine;
    let held = lease(&x, Access::Write, &acquired(&device, &theirs));
    let element = Element::of(&x);
    theirs.launch("write", 100, move || element.set(7.0)).unwrap();
    held.release_after(theirs.record().unwrap());
    let y = on_device(&device, &engine);
    copy_on(&engine, &ours, "follow", &x, &y).wait().unwrap();
    device.run_until_idle();
    assert_eq!(get(&y), 8.0);
    assert_eq!(engine.stats().quarantine, before);
    assert!(watchdog.still_watches());
}

#[test]
fn a_lease_to_write_keeps_what_was_pending_before_it() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let (producer, reader, last) = (queue(&device), queue(&device), queue(&device));
    let theirs = device.queue(false);
    let (x, y) = (on_device(&device, &engine), on_device(&device, &engine));
    write_on(&engine, &producer, "produce", &x, 1.0);
    copy_on(&engine, &reader, "slow reader", &x, &y).wait().unwrap();
    // A request that is dropped must change nothing.
    drop(x.lease(Access::Write, "a consumer").for_consumer(&Consumer::Unordered));
    let consumer = acquired(&device, &theirs);
    let held = lease(&x, Access::Write, &consumer);
    let element = Element::of(&x);
    theirs.launch("write", 10, move || element.set(2.0)).unwrap();
    drop(held);
    write_on(&engine, &last, "overwrite", &x, 3.0).wait().unwrap();
    device.run_until_idle();
    assert_eq!(started(&device), ["produce", "slow reader", "write", "overwrite"]);
    assert_eq!((get(&x), get(&y)), (3.0, 2.0));
    assert!(watchdog.still_watches());
}

#[test]
fn a_failed_producer_is_reported_to_the_consumer_and_a_failed_reader_is_not() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let (ours, theirs) = (queue(&device), device.queue(false));
    let (x, y) = (on_device(&device, &engine), on_device(&device, &engine));
    device.fail_named("produce", fault("illegal address"));
    write_on(&engine, &ours, "produce", &x, 5.0).wait().unwrap();
    device.run_until_idle();
    let consumer = acquired(&device, &theirs);
    let refused = x.lease(Access::Read, "a consumer").for_consumer(&consumer).wait(None);
    assert!(
        refused.as_ref().is_err_and(|error| error.to_string().contains("illegal address")),
        "{refused:?}"
    );
    // A reader on another queue fails; later writers ignore that.
    let breaking = queue(&device);
    device.fail_named("reader", fault("reader broke"));
    tests::on_device::read_on(&engine, &breaking, "reader", &y).wait().unwrap();
    device.run_until_idle();
    lease(&y, Access::Write, &consumer);
    assert!(watchdog.still_watches());
}

#[test]
fn what_only_the_host_can_wait_for_is_waited_for_there_before_the_queue_goes_on() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let theirs = device.queue(false);
    let (completer, fence) = host::promise("foreign work");
    let x = on_device(&device, &engine);
    set(&engine, &x, 4.0).wait().unwrap();
    let op = engine.op("outside").updates([&x]);
    op.run_external(move |end| end.complete_after(&fence, Ok(()))).unwrap().wait().unwrap();
    let consumer = acquired(&device, &theirs);
    assert!(x.lease(Access::Read, "a consumer").for_consumer(&consumer).try_now().unwrap().is_none());
    let late =
        x.lease(Access::Read, "a consumer").for_consumer(&consumer).wait(Some(Duration::from_millis(5)));
    assert!(matches!(late, Err(Error::Timeout(_))), "{late:?}");
    let waiting = std::thread::spawn({
        let x = x.clone();
        move || x.lease(Access::Read, "a consumer").for_consumer(&consumer).wait(None).map(drop)
    });
    completer.complete();
    waiting.join().unwrap().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_lease_handed_into_a_capture_stays_until_it_is_ended_by_name() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, raw());
    let (ours, theirs) = (queue(&device), device.queue(false));
    let x = on_device(&device, &engine);
    write_on(&engine, &ours, "produce", &x, 5.0).wait().unwrap();
    theirs.set_capturing(true);
    let queries = device.driver_calls().queries;
    let options = ExportOptions {
        consumer: acquired(&device, &theirs),
        timeout: Some(Duration::ZERO),
        ..ExportOptions::from(Access::Read)
    };
    let exported = x.export_wait(&options).unwrap();
    drop((exported, options));
    assert_eq!(
        device.driver_calls().queries,
        queries,
        "the export is ordered on the device, and asks it nothing"
    );
    theirs.set_capturing(false);
    let overwrite = write_on(&engine, &ours, "overwrite", &x, 6.0);
    device.run_until_idle();
    // Launches of the graph read the memory again.
    assert!(waits(&engine, &overwrite));
    assert_eq!(bindings::lease::end_captures(&x), 1);
    overwrite.wait().unwrap();
    assert_eq!(bindings::lease::end_captures(&x), 0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_copy_made_for_a_consumer_on_the_device_is_freed_after_the_consumer() {
    let _alone = exclusive();
    let (device, engine, watchdog) =
        sim(1, SimOptions { pace: estafette::devices::sim::SimPace::Immediate, ..raw() });
    let theirs = device.queue(false);
    let x = on_device(&device, &engine);
    let free = device.free_bytes();
    let options = ExportOptions {
        consumer: acquired(&device, &theirs),
        copy: true,
        copy_to: device.id(),
        ..ExportOptions::from(Access::Read)
    };
    let copy = x.export_wait(&options).unwrap();
    assert!(copy.flags().is_copied);
    assert_eq!(bindings::exchange::device(&copy), device.id());
    device.pause("consume");
    theirs.launch("consume", 10, || ()).unwrap();
    let taken = free - device.free_bytes();
    assert!(taken > 0);
    let barriers = engine.stats().quarantine.barriers;
    drop(copy);
    until("a barrier was asked for", || engine.stats().quarantine.barriers > barriers);
    assert_eq!(device.free_bytes(), free - taken);
    device.release("consume");
    until("the copy is free", || device.free_bytes() == free);
    assert!(watchdog.still_watches());
}

#[test]
fn memory_of_devices_that_are_released_early_is_not_so_where_the_host_reads_it() {
    let _alone = exclusive();
    // The host can read simulated memory: a host consumer releases it after its use.
    let (device, engine, _watchdog) = sim(1, raw());
    let x = on_device(&device, &engine);
    let before = engine.stats().quarantine;
    drop(block_on(x.export(Access::Read)).unwrap());
    drop(bindings::tensor::export_at_once(&x, || "a reader".into()).unwrap());
    assert_eq!(engine.stats().quarantine, before);
    let other: Arc<dyn Queue> = queue(&device);
    assert_eq!(other.order_after(&other.record().unwrap()).unwrap(), Order::Nothing);
}

#[test]
fn an_await_of_what_only_the_host_can_wait_for_has_an_engine_without_workers_go_on() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(0, SimOptions::default());
    let theirs = device.queue(false);
    let (completer, fence) = host::promise("foreign work");
    let x = on_device(&device, &engine);
    let op = engine.op("outside").updates([&x]);
    op.run_external(move |end| end.complete_after(&fence, Ok(()))).unwrap().wait().unwrap();
    let completes = engine.op("completes").run(move |[], []| {
        completer.complete();
        Ok(())
    });
    let consumer = acquired(&device, &theirs);
    block_on(x.lease(Access::Read, "a consumer").for_consumer(&consumer)).unwrap();
    completes.unwrap().wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn one_of_several_leases_that_is_given_up_unused_leaves_the_pending_writer_to_be_named() {
    let _alone = exclusive();
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let ours = queue(&device);
    let (x, y) = (on_device(&device, &engine), on_device(&device, &engine));
    device.fail_named("produce", fault("illegal address"));
    write_on(&engine, &ours, "produce", &x, 5.0).wait().unwrap();
    let version = x.version();
    let wanted = [(x.clone(), Access::Write), (y.clone(), Access::Write)];
    let consumer = Consumer::Queue(Arc::new(Refuses(QueueId::next())));
    let refused = engine.lease_all(&wanted, "a consumer").for_consumer(&consumer).try_now();
    assert!(matches!(refused, Err(Error::Device(_))), "{refused:?}");
    assert_eq!(x.version(), version, "the consumer has written nothing");
    device.run_until_idle();
    let error = x.wait().unwrap_err().to_string();
    assert!(error.contains("`produce`"), "{error}");
    assert!(watchdog.still_watches());
}

/// A queue that waits for nothing.
#[derive(Debug)]
struct Refuses(QueueId);

impl Queue for Refuses {
    fn id(&self) -> QueueId {
        self.0
    }

    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn in_order(&self) -> bool {
        true
    }

    fn order_after(&self, _: &Fence) -> Result<Order, DeviceError> {
        Err(DeviceError::invalid("this queue waits for nothing"))
    }

    fn record(&self) -> Result<Fence, DeviceError> {
        Err(DeviceError::invalid("this queue has no fences"))
    }

    fn is_capturing(&self) -> Result<bool, DeviceError> {
        Err(DeviceError::invalid("this queue does not say"))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
