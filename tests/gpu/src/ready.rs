//! Figure: asking whether a pending tensor is ready.

use std::hint::black_box;
use std::time::Instant;

use crate::failure::{Failure, ensure};
use crate::record::{Figure, Percentiles, Record};
use crate::setup::Setup;

const QUESTIONS: u32 = 20_000;
const ROUNDS: usize = 21;

pub fn run(setup: &Setup, record: &mut Record) -> Result<(), Failure> {
    let engine = setup.engine()?;
    let queue = setup.queue()?;
    let (x, at) = setup.bytes(&engine, 64)?;
    let (driver, flag) = (setup.driver, setup.driver.flag()?);
    let probe = driver.stream()?;
    if let Err(error) = driver.wait_for(probe, flag) {
        record.skipped("ready", &format!("the device does not wait for a word of the host: {error:?}"));
        return Ok(());
    }
    let event = driver.event()?;
    driver.record(event, probe)?;
    let held = engine.op("held").writes([&x]).on(&queue).run_on(move |queue, [], [_x]| {
        driver.wait_for(queue.native(), flag)?;
        // SAFETY: the operation keeps the memory.
        Ok(unsafe { driver.fill(queue.native(), at, 64, 1) }?)
    })?;
    // Until it is issued, who asks is answered from the graph, which is cheaper than what is measured here.
    held.wait()?;
    let (mut ours, mut queries) = (Vec::new(), Vec::new());
    let per_question = |begin: Instant| begin.elapsed().as_nanos() as f64 / f64::from(QUESTIONS);
    for _ in 0..if setup.simulated { 3 } else { ROUNDS } {
        let begin = Instant::now();
        let mut ready = false;
        for _ in 0..QUESTIONS {
            ready |= black_box(&x).is_ready();
        }
        ours.push(per_question(begin));
        let begin = Instant::now();
        for _ in 0..QUESTIONS {
            ready |= black_box(event).query();
        }
        queries.push(per_question(begin));
        ensure(!ready, || "ready before its operation was over".to_owned())?;
    }
    flag.set(1);
    x.wait()?;
    ensure(x.is_ready(), || "not ready after its operation".to_owned())?;
    let (ours, queries) = (Percentiles::of(ours), Percentiles::of(queries));
    record.figure(Figure {
        quantity: "`is_ready` on a pending tensor".to_owned(),
        ours: ours.show("ns"),
        baseline: format!("cuEventQuery {}", queries.show("ns")),
        target: if setup.device.counts() { "≤ 10 ns" } else { "none where the device does not count" }
            .to_owned(),
        met: ours.median <= 10.0 || !setup.device.counts(),
    });
    record.passed(
        "ready",
        if setup.device.counts() { "by counters" } else { "by event queries: no counters here" },
    );
    setup.expect_no_violation()
}
