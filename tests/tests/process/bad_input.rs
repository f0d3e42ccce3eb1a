//! Bad DLPack from outside, where it enters the engine: a precise error, the deleter exactly once, and no
//! panic. Which structs are valid is tested beside the code that reads them; these tests show how the engine
//! handles them.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use estafette::devices::{Allocation, DLDevice, Device, DeviceError, DeviceType, Queue};
use estafette::engine::WORKERS_MAX;
use estafette::exchange::{Abi, InvalidTensor};
use estafette::{
    Access, DType, Engine, Error, ExportOptions, FailureKind, ImportOptions, ManagedTensor, Produced, Tensor,
};
use tests::dice::Dice;
use tests::foreign::{DLTensor, Deleted, Memory, READ_ONLY};
use tests::ops::{engine, exclusive, tensor};
use tests::watchdog::Watchdog;

/// Elements of every tensor here.
const LEN: usize = 4;

/// A producer's deviation.
type Edit = fn(&mut DLTensor);

/// A tensor of the given kind changed by `edit`; the import itself may fail.
fn managed(
    legacy: bool,
    deleted: &Deleted,
    edit: impl FnOnce(&mut DLTensor),
) -> Result<ManagedTensor, InvalidTensor> {
    let memory = Memory::of(&[1.0, 2.0, 3.0, 4.0]);
    // SAFETY: a fresh tensor; the engine refuses what `edit` makes of it, or it describes its memory.
    unsafe {
        if legacy {
            ManagedTensor::from_raw(
                memory.legacy(0, LEN, deleted, |managed| edit(&mut managed.tensor)),
                Abi::Legacy,
            )
        } else {
            ManagedTensor::from_raw(
                memory.versioned(0, LEN, deleted, |managed| edit(&mut managed.tensor)),
                Abi::Versioned,
            )
        }
    }
}

fn import(
    engine: &Engine,
    legacy: bool,
    deleted: &Deleted,
    edit: impl FnOnce(&mut DLTensor),
) -> Result<Tensor, Error> {
    // SAFETY: as in `managed`.
    unsafe { engine.import(managed(legacy, deleted, edit)?) }
}

const BAD: [(Edit, &str); 14] = [
    (|t| t.ndim = -1, "ndim is -1"),
    (|t| t.ndim = i32::MIN, "ndim is -2147483648"),
    (|t| t.ndim = i32::MAX, "ndim is 2147483647, more than"),
    (|t| t.shape = std::ptr::null_mut(), "shape is NULL with ndim 1"),
    // SAFETY: the shape has one entry.
    (|t| unsafe { *t.shape = -7 }, "shape[0] is -7"),
    // SAFETY: as above.
    (|t| unsafe { *t.shape = i64::MIN }, "shape[0] is -9223372036854775808"),
    // SAFETY: as above.
    (|t| unsafe { *t.shape = i64::MAX }, "overflows"),
    // SAFETY: the strides have one entry.
    (|t| unsafe { *t.strides = i64::MAX }, "overflows"),
    // SAFETY: as above.
    (|t| unsafe { *t.strides = i64::MIN }, "overflows"),
    (|t| t.data = std::ptr::null_mut(), "data is NULL, but there are 4 elements"),
    (|t| t.byte_offset = u64::MAX - 1, "byte_offset is 18446744073709551614"),
    (|t| t.lanes = 0, "dtype.lanes is 0"),
    (|t| t.bits = 0, "dtype.bits is 0"),
    (|t| t.device_type = 2, "device cuda:0 is not available"),
];

#[test]
fn a_bad_import_of_either_kind_names_its_field_and_is_deleted_once() {
    let _alone = exclusive();
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    for legacy in [false, true] {
        for (edit, message) in BAD {
            let deleted = Deleted::default();
            let error = import(&engine, legacy, &deleted, edit).unwrap_err();
            assert!(error.to_string().contains(message), "{error}, expected {message}");
            assert!(matches!(error, Error::InvalidTensor(_) | Error::Invalid(_)), "{error:?}");
            deleted.settle_at(1);
        }
    }
    assert!(engine.diagnose().is_idle());
    assert!(watchdog.still_watches());
}

