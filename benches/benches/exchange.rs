//! Imports and exports of tensors, without the cost of a foreign library.
//!
//! Deleters run on the reaper's thread. The figures of imports include the deleters: each run ends when all
//! were called.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use estafette::devices::DLDevice;
use estafette::exchange::{Abi, ExportFlags, export, flush_deleters};
use estafette::{Access, DType, Engine, Layout, ManagedTensor, Tensor};
use futures::FutureExt;

/// Tensors of one run.
const TENSORS: usize = 1_000;
const LEN: usize = 16;

/// A tensor as a library would export it, with memory that needs no deallocation.
fn foreign(layout: &Layout, memory: &mut [f32]) -> ManagedTensor {
    // SAFETY: the memory is as long as the layout, initialized, and outlives the bench run, which waits for
    // the deleters.
    unsafe { export(layout, memory.as_mut_ptr().cast(), ExportFlags::default(), Abi::Versioned, || ()) }
}

fn import(engine: &Engine, managed: ManagedTensor) -> Tensor {
    // SAFETY: made by `foreign`, and no code writes the memory.
    unsafe { engine.import(managed) }.expect("a valid tensor")
}

fn lend(tensor: &Tensor) -> ManagedTensor {
    let lent = tensor.export(Access::Read).now_or_never().expect("an idle tensor is free at the first poll");
    lent.expect("a valid tensor")
}

fn flush() {
    assert!(flush_deleters(Duration::from_secs(60)), "the deleters are short");
}

fn exchange(c: &mut Criterion) {
    let engine = Engine::builder().workers(1).build().expect("threads can be started");
    let layout = Layout::contiguous(DType::F32, DLDevice::CPU, &[LEN as i64]).expect("a small shape");
    let mut memory = vec![0.0_f32; TENSORS * LEN];

    let mut group = c.benchmark_group("exchange");
    let tensor = engine.zeros(&[LEN as i64], DType::F32).expect("a small tensor");
    group.bench_function("export and return", |b| b.iter(|| drop(lend(black_box(&tensor)))));

    group.throughput(Throughput::Elements(TENSORS as u64)).sample_size(50);
    group.bench_function("make and delete", |b| {
        b.iter(|| memory.chunks_mut(LEN).for_each(|memory| drop(foreign(&layout, memory))));
    });
    group.bench_function("import and drop", |b| {
        b.iter(|| {
            memory.chunks_mut(LEN).for_each(|memory| drop(import(&engine, foreign(&layout, memory))));
            flush();
        });
    });
    group.bench_function("round trip", |b| {
        b.iter(|| {
            for memory in memory.chunks_mut(LEN) {
                let tensor = import(&engine, foreign(&layout, memory));
                drop(lend(&tensor));
            }
            flush();
        });
    });
    group.finish();
}

criterion_group!(benches, exchange);
criterion_main!(benches);
