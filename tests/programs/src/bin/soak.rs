//! Everything at once for a long time: `soak [minutes] [seed]`. Exchanges, failures, cancels, awaits that are
//! dropped, leases that are given up, replays, forks, and engines that come and go.
//!
//! A line each ten seconds says what the process holds. It fails unless resident memory and descriptors are
//! at the end what they were after the first tenth, few threads are left, and every deleter has run once. The
//! longest pause of a submitting thread is printed, not judged: it depends on what else the machine does.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use estafette::bindings::reaper;
use estafette::{Access, DType, Engine, Error, Op, Tensor};
use futures::FutureExt;
use futures::executor::block_on;
use futures::future::{join_all, select_all};
use tests::churn::{churn, resident_bytes};
use tests::dice::Dice;
use tests::foreign::Deleted;
use tests::nothing_left::assert_nothing_left;
use tests::watchdog::Watchdog;

const MINUTES: f64 = 30.0;

/// Between two lines of the output.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Growth of resident memory that is allowed, in bytes, from the first tenth to the end: a leak of one byte
/// in a thousand operations shows.
const GROWTH_MAX: usize = 16 << 20;

/// Descriptors that are open for a moment: that of the folder which is counted, and what a fork copies.
const DESCRIPTORS_SLACK: usize = 2;

/// Threads that may be left at the end: those of one engine with two workers, and of the process. While
/// engines come and go, threads are on their way out, the more the faster they come.
const THREADS_LEFT_MAX: usize = 16;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let minutes = arguments.first().map_or(Ok(MINUTES), |text| text.parse::<f64>());
    let seed = arguments.get(1).map_or(Ok(1), |text| text.parse::<u64>());
    let (Ok(minutes), Ok(seed)) = (minutes, seed) else {
        eprintln!("usage: soak [minutes] [seed]");
        return ExitCode::from(2);
    };
    match soak(Duration::from_secs_f64(minutes * 60.0), seed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("soak: {text}");
            ExitCode::FAILURE
        }
    }
}

/// State of all threads.
struct Soak {
    ends: AtomicBool,
    counts: Counts,
    /// The longest call that submits, of each kind of thread.
    pauses: Mutex<Vec<(&'static str, Duration)>>,
}

#[derive(Default)]
struct Counts {
    operations: AtomicU64,
    imported: AtomicU64,
    failures: AtomicU64,
    cancels: AtomicU64,
    awaits: AtomicU64,
    leases: AtomicU64,
    replays: AtomicU64,
    forks: AtomicU64,
    engines: AtomicU64,
}

impl Soak {
    fn goes_on(&self) -> bool {
        !self.ends.load(Ordering::Relaxed)
    }

    /// Runs a call that submits, and keeps the longest time that one took.
    fn timed<T>(&self, who: &'static str, submit: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = submit();
        let took = start.elapsed();
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        match pauses.iter_mut().find(|(known, _)| *known == who) {
            Some((_, longest)) => *longest = took.max(*longest),
            None => pauses.push((who, took)),
        }
        result
    }
}

fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

fn soak(length: Duration, seed: u64) -> Result<(), String> {
    let engine =
        Engine::builder().workers(2).report_failures(false).build().map_err(|error| error.to_string())?;
    let deleted = Deleted::default();
    let soak = Soak { ends: AtomicBool::new(false), counts: Counts::default(), pauses: Mutex::default() };
    let diagnosed = engine.clone();
    let watchdog =
        Watchdog::with(length + Duration::from_secs(300), move || diagnosed.diagnose().to_string());
    let (early, late) = std::thread::scope(|scope| {
        let (soak, engine, deleted) = (&soak, &engine, &deleted);
        for thread in 0..2 {
            scope.spawn(move || exchanges(soak, engine, seed + thread, deleted));
        }
        scope.spawn(move || failures_and_cancels(soak, engine, seed));
        scope.spawn(move || awaits(soak, engine, seed));
        scope.spawn(move || leases(soak, engine, seed));
        scope.spawn(move || replays(soak, engine));
        scope.spawn(move || forks(soak, engine));
        scope.spawn(move || engines(soak, seed));
        watch(soak, length)
    });
    engine.wait_all(None).map_err(|error| error.to_string())?;
    deleted.settle_at(soak.counts.imported.load(Ordering::Relaxed) as usize);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches(), "it ends the process when it stops watching");
    for (who, longest) in soak.pauses.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("longest pause of a thread that submits {who}: {:.1} ms", longest.as_secs_f64() * 1e3);
    }
    judge(&early, &late)
}

/// Resources of the process.
#[derive(Debug, Clone)]
struct Held {
    resident: usize,
    descriptors: usize,
    threads: usize,
}

impl Held {
    fn now() -> Self {
        let entries = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count);
        Self {
            resident: resident_bytes().unwrap_or(0),
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
        }
    }

    /// The minimum of each count: a value on its way out comes and goes, a leak stays.
    fn min(self, other: &Self) -> Self {
        Self {
            resident: self.resident.min(other.resident),
            descriptors: self.descriptors.min(other.descriptors),
            threads: self.threads.min(other.threads),
        }
    }
}