#[test]
fn a_bad_result_of_an_operation_fails_it_names_its_field_and_is_deleted_once() {
    let _alone = exclusive();
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    for (edit, message) in BAD {
        let deleted = Deleted::default();
        let counted = deleted.clone();
        let made = engine.op("makes").produce(move |[]| Ok(managed(false, &counted, edit)?)).unwrap();
        let error = made.wait().unwrap_err();
        let cause = error.operation().unwrap();
        assert_eq!((cause.operation(), cause.kind()), ("makes", FailureKind::Result), "{cause:?}");
        assert!(error.to_string().contains(message), "{error}, expected {message}");
        deleted.settle_at(1);
        let counted = deleted.clone();
        let made =
            engine.op("makes").produce_future(move |[]| async move { Ok(managed(true, &counted, edit)?) });
        assert!(made.unwrap().wait().unwrap_err().to_string().contains(message));
        let counted = deleted.clone();
        let made = engine.op("makes").produce_external(move |completion| {
            completion.produce(managed(true, &counted, edit).map(Produced::from).map_err(Into::into));
        });
        assert!(made.unwrap().wait().unwrap_err().to_string().contains(message));
        deleted.settle_at(3);
    }
    assert!(watchdog.still_watches());
}

#[test]
fn random_structs_are_refused_or_accepted_but_never_panic_and_are_deleted_once() {
    // A random address may be that of another test's tensor.
    let _alone = exclusive();
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let mut dice = Dice::new(7);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let deleted = Deleted::default();
        let legacy = dice.once_in(2);
        let mut scramble = dice.clone();
        dice.bits();
        let result = catch_unwind(AssertUnwindSafe(|| {
            import(&engine, legacy, &deleted, |tensor| {
                for _ in 0..1 + scramble.roll(3) {
                    scramble_field(tensor, &mut scramble);
                }
            })
        }));
        match result.expect("no panic crosses the boundary") {
            Ok(tensor) => {
                accepted += 1;
                // A query is harmless whatever the tensor claims: the query reads no memory.
                assert!(tensor.is_ready() && tensor.shape().unwrap().len() <= 64);
                let options = ExportOptions::from(Access::Alias);
                drop(tensor.export_wait(&options));
                drop(format!("{tensor:?}"));
            }
            Err(error) => {
                refused += 1;
                assert!(matches!(error, Error::InvalidTensor(_) | Error::Invalid(_)), "{error:?}");
                assert!(!error.to_string().is_empty());
            }
        }
        deleted.settle_at(1);
    }
    assert!(accepted > 1_000 && refused > 1_000, "{accepted} accepted, {refused} refused");
    assert!(watchdog.still_watches());
}

/// Changes one field to something odd. `ndim` stays within what can be read.
fn scramble_field(tensor: &mut DLTensor, dice: &mut Dice) {
    let odd = [0, 1, -1, 2, 3, 4, 7, 64, i64::MAX, i64::MIN, i64::MAX / 4, 1 << 40, -(1 << 40)];
    // SAFETY: shape and strides have one entry each, where they are not NULL.
    unsafe {
        match dice.roll(11) {
            0 => tensor.ndim = dice.pick(&[0, 1, -1, 65, i32::MAX, i32::MIN]),
            1 if !tensor.shape.is_null() => *tensor.shape = dice.pick(&odd),
            2 if !tensor.strides.is_null() => *tensor.strides = dice.pick(&odd),
            3 => tensor.shape = std::ptr::null_mut(),
            4 => tensor.strides = std::ptr::null_mut(),
            5 => tensor.data = if dice.once_in(2) { std::ptr::null_mut() } else { dice.bits() as *mut _ },
            6 => tensor.byte_offset = dice.pick(&[0, 1, 4, u64::MAX, 1 << 63]),
            7 => tensor.code = dice.bits() as u8,
            8 => tensor.bits = dice.bits() as u8,
            9 => tensor.lanes = dice.pick(&[0, 1, 2, u16::MAX]),
            _ => (tensor.device_type, tensor.device_id) = (dice.roll(20) as i32 - 2, dice.bits() as i32),
        }
    }
}

