use super::*;

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::super::dtype::code;

/// A tensor of another library: counts the calls of its deleter, which frees everything.
#[repr(C)]
struct Foreign<M> {
    managed: M,
    shape: Vec<i64>,
    strides: Vec<i64>,
    memory: Vec<u64>,
    deleted: Arc<AtomicUsize>,
}

unsafe extern "C" fn delete_foreign<M>(managed: *mut M) {
    // SAFETY: the tests call it once, with the pointer that `Box::into_raw` gave.
    let foreign = unsafe { Box::from_raw(managed.cast::<Foreign<M>>()) };
    foreign.deleted.fetch_add(1, Ordering::Relaxed);
}

const F32: DLDataType = DLDataType { code: DLDataTypeCode(2), bits: 32, lanes: 1 };

/// A float32 tensor on the host with explicit row-major strides.
fn describe_foreign(shape: &mut [i64], strides: &mut [i64], memory: &mut [u64]) -> DLTensor {
    DLTensor {
        data: memory.as_mut_ptr().cast(),
        device: RawDevice { device_type: DLDeviceType(1), device_id: 0 },
        ndim: shape.len() as i32,
        dtype: F32,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    }
}

fn parts(shape: &[i64]) -> (Vec<i64>, Vec<i64>, Vec<u64>) {
    let strides = Layout::contiguous(DType::U8, DLDevice::CPU, shape)
        .map_or(vec![1; shape.len()], |l| l.strides().to_vec());
    (shape.to_vec(), strides, vec![0; 16])
}

fn foreign_versioned(
    shape: &[i64],
    edit: impl FnOnce(&mut DLManagedTensorVersioned),
) -> (*mut c_void, Arc<AtomicUsize>) {
    let deleted = Arc::new(AtomicUsize::new(0));
    let (mut shape, mut strides, mut memory) = parts(shape);
    let mut managed = DLManagedTensorVersioned {
        version: DLPackVersion { major: 1, minor: 3 },
        manager_ctx: ptr::null_mut(),
        deleter: Some(delete_foreign::<DLManagedTensorVersioned>),
        flags: DlpackFlags::empty(),
        dl_tensor: describe_foreign(&mut shape, &mut strides, &mut memory),
    };
    edit(&mut managed);
    let foreign = Foreign { managed, shape, strides, memory, deleted: deleted.clone() };
    (Box::into_raw(Box::new(foreign)).cast(), deleted)
}

fn foreign_legacy(shape: &[i64], edit: impl FnOnce(&mut DLManagedTensor)) -> (*mut c_void, Arc<AtomicUsize>) {
    let deleted = Arc::new(AtomicUsize::new(0));
    let (mut shape, mut strides, mut memory) = parts(shape);
    let mut managed = DLManagedTensor {
        dl_tensor: describe_foreign(&mut shape, &mut strides, &mut memory),
        manager_ctx: ptr::null_mut(),
        deleter: Some(delete_foreign::<DLManagedTensor>),
    };
    edit(&mut managed);
    let foreign = Foreign { managed, shape, strides, memory, deleted: deleted.clone() };
    (Box::into_raw(Box::new(foreign)).cast(), deleted)
}

/// Imports and describes, as the engine does, drops the tensor, and checks that its deleter ran once
/// whatever happened.
fn describe(shape: &[i64], edit: impl FnOnce(&mut DLManagedTensorVersioned)) -> Result<Layout, String> {
    let (raw, deleted) = foreign_versioned(shape, edit);
    // SAFETY: a tensor made just above, given up here.
    let result = unsafe { ManagedTensor::from_raw(raw, Abi::Versioned) }.and_then(|tensor| tensor.describe());
    assert_eq!(deleted.load(Ordering::Relaxed), 1, "the deleter must run once: {result:?}");
    result.map_err(|error| error.to_string())
}

fn describe_tensor(shape: &[i64], edit: impl FnOnce(&mut DLTensor)) -> Result<Layout, String> {
    describe(shape, |managed| edit(&mut managed.dl_tensor))
}

#[test]
fn a_versioned_tensor_is_described_and_deleted_once_by_whoever_drops_it() {
    let (raw, deleted) = foreign_versioned(&[2, 3], |managed| {
        managed.flags = DlpackFlags::READ_ONLY | DlpackFlags::IS_COPIED;
    });
    // SAFETY: a tensor made just above.
    let tensor = unsafe { ManagedTensor::from_raw(raw, Abi::Versioned) }.unwrap();
    let layout = tensor.describe().unwrap();
    assert_eq!((layout.shape(), layout.strides(), layout.dtype()), (&[2, 3][..], &[3, 1][..], DType::F32));
    assert_eq!((layout.device(), tensor.device()), (DLDevice::CPU, DLDevice::CPU));
    assert_eq!((tensor.abi(), tensor.version()), (Abi::Versioned, Some((1, 3))));
    assert!(tensor.flags().read_only && tensor.flags().is_copied && !tensor.data().is_null());
    std::thread::spawn(move || drop(tensor)).join().unwrap();
    assert_eq!(deleted.load(Ordering::Relaxed), 1);
}

