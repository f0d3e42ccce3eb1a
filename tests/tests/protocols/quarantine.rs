//! Memory that a consumer released while its work may still run: it is written and freed after that work, and
//! each use of it ends once, by a barrier or by its timeout.

use std::sync::Arc;
use std::time::Duration;

use estafette::bindings;
use estafette::bindings::reaper;
use estafette::devices::Device;
use estafette::exchange::{flush_deleters, quarantine};
use estafette::lease::Consumer;
use estafette::{Access, DType, Engine, Lease, Tensor};
use estafette_sync::sync::atomic::Ordering;
use estafette_sync::thread;
use tests::simulation::explore_in_time;

use crate::device::{Seen, Watched, broken, refused};

/// Schedules per situation: an engine with a device takes more steps than one without.
const SCHEDULES: u64 = 1_000;

/// Far longer than the device works.
const LONG: Duration = Duration::from_secs(60);

/// Time that the thread of a quarantine stays when nothing comes.
const IDLE: Duration = Duration::from_secs(10);

fn engine(device: &Arc<Watched>, timeout: Duration) -> Engine {
    Engine::builder().workers(1).device(device.clone()).quarantine_timeout(timeout).build().unwrap()
}

fn memory(engine: &Engine, device: &Watched) -> (Tensor, usize) {
    let tensor = engine.empty(&[1], DType::F32, device.id()).unwrap();
    let at = tensor.data_ptr().unwrap().addr();
    (tensor, at)
}

fn lend(tensor: &Tensor) -> Lease {
    tensor.lease(Access::Read, "a consumer").for_consumer(&Consumer::Unordered).wait(None).unwrap()
}

/// Waits for a write of the memory. No work uses it then.
fn write(engine: &Engine, tensor: &Tensor, seen: &Arc<Seen>, at: usize) {
    let seen = Arc::clone(seen);
    let write = engine.op("write").writes([tensor]).run(move |[], [_tensor]| {
        if seen.is_in_use(at) { Err("written while it was in use".into()) } else { Ok(()) }
    });
    write.unwrap().wait().unwrap();
}

/// Ends the use of a device. Its quarantine releases the device some time after the last use.
fn close(engine: Engine, device: Arc<Watched>) {
    let gone = Arc::downgrade(&device);
    drop((engine, device));
    assert!(flush_deleters(LONG), "memory stays in quarantine");
    thread::sleep(3 * IDLE);
    assert_eq!(gone.strong_count(), 0, "the device is kept");
}

/// ```text
/// consumers:   lend twice ─── work begins ─── release ─── release
/// program:                                     write ─── drop the tensor, the engine, the device
/// quarantine:                      asks; is refused at times, and asks again
/// ```
#[test]
fn memory_is_written_and_freed_after_work_that_is_not_known_and_its_device_goes_last() {
    for refusals in [0, 2] {
        explore_in_time(SCHEDULES, move || {
            let device = Watched::new();
            let seen = device.seen.clone();
            device.barriers.lock().extend((0..refusals).map(|_| refused()));
            let engine = engine(&device, LONG);
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let (tensor, at) = memory(&engine, &device);
                        let leases = [lend(&tensor), lend(&tensor)];
                        device.use_memory(at);
                        drop(leases);
                        write(&engine, &tensor, &seen, at);
                        let lease = lend(&tensor);
                        device.use_memory(at);
                        drop(lease);
                    });
                }
            });
            close(engine, device);
            let stats = bindings::quarantine_stats();
            assert_eq!((stats.waiting, stats.released, stats.given_up), (0, 6, 0));
            assert_eq!((seen.freed.load(Ordering::SeqCst), seen.freed_early.load(Ordering::SeqCst)), (2, 0));
        });
    }
}

