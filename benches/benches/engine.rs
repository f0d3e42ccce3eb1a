//! The engine with empty bodies on plain variables: submit all operations, then wait for all of them.
//!
//! With no worker the waiting thread runs everything, so the figure is the whole cost of an operation on one
//! core. With one worker, submission and execution overlap.

use std::hint::black_box;

use benches::{Access, OPERATIONS, SpinBody, VARIABLES, patterns, submit};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use estafette::{Engine, Variable};

fn run(engine: &Engine, vars: &[Variable], accesses: &[Access]) {
    for access in accesses {
        submit(engine, vars, access, SpinBody::EMPTY).expect("a running engine accepts operations");
    }
    engine.wait_all(None).expect("empty bodies end");
}

fn engine(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    group.throughput(Throughput::Elements(OPERATIONS as u64)).sample_size(30);
    for workers in [0, 1] {
        let engine = Engine::builder().workers(workers).build().expect("threads can be started");
        for (pattern, accesses) in patterns() {
            let vars: Vec<_> = (0..VARIABLES).map(|_| engine.var()).collect();
            group.bench_function(BenchmarkId::new(pattern, format!("workers {workers}")), |b| {
                b.iter(|| run(&engine, black_box(&vars), black_box(&accesses)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, engine);
criterion_main!(benches);