/// Prints a line now and then. Returns the minimum held in the second tenth of the time, and in the last.
fn watch(soak: &Soak, length: Duration) -> (Held, Held) {
    let start = Instant::now();
    let (mut early, mut late): (Option<Held>, Option<Held>) = (None, None);
    let mut next_line = LINE_EVERY;
    while start.elapsed() < length {
        std::thread::sleep(Duration::from_millis(500).min(length / 100));
        let (passed, held) = (start.elapsed(), Held::now());
        let keep = |least: &mut Option<Held>| {
            *least = Some(least.take().map_or_else(|| held.clone(), |least| least.min(&held)));
        };
        if (length / 10..length / 5).contains(&passed) {
            keep(&mut early);
        }
        if passed >= length / 10 * 9 {
            keep(&mut late);
        }
        if passed >= next_line {
            next_line += LINE_EVERY;
            line(soak, passed, &held);
        }
    }
    line(soak, length, &Held::now());
    soak.ends.store(true, Ordering::Relaxed);
    (early.expect("a tenth of the time has passed"), late.expect("the last tenth has begun"))
}

fn line(soak: &Soak, passed: Duration, held: &Held) {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counts = &soak.counts;
    println!(
        "{:6.0} s: {:.1} MiB resident, {} descriptors, {} threads; {} operations, {} imports, {} failures, {} cancels, {} awaits, \
         {} leases, {} replays, {} forks, {} engines; {} to release, {} leaked",
        passed.as_secs_f64(),
        held.resident as f64 / f64::from(1 << 20),
        held.descriptors,
        held.threads,
        of(&counts.operations),
        of(&counts.imported),
        of(&counts.failures),
        of(&counts.cancels),
        of(&counts.awaits),
        of(&counts.leases),
        of(&counts.replays),
        of(&counts.forks),
        of(&counts.engines),
        reaper().stats().pending,
        reaper().stats().leaked,
    );
}

fn judge(early: &Held, late: &Held) -> Result<(), String> {
    println!("in the second tenth of the time, at least: {early:?}");
    println!("in the last tenth of the time, at least:   {late:?}");
    if late.resident > early.resident + GROWTH_MAX {
        return Err(format!("resident memory has grown from {} to {} bytes", early.resident, late.resident));
    }
    if late.descriptors > early.descriptors + DESCRIPTORS_SLACK {
        return Err(format!("descriptors have grown from {} to {}", early.descriptors, late.descriptors));
    }
    let left = threads_left();
    println!("threads at the end: {left}");
    if left > THREADS_LEFT_MAX {
        return Err(format!("{left} threads are left"));
    }
    let leaked = reaper().stats().leaked;
    if leaked > 0 {
        return Err(format!("{leaked} leaked"));
    }
    Ok(())
}