#[test]
fn a_legacy_tensor_is_described_and_deleted_once() {
    let (raw, deleted) = foreign_legacy(&[4], |managed| managed.dl_tensor.strides = ptr::null_mut());
    // SAFETY: a tensor made just above.
    let tensor = unsafe { ManagedTensor::from_raw(raw, Abi::Legacy) }.unwrap();
    assert_eq!(tensor.describe().unwrap().strides(), [1]);
    assert_eq!((tensor.abi(), tensor.version(), tensor.flags().read_only), (Abi::Legacy, None, false));
    drop(tensor);
    assert_eq!(deleted.load(Ordering::Relaxed), 1);
}

#[test]
fn null_tensors_are_refused() {
    // SAFETY: NULL is allowed.
    let errors = unsafe {
        [
            ManagedTensor::from_raw(ptr::null_mut(), Abi::Versioned),
            ManagedTensor::from_raw(ptr::null_mut(), Abi::Legacy),
        ]
    };
    for error in errors {
        assert_eq!(error.unwrap_err().to_string(), "tensor is NULL");
    }
}

#[test]
fn another_major_version_is_deleted_and_nothing_else_of_it_is_touched() {
    for major in [0, 2, u32::MAX] {
        let result = describe(&[2], |managed| {
            managed.version.major = major;
            // Following any of these would crash.
            managed.dl_tensor.shape = ptr::without_provenance_mut(8);
            managed.dl_tensor.strides = ptr::without_provenance_mut(8);
            managed.dl_tensor.ndim = i32::MAX;
        });
        assert_eq!(result, Err(format!("version is {major}.3, but only 1.x is known")));
    }
}

#[test]
fn a_newer_minor_version_is_accepted() {
    assert!(describe(&[2], |managed| managed.version.minor = 99).is_ok());
}

#[test]
fn a_null_deleter_is_not_called() {
    let (raw, deleted) = foreign_versioned(&[2], |managed| managed.deleter = None);
    // SAFETY: a tensor made just above; without a deleter it stays ours to free.
    unsafe {
        drop(ManagedTensor::from_raw(raw, Abi::Versioned).unwrap());
        assert_eq!(deleted.load(Ordering::Relaxed), 0);
        delete_foreign::<DLManagedTensorVersioned>(raw.cast());
    }
    let (raw, _) = foreign_legacy(&[2], |managed| managed.deleter = None);
    // SAFETY: as above.
    unsafe {
        drop(ManagedTensor::from_raw(raw, Abi::Legacy).unwrap());
        delete_foreign::<DLManagedTensor>(raw.cast());
    }
}

#[test]
fn each_bad_field_is_named_and_the_deleter_still_runs_once() {
    type Edit = fn(&mut DLTensor);
    let cases: [(&[i64], Edit, &str); 18] = [
        (&[2], |t| t.ndim = -1, "ndim is -1"),
        (&[2], |t| t.ndim = i32::MIN, "ndim is -2147483648"),
        (&[2], |t| t.ndim = 65, "ndim is 65, more than 64"),
        (&[2, 3], |t| t.shape = ptr::null_mut(), "shape is NULL with ndim 2"),
        (&[2, -3], |_| (), "shape[1] is -3"),
        (&[-1], |t| t.strides = ptr::null_mut(), "shape[0] is -1"),
        (&[1 << 40, 1 << 40], |_| (), "shape [1099511627776, 1099511627776] overflows the element count"),
        (&[1 << 62], |_| (), "shape [4611686018427387904] of float32 overflows the byte size"),
        (&[2], |t| t.data = ptr::null_mut(), "data is NULL, but there are 2 elements"),
        (
            &[1 << 40],
            |t| t.data = ptr::without_provenance_mut(usize::MAX - 9),
            "strides lead from data at 0xfffffffffffffff6 out of the address space",
        ),
        (&[2], |t| t.byte_offset = u64::MAX, "byte_offset is 18446744073709551615, past the address space"),
        (&[2], |t| t.dtype.lanes = 0, "dtype.lanes is 0"),
        (&[2], |t| t.dtype.bits = 0, "dtype.bits is 0"),
        (&[2], |t| t.dtype.code.0 = code::BOOL, "dtype.bits is 32, but bool has 8"),
        (&[2], |t| t.dtype.code.0 = code::FLOAT4_E2M1FN, "dtype.bits is 32, but float4_e2m1fn has 4"),
        (&[2], |t| t.dtype.code.0 = code::FLOAT6_E3M2FN, "dtype.bits is 32, but float6_e3m2fn has 6"),
        (&[2], |t| t.dtype.code.0 = code::FLOAT8_E8M0FNU, "dtype.bits is 32, but float8_e8m0fnu has 8"),
        (&[0], |t| t.dtype.lanes = 0, "dtype.lanes is 0"),
    ];
    for (shape, edit, message) in cases {
        assert_eq!(describe_tensor(shape, edit), Err(message.to_owned()));
    }
}