#[test]
fn typed_views_refuse_what_memory_is_not() {
    let _alone = exclusive();
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let cases: [(Edit, &str); 5] = [
        (|t| t.code = 0, "dtype is int32, not float32"),
        (|t| t.bits = 16, "dtype is float16, not float32"),
        // SAFETY: shape and strides have one entry each; three elements backwards from the last but one.
        (|t| unsafe { (*t.shape, *t.strides, t.byte_offset) = (3, -1, 8) }, "strides"),
        // SAFETY: as above; two elements, one apart.
        (|t| unsafe { (*t.shape, *t.strides) = (2, 2) }, "strides"),
        // SAFETY: as above; three elements behind a crooked start.
        (|t| unsafe { (*t.shape, t.byte_offset) = (3, 1) }, "align"),
    ];
    for (at, (edit, message)) in cases.into_iter().enumerate() {
        let x = import(&engine, false, &deleted, edit).unwrap();
        let op = engine.op("view").reads([&x]).run(|[x], []| {
            x.as_slice::<f32>()?;
            Ok(())
        });
        let error = op.unwrap().wait().unwrap_err();
        assert!(error.to_string().contains(message), "case {at}: {error}, expected {message}");
        drop(x);
        deleted.settle_at(at + 1);
    }
    // A copy can represent what a slice cannot.
    // SAFETY: shape and strides have one entry each; four elements backwards from the last.
    let backwards =
        import(&engine, false, &deleted, |t| unsafe { (*t.strides, t.byte_offset) = (-1, 12) }).unwrap();
    assert_eq!(backwards.to_vec::<f32>().unwrap(), [4.0, 3.0, 2.0, 1.0]);
    let crooked = engine.from_vec(vec![2_u8, 1, 0, 1], &[4]).unwrap();
    // Bytes that are not booleans are never read as booleans.
    let layout = crooked.layout().unwrap();
    assert_eq!(layout.dtype(), DType::U8);
    let booleans = import(&engine, false, &deleted, |t| (t.code, t.bits) = (6, 8)).unwrap();
    let op = engine.op("view").reads([&booleans]).run(|[x], []| {
        x.as_slice::<bool>()?;
        Ok(())
    });
    assert!(op.unwrap().wait().unwrap_err().to_string().contains("not values of bool"));
    assert!(booleans.to_vec::<bool>().is_err());
    assert!(watchdog.still_watches());
}

#[test]
fn read_only_memory_is_never_written_whoever_says_that_it_is() {
    let _alone = exclusive();
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let memory = Memory::of(&[1.0; LEN]);
    // Read-only by the flag, or by the importer's option, since a legacy struct has no flag.
    // SAFETY: fresh tensors that describe their own memory.
    let (flagged, known) = unsafe {
        let flagged = memory.versioned(0, 2, &deleted, |managed| managed.flags = READ_ONLY);
        let flagged = engine.import(ManagedTensor::from_raw(flagged, Abi::Versioned).unwrap()).unwrap();
        let known = ManagedTensor::from_raw(memory.legacy(2, 2, &deleted, |_| ()), Abi::Legacy).unwrap();
        (
            flagged,
            engine.import_with(known, ImportOptions { read_only: true, ..ImportOptions::default() }).unwrap(),
        )
    };
    for x in [&flagged, &known] {
        assert!(x.is_read_only().unwrap());
        let refused = [
            engine.op("write").writes([x]).run(|[], [_x]| Ok(())).unwrap_err(),
            engine.op("update").updates([x]).run(|[], [], [_x]| Ok(())).unwrap_err(),
            engine.op("external").writes([x]).run_external(|_completion| ()).unwrap_err(),
            x.export_wait(&ExportOptions::from(Access::Write)).unwrap_err(),
        ];
        for error in refused {
            assert!(matches!(&error, Error::Conflict(why) if why.contains("read-only")), "{error:?}");
        }
        assert!(x.export_wait(&ExportOptions::from(Access::Read)).unwrap().flags().read_only);
        assert!(x.export_wait(&ExportOptions::from(Access::Alias)).unwrap().flags().read_only);
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 2]);
    }
    drop((flagged, known));
    deleted.settle_at(2);
    assert!(watchdog.still_watches());
}

