//! Tensors of candle: whose memory it is, and what is refused.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::sync::mpsc;
use std::time::Duration;

use candle_core::{Device, StorageRef};
use estafette::{Engine, Error, Produced};

fn engine() -> Engine {
    Engine::builder().workers(1).build().unwrap()
}

fn matrix() -> candle_core::Tensor {
    candle_core::Tensor::new(&[[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::Cpu).unwrap()
}

#[test]
fn a_tensor_keeps_its_address_its_strides_and_its_offset() {
    let engine = engine();
    let matrix = matrix();
    let columns = matrix.narrow(1, 1, 2).unwrap().t().unwrap();
    let whole = engine.from_candle(matrix).unwrap();
    let part = engine.from_candle(columns).unwrap();
    assert_eq!(part.data_ptr().unwrap().addr(), whole.data_ptr().unwrap().addr() + size_of::<f32>());
    assert_eq!(part.to_vec::<f32>().unwrap(), [2.0, 5.0, 3.0, 6.0]);
    let copied = engine.op("copy").reads([&part]).produce(|[part]| {
        let copied = part.to_candle::<f32>()?;
        assert_eq!(copied.dims(), [2, 2]);
        Ok(Produced::try_from(copied)?)
    });
    assert_eq!(copied.unwrap().to_vec::<f32>().unwrap(), [2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn memory_of_candle_is_written_neither_by_operations_nor_by_candle_while_it_is_used() {
    let engine = engine();
    let matrix = matrix();
    let x = engine.from_candle(matrix.clone()).unwrap();
    let refused = engine.op("clear").writes([&x]).run(|[], [_]| Ok(()));
    assert!(matches!(refused, Err(Error::Conflict(_))));
    assert_eq!(matrix.sum_all().unwrap().to_scalar::<f32>().unwrap(), 21.0, "candle goes on reading");
    let writer = std::thread::spawn({
        let matrix = matrix.clone();
        move || matrix.zero_set().unwrap()
    });
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert!(!writer.is_finished());
    drop(x);
    writer.join().unwrap();
    assert_eq!(matrix.sum_all().unwrap().to_scalar::<f32>().unwrap(), 0.0);
}

#[test]
fn memory_that_a_writer_waits_for_is_imported_once_more() {
    let engine = engine();
    let matrix = matrix();
    let x = engine.from_candle(matrix.clone()).unwrap();
    // The guard is taken before there is a writer, as it would wait for one.
    let guard = matrix.storage_and_layout().0;
    let lock = StorageRef::rwlock(&guard);
    drop(guard);
    let writer = std::thread::spawn({
        let matrix = matrix.clone();
        move || matrix.zero_set().unwrap()
    });
    // A fair lock lets no reader pass a writer that waits.
    while lock.try_read().is_some() {
        std::thread::yield_now();
    }
    let (sender, imported) = mpsc::channel();
    std::thread::spawn({
        let (engine, matrix) = (engine.clone(), matrix.clone());
        move || sender.send(engine.from_candle(matrix.narrow(0, 1, 1).unwrap())).unwrap()
    });
    let y = imported.recv_timeout(Duration::from_secs(30)).expect("it does not wait for the writer").unwrap();
    drop(x);
    assert_eq!(y.to_vec::<f32>().unwrap(), [4.0, 5.0, 6.0]);
    assert!(!writer.is_finished());
    drop(y);
    writer.join().unwrap();
    let z = engine.from_candle(matrix).unwrap();
    assert_eq!(z.to_vec::<f32>().unwrap(), [0.0; 6]);
}

#[test]
fn elements_of_less_than_a_byte_are_refused() {
    let packed = candle_core::Tensor::from_raw_buffer(&[0; 4], candle_core::DType::F4, &[8], &Device::Cpu);
    let error = engine().from_candle(packed.unwrap()).unwrap_err();
    assert!(error.to_string().contains("less than a byte"), "{error}");
}
