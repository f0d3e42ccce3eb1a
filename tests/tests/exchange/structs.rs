//! Structs of a foreign library come in, are worked on, go out, and are released once.

use std::ptr;

use estafette::bindings;
use estafette::exchange::Abi;
use estafette::{Access, DType, Engine, Error, ExportOptions, ManagedTensor, Tensor};
use tests::foreign::{Deleted, Memory, READ_ONLY, Versioned, numbers};
use tests::ops::{engine, exclusive};

/// The flag of a copy.
const IS_COPIED: u64 = 2;

/// A producer's deviation.
type Edit = fn(&mut Versioned);

/// Imports a versioned tensor changed by `edit`.
fn import(
    engine: &Engine,
    shape: &[i64],
    deleted: &Deleted,
    edit: impl FnOnce(&mut Versioned),
) -> Result<Tensor, Error> {
    // SAFETY: a fresh tensor; what `edit` makes of it is refused, or true of its memory.
    unsafe { engine.import(ManagedTensor::from_raw(numbers(shape, deleted, edit), Abi::Versioned)?) }
}

#[test]
fn a_tensor_comes_in_is_written_goes_out_and_is_released_without_a_copy() {
    let _alone = exclusive();
    let deleted = Deleted::default();
    let engine = engine(2);
    let mut address: *mut u8 = ptr::null_mut();
    let x = import(&engine, &[2, 3], &deleted, |m| address = m.tensor.data.cast()).unwrap();
    assert_eq!(x.data_ptr().unwrap(), address.cast_const());
    assert_eq!((x.shape().unwrap().as_slice(), x.dtype().unwrap()), (&[2, 3][..], DType::F32));
    engine
        .op("double")
        .updates([&x])
        .run(|[], [], [mut x]| {
            x.as_mut_slice::<f32>()?.iter_mut().for_each(|x| *x *= 2.0);
            Ok(())
        })
        .unwrap();
    let out = x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    assert_eq!((out.data(), out.flags().read_only, out.flags().is_copied), (address, true, false));
    let raw = out.into_raw().cast::<Versioned>();
    // SAFETY: the consumer's own tensor, read while its lease lasts and then deleted once.
    unsafe {
        let Versioned { major, minor, flags, ref tensor, deleter, .. } = *raw;
        assert_eq!((major, minor, flags), (1, 3, READ_ONLY));
        assert_eq!(std::slice::from_raw_parts(tensor.shape, 2), [2, 3]);
        assert_eq!(std::slice::from_raw_parts(tensor.strides, 2), [3, 1]);
        assert_eq!(std::slice::from_raw_parts(tensor.data.cast::<f32>(), 6), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(deleted.count(), 0);
        deleter.unwrap()(raw);
    }
    drop(x);
    deleted.settle_at(1);
}

#[test]
fn memory_is_not_released_while_a_consumer_holds_it() {
    let _alone = exclusive();
    for abi in [Abi::Legacy, Abi::Versioned] {
        let deleted = Deleted::default();
        let engine = engine(2);
        let x = import(&engine, &[4], &deleted, |_| ()).unwrap();
        let out = x.export_wait(&ExportOptions { abi, ..ExportOptions::from(Access::Read) }).unwrap();
        assert_eq!(bindings::exchange::abi(&out), abi);
        drop(x);
        drop(engine);
        assert!(estafette::exchange::flush_deleters(std::time::Duration::from_secs(30)));
        assert_eq!(deleted.count(), 0);
        // SAFETY: the lease lasts until `out` is dropped.
        assert_eq!(unsafe { *out.data().cast::<f32>().add(3) }, 3.0);
        std::thread::spawn(move || drop(out)).join().unwrap();
        deleted.settle_at(1);
    }
}

#[test]
fn a_bad_tensor_is_refused_by_its_field_and_deleted_once() {
    let _alone = exclusive();
    let engine = engine(2);
    let cases: [(&[i64], Edit, &str); 2] = [
        (&[2], |m| m.tensor.lanes = 0, "dtype.lanes is 0"),
        (&[2], |m| m.tensor.device_type = 10, "device rocm:0 is not available"),
    ];
    for (shape, edit, message) in cases {
        let deleted = Deleted::default();
        let error = import(&engine, shape, &deleted, edit).unwrap_err();
        assert!(error.to_string().contains(message), "{error}, expected {message}");
        assert!(matches!(error, Error::InvalidTensor(_) | Error::Invalid(_)), "{error:?}");
        deleted.settle_at(1);
    }
}

#[test]
fn odd_but_legal_tensors_are_accepted_and_deleted_once() {
    let _alone = exclusive();
    let engine = engine(2);
    let cases: [(&[i64], Edit); 8] = [
        (&[2, 3], |m| m.tensor.strides = ptr::null_mut()),
        (&[], |_| ()),
        (&[3, 0], |m| m.tensor.data = ptr::null_mut()),
        (&[4], |m| m.minor = 99),
        (&[4], |m| m.flags = 1 << 40 | IS_COPIED),
        (&[4], |m| (m.tensor.code, m.tensor.bits) = (200, 8)),
        // Four elements of memory, of which three are left behind a misaligned start.
        (&[4], |m| {
            m.tensor.byte_offset = 1;
            // SAFETY: the shape has one entry.
            unsafe { *m.tensor.shape = 3 };
        }),
        (&[2], |m| m.tensor.device_type = 77),
    ];
    for (index, (shape, edit)) in cases.into_iter().enumerate() {
        let deleted = Deleted::default();
        let x = import(&engine, shape, &deleted, edit).unwrap();
        assert_eq!(x.shape().unwrap().as_slice(), if index == 6 { &[3] } else { shape }, "case {index}");
        x.wait().unwrap();
        drop(x);
        deleted.settle_at(1);
    }
}

#[test]
fn a_device_of_an_unknown_kind_is_carried_and_the_host_never_looks() {
    let _alone = exclusive();
    let deleted = Deleted::default();
    let engine = engine(2);
    let x = import(&engine, &[4], &deleted, |m| m.tensor.device_type = 77).unwrap();
    let failed =
        engine.op("view").reads([&x]).run(|[x], []| x.as_slice::<f32>().map(drop).map_err(Into::into));
    assert!(failed.unwrap().wait().is_err());
    let copying = ExportOptions { copy: true, ..ExportOptions::from(Access::Read) };
    assert!(x.export_wait(&copying).unwrap_err().to_string().contains("device_type(77):0"));
    let out = x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    assert_eq!(bindings::exchange::device(&out).to_string(), "device_type(77):0");
    drop((x, out));
    deleted.settle_at(1);
}

#[test]
fn an_opaque_type_is_exchanged_and_only_its_typed_view_is_refused() {
    let _alone = exclusive();
    let deleted = Deleted::default();
    let engine = engine(2);
    let x = import(&engine, &[4], &deleted, |m| (m.tensor.code, m.tensor.bits) = (200, 8)).unwrap();
    assert_eq!(x.dtype().unwrap(), DType::new(200, 8));
    let failed = engine.op("view").updates([&x]).run(|[], [], [mut x]| {
        x.as_mut_slice::<u8>()?;
        Ok(())
    });
    let error = failed.unwrap().wait().unwrap_err();
    assert!(error.to_string().contains("dtype is code200b8, not uint8"), "{error}");
    x.clear_error().unwrap();
    drop(x.export_wait(&ExportOptions::from(Access::Alias)).unwrap());
    drop(x);
    deleted.settle_at(1);
}

#[test]
fn a_legacy_tensor_comes_in_and_read_only_memory_stays_read_only() {
    let _alone = exclusive();
    let deleted = Deleted::default();
    let engine = engine(2);
    let raw = Memory::of(&[0.0, 1.0]).legacy(0, 2, &deleted, |m| m.tensor.strides = ptr::null_mut());
    // SAFETY: a fresh tensor that describes its memory truly.
    let old = unsafe { engine.import(ManagedTensor::from_raw(raw, Abi::Legacy).unwrap()) }.unwrap();
    assert!(!old.is_read_only().unwrap());
    assert_eq!(old.to_vec::<f32>().unwrap(), [0.0, 1.0]);
    let fixed = import(&engine, &[2], &deleted, |m| m.flags = READ_ONLY).unwrap();
    assert!(fixed.is_read_only().unwrap());
    let refused = engine.op("write").updates([&fixed]).run(|[], [], [_x]| Ok(()));
    assert!(refused.is_err(), "{refused:?}");
    assert!(fixed.export_wait(&ExportOptions::from(Access::Write)).is_err());
    drop((old, fixed));
    deleted.settle_at(2);
}
