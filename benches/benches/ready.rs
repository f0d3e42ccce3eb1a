//! Readiness queries of a finished tensor, in each form.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use estafette::{DType, Engine};
use futures::FutureExt;

fn ready(c: &mut Criterion) {
    let engine = Engine::builder().workers(1).build().expect("threads can be started");
    let tensor = engine.zeros(&[16], DType::F32).expect("a small tensor");
    let write = engine.op("fill").writes([&tensor]).run(|[], [mut tensor]| {
        tensor.as_mut_slice::<f32>()?.fill(1.0);
        Ok(())
    });
    write.and_then(|op| op.wait()).expect("the body succeeds");

    let mut group = c.benchmark_group("ready");
    group.bench_function("is_ready", |b| b.iter(|| black_box(&tensor).is_ready()));
    group.bench_function("ready().await", |b| {
        b.iter(|| {
            black_box(&tensor).ready().now_or_never().expect("a finished tensor is ready at the first poll")
        })
    });
    group.bench_function("wait", |b| b.iter(|| black_box(&tensor).wait()));
    group.bench_function("state", |b| b.iter(|| black_box(&tensor).state()));
    group.finish();
}

criterion_group!(benches, ready);
criterion_main!(benches);
