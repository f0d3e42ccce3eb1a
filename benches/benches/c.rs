//! The C interface compared with the Rust one: the cost of handles, checks and containment of panics.

use std::ffi::c_void;
use std::ptr;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use estafette::devices::DLDevice;
use estafette::exchange::{Abi, ExportFlags, export, flush_deleters};
use estafette::{DType, Engine, Layout, ManagedTensor};
use estafette_c::estafette_status::ESTAFETTE_OK;
use estafette_c::*;

/// Tensors or operations of one run.
const COUNT: usize = 1_000;
const LEN: usize = 16;
const FOREVER: u64 = u64::MAX;

fn foreign(layout: &Layout, memory: &mut [f32]) -> ManagedTensor {
    // SAFETY: the memory is as long as the layout, initialized, and outlives the bench run, which waits for
    // the deleters.
    unsafe { export(layout, memory.as_mut_ptr().cast(), ExportFlags::default(), Abi::Versioned, || ()) }
}

fn flush() {
    assert!(flush_deleters(Duration::from_secs(60)), "the deleters are short");
}

fn engine() -> *mut estafette_engine {
    let options = estafette_engine_options {
        size: 32,
        workers: 1,
        in_flight_limit: 0,
        lease_timeout_ns: 0,
        stack_size: 0,
        shared: 0,
        watchdog_ns: 0,
    };
    let mut engine = ptr::null_mut();
    // SAFETY: the arguments are valid, as the interface requires.
    assert_eq!(unsafe { estafette_engine_create(&raw const options, &raw mut engine) }, ESTAFETTE_OK);
    engine
}

/// Times `pass` on tensors made beforehand, without the time to make them and to wait for their deleters.
fn passes(runs: u64, layout: &Layout, memory: &mut [f32], mut pass: impl FnMut(ManagedTensor)) -> Duration {
    let mut sum = Duration::ZERO;
    for _ in 0..runs {
        let tensors: Vec<_> = memory.chunks_mut(LEN).map(|memory| foreign(layout, memory)).collect();
        let begin = Instant::now();
        tensors.into_iter().for_each(&mut pass);
        sum += begin.elapsed();
        flush();
    }
    sum
}

fn import_query_release(c: &mut Criterion) {
    let layout = Layout::contiguous(DType::F32, DLDevice::CPU, &[LEN as i64]).expect("a small shape");
    let mut memory = vec![0.0_f32; COUNT * LEN];
    let mut group = c.benchmark_group("import, query, release");
    group.throughput(Throughput::Elements(COUNT as u64)).sample_size(50);
    let rust = Engine::builder().workers(1).build().expect("threads can be started");
    group.bench_function(BenchmarkId::from_parameter("Rust"), |b| {
        b.iter_custom(|runs| {
            passes(runs, &layout, &mut memory, |managed| {
                // SAFETY: made by `foreign`, and no code writes the memory.
                let tensor = unsafe { rust.import(managed) }.expect("a valid tensor");
                assert!(tensor.is_ready());
            })
        });
    });
    let engine = engine();
    group.bench_function(BenchmarkId::from_parameter("C"), |b| {
        b.iter_custom(|runs| {
            passes(runs, &layout, &mut memory, |managed| {
                let managed = managed.into_raw().cast();
                let mut tensor = ptr::null_mut();
                // SAFETY: the arguments are valid, as the interface requires.
                unsafe {
                    assert_eq!(estafette_import(engine, managed, ptr::null(), &raw mut tensor), ESTAFETTE_OK);
                    assert_eq!(estafette_query(tensor), ESTAFETTE_OK);
                    estafette_tensor_release(tensor);
                }
            })
        });
    });
    group.finish();
    estafette_engine_destroy(engine);
}

unsafe extern "C" fn complete(_context: *mut c_void, op: *mut estafette_op) {
    // SAFETY: no text.
    unsafe { estafette_op_complete(op, 0, ptr::null()) };
}

fn submit_and_complete(c: &mut Criterion) {
    let mut group = c.benchmark_group("asynchronous function");
    group.throughput(Throughput::Elements(COUNT as u64)).sample_size(50);
    let rust = Engine::builder().workers(1).build().expect("threads can be started");
    let tensor = rust.zeros(&[LEN as i64], DType::F32).expect("a small tensor");
    group.bench_function(BenchmarkId::from_parameter("Rust"), |b| {
        b.iter(|| {
            for _ in 0..COUNT {
                let op = rust.op("bench").writes([&tensor]);
                op.run_external(|completion| completion.complete(Ok(()))).expect("accepted");
            }
            rust.wait_all(None).expect("nothing in the way");
        });
    });
    let engine = engine();
    let (shape, mut tensor) = ([LEN as i64], ptr::null_mut());
    let dtype = DLDataType { code: 2, bits: 32, lanes: 1 };
    // SAFETY: the arguments are valid, as the interface requires.
    assert_eq!(unsafe { estafette_zeros(engine, shape.as_ptr(), 1, dtype, &raw mut tensor) }, ESTAFETTE_OK);
    group.bench_function(BenchmarkId::from_parameter("C"), |b| {
        b.iter(|| {
            for _ in 0..COUNT {
                // SAFETY: the arguments are valid, as the interface requires.
                let status = unsafe {
                    estafette_submit(
                        engine,
                        c"bench".as_ptr(),
                        Some(complete),
                        ptr::null_mut(),
                        None,
                        ptr::null(),
                        0,
                        &raw const tensor,
                        1,
                    )
                };
                assert_eq!(status, ESTAFETTE_OK);
            }
            assert_eq!(estafette_wait_all(engine, FOREVER), ESTAFETTE_OK);
        });
    });
    group.finish();
    estafette_tensor_release(tensor);
    estafette_engine_destroy(engine);
}

criterion_group!(benches, import_query_release, submit_and_complete);
criterion_main!(benches);
