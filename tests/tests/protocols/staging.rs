//! Copies that share few staging chunks: each is whole, none waits for ever, and every chunk is released.

use std::sync::Arc;
use std::time::Duration;

use estafette::bindings::reaper;
use estafette::devices::sim::SimPace;
use estafette::devices::{DLDevice, Device};
use estafette::{Engine, Error, Tensor};
use estafette_sync::simulated::drop_tasks;
use estafette_sync::sync::atomic::Ordering;
use estafette_sync::thread;
use tests::simulation::explore_in_time;

use crate::device::{Watched, broken};

/// Schedules per situation: each has several copies.
const SCHEDULES: u64 = 500;

/// Chunks that a device has under shuttle, of both sizes together.
const CHUNKS: usize = 3;

/// Elements of copies: one goes through a small chunk, the others through large ones, in two and in three
/// steps.
const LENGTHS: [usize; 3] = [2, 7, 12];

fn engine(device: &Arc<Watched>) -> Engine {
    Engine::builder().workers(1).device(device.clone()).build().unwrap()
}

/// Copies to the device and back.
fn there_and_back(engine: &Engine, device: &Watched, length: usize, first: f32) -> Result<(), Error> {
    let values: Vec<f32> = (0..length).map(|at| first + at as f32).collect();
    let source = engine.from_vec(values.clone(), &[length as i64])?;
    let there = engine.copy(&source, device.id())?;
    let back: Tensor = engine.copy(&there, DLDevice::CPU)?;
    back.wait()?;
    // SAFETY: memory of the host, of so many elements, which is written and which nothing else uses.
    let copied = unsafe { std::slice::from_raw_parts(back.data_ptr()?.cast::<f32>(), length) };
    assert_eq!(copied, values, "a chunk was used twice");
    Ok(())
}

/// Copies of all lengths at once, with `meanwhile` beside them.
fn copies(engine: &Engine, device: &Watched, meanwhile: impl FnOnce()) -> Vec<Result<(), Error>> {
    thread::scope(|scope| {
        let copies: Vec<_> = (0..LENGTHS.len())
            .map(|at| scope.spawn(move || there_and_back(engine, device, LENGTHS[at], 100.0 * at as f32)))
            .collect();
        meanwhile();
        copies.into_iter().map(|copy| copy.join().unwrap()).collect()
    })
}

/// Ends the use of a device. Its chunks go with it, once another device copies, but for those that a broken
/// device may use.
fn close(engine: Engine, device: Arc<Watched>, may_leak: bool) {
    let seen = device.seen.clone();
    let (gone, sim) = (Arc::downgrade(&device), device.sim.clone());
    drop((engine, device));
    // Memory that a broken device may use is kept for ever, and its device with it.
    until(|| gone.strong_count() == 0 || may_leak && reaper().stats().leaked > 0);
    sim.stop();
    drop(sim);
    // This one has no thread, as it stays.
    let other = Watched::with(SimPace::Manual);
    let engine = self::engine(&other);
    let source = engine.from_vec(vec![1.0_f32], &[1]).unwrap();
    let copy = engine.copy(&source, other.id()).unwrap();
    until(|| {
        other.sim.run_until_idle();
        copy.is_ready()
    });
    if !may_leak {
        assert!(seen.staged_max.load(Ordering::SeqCst) <= CHUNKS);
        until(|| seen.staged.load(Ordering::SeqCst) == 0);
    }
}

/// Waits until something holds, which nothing notifies of. If it never does, the execution hangs and fails.
fn until(holds: impl Fn() -> bool) {
    while !holds() {
        thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn copies_that_wait_for_chunks_of_others_are_all_whole() {
    explore_in_time(SCHEDULES, || {
        let device = Watched::new();
        let engine = engine(&device);
        copies(&engine, &device, || ()).into_iter().for_each(Result::unwrap);
        close(engine, device, false);
    });
}

/// ```text
/// copies:   wait for a chunk ─── wait for the device
/// runtime:        ends, at any time, and drops them
/// ```
#[test]
fn copies_that_are_given_up_anywhere_release_their_chunks() {
    explore_in_time(SCHEDULES, || {
        let device = Watched::new();
        let engine = engine(&device);
        copies(&engine, &device, drop_tasks);
        copies(&engine, &device, || ()).into_iter().for_each(Result::unwrap);
        close(engine, device, false);
    });
}

/// The memory of a chunk that a broken queue may still use is leaked. Copies that wait for a chunk get
/// another one.
#[test]
fn copies_that_wait_for_chunks_that_a_broken_queue_keeps_go_on() {
    explore_in_time(SCHEDULES, || {
        let device = Watched::new();
        let engine = engine(&device);
        for _ in 0..2 {
            copies(&engine, &device, || device.sim.fail_everything(broken()));
        }
        // Some are refused by queues that are broken, but none waits for ever.
        copies(&engine, &device, || ());
        close(engine, device, true);
    });
}
