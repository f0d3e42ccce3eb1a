//! Arrow's C structs: what a producer may get wrong is refused, what is right is taken in place, and each
//! array is released once.
//!
//! The fields lie wherever a consumer can see it. A length that is longer than the memory is not seen, so no
//! input has such an array read, nor a bitmap that is too short for it.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use estafette::bindings;
use estafette::devices::sim::{SimDevice, SimOptions, SimQueue};
use estafette::devices::{Device, DeviceType, NativeEvent};
use estafette::exchange::arrow::{ArrowDeviceArray, ArrowSchema};
use estafette::{Engine, Error, Tensor};

use crate::c_fuzz::Bytes;

#[path = "../../../engine/tests/arrow_abi/mod.rs"]
mod arrow_abi;

use arrow_abi::{Array, DeviceArray};

const ARRAYS_MAX: usize = 24;
/// Tensors, and exported arrays, that one input holds.
const HELD_MAX: usize = 6;
/// Elements of 8 bytes behind each array.
const WORDS: usize = 64;
/// Elements that each bitmap has a bit for.
const BITS: i64 = 512;
/// Time that an export waits before the device continues.
const SHORT: Duration = Duration::from_millis(20);
/// Limit of every wait.
const LIMIT: Duration = Duration::from_secs(30);

/// Primitive formats, and the bytes of an element.
const PRIMITIVES: [(&str, usize); 11] = [
    ("c", 1),
    ("C", 1),
    ("s", 2),
    ("S", 2),
    ("i", 4),
    ("I", 4),
    ("l", 8),
    ("L", 8),
    ("e", 2),
    ("f", 4),
    ("g", 8),
];

struct ArrowWorld {
    device: Arc<SimDevice>,
    engine: Engine,
}

fn world() -> &'static ArrowWorld {
    static WORLD: OnceLock<ArrowWorld> = OnceLock::new();
    WORLD.get_or_init(|| {
        let device = SimDevice::new(SimOptions::default()).expect("a simulated device");
        let engine = Engine::builder().workers(1).device(device.clone()).build().expect("an engine");
        ArrowWorld { device, engine }
    })
}

/// A producer's data behind an array.
struct ProducerData {
    words: [u64; WORDS],
    validity: [u8; BITS as usize / 8],
    buffers: [*const c_void; 2],
    released: Arc<AtomicUsize>,
    _event: Option<NativeEvent>,
}

unsafe extern "C" fn release(array: *mut Array) {
    // SAFETY: `private_data` is the box that `make` leaked; a released array is not released again.
    unsafe {
        assert!((*array).release.take().is_some(), "an array is released twice");
        let kept = Box::from_raw((*array).private_data.cast::<ProducerData>());
        kept.released.fetch_add(1, SeqCst);
    }
}

/// An array, and what its import must come to.
struct Made {
    array: DeviceArray,
    format: CString,
    /// The bytes of an element; 0 for a format that no tensor has.
    itemsize: usize,
    /// A field is wrong in a way that a consumer can see.
    is_wrong: bool,
    /// Everything is right, and all elements are in the memory.
    is_right: bool,
}

