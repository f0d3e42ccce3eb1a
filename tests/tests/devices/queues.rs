//! Guarantees 4 and 5 on the simulated device: what is settled on the device and what on the host, counted in
//! driver calls.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use estafette::bindings;
use estafette::devices::sim::{SimDevice, SimNotify, SimOptions, SimQueue};
use estafette::devices::{DLDevice, Device, DeviceError, DeviceErrorKind, Fence, Order, Queue, QueueId};
use estafette::tensor::TensorState;
use estafette::{Engine, Error, FailureKind};
use futures::FutureExt;
use futures::executor::block_on;
use tests::foreign::{self, Deleted};
use tests::on_device::{copy_on, fault, on_device, queue, read_on, sim, started, write_on};
use tests::ops::{get, read, set, status, tensor};
use tests::watchdog::Watchdog;

#[test]
fn a_chain_on_one_queue_is_settled_by_queue_order_alone() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let queue = queue(&device);
    let (x, y) = (on_device(&device, &engine), on_device(&device, &engine));
    let mut last = write_on(&engine, &queue, "first", &x, 0.0);
    for step in 0..100 {
        let (from, to) = if step % 2 == 0 { (&x, &y) } else { (&y, &x) };
        last = copy_on(&engine, &queue, "step", from, to);
    }
    // Issued, every one of them, while the device has not moved at all.
    last.wait().unwrap();
    assert_eq!((device.now_ns(), device.unfinished()), (0, 101));
    let calls = device.driver_calls();
    assert_eq!((calls.launches, calls.waits, calls.records), (101, 0, 0));
    assert!(!x.is_ready());
    device.run_until_idle();
    assert_eq!(get(&x), 100.0);
    let calls = device.driver_calls();
    assert_eq!((calls.waits, calls.records), (0, 0));
    assert!(watchdog.still_watches());
}

#[test]
fn chains_are_issued_in_the_order_of_submission_and_not_one_after_the_other() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let queue = queue(&device);
    let tensors: Vec<_> = (0..6).map(|_| on_device(&device, &engine)).collect();
    // The only worker is busy until everything is submitted.
    let (go, gone) = channel::<()>();
    let gate = engine.op("gate").run(move |[], []| Ok(gone.recv()?)).unwrap();
    let names = ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", "c3"];
    for (number, name) in names.into_iter().enumerate() {
        // Each pair of tensors has a chain of its own, in which the steps go to and fro.
        let (pair, step) = (number % 3, number / 3);
        let (from, to) = (&tensors[2 * pair + step % 2], &tensors[2 * pair + (step + 1) % 2]);
        match step {
            0 => write_on(&engine, &queue, name, to, 0.0),
            _ => copy_on(&engine, &queue, name, from, to),
        };
    }
    go.send(()).unwrap();
    gate.wait().unwrap();
    // This thread does not help: it would issue what it waits for.
    tests::ops::until("all of them are issued", || device.unfinished() == names.len());
    device.run_until_idle();
    assert_eq!(started(&device), names);
    assert!(watchdog.still_watches());
}

#[test]
fn another_queue_waits_on_the_device_once_and_the_host_not_at_all() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let (producer, consumer) = (queue(&device), queue(&device));
    let [x, y, z] = [(); 3].map(|()| on_device(&device, &engine));
    write_on(&engine, &producer, "produce", &x, 5.0);
    copy_on(&engine, &consumer, "consume", &x, &y).wait().unwrap();
    copy_on(&engine, &consumer, "again", &x, &z).wait().unwrap();
    assert_eq!(device.now_ns(), 0, "everything is issued before anything has run");
    let calls = device.driver_calls();
    assert_eq!((calls.launches, calls.waits, calls.records), (3, 1, 1));
    device.run_until_idle();
    assert_eq!((get(&y), get(&z)), (6.0, 6.0));
    assert_eq!(started(&device), ["produce", "consume", "again"]);
    assert!(watchdog.still_watches());
}

