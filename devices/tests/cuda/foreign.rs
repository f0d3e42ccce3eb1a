//! Streams of others.

use std::ffi::c_void;
use std::{ptr, thread};

use cudarc::driver::sys;
use estafette_cuda_sim_client::path;
use estafette_devices::{CurrentGuard, Device, DeviceErrorKind, FenceSet, FenceState, Order, Queue};

use crate::harness::{MOMENT, assert_ok, bench, block, fill, hold, inside, order, record, settle};

#[test]
fn handles_have_64_bits() {
    let bench = bench();
    let own = bench.queue();
    let stranger = bench.foreign_stream();
    if let Some(simulator) = bench.simulator("where the driver puts its streams is its own business") {
        assert!(own.native() > u32::MAX as usize && stranger.handle() > u32::MAX as usize);
        // Half a handle is no stream.
        // SAFETY: the simulator knows its streams; it follows no address.
        let cut = unsafe { bench.device.foreign_queue(stranger.handle() & 0xffff_ffff) };
        assert_eq!(cut.expect_err("no such stream").kind(), DeviceErrorKind::Invalid);
        assert_eq!(simulator.violations().len(), 1, "and the simulator says so");
        simulator.forget_violations();
    }
    // SAFETY: the stream lives to the end of the test.
    let whole = unsafe { bench.device.foreign_queue(stranger.handle()) }.expect("it is of the device");
    assert_eq!(whole.native(), stranger.handle());
}

#[test]
fn work_of_a_stranger_is_waited_for_and_waits() {
    let bench = bench();
    let queue = bench.queue();
    let [given, taken, copied] = [(); 3].map(|()| bench.memory(4_096));
    let stranger = bench.foreign_stream();
    // SAFETY: the stream lives to the end of the test.
    let acquire = || unsafe { bench.device.foreign_queue(stranger.handle()) }.expect("it is of the device");
    let blocked = block(&*queue);
    fill(&queue, &given, 1);
    let written = record(&queue);
    // Later work of the stranger comes after our work.
    assert_eq!(acquire().order_after(&written).expect("it works"), Order::Device);
    stranger.fill(&given, 2);
    let theirs = acquire().record().expect("it works");
    assert!(theirs.queue().is_some_and(|queue| queue != acquire().id()), "its fences are no import's");
    stranger.fill(&taken, 9);
    assert!(theirs.state().is_pending());
    // And the own stream after what the foreign stream did.
    assert_eq!(order(&queue, &theirs), Order::Device);
    bench.copy(&queue, &given, &copied);
    let end = record(&queue);
    assert!(end.wait_timeout(Some(MOMENT)).is_none());
    blocked.release();
    settle(&end).expect("nothing failed");
    assert!(theirs.is_done());
    bench.assert_filled(&copied, 2);
    // Work of the foreign stream after its fence belongs to no fence: the own stream waits for the fence
    // only.
    settle(&acquire().record().expect("it works")).expect("nothing failed");
    bench.assert_filled(&taken, 9);
    bench.assert_nothing_wrong();
}

/// Its owner may have destroyed the event since.
#[test]
fn a_foreign_event_is_not_waited_for_once_it_has_failed() {
    let bench = bench();
    let Some(simulator) = bench.simulator("a driver refuses no call on request") else { return };
    let (queue, stranger) = (bench.queue(), bench.foreign_stream());
    let blocked = hold(&bench.device, stranger.raw);
    let mut event: sys::CUevent = ptr::null_mut();
    inside(&bench.device, || {
        // SAFETY: the stream is live, and the event from here on.
        unsafe {
            assert_ok(sys::cuEventCreate(&raw mut event, 2));
            assert_ok(sys::cuEventRecord(event, stranger.raw));
        }
    });
    // SAFETY: the event lives until the fence has settled.
    let fence = unsafe { bench.device.fence_of_event(ptr::NonNull::from(&mut event).cast()) }
        .expect("it is of the device");
    simulator.fail_call("cuEventQuery", 400);
    let FenceState::Failed(failure) = fence.state() else { panic!("the query was refused") };
    // SAFETY: ours, and the fence has settled.
    inside(&bench.device, || unsafe { assert_ok(sys::cuEventDestroy_v2(event)) });
    let refused = queue.order_after(&fence).expect_err("it has failed");
    assert!(refused.same_root(&failure), "{refused} is not {failure}");
    blocked.release();
    bench.assert_nothing_wrong();
}