fn make(world: &ArrowWorld, bytes: &mut Bytes<'_>, released: &Arc<AtomicUsize>) -> Made {
    let kept = Box::leak(Box::new(ProducerData {
        words: std::array::from_fn(|at| at as u64),
        validity: [u8::MAX; BITS as usize / 8],
        buffers: [ptr::null(); 2],
        released: released.clone(),
        _event: None,
    }));
    let (format, itemsize) = match bytes.below(16) {
        at if at < PRIMITIVES.len() => {
            (CString::new(PRIMITIVES[at].0).expect("no zero is in it"), PRIMITIVES[at].1)
        }
        _ => {
            let text = bytes.text(8);
            let known = PRIMITIVES.iter().find(|(known, _)| known.as_bytes() == text.as_bytes());
            let itemsize = known.map_or(0, |(_, itemsize)| *itemsize);
            (text, itemsize)
        }
    };
    let rare = |bytes: &mut Bytes<'_>, usual: i64| if bytes.one_in(12) { bytes.number() } else { usual };
    let (length, offset) = (bytes.number(), bytes.number());
    let mut null_count = [0, 0, 0, -1, -1, -1, 1, bytes.number()][bytes.below(8)];
    let (n_buffers, n_children) = (rare(bytes, 2), rare(bytes, 0));
    let within = kept.words.as_ptr().cast::<u8>();
    let data = match bytes.below(12) {
        0 => ptr::null(),
        1 => within.wrapping_add(1),
        2 => ptr::without_provenance(usize::MAX - 7),
        _ => within,
    };
    let has_bitmap = bytes.one_in(3);
    if has_bitmap {
        let missing = bytes.number();
        if (0..BITS).contains(&missing) {
            kept.validity[missing as usize / 8] &= !(1 << (missing % 8));
        }
        kept.buffers[0] = kept.validity.as_ptr().cast();
    }
    kept.buffers[1] = data.cast();
    let host = DeviceType::CPU.0;
    let (device_type, device_id) = match bytes.below(12) {
        0 => (DeviceType::EXT_DEV.0, bytes.number()),
        1 => (bytes.number() as i32, bytes.number()),
        2..5 => (DeviceType::EXT_DEV.0, 0),
        _ => (host, -1),
    };
    let is_ours = device_type == DeviceType::EXT_DEV.0 && device_id == 0;
    let has_event = bytes.one_in(4);
    let sync_event = if !has_event {
        ptr::null_mut()
    } else if is_ours {
        let queue = world.device.create_queue().expect("a queue");
        SimQueue::from_queue(&*queue).expect("of the device").launch("produce", 10, || ()).expect("launched");
        let event = world.device.event_of_fence(&queue.record().expect("a fence")).expect("an event");
        kept._event.insert(event).pointer().as_ptr()
    } else {
        ptr::dangling_mut()
    };
    // A bitmap is read without any means to see where it ends.
    let on_host = device_type == host;
    let is_counted = null_count == -1 && has_bitmap;
    if is_counted && on_host && length >= 0 && offset >= 0 && length.saturating_add(offset) > BITS {
        null_count = 0;
    }
    let is_missing = |at: i64| kept.validity[at as usize / 8] >> (at % 8) & 1 == 0;
    let has_nulls = match null_count {
        0 => false,
        -1 if !has_bitmap => false,
        -1 => !on_host || (length >= 0 && offset >= 0 && (offset..offset + length).any(is_missing)),
        _ => true,
    };
    let array = Array {
        length,
        null_count,
        offset,
        n_buffers,
        n_children,
        buffers: if bytes.one_in(24) { ptr::null_mut() } else { kept.buffers.as_mut_ptr() },
        children: ptr::null_mut(),
        dictionary: if bytes.one_in(24) { ptr::dangling_mut() } else { ptr::null_mut() },
        release: (!bytes.one_in(24)).then_some(release as _),
        private_data: ptr::from_mut(kept).cast(),
    };
    let is_wrong = itemsize == 0
        || array.release.is_none()
        || length < 0
        || offset < 0
        || n_buffers != 2
        || n_children != 0
        || array.buffers.is_null()
        || !array.dictionary.is_null()
        || has_nulls
        || (data.is_null() && length > 0)
        || (has_event && !is_ours);
    let fits = |elements: i64| elements as usize <= WORDS * 8 / itemsize.max(1);
    let is_inside = data == within && length >= 0 && offset >= 0 && fits(length.saturating_add(offset));
    let is_right = !is_wrong && is_inside && (on_host || is_ours);
    let array = DeviceArray { array, device_id, device_type, sync_event, reserved: [0; 3] };
    Made { array, format, itemsize, is_wrong, is_right }
}

fn import(world: &ArrowWorld, mut made: Made) -> Option<Tensor> {
    let (length, offset) = (made.array.array.length, made.array.array.offset);
    let had_release = made.array.array.release.is_some();
    let private = made.array.array.private_data;
    let is_on_host = made.array.device_type == DeviceType::CPU.0;
    // SAFETY: the struct is valid, and only looked at here.
    let taken = unsafe {
        let source = ptr::from_mut(&mut made.array);
        if is_on_host && made.array.sync_event.is_null() && length % 2 == 0 {
            bindings::arrow::take_host(source.cast())
        } else {
            ArrowDeviceArray::take(source.cast())
        }
    };
    assert!(made.array.array.release.is_none(), "the source of a move is marked as released");
    let tensor = match taken {
        Err(_) => {
            assert!(!had_release, "an array that was not released is refused");
            // SAFETY: nothing has taken it, so it is still the producer's.
            drop(unsafe { Box::from_raw(private.cast::<ProducerData>()) });
            return None;
        }
        // SAFETY: the array is truthful in all fields that are read, and its event belongs to the device.
        Ok(array) => unsafe { world.engine.import_arrow(&made.format, array) },
    };
    assert!(tensor.is_err() || !made.is_wrong, "a wrong array is accepted: {:?}", made.format);
    let tensor = match tensor {
        Ok(tensor) => tensor,
        Err(error) => {
            assert!(!made.is_right, "a right array is refused: {error}");
            return None;
        }
    };
    assert_eq!(tensor.shape().expect("an array has a shape")[..], [length]);
    let write = world.engine.op("write").writes([&tensor]).run(|[], [_x]| Ok(()));
    assert!(write.is_err(), "Arrow's memory may not be written");
    if made.is_right && is_on_host {
        let first = offset as usize * made.itemsize;
        if length > 0 {
            // SAFETY: the array is not released while the tensor lives.
            let within = unsafe { &raw const (*private.cast::<ProducerData>()).words };
            assert_eq!(tensor.data_ptr().expect("it is ready"), within.cast::<u8>().wrapping_add(first));
        }
        if made.format.as_c_str() == c"C" {
            let expected = (first..first + length as usize).map(|at| (at / 8) as u64 >> (at % 8 * 8));
            let expected: Vec<u8> = expected.map(|word| word as u8).collect();
            assert_eq!(tensor.to_vec::<u8>().expect("it is ready"), expected);
        }
    }
    Some(tensor)
}

