//! Many streams, one of which is blocked: calls of the host do not wait for it, and streams of other hardware
//! connections go on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use estafette::Tensor;
use estafette::devices::Queue;
use estafette::devices::conformance::Blocked;

use crate::failure::{Failure, ensure};
use crate::record::Record;
use crate::setup::Setup;

/// Twice the hardware connections that a process can have.
const STREAMS: usize = 64;
/// Streams that must go on: whatever shares the connection of the blocked stream need not.
const FREE: usize = STREAMS / 2;
/// Limit of one call of the host meanwhile.
const CALL: Duration = Duration::from_millis(100);
/// Limit for the streams that go on.
const PATIENCE: Duration = Duration::from_secs(5);
const BYTES: usize = 4096;

pub fn run(setup: &Setup, record: &mut Record) -> Result<(), Failure> {
    let engine = setup.engine()?;
    let (driver, flag) = (setup.driver, setup.driver.flag()?);
    let queues: Vec<Arc<dyn Queue>> = (0..STREAMS).map(|_| setup.queue()).collect::<Result<_, _>>()?;
    let tensors: Vec<(Tensor, u64)> =
        (0..STREAMS).map(|_| setup.bytes(&engine, BYTES)).collect::<Result<_, _>>()?;
    let probe = driver.stream()?;
    if let Err(error) = driver.wait_for(probe, flag) {
        record.skipped("streams", &format!("the device does not wait for a word of the host: {error:?}"));
        return Ok(());
    }
    flag.set(1);
    driver.synchronize(probe)?;
    flag.set(0);
    // Also when a check fails: a blocked stream would hold up the end of the process.
    let blocked = Blocked::new(move || flag.set(1));
    let mut slowest = ("", Duration::ZERO);
    let mut timed = |name, begin: Instant| {
        if begin.elapsed() > slowest.1 {
            slowest = (name, begin.elapsed());
        }
    };
    for (at, ((tensor, address), queue)) in tensors.iter().zip(&queues).enumerate() {
        let (address, begin) = (*address, Instant::now());
        let op = engine.op("fill").writes([tensor]).on(queue).run_on(move |queue, [], [_out]| {
            if at == 0 {
                driver.wait_for(queue.native(), flag)?;
            }
            // SAFETY: the operation keeps the memory.
            Ok(unsafe { driver.fill(queue.native(), address, BYTES, at as u8 + 1) }?)
        })?;
        timed("submitting", begin);
        if at == 0 {
            // The wait is enqueued before all that it may hold up.
            op.wait()?;
        }
    }
    for _ in 0..20 {
        let begin = Instant::now();
        let (memory, _) = setup.bytes(&engine, BYTES)?;
        timed("allocating", begin);
        let begin = Instant::now();
        drop(memory);
        timed("freeing", begin);
        let begin = Instant::now();
        let ready = tensors[0].0.is_ready();
        timed("asking", begin);
        ensure(!ready, || "a tensor is ready that a blocked stream fills".to_owned())?;
    }
    let begin = Instant::now();
    let free = loop {
        let free = tensors.iter().filter(|(tensor, _)| tensor.is_ready()).count();
        if free == STREAMS - 1 || begin.elapsed() > PATIENCE {
            break free;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    blocked.release();
    for (at, (tensor, address)) in tensors.iter().enumerate() {
        tensor.wait()?;
        let bytes = driver.read(*address, BYTES)?;
        ensure(bytes.iter().all(|byte| *byte == at as u8 + 1), || format!("stream {at} has filled wrongly"))?;
    }
    let (call, took) = slowest;
    ensure(took <= CALL, || format!("{call} took {took:?} beside a blocked stream"))?;
    ensure(free >= FREE, || format!("only {free} of {STREAMS} streams went on beside a blocked one"))?;
    record.passed(
        "streams",
        &format!("{free} of {STREAMS} went on beside a blocked one; the slowest call, {call}, took {took:?}"),
    );
    setup.expect_no_violation()
}
