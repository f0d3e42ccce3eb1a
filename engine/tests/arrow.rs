//! Arrow's C device interface, from a library that knows nothing of Estafette: it has its own declarations of
//! the structs and counts what is released.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use estafette::bindings;
use estafette::devices::sim::{SimDevice, SimOptions, SimQueue};
use estafette::devices::{Device, DeviceError, DeviceErrorKind, DeviceType, Fence, Queue};
use estafette::exchange::arrow::ArrowDeviceArray;
use estafette::{DType, Engine, Error, Tensor};

mod arrow_abi;

use arrow_abi::{Array, DeviceArray, Schema};

/// A producer's data behind an array.
struct Kept {
    values: Vec<f32>,
    validity: Vec<u8>,
    buffers: [*const c_void; 2],
    released: Arc<AtomicUsize>,
}

unsafe extern "C" fn release(array: *mut Array) {
    // SAFETY: `private_data` is the box that `make` leaked; a released array is not released again.
    unsafe {
        assert!((*array).release.take().is_some(), "released twice");
        let kept = Box::from_raw((*array).private_data.cast::<Kept>());
        kept.released.fetch_add(1, Ordering::SeqCst);
    }
}

/// A host array of 0, 1, 2, ... and how often it has been released.
fn make(length: usize) -> (DeviceArray, Arc<AtomicUsize>) {
    let released = Arc::new(AtomicUsize::new(0));
    let values = (0..length).map(|value| value as f32).collect();
    let kept = Kept { values, validity: Vec::new(), buffers: [ptr::null(); 2], released: released.clone() };
    let kept = Box::leak(Box::new(kept));
    kept.buffers[1] = kept.values.as_ptr().cast();
    let array = Array {
        length: length as i64,
        null_count: 0,
        offset: 0,
        n_buffers: 2,
        n_children: 0,
        buffers: kept.buffers.as_mut_ptr(),
        children: ptr::null_mut(),
        dictionary: ptr::null_mut(),
        release: Some(release),
        private_data: ptr::from_mut(kept).cast(),
    };
    let (device_id, sync_event) = (-1, ptr::null_mut());
    (DeviceArray { array, device_id, device_type: 1, sync_event, reserved: [0; 3] }, released)
}

/// Gives an array a bitmap in which the first `nulls` elements are missing.
fn with_nulls(array: &mut DeviceArray, nulls: usize) {
    // SAFETY: as made by `make`.
    let kept = unsafe { &mut *array.array.private_data.cast::<Kept>() };
    kept.validity = vec![u8::MAX; kept.values.len().div_ceil(8)];
    (0..nulls).for_each(|index| kept.validity[index / 8] &= !(1 << (index % 8)));
    kept.buffers[0] = kept.validity.as_ptr().cast();
}

fn take(array: &mut DeviceArray) -> ArrowDeviceArray {
    // SAFETY: the struct is valid, and only this test looks at it.
    unsafe { ArrowDeviceArray::take(ptr::from_mut(array).cast()) }.unwrap()
}

fn import(engine: &Engine, format: &CStr, array: &mut DeviceArray) -> Result<Tensor, Error> {
    let array = take(array);
    // SAFETY: the arrays of this file say what is true.
    unsafe { engine.import_arrow(format, array) }
}

fn engine() -> Engine {
    Engine::builder().workers(1).build().unwrap()
}

/// Waits until an array has been released; the reaper does that in its own time.
fn wait_for(released: &AtomicUsize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while released.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline, "the array was not released");
        std::thread::yield_now();
    }
    assert_eq!(released.load(Ordering::SeqCst), 1);
}

/// The C struct behind an exported array.
fn raw(array: &ArrowDeviceArray) -> &DeviceArray {
    // SAFETY: the type has the layout of the C struct, as it documents.
    unsafe { &*ptr::from_ref(array).cast() }
}

