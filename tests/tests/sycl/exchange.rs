//! The engine on the real SYCL runtime, with the processor as the device. `cargo xtask test --suite sycl` has
//! one; a plain test run leaves these out.

use std::sync::Arc;
use std::time::Duration;

use estafette::devices::sim::{SimDevice, SimOptions, SimPace, SimQueue};
use estafette::devices::sycl::{SyclDevice, SyclQueue, SyclRuntime, UsmKind};
use estafette::devices::{Device, Queue};
use estafette::trace::{Recorder, TraceOptions};
use estafette::{DType, Engine, Op, Tensor};
use estafette_report::model::TrackKind;
use tests::ops::{get, set, tensor};

const BYTES: i64 = 32 << 20;

fn sycl() -> Arc<SyclDevice> {
    Arc::clone(&SyclRuntime::get().unwrap_or_else(|error| panic!("{error}")).devices()[0])
}

fn bytes_on(engine: &Engine, device: &dyn Device) -> Tensor {
    engine.empty(&[BYTES], DType::U8, device.id()).unwrap()
}

/// Sets every byte, as a long kernel would.
fn fill(engine: &Engine, queue: &Arc<dyn Queue>, x: &Tensor, value: u8) -> Op {
    let op = engine.op("fill").writes([x]).on(queue);
    op.run_on(move |queue, [], [mut x]| {
        let queue = SyclQueue::from_queue(queue).expect("a SYCL queue");
        // SAFETY: the engine keeps the tensor, and all other uses away from it, until the work is done.
        Ok(unsafe { queue.fill(x.data_mut_ptr(), value, BYTES as usize) }?)
    })
    .unwrap()
}

fn copy(engine: &Engine, device: &Arc<SyclDevice>, queue: &Arc<dyn Queue>, x: &Tensor, y: &Tensor) -> Op {
    copy_as("copy", engine, device, queue, [x, y])
}

fn copy_as(
    name: &'static str,
    engine: &Engine,
    device: &Arc<SyclDevice>,
    queue: &Arc<dyn Queue>,
    [x, y]: [&Tensor; 2],
) -> Op {
    let device = Arc::clone(device);
    let op = engine.op(name).reads([x]).writes([y]).on(queue);
    op.run_on(move |queue, [x], [mut y]| {
        // SAFETY: as in `fill`.
        Ok(unsafe { device.copy(queue, x.data_ptr(), y.data_mut_ptr(), BYTES as usize) }?)
    })
    .unwrap()
}

#[test]
fn long_work_on_several_queues_gives_the_sequential_result() {
    let device = sycl();
    let engine = Engine::builder().workers(1).build().unwrap();
    for in_order in [true, false] {
        let queues = [0, 1, 2].map(|_| device.queue(in_order).unwrap() as Arc<dyn Queue>);
        let (x, y, z) =
            (bytes_on(&engine, &*device), bytes_on(&engine, &*device), bytes_on(&engine, &*device));
        for round in 0..4 {
            fill(&engine, &queues[0], &x, round);
            copy(&engine, &device, &queues[1], &x, &y);
            copy(&engine, &device, &queues[2], &y, &z);
            // Write after read, on the first queue again.
            fill(&engine, &queues[0], &x, 100 + round);
        }
        let bytes = z.to_vec::<u8>().unwrap();
        assert!(bytes.iter().all(|&byte| byte == 3), "{:?}", &bytes[..4]);
        assert!(x.to_vec::<u8>().unwrap().iter().all(|&byte| byte == 103));
    }
}

#[test]
fn a_trace_says_when_the_device_worked() {
    const COPIES: usize = 12;
    let device = sycl();
    let engine = Engine::builder().workers(1).build().unwrap();
    for in_order in [true, false] {
        let queue = device.queue(in_order).unwrap() as Arc<dyn Queue>;
        let (x, y) = (bytes_on(&engine, &*device), bytes_on(&engine, &*device));
        // Before the measurement: the queue has work under way when its measurement begins.
        fill(&engine, &queue, &x, 7);
        let recorder = Recorder::open(TraceOptions::default()).unwrap();
        for step in 0..COPIES {
            let (from, to) = if step % 2 == 0 { (&x, &y) } else { (&y, &x) };
            copy_as("measured", &engine, &device, &queue, [from, to]);
        }
        x.wait().unwrap();
        y.wait().unwrap();
        // The thread that saw the end may still be recording it.
        std::thread::sleep(Duration::from_millis(50));
        let trace = recorder.finish();
        // And afterwards.
        copy(&engine, &device, &queue, &x, &y);
        assert!(y.to_vec::<u8>().unwrap().iter().all(|&byte| byte == 7));
        let copies: Vec<_> = trace.operations.iter().filter(|it| it.name == "measured").collect();
        let spans: Vec<_> = copies.iter().map(|copy| copy.ran.expect("the device tells")).collect();
        assert_eq!(spans.len(), COPIES);
        for (copy, (from, to)) in copies.iter().zip(&spans) {
            let (began, observed) = (copy.began.unwrap(), copy.observed.unwrap());
            assert!(began <= *from && from < to && *to <= observed, "{copy:?}");
            assert!(trace.tracks[copy.track.unwrap()].kind == TrackKind::Queue);
        }
        // Each depends on the one before, so none overlaps another, and together they are most of the time
        // that it took.
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{spans:?}");
        let busy: u64 = spans.iter().map(|(from, to)| to - from).sum();
        let whole = spans[COPIES - 1].1 - spans[0].0;
        assert!(busy <= whole && busy * 2 > whole, "busy for {busy} of {whole} ns");
    }
}

