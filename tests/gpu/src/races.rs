//! Consumers that have to wait, beside a kernel that takes long; and the same by hand without the wait, which
//! has to go wrong: else the first half would prove nothing.
//!
//! Every case is a first and a second piece of work on two streams that touch the same memory, and the first
//! takes [`DELAY`]. A second piece that does not wait runs before the first ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use estafette::devices::Queue;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};

use crate::driver::{Driver, Stream};
use crate::failure::{Failure, ensure};
use crate::record::Record;
use crate::setup::Setup;

/// Time of the first piece of work.
const DELAY: u64 = 100_000_000;
/// Time for which the host may be busy with both: far less than the delay, and more than a turn that another
/// thread of the machine may take.
const FREE_WITHIN: Duration = Duration::from_millis(5);
const BYTES: usize = 1 << 20;

/// Both pieces of work, by their streams. Memory: `x`, which both use, and `y`.
struct Case {
    name: &'static str,
    first: fn(&Driver, Stream, u64, u64) -> Result<(), cudarc::driver::DriverError>,
    second: fn(&Driver, Stream, u64, u64) -> Result<(), cudarc::driver::DriverError>,
    writes_x: (bool, bool),
    /// Contents of `x` and `y` afterwards, and of `y` if the second piece came first.
    right: (u8, u8),
    wrong: (u8, u8),
}

const CASES: &[Case] = &[
    Case {
        name: "a reader waits for the writer",
        first: |driver, stream, x, _| {
            driver.delay(stream, DELAY)?;
            // SAFETY: the caller keeps the memory.
            unsafe { driver.fill(stream, x, BYTES, 7) }
        },
        // SAFETY: as above.
        second: |driver, stream, x, y| unsafe { driver.copy(stream, y, x, BYTES) },
        writes_x: (true, false),
        right: (7, 7),
        wrong: (7, 1),
    },
    Case {
        name: "a writer waits for the reader",
        first: |driver, stream, x, y| {
            driver.delay(stream, DELAY)?;
            // SAFETY: as above.
            unsafe { driver.copy(stream, y, x, BYTES) }
        },
        // SAFETY: as above.
        second: |driver, stream, x, _| unsafe { driver.fill(stream, x, BYTES, 7) },
        writes_x: (false, true),
        right: (7, 1),
        wrong: (7, 7),
    },
    Case {
        name: "a writer waits for the writer",
        first: |driver, stream, x, _| {
            driver.delay(stream, DELAY)?;
            // SAFETY: as above.
            unsafe { driver.fill(stream, x, BYTES, 7) }
        },
        // SAFETY: as above.
        second: |driver, stream, x, _| unsafe { driver.fill(stream, x, BYTES, 9) },
        writes_x: (true, true),
        right: (9, 1),
        wrong: (7, 1),
    },
];

pub fn run(setup: &Setup, record: &mut Record) -> Result<(), Failure> {
    for case in CASES {
        let name = format!("races: {}", case.name);
        let outcome = engine_orders(setup, case).and_then(|free| {
            by_hand(setup, case)?;
            Ok(free)
        });
        match outcome {
            Ok(free) => record.passed(&name, &format!("host free after {} µs", free.as_micros())),
            Err(failure) => record.failed(&name, &failure.to_string()),
        }
    }
    Ok(())
}