#[test]
fn an_array_is_taken_in_place_and_released_once() {
    let engine = engine();
    let (mut array, released) = make(5);
    // SAFETY: the producer's own memory.
    let address = unsafe { *array.array.buffers.add(1) };
    let tensor = import(&engine, c"f", &mut array).unwrap();
    assert!(array.array.release.is_none(), "moved: the source is marked as released");
    assert_eq!(tensor.data_ptr().unwrap().cast(), address);
    assert_eq!(tensor.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0]);
    let refused = engine.op("write").writes([&tensor]).run(|[], [_x]| Ok(()));
    assert!(refused.unwrap_err().to_string().contains("read-only"));
    assert_eq!(released.load(Ordering::SeqCst), 0);
    drop(tensor);
    wait_for(&released);
}

#[test]
fn an_offset_is_where_the_tensor_begins() {
    let engine = engine();
    let (mut array, released) = make(8);
    (array.array.offset, array.array.length) = (3, 4);
    let tensor = import(&engine, c"f", &mut array).unwrap();
    assert_eq!(tensor.to_vec::<f32>().unwrap(), [3.0, 4.0, 5.0, 6.0]);
    drop(tensor);
    wait_for(&released);
}

#[test]
fn an_array_without_elements_may_have_no_memory() {
    let engine = engine();
    let (mut array, released) = make(0);
    // SAFETY: as made by `make`.
    unsafe { *array.array.buffers.add(1) = ptr::null() };
    let tensor = import(&engine, c"f", &mut array).unwrap();
    assert_eq!(tensor.shape().unwrap().as_slice(), [0]);
    drop(tensor);
    wait_for(&released);
}

#[test]
fn nulls_that_nobody_counted_are_counted_within_the_slice() {
    let engine = engine();
    for (offset, fine) in [(0, false), (2, true)] {
        let (mut array, released) = make(10);
        with_nulls(&mut array, 2);
        (array.array.null_count, array.array.offset, array.array.length) = (-1, offset, 8);
        let tensor = import(&engine, c"f", &mut array);
        match tensor {
            Ok(tensor) => assert!(fine && tensor.to_vec::<f32>().unwrap()[0] == 2.0),
            Err(error) => assert!(!fine && error.to_string().contains("null_count is 2"), "{error}"),
        }
        wait_for(&released);
    }
}

#[test]
fn what_a_tensor_cannot_have_is_named_and_released() {
    type Spoil = fn(&mut DeviceArray);
    let cases: [(&str, &CStr, Spoil); 16] = [
        ("null_count is 1", c"f", |array| array.array.null_count = 1),
        ("null_count is -2", c"f", |array| array.array.null_count = -2),
        ("length is -1", c"f", |array| array.array.length = -1),
        ("offset is -4", c"f", |array| array.array.offset = -4),
        ("offset is 9223372036854775807", c"f", |array| array.array.offset = i64::MAX),
        ("overflows", c"f", |array| array.array.length = i64::MAX),
        ("n_buffers is 3", c"f", |array| array.array.n_buffers = 3),
        ("n_children is 1", c"f", |array| array.array.n_children = 1),
        ("dictionary is set", c"i", |array| array.array.dictionary = ptr::dangling_mut()),
        ("buffers is NULL", c"f", |array| array.array.buffers = ptr::null_mut()),
        // SAFETY: as made by `make`.
        ("buffers[1] is NULL", c"f", |array| unsafe { *array.array.buffers.add(1) = ptr::null() }),
        ("format is `u`, no primitive type that a tensor has: text", c"u", |_array| ()),
        ("has: bit-packed", c"b", |_array| ()),
        ("sync_event is set", c"f", |array| array.sync_event = ptr::dangling_mut()),
        ("wait for that event", c"f", |array| {
            (array.device_type, array.device_id, array.sync_event) = (10, 0, ptr::dangling_mut());
        }),
        ("device cuda:3 is not available", c"f", |array| (array.device_type, array.device_id) = (2, 3)),
    ];
    let engine = engine();
    for (what, format, spoil) in cases {
        let (mut array, released) = make(4);
        spoil(&mut array);
        let error = import(&engine, format, &mut array).unwrap_err();
        assert!(error.to_string().contains(what), "{what}: {error}");
        wait_for(&released);
    }
}

