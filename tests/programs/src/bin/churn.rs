//! Sends tensors through the engine, drops everything in random order, and fails unless each deleter ran
//! exactly once. For tools that watch memory: `churn [iterations] [seed]`.

use std::process::ExitCode;

use estafette::Engine;
use tests::churn::{Done, churn};
use tests::foreign::Deleted;
use tests::watchdog::Watchdog;

/// Enough to pass every path, few enough for memcheck.
const ITERATIONS: usize = 2000;

/// Threads that import at the same time.
const THREADS: usize = 2;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let (iterations, seed) = match (arguments.next().transpose(), arguments.next().transpose()) {
        (Ok(iterations), Ok(seed)) => (iterations.unwrap_or(ITERATIONS), seed.unwrap_or(1)),
        _ => {
            eprintln!("usage: churn [iterations] [seed]");
            return ExitCode::from(2);
        }
    };
    match run(iterations, seed as u64) {
        Ok(done) => {
            println!(
                "{} imported, as many deleters run; {} exported, {} of them Arrow arrays, {} round trips; {} operations",
                done.imported, done.exported, done.arrow, done.derived, done.operations
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("churn: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(iterations: usize, seed: u64) -> Result<Done, estafette::Error> {
    let engine = Engine::builder().workers(2).build()?;
    let diagnosed = engine.clone();
    let watchdog =
        Watchdog::with(std::time::Duration::from_secs(600), move || diagnosed.diagnose().to_string());
    let deleted = Deleted::default();
    let shares = std::thread::scope(|scope| {
        let (engine, deleted) = (&engine, &deleted);
        let share = |thread: usize| (iterations + thread) / THREADS;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || churn(engine, share(thread), seed + thread as u64, deleted)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a churning thread does not panic"))
            .collect::<Vec<_>>()
    });
    let mut sum = Done::default();
    for share in shares {
        let share = share?;
        sum.imported += share.imported;
        sum.exported += share.exported;
        sum.arrow += share.arrow;
        sum.derived += share.derived;
        sum.operations += share.operations;
    }
    engine.wait_all(None)?;
    deleted.settle_at(sum.imported);
    assert!(watchdog.still_watches(), "it ends the process when it stops watching");
    Ok(sum)
}
