//! Copies between host and device behind work that takes long: only users of the data wait for the copies.

use std::time::{Duration, Instant};

use estafette::devices::{DLDevice, Device};

use crate::failure::{Failure, ensure};
use crate::record::Record;
use crate::setup::Setup;

/// Time of the work before the copy.
const DELAY: u64 = 100_000_000;
/// Time for which the engine's one worker may be away.
const FREE_WITHIN: Duration = Duration::from_millis(20);
/// Several staging chunks, and no multiple of it.
const BYTES: usize = (32 << 20) + 5;

pub fn run(setup: &Setup, record: &mut Record) -> Result<(), Failure> {
    let engine = setup.engine()?;
    let queue = setup.queue()?;
    let (driver, device) = (setup.driver, setup.device.id());
    let pattern: Vec<u8> = (0..BYTES).map(|at| (at * 31 + at / 251) as u8).collect();
    let host = engine.from_vec(pattern.clone(), &[BYTES as i64])?;
    let x = engine.copy(&host, device)?;
    x.wait()?;
    // The first copy of each kind pins memory, which waits for the device.
    engine.copy(&x, DLDevice::CPU)?.wait()?;
    engine.copy(&x, device)?.wait()?;
    engine.op("delay").updates([&x]).on(&queue).run_on(move |queue, [], [], [_x]| {
        driver.delay(queue.native(), DELAY)?;
        Ok(())
    })?;
    let begin = Instant::now();
    let (down, within) = (engine.copy(&x, DLDevice::CPU)?, engine.copy(&x, device)?);
    engine.op("on the host").run(|[], []| Ok(()))?.wait()?;
    let free = begin.elapsed();
    ensure(!down.is_ready() && !within.is_ready(), || "ready before the delay was over".to_owned())?;
    for copy in [&down, &engine.copy(&within, DLDevice::CPU)?] {
        ensure(copy.to_vec::<u8>()? == pattern, || "the copy is not what was copied".to_owned())?;
    }
    ensure(free <= FREE_WITHIN || setup.simulated, || format!("the worker was away for {free:?}"))?;
    record.passed("copies", &format!("worker free after {} µs", free.as_micros()));
    setup.expect_no_violation()
}