#[test]
fn the_host_waits_for_a_device_parked_while_its_only_worker_runs_others() {
    for notify in [SimNotify::Push, SimNotify::Poll] {
        let (device, engine, watchdog) = sim(1, SimOptions { notify, ..SimOptions::default() });
        let queue = queue(&device);
        let (x, other) = (on_device(&device, &engine), tensor(&engine, 0.0));
        device.pause("produce");
        write_on(&engine, &queue, "produce", &x, 5.0).wait().unwrap();
        let (told, telling) = channel();
        let read = engine
            .op("read")
            .reads([&x])
            .run(move |[x], []| Ok(told.send(x.as_slice::<f32>()?[0])?))
            .unwrap();
        let mut ready = x.ready();
        device.run_until_idle();
        for _ in 0..100 {
            tests::ops::add(&engine, &other, 1.0);
        }
        // Only the worker may run them: this thread does not help.
        tests::ops::until("the others have run", || other.is_ready());
        assert_eq!(get(&other), 100.0);
        let status = status(&engine, &read);
        assert!(
            matches!(&status, Some(estafette::wait::Status::Fenced(fences)) if fences.contains(" on ")),
            "{}",
            engine.diagnose()
        );
        assert!(telling.try_recv().is_err() && !x.is_ready() && (&mut ready).now_or_never().is_none());
        assert!(matches!(x.state(), TensorState::Pending));
        assert!(matches!(x.wait_timeout(std::time::Duration::from_millis(1)), Err(Error::Timeout(_))));
        device.release("produce");
        device.run_until_idle();
        assert_eq!(telling.recv().unwrap(), 5.0);
        block_on(ready).unwrap();
        read.wait().unwrap();
        let calls = device.driver_calls();
        assert_eq!(
            (calls.launches, calls.waits, calls.records),
            (1, 0, 1),
            "one event, for all who wait on the host"
        );
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_writer_waits_for_readers_on_two_queues_and_readers_not_for_each_other() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let [one, two, three] = [(); 3].map(|()| queue(&device));
    let x = on_device(&device, &engine);
    device.pause("read 1");
    // Nothing orders two readers, so each is issued before the next is submitted.
    read_on(&engine, &one, "read 1", &x).wait().unwrap();
    read_on(&engine, &two, "read 2", &x).wait().unwrap();
    let write = write_on(&engine, &three, "write", &x, 1.0);
    write.wait().unwrap();
    assert_eq!(device.driver_calls().waits, 2);
    device.run_until_idle();
    assert_eq!(device.completed(), ["read 2"]);
    assert_eq!(started(&device), ["read 1", "read 2"]);
    device.release("read 1");
    device.run_until_idle();
    assert_eq!(device.completed(), ["read 2", "read 1", "write"]);
    // The write's own fence covers both readers: what follows waits for one thing.
    let again = read_on(&engine, &one, "read 3", &x);
    again.wait().unwrap();
    assert_eq!(device.driver_calls().waits, 2, "all is done");
    device.run_until_idle();
    assert_eq!(get(&x), 1.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_host_writer_waits_for_device_readers_and_a_host_reader_does_not() {
    let (device, engine, watchdog) = sim(2, SimOptions::default());
    let (one, two) = (queue(&device), queue(&device));
    let x = on_device(&device, &engine);
    read_on(&engine, &one, "read 1", &x).wait().unwrap();
    read_on(&engine, &two, "read 2", &x).wait().unwrap();
    read(&engine, &x).wait().unwrap();
    assert!(x.is_ready(), "readers do not make a version unready");
    let write = set(&engine, &x, 1.0);
    let mut writable = x.writable();
    device.advance(0);
    assert!(!write.is_done() && (&mut writable).now_or_never().is_none());
    assert!(device.step());
    assert!(!write.is_done());
    device.run_until_idle();
    write.wait().unwrap();
    block_on(writable).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn two_devices_of_different_runtimes_cross_through_the_host_without_a_thread_that_blocks() {
    let one = SimDevice::new(SimOptions::default()).unwrap();
    let two = SimDevice::new(SimOptions { device_id: 1, ..SimOptions::default() }).unwrap();
    let engine = Engine::builder().workers(1).device(one.clone()).device(two.clone()).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let (producer, consumer) = (queue(&one), queue(&two));
    let (x, y) = (on_device(&one, &engine), on_device(&two, &engine));
    write_on(&engine, &producer, "produce", &x, 5.0).wait().unwrap();
    let copy = copy_on(&engine, &consumer, "consume", &x, &y);
    // The engine's only worker is free.
    read(&engine, &tensor(&engine, 0.0)).wait().unwrap();
    assert!(!copy.is_done() && two.driver_calls().launches == 0);
    one.run_until_idle();
    copy.wait().unwrap();
    two.run_until_idle();
    assert_eq!(get(&y), 6.0);
    assert_eq!((one.driver_calls().waits, two.driver_calls().waits), (0, 0));
    assert!(watchdog.still_watches());
}

#[test]
fn a_fault_poisons_what_was_written_and_skips_or_fails_what_depends_on_it_with_the_drivers_message() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let (broken, waiting) = (queue(&device), queue(&device));
    let [x, y, z, untouched] = [(); 4].map(|()| on_device(&device, &engine));
    write_on(&engine, &waiting, "unrelated", &untouched, 1.0).wait().unwrap();
    device.run_until_idle();
    device.fail_named("bad", fault("illegal address"));
    let bad = write_on(&engine, &broken, "bad", &x, 1.0);
    let issued = copy_on(&engine, &waiting, "issued", &x, &y);
    let parked = engine.op("parked").reads([&x]).writes([&z]).run(|[_x], [_z]| panic!("skipped")).unwrap();
    let early = x.ready();
    // Both were issued well; what the device makes of it shows at the tensors.
    bad.wait().unwrap();
    issued.wait().unwrap();
    device.run_until_idle();
    for _ in 0..2 {
        for outcome in [x.wait(), parked.wait(), z.wait(), block_on(x.ready()), block_on(z.ready())] {
            let error = outcome.unwrap_err();
            let cause = error.operation().unwrap_or_else(|| panic!("{error:?}"));
            assert_eq!((cause.operation(), cause.id(), cause.kind()), ("bad", bad.id(), FailureKind::Device));
            assert!(cause.message().contains("illegal address"), "{cause}");
            let driver: &DeviceError = std::error::Error::source(cause).unwrap().downcast_ref().unwrap();
            assert_eq!((driver.kind(), driver.code()), (DeviceErrorKind::Fault, Some(700)));
        }
        // Issued already, so it fails when observed, with the same root error of the driver.
        let error = y.wait().unwrap_err();
        assert!(error.to_string().contains("illegal address"), "{error}");
    }
    assert!(early.now_or_never().expect("settled").unwrap_err().to_string().contains("illegal address"));
    assert_eq!(get(&untouched), 1.0);
    // The queue is poisoned for good; what is enqueued there later fails, and says why.
    let late = write_on(&engine, &broken, "late", &untouched, 2.0);
    assert!(late.wait().unwrap_err().to_string().contains("illegal address"));
    assert!(watchdog.still_watches());
}

/// A queue on which something happens at the moment when it is to be ordered after a fence.
#[derive(Debug)]
struct Ambush {
    queue: Arc<SimQueue>,
    device: Arc<SimDevice>,
}

impl Queue for Ambush {
    fn id(&self) -> QueueId {
        self.queue.id()
    }

    fn device(&self) -> DLDevice {
        self.queue.device()
    }

    fn in_order(&self) -> bool {
        true
    }

    fn order_after(&self, fence: &Fence) -> Result<Order, DeviceError> {
        self.device.run_until_idle();
        self.queue.order_after(fence)
    }

    fn record(&self) -> Result<Fence, DeviceError> {
        self.queue.record()
    }

    fn as_any(&self) -> &dyn Any {
        self.queue.as_any()
    }
}

#[test]
fn a_fence_that_fails_at_the_last_moment_is_its_writers_failure_and_none_of_a_pure_writes() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let [x, y] = [(); 2].map(|()| on_device(&device, &engine));
    let ambush: Arc<dyn Queue> = Arc::new(Ambush { queue: device.queue(false), device: device.clone() });
    for reads in [true, false] {
        device.fail_named("old", fault("old and broken"));
        let old = write_on(&engine, &queue(&device), "old", &x, 1.0);
        old.wait().unwrap();
        let new = if reads {
            copy_on(&engine, &ambush, "new", &x, &y)
        } else {
            write_on(&engine, &ambush, "new", &x, 2.0)
        };
        let outcome = new.wait();
        if reads {
            let error = outcome.unwrap_err();
            let cause = error.operation().unwrap();
            assert_eq!((cause.operation(), cause.id(), cause.kind()), ("old", old.id(), FailureKind::Device));
        } else {
            outcome.unwrap();
            device.run_until_idle();
            assert_eq!(get(&x), 2.0);
        }
    }
    assert!(watchdog.still_watches());
}

#[test]
fn what_was_skipped_or_cancelled_leaves_the_fences_as_they_were() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let queue = queue(&device);
    let (x, bad) = (on_device(&device, &engine), tensor(&engine, 0.0));
    read_on(&engine, &queue, "read", &x).wait().unwrap();
    tests::ops::fail(&engine, &bad, "no");
    let skipped = engine.op("skipped").reads([&bad]).writes([&x]).run(|[_bad], [_x]| Ok(()));
    skipped.unwrap().wait().unwrap_err();
    let write = set(&engine, &x, 2.0);
    read(&engine, &tensor(&engine, 0.0)).wait().unwrap();
    assert!(!write.is_done(), "the device still reads");
    device.run_until_idle();
    write.wait().unwrap();
    assert_eq!(get(&x), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn bodies_take_turns_and_their_device_work_does_not() {
    let (device, engine, _watchdog) = sim(2, SimOptions::default());
    let queue = queue(&device);
    let mutex = bindings::operation::mutex();
    let inside = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let ops: Vec<_> = (0..8)
        .map(|number: u64| {
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            let op = engine.op("turn").writes_vars(&[&mutex]).on(&queue);
            op.run_on(move |queue, [], []| {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                SimQueue::from_queue(queue).unwrap().launch("work", 1_000, || {})?;
                inside.fetch_sub(1, Ordering::SeqCst);
                if number == 3 { Err("on purpose".into()) } else { Ok(()) }
            })
            .unwrap()
        })
        .collect();
    // The device's clock stands still: device work that the bodies left, and its failure, hold up no
    // operation.
    let host = engine.op("host").writes_vars(&[&mutex]).run(|[], []| Ok(())).unwrap();
    host.wait().unwrap();
    assert_eq!(device.unfinished(), 8);
    assert_eq!(most.load(Ordering::SeqCst), 1, "one body at a time");
    assert_eq!(mutex.version(), 9);
    device.run_until_idle();
    let failed = ops.iter().filter(|op| op.wait().is_err()).count();
    assert_eq!(failed, 1);
}

#[test]
fn a_body_that_works_on_the_host_is_refused_on_a_queue() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let (queue, x) = (queue(&device), on_device(&device, &engine));
    let op = |name: &'static str| engine.op(name).reads([&x]).on(&queue);
    let result = || foreign::tensor(&[1.0], &Deleted::default());
    let refused = [
        op("run").run(|[_x], []| Ok(())).map(drop),
        op("detached").run_detached(|[_x], []| Ok(())),
        op("future").run_future(|[_x], []| async { Ok(()) }).map(drop),
        op("produced").produce(move |[_x]| Ok(result())).map(drop),
        op("produced later").produce_future(move |[_x]| async move { Ok(result()) }).map(drop),
        engine.op("updates").updates([&x]).on(&queue).run(|[], [], [_x]| Ok(())).map(drop),
        engine
            .op("updates later")
            .updates([&x])
            .on(&queue)
            .run_future(|[], [], [_x]| async { Ok(()) })
            .map(drop),
    ];
    for refused in refused {
        assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains("`run_on`")), "{refused:?}");
    }
    assert!(watchdog.still_watches());
}

