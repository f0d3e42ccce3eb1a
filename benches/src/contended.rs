//! Several threads submit the random workload to one engine at the same time: on the same variables, or each
//! on its own variables. In turn, one thread submits all of it, for comparison.

use std::time::{Duration, Instant};

use estafette::{Engine, Variable};
use estafette_sync::sync::Barrier;
use estafette_sync::thread;

use crate::access::{Access, VARIABLES};
use crate::error::Error;
use crate::measure::{checked, ns_each, some_variables, writes};
use crate::random::{SEED, draw};
use crate::record::Quantity;
use crate::spin::SpinBody;
use crate::submit::submit_all;
use crate::workload::{Measured, OPERATIONS_DEFAULT, Settings, Workload};

pub(crate) const SHARED_2: Workload = Workload::plain(
    "contended-shared-2",
    "2 threads submit the random workload on the same 1,000 variables; `speedup` is towards one thread",
    OPERATIONS_DEFAULT,
    |settings| run(settings, 2, Sharing::All),
);

pub(crate) const SHARED_4: Workload =
    Workload::plain("contended-shared-4", "4 threads, likewise", OPERATIONS_DEFAULT, |settings| {
        run(settings, 4, Sharing::All)
    });

pub(crate) const DISJOINT_2: Workload = Workload::plain(
    "contended-disjoint-2",
    "2 threads submit the random workload, each on its own share of the variables",
    OPERATIONS_DEFAULT,
    |settings| run(settings, 2, Sharing::None),
);

pub(crate) const DISJOINT_4: Workload =
    Workload::plain("contended-disjoint-4", "4 threads, likewise", OPERATIONS_DEFAULT, |settings| {
        run(settings, 4, Sharing::None)
    });

/// Variables of threads: each has its own, or all share them.
#[derive(Clone, Copy, PartialEq)]
enum Sharing {
    All,
    None,
}

/// The part of one thread.
struct ThreadPart<'v> {
    variables: &'v [Variable],
    accesses: Vec<Access>,
}

fn run(settings: &Settings, threads: usize, sharing: Sharing) -> Result<Measured, Error> {
    let engine = Engine::builder().workers(settings.workers).build()?;
    let variables = some_variables(&engine, VARIABLES);
    let body = SpinBody::lasting(settings.body_ns);
    let each = (settings.n / threads).max(1);
    let shares: Vec<ThreadPart> = match sharing {
        Sharing::All => (0..threads).map(|thread| share(&variables, each, thread)).collect(),
        Sharing::None => {
            let own = variables.chunks_exact(VARIABLES / threads);
            own.enumerate().map(|(thread, own)| share(own, each, thread)).collect()
        }
    };
    let n = threads * each;
    let alone = [share(&variables, n, 0)];

    let (mut together_ns, mut alone_ns) = (Vec::new(), Vec::new());
    // The first round warms up. Both are measured in turn, so a slow phase of the machine affects both.
    for round in 0..=settings.rounds {
        let one_thread = at_once(&engine, &variables, &alone, body)?;
        let all_threads = at_once(&engine, &variables, &shares, body)?;
        if round > 0 {
            alone_ns.push(ns_each(one_thread, n));
            together_ns.push(ns_each(all_threads, n));
        }
    }
    let (together, alone) = (Quantity::of(together_ns), Quantity::of(alone_ns));
    let quantities =
        vec![("ns_per_op", together), ("one_thread_ns", alone), ("speedup", alone.ratio_to(&together))];
    Ok(Measured { n, quantities })
}

fn share(variables: &[Variable], n: usize, thread: usize) -> ThreadPart<'_> {
    ThreadPart { variables, accesses: draw(n, variables.len(), SEED + thread as u64) }
}

/// Each share is submitted and awaited by its own thread. Returns the time from the first start to the last
/// end.
fn at_once(
    engine: &Engine,
    variables: &[Variable],
    shares: &[ThreadPart],
    body: SpinBody,
) -> Result<Duration, Error> {
    let expected = shares.iter().map(|share| writes(&share.accesses)).sum();
    let start = Barrier::new(shares.len());
    let one = |share: &ThreadPart| {
        start.wait();
        let began = Instant::now();
        submit_all(engine, share.variables, &share.accesses, body)?;
        engine.wait_all(None)?;
        Ok((began, Instant::now()))
    };
    let one = &one;
    checked(variables, expected, || {
        thread::scope(|scope| {
            let threads: Vec<_> = shares.iter().map(|share| scope.spawn(move || one(share))).collect();
            let times: Vec<(Instant, Instant)> = threads
                .into_iter()
                .map(|thread| thread.join().expect("a submitting thread does not panic"))
                .collect::<Result<_, Error>>()?;
            let began = times.iter().map(|(began, _)| *began).min();
            let ended = times.iter().map(|(_, ended)| *ended).max();
            Ok(ended.zip(began).map_or(Duration::ZERO, |(ended, began)| ended - began))
        })
    })
}
