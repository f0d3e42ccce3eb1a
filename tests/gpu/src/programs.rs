//! Random programs on several queues, with delays in between, against the same steps one by one on the host.

use std::sync::Arc;

use estafette::devices::Queue;

use crate::dice::Dice;
use crate::failure::{Failure, ensure};
use crate::record::Record;
use crate::setup::Setup;

const PROGRAMS: u64 = 20;
const STEPS: usize = 300;
const TENSORS: usize = 6;
const QUEUES: usize = 4;
const COUNT: usize = 1000;

pub fn run(setup: &Setup, record: &mut Record) -> Result<(), Failure> {
    let programs = if setup.simulated { 4 } else { PROGRAMS };
    for seed in 0..programs {
        program(setup, seed).map_err(|failure| Failure::wrong(format!("seed {seed}: {failure}")))?;
    }
    record.passed("programs", &format!("{programs} random programs of {STEPS} steps on {QUEUES} queues"));
    setup.expect_no_violation()
}

/// Steps whose order matters: sums of two tensors and multiples of one. More are in flight than a queue's
/// fences fit into a word of bits.
fn program(setup: &Setup, seed: u64) -> Result<(), Failure> {
    let mut dice = Dice::new(seed);
    let engine = setup.engine()?;
    let queues: Vec<Arc<dyn Queue>> = (0..QUEUES).map(|_| setup.queue()).collect::<Result<_, _>>()?;
    let tensors: Vec<_> = (0..TENSORS).map(|_| setup.floats(&engine, COUNT)).collect::<Result<_, _>>()?;
    let mut expected = [0.0_f32; TENSORS];
    let driver = setup.driver;
    for (tensor, at) in &tensors {
        let at = *at;
        engine.op("zero").writes([tensor]).on(&queues[0]).run_on(move |queue, [], [_out]| {
            // SAFETY: the operation keeps the memory.
            Ok(unsafe { driver.fill(queue.native(), at, 4 * COUNT, 0) }?)
        })?;
    }
    for step in 0..STEPS {
        let queue = &queues[dice.roll(QUEUES)];
        let delay = if dice.roll(8) == 0 { 1_000 * dice.roll(50) as u64 } else { 0 };
        let out = dice.roll(TENSORS);
        let (a, b) = ((out + 1 + dice.roll(TENSORS - 1)) % TENSORS, dice.roll(TENSORS));
        let (at_out, at_a, at_b) = (tensors[out].1, tensors[a].1, tensors[b].1);
        // Both sides round alike, so results are equal to the bit; they only have to stay finite.
        if dice.roll(2) == 0 || b == out || expected[a] + expected[b] > 1e6 {
            let factor = if expected[a] > 1e3 { 0.125 } else { 1.5 };
            expected[out] = factor * expected[a];
            engine.op("scale").reads([&tensors[a].0]).writes([&tensors[out].0]).on(queue).run_on(
                move |queue, [_a], [_out]| {
                    if delay > 0 {
                        driver.delay(queue.native(), delay)?;
                    }
                    // SAFETY: the operation keeps the memory.
                    Ok(unsafe { driver.scale(queue.native(), at_out, at_a, factor, COUNT) }?)
                },
            )?;
        } else {
            expected[out] = expected[a] + expected[b];
            engine
                .op("add")
                .reads([&tensors[a].0, &tensors[b].0])
                .writes([&tensors[out].0])
                .on(queue)
                .run_on(move |queue, [_a, _b], [_out]| {
                    if delay > 0 {
                        driver.delay(queue.native(), delay)?;
                    }
                    // SAFETY: as above.
                    Ok(unsafe { driver.add(queue.native(), at_out, at_a, at_b, COUNT) }?)
                })?;
        }
        // New numbers now and then: bytes of 0x3f or 0x40 in each place are numbers near 0.75 and 3.
        if step % 7 == 0 {
            let byte = if dice.roll(2) == 0 { 0x3f } else { 0x40 };
            expected[out] = f32::from_ne_bytes([byte; 4]);
            engine.op("set").writes([&tensors[out].0]).on(queue).run_on(move |queue, [], [_out]| {
                // SAFETY: as above.
                Ok(unsafe { driver.fill(queue.native(), at_out, 4 * COUNT, byte) }?)
            })?;
        }
    }
    for ((tensor, at), expected) in tensors.iter().zip(expected) {
        tensor.wait()?;
        let bytes = driver.read(*at, 4 * COUNT)?;
        for (index, bytes) in bytes.chunks_exact(4).enumerate() {
            let found = f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            ensure(found == expected, || format!("element {index} is {found}, not {expected}"))?;
        }
    }
    Ok(())
}