/// The end of the use cannot be known: the memory is leaked, once, and operations that wait for it continue.
#[test]
fn memory_whose_barrier_fails_is_never_freed_and_holds_nothing_up() {
    explore_in_time(SCHEDULES, || {
        let device = Watched::new();
        let seen = device.seen.clone();
        device.barriers.lock().extend([broken()]);
        let engine = engine(&device, LONG);
        let (tensor, at) = memory(&engine, &device);
        let lease = lend(&tensor);
        device.use_memory(at);
        drop(lease);
        let write = engine.op("write").writes([&tensor]).run(|[], [_tensor]| Ok(())).unwrap();
        write.wait().unwrap();
        drop((write, tensor));
        let stats = bindings::quarantine_stats();
        assert_eq!((stats.waiting, stats.released, stats.given_up), (0, 0, 1));
        close(engine, device);
        assert_eq!(seen.freed.load(Ordering::SeqCst), 0);
        assert_eq!(reaper().stats().leaked, 1);
    });
}

/// ```text
/// device:      work ends ─── the barrier is done
/// quarantine:     the time of the use is over          one of them ends it
/// ```
#[test]
fn a_use_that_is_over_as_its_time_comes_ends_once() {
    const TIME: Duration = Duration::from_millis(20);
    explore_in_time(SCHEDULES, || {
        let device = Watched::new();
        let seen = device.seen.clone();
        device.sim.pause("work");
        let engine = engine(&device, TIME);
        let (tensor, at) = memory(&engine, &device);
        let lease = lend(&tensor);
        device.use_memory(at);
        drop(lease);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(TIME);
                device.sim.release("work");
            });
            drop(tensor);
        });
        close(engine, device);
        let stats = bindings::quarantine_stats();
        assert_eq!((stats.waiting, stats.released + stats.given_up), (0, 1));
        assert_eq!(seen.freed.load(Ordering::SeqCst) as u64, stats.released);
        assert_eq!(reaper().stats().leaked, stats.given_up);
        assert_eq!(seen.freed_early.load(Ordering::SeqCst), 0);
    });
}

/// ```text
/// quarantine:  nothing comes for long ─── closes
/// program:                          gives memory back
/// ```
#[test]
fn a_use_that_comes_while_the_quarantine_of_its_device_closes_is_covered() {
    explore_in_time(SCHEDULES, || {
        let device = Watched::new();
        let seen = device.seen.clone();
        let engine = engine(&device, LONG);
        let (tensor, at) = memory(&engine, &device);
        for _ in 0..2 {
            let lease = lend(&tensor);
            device.use_memory(at);
            drop(lease);
            write(&engine, &tensor, &seen, at);
            thread::sleep(IDLE);
        }
        drop(tensor);
        close(engine, device);
        let stats = bindings::quarantine_stats();
        assert_eq!((stats.released, stats.given_up), (2, 0));
        assert_eq!((seen.freed.load(Ordering::SeqCst), seen.freed_early.load(Ordering::SeqCst)), (1, 0));
    });
}

/// ```text
/// program:     pause ─── capture a graph ─── end of the pause
/// quarantine:     asks for a barrier, before or after
/// ```
#[test]
fn no_barrier_is_asked_for_during_a_pause_and_uses_end_after_it() {
    explore_in_time(SCHEDULES, || {
        let device = Watched::new();
        let seen = device.seen.clone();
        let engine = engine(&device, LONG);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (tensor, at) = memory(&engine, &device);
                let lease = lend(&tensor);
                device.use_memory(at);
                drop(lease);
                write(&engine, &tensor, &seen, at);
            });
            for _ in 0..2 {
                let pause = quarantine::pause();
                seen.capturing.store(true, Ordering::SeqCst);
                thread::yield_now();
                seen.capturing.store(false, Ordering::SeqCst);
                drop(pause);
            }
        });
        close(engine, device);
        assert_eq!(seen.spoiled.load(Ordering::SeqCst), 0, "a barrier spoils a capture");
        assert_eq!(bindings::quarantine_stats().given_up, 0);
    });
}