#[test]
fn what_was_released_or_moved_is_refused() {
    let (mut array, released) = make(4);
    drop(take(&mut array));
    wait_for(&released);
    // SAFETY: the struct is valid: released.
    let again = unsafe { ArrowDeviceArray::take(ptr::from_mut(&mut array).cast()) };
    assert!(again.unwrap_err().to_string().contains("released or moved"));
    // SAFETY: NULL is allowed.
    let nothing = unsafe { ArrowDeviceArray::take(ptr::null_mut()) };
    assert!(nothing.unwrap_err().to_string().contains("NULL"));
}

#[test]
fn a_schema_is_read_where_it_is() {
    let mut schema = bindings::arrow::schema_of(DType::U16).unwrap();
    let place = ptr::from_mut(&mut schema).cast::<Schema>();
    // SAFETY: the schema is alive, and only this test looks at it.
    unsafe {
        assert_eq!(bindings::arrow::format_of(place.cast()).unwrap(), c"S");
        let format = std::mem::replace(&mut (*place).format, ptr::null());
        assert!(bindings::arrow::format_of(place.cast()).unwrap_err().to_string().contains("format is NULL"));
        (*place).format = format;
        (*place).release.unwrap()(place);
        assert!(bindings::arrow::format_of(place.cast()).unwrap_err().to_string().contains("released"));
        assert!(bindings::arrow::format_of(ptr::null()).unwrap_err().to_string().contains("schema is NULL"));
    }
}

#[test]
fn a_tensor_leaves_in_place_under_a_lease_that_ends_with_the_release() {
    let engine = engine();
    let tensor = engine.from_vec(vec![1_i64, 2, 3], &[3]).unwrap();
    let (schema, array) = tensor.export_arrow_wait(None).unwrap();
    // SAFETY: the type has the layout of the C struct, as it documents, and the format is a C string.
    let (of, format) = unsafe {
        let of = &*ptr::from_ref(&schema).cast::<Schema>();
        (of, CStr::from_ptr(of.format))
    };
    assert_eq!((format, of.n_children, of.release.is_some()), (c"l", 0, true));
    let seen = raw(&array);
    assert_eq!((seen.array.length, seen.array.null_count, seen.array.offset), (3, 0, 0));
    assert_eq!((seen.device_type, seen.device_id, seen.sync_event), (1, -1, ptr::null_mut()));
    // SAFETY: an exported array has two buffers.
    let buffers = unsafe { *seen.array.buffers.cast::<[*const u8; 2]>() };
    assert_eq!(buffers, [ptr::null(), tensor.data_ptr().unwrap()]);

    let write = engine.op("write").writes([&tensor]).run(|[], [_x]| Ok(())).unwrap();
    assert!(!tensor.is_ready() && !write.is_done());
    // A consumer that moves it: the bytes are copied, the source is marked, and the copy is released.
    let mut source = std::mem::ManuallyDrop::new(array);
    // SAFETY: what the interface prescribes for a move.
    let mut moved: DeviceArray = unsafe { ptr::from_ref(&*source).cast::<DeviceArray>().read() };
    // SAFETY: as above.
    unsafe { (*ptr::from_mut(&mut *source).cast::<DeviceArray>()).array.release = None };
    drop(std::mem::ManuallyDrop::into_inner(source));
    assert!(!write.is_done());
    let release = moved.array.release.unwrap();
    // SAFETY: the moved array is ours to release.
    unsafe { release(&raw mut moved.array) };
    assert!(moved.array.release.is_none());
    write.wait().unwrap();
}