#[test]
fn overflowing_strides_are_refused() {
    let mut strides = [1, i64::MAX / 4];
    let pointer = strides.as_mut_ptr();
    let result = describe_tensor(&[2, 9], |tensor| tensor.strides = pointer);
    assert_eq!(result, Err(format!("strides[1] is {}, which overflows", i64::MAX / 4)));
    // Garbage that no element uses is no error: a dimension of one element, a tensor without elements.
    assert!(describe_tensor(&[2, 1], |tensor| tensor.strides = pointer).is_ok());
    assert!(describe_tensor(&[0, 9], |tensor| tensor.strides = pointer).is_ok());
}

#[test]
fn what_libraries_really_send_is_accepted() {
    let layout = describe_tensor(&[2, 3], |tensor| tensor.strides = ptr::null_mut()).unwrap();
    assert_eq!(layout.strides(), [3, 1], "NULL strides mean row-major, even at 1.3");
    let scalar = describe_tensor(&[], |tensor| {
        tensor.shape = ptr::null_mut();
        tensor.strides = ptr::null_mut();
    });
    assert_eq!(scalar.unwrap().len(), 1);
    assert_eq!(describe_tensor(&[1; 32], |_| ()).unwrap().shape().len(), 32);
    for data in [ptr::null_mut(), ptr::without_provenance_mut(usize::MAX)] {
        let empty = describe_tensor(&[3, 0], |tensor| {
            tensor.data = data;
            tensor.byte_offset = 5;
        });
        assert!(empty.unwrap().is_empty());
    }
    // One byte off: exchanged and copied, only typed views refuse it.
    let misaligned = describe_tensor(&[2], |tensor| tensor.byte_offset = 1).unwrap();
    assert_eq!(misaligned.len(), 2);
    let opaque = describe_tensor(&[2], |tensor| {
        tensor.dtype = DLDataType { code: DLDataTypeCode(200), bits: 7, lanes: 3 }
    });
    assert_eq!(opaque.unwrap().dtype(), DType { code: 200, bits: 7, lanes: 3 });
    let vector = describe_tensor(&[2], |tensor| tensor.dtype.lanes = 4).unwrap();
    assert_eq!(vector.byte_len(), 32);
    assert!(describe(&[2], |managed| managed.flags = DlpackFlags::from_bits_retain(1 << 60)).is_ok());
}

#[test]
fn padded_and_packed_sub_byte_types_differ_in_size() {
    let fp4 = DLDataType { code: DLDataTypeCode(17), bits: 4, lanes: 1 };
    let packed = describe(&[6], |managed| managed.dl_tensor.dtype = fp4).unwrap();
    let padded = describe(&[6], |managed| {
        managed.dl_tensor.dtype = fp4;
        managed.flags = DlpackFlags::IS_SUBBYTE_TYPE_PADDED;
    });
    assert_eq!((packed.byte_len(), padded.unwrap().byte_len()), (3, 6));
}

#[test]
fn byte_offset_is_added_to_addresses_and_kept_beside_handles() {
    let (raw, _deleted) = foreign_versioned(&[2], |managed| managed.dl_tensor.byte_offset = 8);
    // SAFETY: a tensor made just above.
    let tensor = unsafe { ManagedTensor::from_raw(raw, Abi::Versioned) }.unwrap();
    assert_eq!(tensor.data(), tensor.tensor().data.cast::<u8>().wrapping_add(8));
    assert_eq!(tensor.describe().unwrap().byte_offset(), 0);
    for device_type in [77, u32::MAX] {
        let (raw, _deleted) = foreign_versioned(&[2], |managed| {
            managed.dl_tensor.byte_offset = 8;
            managed.dl_tensor.device = RawDevice { device_type: DLDeviceType(device_type), device_id: 3 };
        });
        // SAFETY: a tensor made just above.
        let tensor = unsafe { ManagedTensor::from_raw(raw, Abi::Versioned) }.unwrap();
        let layout = tensor.describe().unwrap();
        assert_eq!(tensor.data(), tensor.tensor().data.cast::<u8>());
        assert_eq!(
            (layout.byte_offset(), layout.device()),
            (8, DLDevice::new(DeviceType(device_type as i32), 3))
        );
    }
}

