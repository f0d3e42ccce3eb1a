//! The stencil, recorded once and replayed: cost per node, of recording and of replaying.
//!
//! With no worker the waiting thread runs everything. Empty nodes are too short to share, so one thread runs
//! them whatever the number of workers; nodes of 1 µs are shared by two workers.

use std::hint::{black_box, spin_loop};
use std::time::{Duration, Instant};

use benches::replay::{STEPS, WIDTHS, replay, stencil};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use estafette::Engine;

/// Length of a node that is worth sharing.
const LONG: Duration = Duration::from_micros(1);

fn spin() {
    let began = Instant::now();
    while began.elapsed() < LONG {
        spin_loop();
    }
}

fn engine(workers: usize) -> Engine {
    Engine::builder().workers(workers).build().expect("threads can be started")
}

fn replays(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay");
    group.sample_size(30);
    for workers in [0, 1, 2] {
        let engine = engine(workers);
        for width in WIDTHS {
            let nodes = width * STEPS;
            group.throughput(Throughput::Elements(nodes as u64));
            let program = stencil(&engine, width, STEPS, || ()).expect("plain variables can be recorded");
            group.bench_function(
                BenchmarkId::new(format!("stencil {width}"), format!("workers {workers}")),
                |b| {
                    b.iter(|| replay(black_box(&program)).expect("empty nodes end"));
                },
            );
        }
        let program = stencil(&engine, 32, 100, spin).expect("plain variables can be recorded");
        group.throughput(Throughput::Elements(32 * 100));
        group.bench_function(BenchmarkId::new("stencil 32, 1 µs", format!("workers {workers}")), |b| {
            b.iter(|| replay(black_box(&program)).expect("spinning ends"));
        });
    }
    group.finish();
}

fn recording(c: &mut Criterion) {
    let mut group = c.benchmark_group("record");
    let engine = engine(0);
    group.sample_size(10).throughput(Throughput::Elements(32 * STEPS as u64));
    group.bench_function("stencil 32", |b| {
        b.iter(|| stencil(black_box(&engine), 32, STEPS, || ()).expect("plain variables can be recorded"));
    });
    group.finish();
}

criterion_group!(benches, replays, recording);
criterion_main!(benches);