#[test]
fn every_import_is_a_new_queue_and_is_recorded_at_once() {
    let bench = bench();
    let stranger = bench.foreign_stream();
    // SAFETY: the stream lives to the end of the test.
    let acquire = || unsafe { bench.device.foreign_queue(stranger.handle()) }.expect("it is of the device");
    let (first, second) = (acquire(), acquire());
    assert_ne!(first.id(), second.id());
    assert!(!first.in_order() && !first.handle_outlives_call());
    let before = bench.device.counters();
    let fence = first.record().expect("it works");
    let after = bench.device.counters();
    assert_eq!(after.events_recorded - before.events_recorded, 1);
    drop((first, second, stranger));
    settle(&fence).expect("the fence needs no stream");
}

#[test]
fn what_is_no_stream_of_the_device_is_refused() {
    let bench = bench();
    // SAFETY: 0 is never followed.
    let nothing = unsafe { bench.device.foreign_queue(0) }.expect_err("0 is ambiguous");
    assert!(nothing.message().contains("say 1") && nothing.kind() == DeviceErrorKind::Invalid, "{nothing}");
    let Some(other) = bench.another_device() else { return };
    let stranger = bench.foreign_stream();
    // SAFETY: the stream lives to the end of the test.
    let refused = unsafe { other.foreign_queue(stranger.handle()) }.expect_err("it is of another context");
    assert_eq!(refused.kind(), DeviceErrorKind::Invalid);
    assert!(refused.message().contains(&other.id().to_string()), "{refused}");
}

/// A green context is a part of its device's primary context, whose memory and events it shares.
#[test]
fn a_stream_of_a_green_context_is_one_of_its_device() {
    let bench = bench();
    if bench.simulator("a green context takes a part of the device from other tests").is_none() {
        return;
    }
    type Create = unsafe extern "C" fn(*mut u64, *mut c_void, i32, u32) -> sys::CUresult;
    type CreateStream = unsafe extern "C" fn(*mut usize, u64, u32, i32) -> sys::CUresult;
    let (mut green, mut handle) = (0, 0);
    // SAFETY: the library is the simulator, whose functions have these types. Each writes one handle, and it
    // reads no resources.
    unsafe {
        let driver = libloading::Library::new(path().expect("it is built")).expect("it is loaded");
        let create = driver.get::<Create>(b"cuGreenCtxCreate").expect("since 12.4");
        let create_stream = driver.get::<CreateStream>(b"cuGreenCtxStreamCreate").expect("since 12.4");
        assert_ok(create(&raw mut green, ptr::null_mut(), bench.device.ordinal(), 1));
        assert_ok(create_stream(&raw mut handle, green, 1, 0));
    }
    let queue = bench.queue();
    let memory = bench.memory(64);
    let blocked = block(&*queue);
    fill(&queue, &memory, 1);
    // SAFETY: the stream is never destroyed.
    let acquired = unsafe { bench.device.foreign(handle) }.expect("it is of the device");
    assert_eq!(acquired.order_after(&record(&queue)).expect("it works"), Order::Device);
    fill(&acquired, &memory, 2);
    let theirs = acquired.record().expect("it works");
    assert!(theirs.wait_timeout(Some(MOMENT)).is_none());
    blocked.release();
    settle(&theirs).expect("nothing failed");
    bench.assert_filled(&memory, 2);
    let other = bench.another_device().expect("the simulator has some");
    // SAFETY: as above.
    assert!(unsafe { other.foreign_queue(handle) }.is_err());
    bench.assert_nothing_wrong();
}

/// The loss of a stream's context says nothing about the primary context.
#[test]
fn a_stream_of_a_destroyed_context_breaks_nothing() {
    let bench = bench();
    if bench.simulator("the driver may crash on such a stream").is_none() {
        return;
    }
    let (mut context, mut stream) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: each writes one handle; what was created is destroyed once.
    unsafe {
        assert_ok(sys::cuCtxCreate_v2(&raw mut context, 0, bench.device.ordinal()));
        assert_ok(sys::cuStreamCreate(&raw mut stream, 1));
        assert_ok(sys::cuCtxDestroy_v2(context));
    }
    // SAFETY: the simulator knows its streams; it follows no address.
    let refused = unsafe { bench.device.foreign_queue(stream.expose_provenance()) }.expect_err("it is gone");
    assert_eq!(refused.kind(), DeviceErrorKind::Invalid);
    assert!(refused.message().ends_with("is of a context that is gone"), "{refused}");
    assert!(bench.device.fault().is_none());
    assert!(bench.device.queue().is_ok());
    bench.assert_nothing_wrong();
}

