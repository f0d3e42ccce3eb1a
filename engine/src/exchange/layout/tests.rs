use super::*;

const CPU: DLDevice = DLDevice::CPU;

fn strided(dtype: DType, shape: &[i64], strides: &[i64]) -> Result<Layout, String> {
    Layout::strided(dtype, CPU, shape, strides).map_err(|error| error.to_string())
}

fn at(address: usize) -> *const u8 {
    std::ptr::without_provenance(address)
}

#[test]
fn contiguous_strides_and_sizes() {
    let layout = Layout::contiguous(DType::F32, CPU, &[2, 3, 4]).unwrap();
    assert_eq!((layout.strides(), layout.len(), layout.byte_len()), (&[12, 4, 1][..], 24, 96));
    assert!(layout.is_contiguous());
    let scalar = Layout::contiguous(DType::F32, CPU, &[]).unwrap();
    assert_eq!((scalar.len(), scalar.shape().len(), scalar.byte_range(at(64))), (1, 0, 64..68));
}

#[test]
fn a_zero_dimension_touches_no_memory() {
    let layout = Layout::contiguous(DType::F32, CPU, &[3, 0, 4]).unwrap();
    assert_eq!((layout.len(), layout.byte_len(), layout.strides()), (0, 0, &[4, 4, 1][..]));
    assert!(layout.is_contiguous() && layout.byte_range(at(64)).is_empty());
    assert_eq!(layout.check_data(std::ptr::null()), Ok(()));
    let strides = strided(DType::F32, &[0, 2], &[i64::MAX, i64::MIN]).unwrap();
    assert_eq!(strides.strides(), [2, 1]);
}

#[test]
fn negative_strides_reach_below_the_first_element() {
    let layout = strided(DType::I32, &[4], &[-1]).unwrap();
    assert_eq!(layout.byte_range(at(100)), 88..104);
    assert!(!layout.is_contiguous());
    let mixed = strided(DType::I32, &[2, 3], &[-3, 1]).unwrap();
    assert_eq!(mixed.byte_range(at(100)), 88..112);
    assert_eq!(mixed.check_data(at(100)), Ok(()));
    assert_eq!(
        mixed.check_data(at(8)).map_err(|e| e.to_string()),
        Err("strides lead from data at 0x8 out of the address space".into())
    );
}

#[test]
fn broadcast_touches_one_element() {
    let layout = strided(DType::F64, &[1000, 2], &[0, 1]).unwrap();
    assert_eq!((layout.byte_range(at(16)), layout.byte_len()), (16..32, 16000));
    assert!(!layout.is_contiguous());
}

#[test]
fn packed_and_padded_sub_byte_types() {
    let layout = Layout::contiguous(DType::F4_E2M1FN, CPU, &[5]).unwrap();
    assert_eq!((layout.byte_len(), layout.byte_range(at(10))), (3, 10..13));
    let padded = layout.with_padding(true);
    assert_eq!((padded.byte_len(), padded.byte_range(at(10))), (5, 10..15));
    let backwards = strided(DType::F6_E2M3FN, &[3], &[-1]).unwrap();
    // Bits -12..6 around address 10: bytes 8 to 11.
    assert_eq!(backwards.byte_range(at(10)), 8..11);
    assert!(!Layout::contiguous(DType::U8, CPU, &[5]).unwrap().with_padding(true).is_padded());
}

#[test]
fn a_handle_is_one_place_whatever_the_offset() {
    let device = DLDevice::new(estafette_devices::DeviceType(99), 0);
    let layout = Layout::contiguous(DType::F32, device, &[100]).unwrap().with_byte_offset(4096);
    assert_eq!((layout.byte_range(at(500)), layout.byte_offset()), (500..501, 4096));
    assert!(layout.check_slice::<f32>(at(500)).is_err());
}

#[test]
fn strides_of_single_element_dimensions_are_normalized() {
    assert_eq!(strided(DType::F32, &[1], &[3]).unwrap().strides(), [1]);
    let layout = strided(DType::F32, &[2, 1, 3], &[3, i64::MAX, 1]).unwrap();
    assert_eq!(layout.strides(), [3, 3, 1]);
    assert!(layout.is_contiguous());
    assert_eq!(strided(DType::F32, &[1, 2], &[i64::MIN, -1]).unwrap().strides(), [1, -1]);
}

#[test]
fn bad_shapes_and_strides_name_their_entry() {
    let big = i64::MAX / 2;
    for (shape, strides, message) in [
        (&[2, -3][..], &[1, 1][..], "shape[1] is -3"),
        (&[2, 3], &[1], "strides has 1 entries for 2 dimensions"),
        (&[big, 4, 2], &[1, 1, 1], &format!("shape [{big}, 4, 2] overflows the element count")),
        (&[big, 0, 8], &[1, 1, 1], &format!("shape [{big}, 0, 8] overflows the element count")),
        (&[big], &[1], &format!("shape [{big}] of float32 overflows the byte size")),
        (&[2, 3], &[1, big], &format!("strides[1] is {big}, which overflows")),
        (&[3, 3], &[1, i64::MIN], &format!("strides[1] is {}, which overflows", i64::MIN)),
    ] {
        assert_eq!(strided(DType::F32, shape, strides).map(|_| ()), Err(message.to_string()));
    }
    let error = Layout::contiguous(DType::F32, CPU, &[1; 65]).unwrap_err();
    assert_eq!(error.to_string(), "ndim is 65, more than 64");
    assert!(Layout::contiguous(DType::F32, CPU, &[1; 64]).is_ok());
}

#[test]
fn slices_need_the_type_the_order_and_the_alignment() {
    let layout = Layout::contiguous(DType::F32, CPU, &[2, 2]).unwrap();
    let message = |result: Result<usize, InvalidTensor>| result.map_err(|error| error.to_string());
    assert_eq!(message(layout.check_slice::<f32>(at(16))), Ok(4));
    assert_eq!(message(layout.check_slice::<i32>(at(16))), Err("dtype is float32, not int32".into()));
    assert_eq!(
        message(layout.check_slice::<f32>(at(18))),
        Err("data at 0x12 is not aligned to 4 bytes for float32".into())
    );
    let transposed = strided(DType::F32, &[2, 2], &[1, 2]).unwrap();
    assert_eq!(
        message(transposed.check_slice::<f32>(at(16))),
        Err("strides [1, 2] of shape [2, 2] do not make a slice".into())
    );
    let complex = Layout::contiguous(DType::C64, CPU, &[2]).unwrap();
    assert!(complex.check_slice::<[f32; 2]>(at(20)).is_ok());
}