#[test]
fn what_an_array_cannot_be_is_named_and_the_lease_comes_back() {
    let engine = engine();
    let cases = [
        (engine.zeros(&[2, 2], DType::F32).unwrap(), "shape is [2, 2]"),
        (engine.zeros(&[], DType::F32).unwrap(), "shape is []"),
        (engine.zeros(&[2], DType::BOOL).unwrap(), "dtype is bool"),
        (engine.zeros(&[2], DType::C64).unwrap(), "dtype is complex64"),
    ];
    for (tensor, what) in cases {
        let error = tensor.export_arrow_wait(None).unwrap_err();
        assert!(error.to_string().contains(what), "{what}: {error}");
        engine.op("write").writes([&tensor]).run(|[], [_x]| Ok(())).unwrap().wait().unwrap();
    }
}

#[test]
fn a_round_trip_is_derived_from_its_lease() {
    let engine = engine();
    let tensor = engine.from_vec(vec![1.0_f64, 2.0], &[2]).unwrap();
    let (_schema, array) = tensor.export_arrow_wait(None).unwrap();
    // SAFETY: our own array.
    let back = unsafe { engine.import_arrow(c"g", array) }.unwrap();
    assert_eq!(back.data_ptr().unwrap(), tensor.data_ptr().unwrap());
    let write = engine.op("write").writes([&tensor]).run(|[], [_x]| Ok(())).unwrap();
    assert!(!write.is_done());
    drop(back);
    write.wait().unwrap();
}

/// A simulated device that moves when the test says so, an engine that has it, and a tensor on it.
fn on_device() -> (Arc<SimDevice>, Engine, Tensor) {
    let device = SimDevice::new(SimOptions::default()).unwrap();
    let engine = Engine::builder().workers(1).device(device.clone()).build().unwrap();
    let tensor = engine.empty(&[4], DType::F32, device.id()).unwrap();
    (device, engine, tensor)
}

/// An array in memory that counts its release and says that it is on `device`, behind `event`.
fn on(device: &SimDevice, event: *mut c_void) -> (DeviceArray, Arc<AtomicUsize>) {
    let (mut array, released) = make(4);
    (array.device_type, array.device_id) = (DeviceType::EXT_DEV.0, i64::from(device.id().device_id));
    array.sync_event = event;
    (array, released)
}

fn launch(queue: &Arc<dyn Queue>, name: &'static str) {
    SimQueue::from_queue(&**queue).unwrap().launch(name, 10, || ()).unwrap();
}

#[test]
fn an_event_of_the_producer_holds_readers_back() {
    let (device, engine, _) = on_device();
    let queue = device.create_queue().unwrap();
    launch(&queue, "produce");
    let fence = queue.record().unwrap();
    let event = device.event_of_fence(&fence).unwrap();
    let (mut array, released) = on(&device, event.pointer().as_ptr());
    let tensor = import(&engine, c"f", &mut array).unwrap();
    assert!(!tensor.is_ready());
    let read = engine.op("read").reads([&tensor]).run(|[x], []| {
        assert_eq!(x.as_slice::<f32>()?.len(), 4);
        Ok(())
    });
    let read = read.unwrap();
    assert!(!read.is_done());
    device.run_until_idle();
    read.wait().unwrap();
    assert!(tensor.is_ready());
    // The memory is kept for as long as the event could be asked.
    assert_eq!(released.load(Ordering::SeqCst), 0);
    drop(tensor);
    wait_for(&released);
    drop(event);
}

#[test]
fn memory_is_not_released_before_its_event_even_if_nobody_reads_it() {
    let (device, engine, _) = on_device();
    let queue = device.create_queue().unwrap();
    launch(&queue, "produce");
    let event = device.event_of_fence(&queue.record().unwrap()).unwrap();
    let (mut array, released) = on(&device, event.pointer().as_ptr());
    drop(import(&engine, c"f", &mut array).unwrap());
    estafette::exchange::flush_deleters(Duration::from_millis(20));
    assert_eq!(released.load(Ordering::SeqCst), 0);
    device.run_until_idle();
    wait_for(&released);
}