#[test]
fn the_default_streams_are_taken_by_their_numbers() {
    let bench = bench();
    let queue = bench.queue();
    let memory = bench.memory(4_096);
    let blocked = block(&*queue);
    fill(&queue, &memory, 4);
    let written = record(&queue);
    for number in [1, 2] {
        // SAFETY: the default streams are always there.
        let default = unsafe { bench.device.foreign_queue(number) }.expect("it is of every device");
        assert_eq!(default.order_after(&written).expect("it works"), Order::Device);
        assert_eq!(default.handle_outlives_call(), number == 1);
        let fence = default.record().expect("it works");
        assert!(fence.state().is_pending(), "the default stream {number} waits");
    }
    blocked.release();
    settle(&written).expect("nothing failed");
    for number in [1, 2] {
        // SAFETY: as above.
        let default = unsafe { bench.device.foreign_queue(number) }.expect("it is of every device");
        settle(&default.record().expect("it works")).expect("nothing failed");
    }
    bench.assert_nothing_wrong();
}

#[test]
fn the_stream_of_each_thread_is_not_used_on_another() {
    let bench = bench();
    // SAFETY: this thread's own.
    let mine = unsafe { bench.device.foreign_queue(2) }.expect("it is of every device");
    let fence = record(&bench.queue());
    thread::scope(|scope| {
        let asked = scope.spawn(|| {
            assert_eq!(mine.record().expect_err("another thread's").kind(), DeviceErrorKind::Invalid);
            let pending = bench.queue();
            let blocked = block(&*pending);
            let refused = mine.order_after(&record(&pending));
            blocked.release();
            refused.expect_err("another thread's")
        });
        let error = asked.join().expect("it does not panic");
        assert!(error.message().contains("each thread's own"), "{error}");
    });
    settle(&fence).expect("nothing failed");
    settle(&mine.record().expect("it works here")).expect("nothing failed");
}

#[test]
fn calls_leave_the_context_of_the_thread_as_it_was() {
    let bench = bench();
    let current = || {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { crate::harness::assert_ok(sys::cuCtxGetCurrent(&raw mut context)) };
        context
    };
    let work = || {
        let queue = bench.queue();
        fill(&queue, &bench.memory(64), 1);
        settle(&record(&queue)).expect("nothing failed");
    };
    let before = current();
    work();
    assert_eq!(current(), before);
    let Some(other) = bench.another_device() else { return };
    inside(&other, || {
        let before = current();
        work();
        assert_eq!(current(), before);
    });
    assert_eq!(current(), before);
}

#[test]
fn events_cross_to_others_and_back() {
    let bench = bench();
    let (queue, consumer) = (bench.queue(), bench.queue());
    let memory = bench.memory(64);
    let blocked = block(&*queue);
    fill(&queue, &memory, 1);
    let fence = record(&queue);
    let event = bench.device.event_of_fence(&fence).expect("a device has events");
    // SAFETY: a pointer to an event, which lives until below.
    let raw = unsafe { *event.pointer().as_ptr().cast::<sys::CUevent>() };
    // SAFETY: alive.
    assert_eq!(unsafe { sys::cuEventQuery(raw) }, sys::CUresult::CUDA_ERROR_NOT_READY);
    // SAFETY: alive until it has settled.
    let back = unsafe { bench.device.fence_of_event(event.pointer()) }.expect("an event is a fence");
    assert!(back.state().is_pending());
    assert_eq!(order(&consumer, &back), Order::Device);
    let end = record(&consumer);
    assert!(end.wait_timeout(Some(MOMENT)).is_none());
    blocked.release();
    settle(&end).expect("nothing failed");
    settle(&back).expect("nothing failed");
    // SAFETY: alive.
    assert_eq!(unsafe { sys::cuEventQuery(raw) }, sys::CUresult::CUDA_SUCCESS);
    drop(event);
    let done = bench.device.event_of_fence(&fence).expect("what is done has an event too");
    // SAFETY: a pointer to an event.
    let raw = unsafe { *done.pointer().as_ptr().cast::<sys::CUevent>() };
    // SAFETY: alive.
    assert_eq!(unsafe { sys::cuEventQuery(raw) }, sys::CUresult::CUDA_SUCCESS);
    let (_completer, promise) = estafette_devices::host::promise("a promise");
    assert_eq!(
        bench.device.event_of_fence(&promise).expect_err("the host's").kind(),
        DeviceErrorKind::Invalid
    );
    bench.assert_nothing_wrong();
}

