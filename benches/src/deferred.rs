//! The random workload, submitted behind one closed gate that then opens: the costs of submitting, running
//! and keeping operations.
//!
//! The first run of a fresh process counts, since it takes memory from the system. Later runs measure a warm
//! pool.

use std::time::{Duration, Instant};

use estafette::{Engine, Variable};

use crate::access::{Access, VARIABLES};
use crate::error::Error;
use crate::gate::Gate;
use crate::measure::{checked, ns_each, some_variables, writes};
use crate::record::Quantity;
use crate::resident;
use crate::spin::SpinBody;
use crate::submit::submit_all;
use crate::workload::{Measured, Settings, Workload};
use crate::{random, workload};

pub(crate) const DEFERRED: Workload = Workload::plain(
    "deferred",
    "the random workload behind a closed gate, then opened; the first run of the process counts",
    2 * workload::OPERATIONS_DEFAULT,
    run,
);

/// One run.
struct Once {
    push: Duration,
    run: Duration,
    /// Growth of the resident memory during submission.
    grown: Option<u64>,
}

fn run(settings: &Settings) -> Result<Measured, Error> {
    let n = settings.n;
    let accesses = random::accesses(n);
    let body = SpinBody::lasting(settings.body_ns);
    // All operations and the gate are in flight at once.
    let engine = Engine::builder().workers(settings.workers).in_flight_limit(n + 1).build()?;
    let variables = some_variables(&engine, VARIABLES);
    let once = || {
        // The gate writes every variable once more.
        let expected = writes(&accesses) + VARIABLES as u64;
        checked(&variables, expected, || once(&engine, settings.workers, &variables, &accesses, body))
    };

    let first = once()?;
    let (mut push_ns, mut run_ns, mut both_ns) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..settings.rounds {
        let Once { push, run, .. } = once()?;
        push_ns.push(ns_each(push, n));
        run_ns.push(ns_each(run, n));
        both_ns.push(ns_each(push + run, n));
    }
    let bytes_per_op = first.grown.map_or(Quantity::Missing("this system does not tell"), |bytes| {
        Quantity::Number(bytes as f64 / n as f64)
    });
    let single = |time| Quantity::of(vec![ns_each(time, n)]);
    let quantities = vec![
        ("ns_per_op", single(first.push + first.run)),
        ("push_ns", single(first.push)),
        ("run_ns", single(first.run)),
        ("bytes_per_op", bytes_per_op),
        ("warm_ns_per_op", Quantity::of(both_ns)),
        ("warm_push_ns", Quantity::of(push_ns)),
        ("warm_run_ns", Quantity::of(run_ns)),
    ];
    Ok(Measured { n, quantities })
}

fn once(
    engine: &Engine,
    workers: usize,
    variables: &[Variable],
    accesses: &[Access],
    body: SpinBody,
) -> Result<Once, Error> {
    let all: Vec<&Variable> = variables.iter().collect();
    let gate = Gate::close(workers, |start| engine.op("gate").writes_vars(&all).run_external(start))?;
    let before = resident::bytes();
    let began = Instant::now();
    submit_all(engine, variables, accesses, body)?;
    let push = began.elapsed();
    let after = resident::bytes();

    let (pending, expected) = (engine.stats().in_flight, accesses.len() + 1);
    if pending != expected {
        return Err(Error::NotPending { expected, pending });
    }
    let began = Instant::now();
    gate.open();
    engine.wait_all(None)?;
    let run = began.elapsed();
    let grown = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    Ok(Once { push, run, grown })
}