#[test]
fn raw_pointers_go_out_and_in_again_without_a_deleter_call() {
    let (raw, deleted) = foreign_versioned(&[2], |_| ());
    // SAFETY: a tensor made just above; ownership goes to and fro.
    let tensor = unsafe { ManagedTensor::from_raw(raw, Abi::Versioned) }.unwrap();
    assert_eq!(tensor.into_raw(), raw);
    assert_eq!(deleted.load(Ordering::Relaxed), 0);
    // SAFETY: as above.
    drop(unsafe { ManagedTensor::from_raw(raw, Abi::Versioned) });
    assert_eq!(deleted.load(Ordering::Relaxed), 1);
}

/// Exports memory that no test follows.
fn export<F: FnOnce() + Send + 'static>(
    layout: &Layout,
    data: *mut u8,
    flags: ExportFlags,
    abi: Abi,
    owner: F,
) -> ManagedTensor {
    // SAFETY: the pointer is only compared.
    unsafe { super::export(layout, data, flags, abi, owner) }
}

fn counting_owner() -> (impl FnOnce() + Send + 'static, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let owner = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    (owner, calls)
}

#[test]
fn an_export_writes_every_field() {
    let (owner, calls) = counting_owner();
    let layout = Layout::strided(DType::I64, DLDevice::CPU, &[2, 1, 3], &[-3, 999, 1]).unwrap();
    let mut memory = [0_i64; 6];
    let data = memory[3..].as_mut_ptr().cast();
    let flags = ExportFlags { read_only: true, is_copied: false };
    let raw = export(&layout, data, flags, Abi::Versioned, owner).into_raw();
    let managed = raw.cast::<DLManagedTensorVersioned>();
    // SAFETY: the struct just exported, read as a consumer would, then deleted once.
    unsafe {
        let DLManagedTensorVersioned { version, flags, deleter, dl_tensor: tensor, .. } = *managed;
        assert_eq!((version, flags), (DLPackVersion { major: 1, minor: 3 }, DlpackFlags::READ_ONLY));
        assert_eq!((tensor.data.cast(), tensor.byte_offset, tensor.ndim), (data, 0, 3));
        assert_eq!(tensor.dtype, DLDataType { code: DLDataTypeCode(0), bits: 64, lanes: 1 });
        assert_eq!(tensor.device, RawDevice { device_type: DLDeviceType(1), device_id: 0 });
        assert_eq!(std::slice::from_raw_parts(tensor.shape, 3), [2, 1, 3]);
        assert_eq!(std::slice::from_raw_parts(tensor.strides, 3), [-3, 3, 1]);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        deleter.unwrap()(managed);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn the_owner_of_an_export_runs_once_on_the_consumers_thread_in_either_abi() {
    for abi in [Abi::Legacy, Abi::Versioned] {
        let (owner, calls) = counting_owner();
        let layout = Layout::contiguous(DType::F32, DLDevice::CPU, &[2]).unwrap();
        let tensor = export(&layout, ptr::without_provenance_mut(64), ExportFlags::default(), abi, owner);
        assert_eq!(tensor.abi(), abi);
        std::thread::spawn(move || drop(tensor)).join().unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}

/// PaddlePaddle 3.3 is such a consumer.
#[test]
fn a_consumer_that_calls_the_deleter_only_of_a_struct_with_a_context_calls_it() {
    for shape in [&[][..], &[2, 3]] {
        let layout = Layout::contiguous(DType::F32, DLDevice::CPU, shape).unwrap();
        let exported = |abi, owner: Box<dyn FnOnce() + Send>| {
            export(&layout, ptr::without_provenance_mut(64), ExportFlags::default(), abi, owner)
        };
        let (owner, calls) = counting_owner();
        let versioned = exported(Abi::Versioned, Box::new(owner)).into_raw();
        let versioned = versioned.cast::<DLManagedTensorVersioned>();
        // SAFETY: a struct that was just exported; its deleter is called once.
        unsafe {
            assert!(!(*versioned).manager_ctx.is_null());
            (*versioned).deleter.unwrap()(versioned);
        }
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        let (owner, calls) = counting_owner();
        let legacy = exported(Abi::Legacy, Box::new(owner)).into_raw().cast::<DLManagedTensor>();
        // SAFETY: as above.
        unsafe {
            assert!(!(*legacy).manager_ctx.is_null());
            (*legacy).deleter.unwrap()(legacy);
        }
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn a_panicking_owner_does_not_unwind_into_the_consumer() {
    let layout = Layout::contiguous(DType::F32, DLDevice::CPU, &[]).unwrap();
    for abi in [Abi::Legacy, Abi::Versioned] {
        let (owner, calls) = counting_owner();
        let panics = move || {
            owner();
            panic!("in the owner");
        };
        drop(export(&layout, ptr::without_provenance_mut(64), ExportFlags::default(), abi, panics));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn an_export_without_elements_has_no_address_and_a_scalar_no_shape() {
    let empty = Layout::contiguous(DType::F32, DLDevice::CPU, &[2, 0]).unwrap();
    let tensor =
        export(&empty, ptr::without_provenance_mut(64), ExportFlags::default(), Abi::Versioned, || ());
    assert!(tensor.tensor().data.is_null() && !tensor.tensor().strides.is_null());
    let scalar = Layout::contiguous(DType::F32, DLDevice::CPU, &[]).unwrap();
    let tensor = export(&scalar, ptr::without_provenance_mut(64), ExportFlags::default(), Abi::Legacy, || ());
    assert!(tensor.tensor().shape.is_null() && tensor.tensor().strides.is_null());
    assert_eq!(tensor.describe(), Ok(scalar));
}

#[test]
#[cfg(unix)]
fn in_a_forked_child_neither_deleters_nor_owners_run() {
    let (raw, deleted) = foreign_versioned(&[2], |_| ());
    // SAFETY: a tensor made just above.
    let imported = unsafe { ManagedTensor::from_raw(raw, Abi::Versioned) }.unwrap();
    let (owner, calls) = counting_owner();
    let layout = Layout::contiguous(DType::F32, DLDevice::CPU, &[2]).unwrap();
    let exported =
        export(&layout, ptr::without_provenance_mut(64), ExportFlags::default(), Abi::Versioned, owner);
    let exported = exported.into_raw().cast::<DLManagedTensorVersioned>();
    let fine = estafette_sync::platform::child::in_forked_child(|| {
        // SAFETY: the child's copies; each is given up once in this process.
        unsafe {
            drop(std::ptr::read(&imported));
            (*exported).deleter.unwrap()(exported);
        }
        deleted.load(Ordering::Relaxed) == 0
            && calls.load(Ordering::Relaxed) == 0
            && estafette_sync::process::leaked() == 2
    });
    assert!(fine);
    drop(imported);
    // SAFETY: the parent's own, given up once.
    drop(unsafe { ManagedTensor::from_raw(exported.cast(), Abi::Versioned) });
    assert_eq!((deleted.load(Ordering::Relaxed), calls.load(Ordering::Relaxed)), (1, 1));
}

fn layouts() -> impl Strategy<Value = Layout> {
    let dtype = prop::sample::select(vec![
        DType::F32,
        DType::BOOL,
        DType::C128,
        DType::F4_E2M1FN,
        DType::new(99, 24),
    ]);
    let dims = prop::collection::vec((0_i64..5, -20_i64..20), 0..6);
    (dtype, dims, any::<bool>(), prop::sample::select(vec![1, 2, 4, 99])).prop_map(
        |(dtype, dims, padded, device)| {
            let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            let device = DLDevice::new(DeviceType(device), 1);
            Layout::strided(dtype, device, &shape, &strides).unwrap().with_padding(padded)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_exported_is_what_is_imported(
        layout in layouts(), read_only: bool, is_copied: bool, offset in 0_u64..100
    ) {
        let layout = if layout.device().device_type.has_addresses() { layout } else { layout.with_byte_offset(offset) };
        let (owner, calls) = counting_owner();
        let data = ptr::without_provenance_mut(1 << 20);
        let raw = export(&layout, data, ExportFlags { read_only, is_copied }, Abi::Versioned, owner);
        let raw = raw.into_raw();
        // SAFETY: just exported.
        let tensor = unsafe { ManagedTensor::from_raw(raw, Abi::Versioned) }.unwrap();
        prop_assert_eq!(tensor.describe(), Ok(layout.clone()));
        prop_assert_eq!((tensor.flags().read_only, tensor.flags().is_copied), (read_only, is_copied));
        prop_assert_eq!(tensor.data(), if layout.is_empty() { ptr::null_mut() } else { data });
        drop(tensor);
        prop_assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}