#[test]
fn a_barrier_is_over_all_that_anybody_has_enqueued() {
    let bench = bench();
    let stranger = bench.foreign_stream();
    // SAFETY: the stream lives to the end of the test.
    let acquired = unsafe { bench.device.foreign_queue(stranger.handle()) }.expect("it is of the device");
    let blocked = block(&*acquired);
    let theirs = acquired.record().expect("it works");
    let device = bench.device.clone();
    let barrier = thread::spawn(move || device.barrier().map(|fence| settle(&fence)));
    thread::sleep(MOMENT);
    assert!(!barrier.is_finished(), "a stranger's work is under way");
    blocked.release();
    let settled = barrier.join().expect("it does not panic").expect("the device has one");
    assert!(settled.is_ok());
    assert!(matches!(theirs.state(), FenceState::Done));
}

#[test]
fn whoever_has_entered_a_queue_or_a_device_is_in_its_context_and_nobody_else() {
    let bench = bench();
    let queue = bench.queue();
    let current = || {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        assert_ok(unsafe { sys::cuCtxGetCurrent(&raw mut context) });
        context as usize
    };
    let own = inside(&bench.device, current);
    // On a thread that the driver has never seen.
    thread::scope(|threads| {
        threads.spawn(|| {
            assert_eq!(current(), 0);
            let outer = CurrentGuard::queue(&*queue).expect("it works");
            let inner = CurrentGuard::device(&*bench.device).expect("it works");
            assert_eq!(current(), own);
            drop(inner);
            assert_eq!(current(), own, "what was there before stays");
            drop(outer);
            assert_eq!(current(), 0);
        });
    });
    bench.assert_nothing_wrong();
}

/// Memory that many read and that is never written would else gather a fence of each reader.
#[test]
fn fences_of_one_foreign_stream_are_in_its_order_whoever_has_acquired_it() {
    let bench = bench();
    let (queue, one, other) = (bench.queue(), bench.foreign_stream(), bench.foreign_stream());
    // SAFETY: the streams live to the end of the test.
    let record = |handle| unsafe { bench.device.foreign_queue(handle) }.and_then(|queue| queue.record());
    let [first, second, elsewhere] =
        [&one, &one, &other].map(|stream| record(stream.handle()).expect("it works"));
    assert!(second.same_or_later_on_queue(&first) && !first.same_or_later_on_queue(&second));
    assert!(!elsewhere.same_or_later_on_queue(&first) && !second.same_or_later_on_queue(&elsewhere));
    let fences: FenceSet = [&second, &elsewhere, &first].into_iter().cloned().collect();
    assert_eq!(fences.len(), 2, "the newest of each stream");
    let blocked = hold(&bench.device, ptr::with_exposed_provenance_mut(one.handle()));
    let [before, after] = [(); 2].map(|()| record(one.handle()).expect("it works"));
    assert_eq!(order(&queue, &after), Order::Device);
    assert_eq!(order(&queue, &before), Order::Nothing, "the queue comes after what came before");
    blocked.release();
    settle(&after).expect("nothing failed");
    // The legacy default stream is one, and that of each thread is another.
    let [legacy, again] = [(); 2].map(|()| record(1).expect("it works"));
    assert!(again.queue() == legacy.queue() && again.queue() != first.queue());
    let here = record(2).expect("it works");
    let there = thread::scope(|scope| scope.spawn(|| record(2).expect("it works")).join()).expect("no panic");
    assert!(here.queue() != there.queue() && here.queue() != legacy.queue());
    bench.assert_nothing_wrong();
}