#[test]
fn read_only_results_of_operations_that_were_to_be_written_fail_that_write() {
    let _alone = exclusive();
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let counted = deleted.clone();
    let late = engine.op("late").produce(move |[]| {
        wait.recv()?;
        let raw = Memory::of(&[1.0]).versioned(0, 1, &counted, |managed| managed.flags = READ_ONLY);
        // SAFETY: a fresh tensor that describes its own memory.
        Ok(unsafe { ManagedTensor::from_raw(raw, Abi::Versioned) }?)
    });
    let late = late.unwrap();
    // The engine cannot know yet that the tensor will be read-only, so it accepts these writes.
    let write = engine.op("write").writes([&late]).run(|[], [mut x]| {
        x.as_mut_slice::<f32>()?.fill(9.0);
        Ok(())
    });
    let update = engine.op("update").updates([&late]).run_future(|[], [], [mut x]| async move {
        x.view_mut().as_mut_slice::<f32>()?.fill(9.0);
        Ok(())
    });
    go.send(()).unwrap();
    for op in [write, update] {
        let error = op.unwrap().wait().unwrap_err();
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    // The memory is untouched, whatever its version says.
    let alias = late.export_wait(&ExportOptions::from(Access::Alias)).unwrap();
    // SAFETY: one element, which no code writes.
    assert_eq!(unsafe { *alias.data().cast::<f32>() }, 1.0);
    drop((alias, late));
    deleted.settle_at(1);
    assert!(watchdog.still_watches());
}

#[test]
fn shapes_and_vectors_that_do_not_fit_are_refused() {
    let _alone = exclusive();
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let errors = [
        engine.from_vec(vec![1.0_f32; 3], &[2]).unwrap_err(),
        engine.from_vec(vec![1.0_f32; 3], &[-3]).unwrap_err(),
        engine.from_vec(vec![1.0_f32; 3], &[i64::MAX, i64::MAX]).unwrap_err(),
        engine.zeros(&[-1], DType::F32).unwrap_err(),
        engine.zeros(&[i64::MAX], DType::F64).unwrap_err(),
        engine.zeros(&[1; 65], DType::F32).unwrap_err(),
        engine.zeros(&[2], DType::new(2, 0)).unwrap_err(),
        Engine::builder().in_flight_limit(0).build().unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Invalid(_) | Error::InvalidTensor(_)), "{error:?}");
    }
    // More memory than any machine has: the system refuses the allocation.
    let error = engine.zeros(&[1 << 60], DType::U8).unwrap_err();
    assert!(matches!(error, Error::Device(_) | Error::InvalidTensor(_)), "{error:?}");
    let empty = engine.from_vec(Vec::<f32>::new(), &[3, 0]).unwrap();
    assert_eq!(empty.to_vec::<f32>().unwrap(), Vec::<f32>::new());
    assert_eq!(tests::ops::get(&tensor(&engine, 1.5)), 1.5);
    assert!(watchdog.still_watches());
}

#[test]
fn an_engine_with_more_workers_than_the_limit_is_refused_before_any_thread_starts() {
    let _alone = exclusive();
    for workers in [WORKERS_MAX + 1, 3_000, usize::MAX] {
        let error = Engine::builder().workers(workers).build().unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        assert_eq!(error.to_string(), format!("{workers} workers: an engine has at most {WORKERS_MAX}"));
    }
}

/// A device that reports memory, and fails each allocation.
#[derive(Debug)]
struct Stingy(Arc<dyn Device>);

impl Device for Stingy {
    fn id(&self) -> DLDevice {
        DLDevice::new(DeviceType::EXT_DEV, 7)
    }

    fn name(&self) -> &str {
        "stingy"
    }

    fn host_accessible(&self) -> bool {
        true
    }

    fn default_queue(&self) -> Arc<dyn Queue> {
        self.0.default_queue()
    }

    fn create_queue(&self) -> Result<Arc<dyn Queue>, DeviceError> {
        self.0.create_queue()
    }

    fn allocate(&self, _bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        Ok(Allocation::empty(NonZeroUsize::new(align).unwrap(), self.id()))
    }

    unsafe fn copy(&self, _: &dyn Queue, _: *const u8, _: *mut u8, _: usize) -> Result<(), DeviceError> {
        unreachable!("there is no memory to copy")
    }
}

#[test]
fn a_device_that_gives_less_memory_than_it_was_asked_for_is_refused() {
    let _alone = exclusive();
    let host = Arc::clone(&Engine::builder().workers(1).build().unwrap().devices()[0]);
    let device: Arc<dyn Device> = Arc::new(Stingy(host));
    let engine = Engine::builder().workers(1).device(Arc::clone(&device)).build().unwrap();
    assert!(engine.empty(&[1000], DType::F32, device.id()).is_err());
}