type Exported = (ArrowSchema, ArrowDeviceArray);

fn export(world: &ArrowWorld, tensor: &Tensor) -> Option<Exported> {
    let mut exported = tensor.export_arrow_wait(Some(SHORT));
    if matches!(exported, Err(Error::Timeout(_))) {
        // Ranges that lie may overlap memory on the device, whose work goes on only here.
        world.device.run_until_idle();
        exported = tensor.export_arrow_wait(Some(LIMIT));
    }
    match exported {
        Ok((schema, array)) => {
            // SAFETY: the type has the layout of the C struct, as it documents.
            let seen = unsafe { &*ptr::from_ref(&array).cast::<DeviceArray>() };
            assert_eq!([seen.array.length], tensor.shape().expect("it was imported")[..]);
            assert_eq!((seen.array.n_buffers, seen.array.null_count, seen.array.offset), (2, 0, 0));
            Some((schema, array))
        }
        Err(error) => {
            // Memory with handles has no address that an array could have.
            assert!(matches!(error, Error::InvalidTensor(_)), "{error}");
            None
        }
    }
}

pub(super) fn run(bytes: &[u8]) {
    let world = world();
    let mut bytes = Bytes::new(bytes);
    let released = Arc::new(AtomicUsize::new(0));
    let (mut owed, mut made) = (0, 0);
    let (mut tensors, mut exported): (Vec<Tensor>, Vec<Exported>) = (Vec::new(), Vec::new());
    while !bytes.is_over() && made < ARRAYS_MAX {
        match bytes.below(8) {
            0..4 if tensors.len() < HELD_MAX => {
                let array = make(world, &mut bytes, &released);
                (owed, made) = (owed + usize::from(array.array.array.release.is_some()), made + 1);
                tensors.extend(import(world, array));
            }
            4 if exported.len() < HELD_MAX && !tensors.is_empty() => {
                exported.extend(export(world, &tensors[bytes.below(tensors.len())]));
            }
            5 if tensors.len() < HELD_MAX && !exported.is_empty() => {
                let (schema, array) = exported.swap_remove(bytes.below(exported.len()));
                // SAFETY: the schema is alive; the array is the engine's own.
                let tensor = unsafe {
                    let format =
                        bindings::arrow::format_of(ptr::from_ref(&schema).cast()).expect("of the engine");
                    world.engine.import_arrow(format, array)
                };
                tensors.push(
                    tensor.unwrap_or_else(|error| panic!("the engine's own array is refused: {error}")),
                );
            }
            6 if !exported.is_empty() => {
                let (_schema, array) = exported.swap_remove(bytes.below(exported.len()));
                let is_plain = bindings::arrow::device(&array).device_type == DeviceType::CPU;
                let host = bytes.one_in(2).then(|| bindings::arrow::into_host(array));
                assert!(host.is_none_or(|host| host.is_ok() == is_plain));
            }
            7 if bytes.one_in(2) => world.device.run_until_idle(),
            _ if !tensors.is_empty() => drop(tensors.swap_remove(bytes.below(tensors.len()))),
            _ => {}
        }
    }
    drop((tensors, exported));
    let deadline = Instant::now() + LIMIT;
    loop {
        world.device.run_until_idle();
        let back = released.load(SeqCst);
        assert!(back <= owed, "{back} arrays were released of {owed}");
        if back == owed {
            return;
        }
        assert!(Instant::now() < deadline, "only {back} arrays were released of {owed}");
        estafette::exchange::flush_deleters(Duration::from_millis(1));
    }
}
