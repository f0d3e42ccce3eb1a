//! The bare graph on one thread: append all operations, then complete them as they are granted.
//!
//! An operation carries one word, and no body runs: this is the cost of ordering alone. `ahead` is the number
//! of operations that are appended before the first one is completed, as an in-flight limit would allow.

use std::collections::VecDeque;
use std::hint::black_box;

use benches::{Access, OPERATIONS, VARIABLES, patterns};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use estafette_graph::{AccessMode, Graph, Var};

type Vars = Vec<Var<u64, usize>>;

/// Submits all operations, at most `ahead` operations ahead of the completed ones.
fn run(graph: &Graph<u64, usize>, vars: &Vars, accesses: &[Access], ahead: usize) {
    let mut granted = VecDeque::with_capacity(ahead);
    let mut in_flight = 0;
    for (op, access) in accesses.iter().enumerate() {
        let reads = access.reads().map(|read| (&vars[read], AccessMode::Read));
        let write = access.write().map(|write| (&vars[write], AccessMode::Write));
        granted.extend(graph.op(op, reads.chain(write)).submit_unreferenced());
        in_flight += 1;
        while in_flight == ahead {
            in_flight -= complete_one(&mut granted);
        }
    }
    while in_flight > 0 {
        in_flight -= complete_one(&mut granted);
    }
}

fn complete_one(granted: &mut VecDeque<estafette_graph::Granted<u64, usize>>) -> usize {
    let next = granted.pop_front().expect("as long as something is in flight, something is granted");
    next.complete(|finish| *finish.state += 1, |next| granted.push_back(next));
    1
}

fn graph(c: &mut Criterion) {
    let mut group = c.benchmark_group("graph");
    group.throughput(Throughput::Elements(OPERATIONS as u64)).sample_size(30);
    for ahead in [512, OPERATIONS] {
        for (pattern, accesses) in patterns() {
            let graph = Graph::new();
            let vars: Vars = (0..VARIABLES).map(|_| graph.var(0)).collect();
            group.bench_function(BenchmarkId::new(pattern, format!("ahead {ahead}")), |b| {
                b.iter(|| run(&graph, black_box(&vars), black_box(&accesses), ahead));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, graph);
criterion_main!(benches);