#[test]
fn a_body_on_a_queue_sees_on_the_host_what_has_settled_and_nothing_that_the_device_still_uses() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let (first, second) = (queue(&device), queue(&device));
    let [written, read, settled] = [(); 3].map(|()| on_device(&device, &engine));
    write_on(&engine, &first, "write", &written, 1.0).wait().unwrap();
    read_on(&engine, &first, "read", &read).wait().unwrap();
    let pending = |outcome: Result<(), Error>| assert!(outcome.unwrap_err().to_string().contains("pending"));
    let looks = engine.op("looks").reads([&written, &read]).updates([&settled]).on(&second);
    let looks = looks.run_on(move |_, [written, read], [], [mut settled]| {
        pending(written.as_slice::<f32>().map(drop));
        pending(written.to_vec::<f32>().map(drop));
        assert_eq!(read.as_slice::<f32>()?, [0.0]);
        settled.as_mut_slice::<f32>()?.fill(2.0);
        Ok(())
    });
    looks.unwrap().wait().unwrap();
    let overwrites = engine.op("overwrites").writes([&read]).on(&second);
    let overwrites = overwrites.run_on(move |_, [], [mut read]| {
        pending(read.as_mut_slice::<f32>().map(drop));
        Ok(())
    });
    overwrites.unwrap().wait().unwrap();
    device.run_until_idle();
    let later = engine.op("later").reads([&written, &settled]).writes([&read]).on(&second);
    let later = later.run_on(|_, [written, settled], [mut read]| {
        assert_eq!((written.to_vec::<f32>()?, settled.to_vec::<f32>()?), (vec![1.0], vec![2.0]));
        read.as_mut_slice::<f32>()?.fill(3.0);
        Ok(())
    });
    later.unwrap().wait().unwrap();
    device.run_until_idle();
    assert_eq!(get(&read), 3.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_copy_that_a_device_is_making_is_not_shown_to_the_host() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let copy = engine.copy(&tensor(&engine, 4.0), device.id()).unwrap();
    let peek = engine.op("peek").reads([&copy]).on(&queue(&device)).run_on(|_, [copy], []| {
        assert!(copy.as_slice::<f32>().is_err());
        Ok(())
    });
    peek.unwrap().wait().unwrap();
    device.run_until_idle();
    assert_eq!(get(&copy), 4.0);
    assert!(watchdog.still_watches());
}