#[test]
fn between_the_host_sycl_and_another_runtime_the_reactor_carries_over() {
    let (device, other) =
        (sycl(), SimDevice::new(SimOptions { pace: SimPace::Immediate, ..SimOptions::default() }));
    let other = other.unwrap();
    let engine = Engine::builder().workers(1).device(other.clone()).build().unwrap();
    let (queue, foreign) = (device.create_queue().unwrap(), other.create_queue().unwrap());
    let host = tensor(&engine, 0.0);
    let on_sycl = engine.empty(&[1], DType::F32, device.id()).unwrap();
    let on_sim = engine.empty(&[1], DType::F32, other.id()).unwrap();
    for round in 1..=20 {
        set(&engine, &host, round as f32);
        let from = Arc::clone(&device);
        let up = engine.op("up").reads([&host]).writes([&on_sycl]).on(&queue);
        up.run_on(move |queue, [x], [mut y]| {
            // SAFETY: the engine keeps both tensors until the work is done.
            Ok(unsafe { from.copy(queue, x.data_ptr(), y.data_mut_ptr(), 4) }?)
        })
        .unwrap();
        let across = engine.op("across").reads([&on_sycl]).writes([&on_sim]).on(&foreign);
        across
            .run_on(move |queue, [x], [mut y]| {
                let (from, to) = (x.data_ptr().expose_provenance(), y.data_mut_ptr().expose_provenance());
                let work = move || {
                    let from = std::ptr::with_exposed_provenance::<f32>(from);
                    // SAFETY: as above; shared memory, which the host may read.
                    unsafe { std::ptr::with_exposed_provenance_mut::<f32>(to).write(*from * 2.0) };
                };
                Ok(SimQueue::from_queue(queue).expect("simulated").launch("across", 1_000, work)?)
            })
            .unwrap();
        assert_eq!(get(&on_sim), round as f32 * 2.0);
    }
}

#[test]
fn whoever_gives_up_waiting_and_whoever_cancels_leaves_the_device_in_order() {
    let device = sycl();
    let engine = Engine::builder().workers(1).build().unwrap();
    let queue = device.create_queue().unwrap();
    let x = bytes_on(&engine, &*device);
    for value in 0..20 {
        fill(&engine, &queue, &x, value);
        drop(x.ready());
    }
    let failing = engine.op("fails").writes([&x]).on(&queue);
    let failing = failing.run_on(|queue, [], [mut x]| {
        let queue = SyclQueue::from_queue(queue).expect("a SYCL queue");
        // SAFETY: as in `fill`.
        unsafe { queue.fill(x.data_mut_ptr(), 200, BYTES as usize) }?;
        Err("after the first kernel".into())
    });
    assert!(failing.unwrap().wait().is_err());
    assert!(x.wait().is_err(), "the version is poisoned");
    fill(&engine, &queue, &x, 7);
    assert!(x.to_vec::<u8>().unwrap().iter().all(|&byte| byte == 7), "a pure write heals");
}

#[test]
fn usm_says_what_it_is_and_a_queue_from_outside_is_waited_for() {
    let device = sycl();
    for &kind in device.usm_kinds() {
        let memory = device.allocate_usm(kind, 64, 64).unwrap();
        assert_eq!(device.usm_kind_of(memory.ptr().as_ptr()), Some(kind));
        assert_eq!(device.host_accessible_at(memory.ptr().as_ptr()), kind != UsmKind::Device);
    }
    assert_eq!(device.usm_kind_of([0_u8; 4].as_ptr()), None);
    let owner = device.queue(true).unwrap();
    let native = std::ptr::with_exposed_provenance_mut(owner.native());
    // SAFETY: a live queue of this runtime.
    let foreign = unsafe { device.foreign_queue(std::ptr::NonNull::new(native).unwrap()) }.unwrap();
    assert!(foreign.is_foreign());
    let memory = device.allocate(1 << 20, 64).unwrap();
    // SAFETY: the memory stays until the fence has settled.
    unsafe { foreign.fill(memory.ptr().as_ptr(), 5, memory.len()) }.unwrap();
    let fence = foreign.record().unwrap();
    assert!(fence.queue().is_none(), "a fence of its own");
    assert!(fence.wait_timeout(None).unwrap().is_ok());
    // SAFETY: shared memory that no code writes any more.
    assert_eq!(unsafe { memory.ptr().as_ptr().add(4_000).read() }, 5);
    let event = device.event_of_fence(&fence).unwrap();
    // SAFETY: a live event of this runtime.
    let again = unsafe { device.fence_of_event(event.pointer()) }.unwrap();
    assert!(again.wait_timeout(None).unwrap().is_ok());
}