/// The engine makes the second piece of work wait, and keeps no host thread busy meanwhile. How long it did.
fn engine_orders(setup: &Setup, case: &Case) -> Result<Duration, Failure> {
    let engine = setup.engine()?;
    let (x, y) = (setup.bytes(&engine, BYTES)?, setup.bytes(&engine, BYTES)?);
    let queues = [setup.queue()?, setup.queue()?];
    let enqueued = Arc::new(AtomicUsize::new(0));
    let (driver, bodies) = (setup.driver, [case.first, case.second]);
    let mut free_after = Vec::new();
    for round in 0..5 {
        for memory in [&x, &y] {
            setup.fill(&engine, &queues[0], memory, BYTES, 1)?;
        }
        let ((x, at_x), (y, at_y)) = ((&x.0, x.1), (&y.0, y.1));
        enqueued.store(0, Ordering::Release);
        let begin = Instant::now();
        for (piece, writes) in [(0, case.writes_x.0), (1, case.writes_x.1)] {
            let (enqueued, body) = (enqueued.clone(), bodies[piece]);
            let work = move |queue: &dyn Queue| {
                body(&driver, queue.native(), at_x, at_y)?;
                enqueued.fetch_add(1, Ordering::Release);
                Ok(())
            };
            let op = engine.op(if piece == 0 { "first" } else { "second" }).on(&queues[piece]);
            // A piece that does not write `x` copies it to `y`.
            if writes {
                op.writes([x]).run_on(move |queue, [], [_x]| work(queue))?;
            } else {
                op.reads([x]).writes([y]).run_on(move |queue, [_x], [_y]| work(queue))?;
            }
        }
        while enqueued.load(Ordering::Acquire) < 2 {
            ensure(begin.elapsed() < Duration::from_secs(10), || "the bodies did not run".to_owned())?;
            std::thread::yield_now();
        }
        free_after.push(begin.elapsed());
        ensure(!x.is_ready(), || format!("round {round}: ready before the delay was over"))?;
        x.wait()?;
        y.wait()?;
        // Some devices' clock of nanoseconds moves a millisecond at a time.
        ensure(begin.elapsed() >= Duration::from_nanos(DELAY / 10 * 9), || {
            "ready before the delay was over".to_owned()
        })?;
        let found = (uniform(setup, at_x)?, uniform(setup, at_y)?);
        let right = (Some(case.right.0), Some(case.right.1));
        ensure(found == right, || format!("round {round}: x and y hold {found:?}, not {right:?}"))?;
    }
    setup.expect_no_violation()?;
    free_after.sort_unstable();
    let middle = free_after[free_after.len() / 2];
    // A thread of the simulator may keep a processor from the host.
    ensure(middle <= FREE_WITHIN || setup.simulated, || format!("the host was busy for {middle:?}"))?;
    Ok(middle)
}

/// By hand with the wait all is well, and without it is wrong.
fn by_hand(setup: &Setup, case: &Case) -> Result<(), Failure> {
    let driver = &setup.driver;
    let (x, y) = (driver.memory(BYTES)?, driver.memory(BYTES)?);
    let (a, b, event) = (driver.stream()?, driver.stream()?, driver.event()?);
    for waits in [true, false] {
        // SAFETY: the memory stays.
        unsafe {
            driver.fill(a, x, BYTES, 1)?;
            driver.fill(a, y, BYTES, 1)?;
        }
        driver.synchronize(a)?;
        (case.first)(driver, a, x, y)?;
        if waits {
            driver.record(event, a)?;
            driver.wait(b, event)?;
        }
        (case.second)(driver, b, x, y)?;
        driver.synchronize(b)?;
        driver.synchronize(a)?;
        let found = (uniform(setup, x)?, uniform(setup, y)?);
        let expected = if waits { case.right } else { case.wrong };
        ensure(found == (Some(expected.0), Some(expected.1)), || {
            format!(
                "by hand {} the wait: x and y hold {found:?}, not {expected:?}",
                if waits { "with" } else { "without" }
            )
        })?;
        if setup.simulated {
            ensure(waits == setup.violations().is_empty(), || {
                "the simulator missed what was planted".to_owned()
            })?;
            setup.forget();
        }
    }
    Ok(())
}

/// The byte that all of the memory holds, if it is one.
fn uniform(setup: &Setup, at: u64) -> Result<Option<u8>, Failure> {
    let bytes = setup.driver.read(at, BYTES)?;
    Ok(bytes.iter().all(|byte| *byte == bytes[0]).then_some(bytes[0]))
}