#[test]
fn a_failed_event_is_the_failure_of_the_version() {
    let (device, engine, _) = on_device();
    let queue = device.create_queue().unwrap();
    device.fail_next(DeviceError::new(DeviceErrorKind::Fault, "the well is dry"));
    launch(&queue, "produce");
    let event = device.event_of_fence(&queue.record().unwrap()).unwrap();
    let (mut array, _released) = on(&device, event.pointer().as_ptr());
    let tensor = import(&engine, c"f", &mut array).unwrap();
    device.run_until_idle();
    assert!(tensor.wait().unwrap_err().to_string().contains("the well is dry"));
}

#[test]
fn events_of_another_device_are_refused() {
    let (device, engine, _) = on_device();
    let stranger = SimDevice::new(SimOptions { device_id: 7, ..SimOptions::default() }).unwrap();
    let queue = stranger.create_queue().unwrap();
    launch(&queue, "elsewhere");
    let event = stranger.event_of_fence(&queue.record().unwrap()).unwrap();
    let (mut array, released) = on(&device, event.pointer().as_ptr());
    let error = import(&engine, c"f", &mut array).unwrap_err();
    assert!(matches!(error, Error::Device(_)) && error.to_string().contains("ext_dev:7"), "{error}");
    wait_for(&released);
    stranger.run_until_idle();
}

#[test]
fn an_unfinished_tensor_leaves_at_once_with_an_event() {
    let (device, engine, tensor) = on_device();
    let queue = device.create_queue().unwrap();
    let write = engine.op("write").writes([&tensor]).on(&queue);
    write
        .run_on(|queue, [], [_x]| Ok(SimQueue::from_queue(queue).unwrap().launch("write", 10, || ())?))
        .unwrap();

    let (_schema, array) = tensor.export_arrow_wait(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(device.now_ns(), 0, "the host has waited for nothing");
    let seen = raw(&array);
    assert_eq!((seen.device_type, seen.device_id), (DeviceType::EXT_DEV.0, 0));
    let event = ptr::NonNull::new(seen.sync_event).expect("the write is unfinished");
    // SAFETY: an event of this device, alive as long as the array.
    let fence: Fence = unsafe { device.fence_of_event(event) }.unwrap();
    assert!(!fence.is_done());

    // A later write on the device is not even issued while the consumer has the array.
    let later = engine.op("later").writes([&tensor]).on(&queue);
    let later = later.run_on(|_queue, [], [_x]| Ok(())).unwrap();
    device.run_until_idle();
    assert!(fence.is_done() && !later.is_done());
    drop(array);
    later.wait().unwrap();
    device.run_until_idle();
}

#[test]
fn a_finished_tensor_leaves_without_an_event() {
    let (device, _engine, tensor) = on_device();
    let (_schema, array) = futures::executor::block_on(tensor.export_arrow()).unwrap();
    assert!(raw(&array).sync_event.is_null());
    device.run_until_idle();
}

#[test]
fn only_host_memory_leaves_as_a_plain_array() {
    let (device, engine, tensor) = on_device();
    let (_schema, array) = tensor.export_arrow_wait(None).unwrap();
    let error = bindings::arrow::into_host(array).unwrap_err();
    assert_eq!(error.to_string(), "device_type is ext_dev:0, not host memory");
    // The lease came back with the error.
    engine.op("write").writes([&tensor]).run(|[], [_x]| Ok(())).unwrap().wait().unwrap();
    device.run_until_idle();
}

#[test]
fn a_failed_tensor_does_not_leave() {
    let (_device, engine, tensor) = on_device();
    engine.op("fails").writes([&tensor]).run(|[], [_x]| Err("out of paper".into())).unwrap();
    let error = tensor.export_arrow_wait(Some(Duration::from_secs(30))).unwrap_err();
    assert!(error.to_string().contains("out of paper"), "{error}");
}
