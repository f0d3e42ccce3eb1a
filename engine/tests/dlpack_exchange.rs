//! Tensors of a foreign library come in, are worked on, go out, and are given back once.

mod dlpack;

use std::ptr;
use std::sync::Arc;

use dlpack::{Deletions, IS_COPIED, READ_ONLY, Versioned};
use estafette::exchange::Abi;
use estafette::{Access, DType, Engine, Error, ExportOptions, ManagedTensor, Tensor};

/// What a producer does differently.
type Edit = fn(&mut Versioned);

fn engine() -> Engine {
    Engine::builder().workers(2).build().expect("two workers start")
}

/// Imports a versioned tensor changed by `edit`.
fn import(
    engine: &Engine,
    shape: &[i64],
    deletions: &Arc<Deletions>,
    edit: impl FnOnce(&mut Versioned),
) -> Result<Tensor, Error> {
    // SAFETY: a fresh tensor; what `edit` makes of it is refused, or true of its memory.
    unsafe {
        engine.import(ManagedTensor::from_raw(dlpack::versioned(shape, deletions, edit), Abi::Versioned)?)
    }
}

#[test]
fn a_tensor_comes_in_is_written_goes_out_and_is_given_back_without_a_copy() {
    let deletions = Arc::default();
    let engine = engine();
    let managed = dlpack::tensor(&[2, 3], &deletions);
    let address = managed.data();
    // SAFETY: a fresh tensor that describes its memory truly.
    let x = unsafe { engine.import(managed) }.unwrap();
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
        assert_eq!(deletions.count(), 0);
        deleter.unwrap()(raw);
    }
    drop(x);
    deletions.wait_for(1);
    assert_eq!(deletions.threads(), ["estafette-reaper"], "never on a user's thread");
}

#[test]
fn memory_is_not_given_back_while_a_consumer_holds_it() {
    for abi in [Abi::Legacy, Abi::Versioned] {
        let deletions = Arc::default();
        let engine = engine();
        // SAFETY: a fresh tensor that describes its memory truly.
        let x = unsafe { engine.import(dlpack::tensor(&[4], &deletions)) }.unwrap();
        let out = x.export_wait(&ExportOptions { abi, ..ExportOptions::from(Access::Read) }).unwrap();
        assert_eq!(out.abi(), abi);
        drop(x);
        drop(engine);
        assert!(estafette::exchange::flush_deleters(std::time::Duration::from_secs(30)));
        assert_eq!(deletions.count(), 0);
        // SAFETY: the lease lasts until `out` is dropped.
        assert_eq!(unsafe { *out.data().cast::<f32>().add(3) }, 3.0);
        std::thread::spawn(move || drop(out)).join().unwrap();
        deletions.wait_for(1);
    }
}

#[test]
fn a_bad_tensor_is_refused_by_its_field_and_deleted_once() {
    let engine = engine();
    let cases: [(&[i64], Edit, &str); 2] = [
        (&[2], |m| m.tensor.lanes = 0, "dtype.lanes is 0"),
        (&[2], |m| m.tensor.device_type = 10, "device rocm:0 is not available"),
    ];
    for (shape, edit, message) in cases {
        let deletions = Arc::default();
        let error = import(&engine, shape, &deletions, edit).unwrap_err();
        assert!(error.to_string().contains(message), "{error}, expected {message}");
        assert!(matches!(error, Error::InvalidTensor(_) | Error::Invalid(_)), "{error:?}");
        deletions.wait_for(1);
    }
}

#[test]
fn odd_but_legal_tensors_are_accepted_and_deleted_once() {
    let engine = engine();
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
        let deletions = Arc::default();
        let x = import(&engine, shape, &deletions, edit).unwrap();
        assert_eq!(x.shape().unwrap().as_slice(), if index == 6 { &[3] } else { shape }, "case {index}");
        x.wait().unwrap();
        drop(x);
        deletions.wait_for(1);
    }
}

#[test]
fn a_device_of_an_unknown_kind_is_carried_and_the_host_never_looks() {
    let deletions = Arc::default();
    let engine = engine();
    let x = import(&engine, &[4], &deletions, |m| m.tensor.device_type = 77).unwrap();
    let failed =
        engine.op("view").reads([&x]).run(|[x], []| x.as_slice::<f32>().map(drop).map_err(Into::into));
    assert!(failed.unwrap().wait().is_err());
    let copying = ExportOptions { copy: true, ..ExportOptions::from(Access::Read) };
    assert!(x.export_wait(&copying).unwrap_err().to_string().contains("device_type(77):0"));
    let out = x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    assert_eq!(out.device().to_string(), "device_type(77):0");
    drop((x, out));
    deletions.wait_for(1);
}

#[test]
fn an_opaque_type_is_exchanged_and_only_its_typed_view_is_refused() {
    let deletions = Arc::default();
    let engine = engine();
    let x = import(&engine, &[4], &deletions, |m| (m.tensor.code, m.tensor.bits) = (200, 8)).unwrap();
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
    deletions.wait_for(1);
}

#[test]
fn a_legacy_tensor_comes_in_and_read_only_memory_stays_read_only() {
    let deletions = Arc::default();
    let engine = engine();
    // SAFETY: a fresh tensor that describes its memory truly.
    let old = unsafe {
        let raw = dlpack::legacy(&[2, 2], &deletions, |m| m.tensor.strides = ptr::null_mut());
        engine.import(ManagedTensor::from_raw(raw, Abi::Legacy).unwrap())
    }
    .unwrap();
    assert!(!old.is_read_only().unwrap());
    assert_eq!(old.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0]);
    let fixed = import(&engine, &[2], &deletions, |m| m.flags = READ_ONLY).unwrap();
    assert!(fixed.is_read_only().unwrap());
    let refused = engine.op("write").updates([&fixed]).run(|[], [], [_x]| Ok(()));
    assert!(refused.is_err(), "{refused:?}");
    assert!(fixed.export_wait(&ExportOptions::from(Access::Write)).is_err());
    drop((old, fixed));
    deletions.wait_for(2);
}