/// Threads of this process, once those that are on their way out are gone, or some time has passed.
fn threads_left() -> usize {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let threads = Held::now().threads;
        if threads <= THREADS_LEFT_MAX || Instant::now() > deadline {
            return threads;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn exchanges(soak: &Soak, engine: &Engine, seed: u64, deleted: &Deleted) {
    let mut round = seed << 32;
    while soak.goes_on() {
        let done = soak.timed("50 exchanges", || churn(engine, 50, round, deleted).expect("the engine runs"));
        count(&soak.counts.imported, done.imported);
        count(&soak.counts.operations, done.operations);
        round += 1;
    }
}

fn tensor(engine: &Engine) -> Tensor {
    engine.zeros(&[16], DType::F32).expect("there is memory")
}

fn step(engine: &Engine, from: &Tensor, to: &Tensor, fails: bool) -> Op {
    let step = engine.op("step").reads([from]).writes([to]).run(move |[from], [mut to]| {
        to.as_mut_slice::<f32>()?.copy_from_slice(from.as_slice()?);
        if fails { Err("on purpose".into()) } else { Ok(()) }
    });
    step.expect("the engine runs")
}

/// Chains with failures in them, of which a part is cancelled from a random place on.
fn failures_and_cancels(soak: &Soak, engine: &Engine, seed: u64) {
    let mut dice = Dice::new(seed ^ 1);
    while soak.goes_on() {
        let mut tensors = vec![tensor(engine)];
        let mut ops = Vec::new();
        for _ in 0..dice.roll(200) {
            let next = tensor(engine);
            let fails = dice.once_in(100);
            ops.push(soak.timed("a chain", || step(engine, &tensors[tensors.len() - 1], &next, fails)));
            tensors.push(next);
        }
        count(&soak.counts.operations, ops.len());
        if dice.once_in(2) {
            let from = dice.roll(ops.len() + 1);
            let cancelled = ops[from..].iter().filter(|op| op.cancel()).count();
            count(&soak.counts.cancels, cancelled);
        }
        let failed = ops.iter().filter(|op| op.wait().is_err()).count();
        count(&soak.counts.failures, failed);
    }
}

/// Many futures at once: some are awaited to the end, of some the first that ends, the others are dropped.
fn awaits(soak: &Soak, engine: &Engine, seed: u64) {
    let mut dice = Dice::new(seed ^ 2);
    while soak.goes_on() {
        let source = tensor(engine);
        let targets: Vec<Tensor> = (0..50).map(|_| tensor(engine)).collect();
        let ops: Vec<Op> = targets
            .iter()
            .map(|to| soak.timed("what is awaited", || step(engine, &source, to, false)))
            .collect();
        count(&soak.counts.operations, ops.len());
        let ready = targets.iter().map(Tensor::ready);
        if dice.once_in(2) {
            let ended = block_on(join_all(ready));
            assert!(ended.iter().all(Result::is_ok));
        } else {
            let (first, _, others) = block_on(select_all(ready));
            assert!(first.is_ok());
            drop(others);
        }
        count(&soak.counts.awaits, targets.len());
    }
}

/// Leases that are granted, given up, or time out, with writers between them.
fn leases(soak: &Soak, engine: &Engine, seed: u64) {
    let mut dice = Dice::new(seed ^ 3);
    let shared: Vec<Tensor> = (0..4).map(|_| tensor(engine)).collect();
    while soak.goes_on() {
        let at = dice.roll(shared.len());
        let (x, y) = (&shared[at], &shared[(at + 1) % shared.len()]);
        let access = dice.pick(&[Access::Read, Access::Write]);
        let Ok(held) = x.lease(access, "a soak").wait(Some(Duration::from_secs(60))) else {
            panic!("nothing else holds it for long");
        };
        let behind = soak.timed("behind a lease", || step(engine, y, x, false));
        let mut wanted = x.lease(Access::Write, "an impatient soak").boxed();
        assert!((&mut wanted).now_or_never().is_none(), "it stands behind a writer");
        if dice.once_in(2) {
            let late = x.lease(Access::Write, "a late soak").wait(Some(Duration::from_millis(1)));
            assert!(late.is_err(), "the lease of this thread is before it");
        }
        drop(wanted);
        drop(held);
        behind.wait().expect("nothing fails here");
        count(&soak.counts.leases, 3);
        count(&soak.counts.operations, 1);
    }
}

fn replays(soak: &Soak, engine: &Engine) {
    while soak.goes_on() {
        let (x, y) = (tensor(engine), tensor(engine));
        let mut builder = engine.program("soak");
        for (from, to) in [(&x, &y), (&y, &x)] {
            let node = builder.op("copy").reads([from]).writes([to]);
            node.run(|[from], [mut to]| {
                to.as_mut_slice::<f32>()?.copy_from_slice(from.as_slice()?);
                Ok(())
            })
            .expect("a good node");
        }
        let program = builder.finish().expect("a good program");
        let mut last = None;
        for _ in 0..100 {
            last = Some(soak.timed("a replay", || program.replay().expect("the engine runs")));
        }
        last.expect("a hundred replays").wait().expect("nothing fails here");
        count(&soak.counts.replays, 100);
    }
}

/// Forks while everything else is under way. Each child gets its error, uses an engine of its own, and
/// leaves.
fn forks(soak: &Soak, engine: &Engine) {
    while soak.goes_on() {
        // SAFETY: the child calls only this program's own code, which is the subject of the test, and exits.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "cannot fork");
        if child == 0 {
            // SAFETY: an alarm for a process that has no other.
            unsafe { libc::alarm(20) };
            let refused = matches!(engine.op("child").run(|[], []| Ok(())), Err(Error::Forked));
            let works = || {
                let own = Engine::builder().workers(1).build()?;
                own.op("child").run(|[], []| Ok(()))?.wait()
            };
            let code = if refused && works().is_ok() { 0 } else { 3 };
            // SAFETY: ends the child without running what the parent has registered to run at its exit.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(waited, child);
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            "the child ended with status {status:#x}"
        );
        count(&soak.counts.forks, 1);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Engines with and without workers that end in every way while they have work.
fn engines(soak: &Soak, seed: u64) {
    let mut dice = Dice::new(seed ^ 4);
    while soak.goes_on() {
        let builder = Engine::builder().workers(dice.roll(3)).report_failures(false);
        let engine = builder.build().expect("there are threads");
        let (x, y) = (tensor(&engine), tensor(&engine));
        for _ in 0..dice.roll(50) {
            let fails = dice.once_in(20);
            soak.timed("to an engine that ends", || drop(step(&engine, &x, &y, fails)));
            count(&soak.counts.operations, 1);
        }
        match dice.roll(3) {
            0 => drop(engine),
            1 => drop(block_on(engine.shutdown())),
            _ => drop(engine.shutdown_timeout(Duration::from_micros(100))),
        }
        count(&soak.counts.engines, 1);
    }
}
