//! A real fault of the device: in a process of its own, since nothing of CUDA works there afterwards.

use std::process::Command;
use std::time::Duration;

use estafette::DType;
use estafette::tensor::TensorState;

use crate::failure::{Failure, ensure};
use crate::record::Record;
use crate::setup::Setup;
use crate::supervise::{self, How};

pub const CHILD: &str = "fault";
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(simulator: bool, record: &mut Record) -> Result<(), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--child", CHILD]).args(simulator.then_some("--simulator"));
    let how = supervise::within(&mut command, PATIENCE)?;
    let ended = matches!(how, How::Ended(status) if status.success());
    ensure(ended, || format!("the process with the fault {}", how.words()))?;
    record.passed(
        "faults",
        "a kernel that writes to nowhere fails itself and all behind it, by the driver's number",
    );
    Ok(())
}

/// The child runs a chain in whose middle a kernel writes where there is no memory.
pub fn child(setup: &Setup) -> Result<(), Failure> {
    let engine = setup.engine()?;
    let x = setup.bytes(&engine, 64)?;
    let (y, at_y) = setup.bytes(&engine, 64)?;
    let (a, b) = (setup.queue()?, setup.queue()?);
    let driver = setup.driver;
    setup.fill(&engine, &a, &x, 64, 1)?;
    let (x, at_x) = x;
    engine.op("bad").writes([&x]).on(&a).run_on(move |queue, [], [_x]| {
        driver.delay(queue.native(), 20_000_000)?;
        // SAFETY: none, which is the point: the device refuses the address, and the process does not go on
        // with it.
        Ok(unsafe { driver.fill(queue.native(), 0x10, 64, 2) }?)
    })?;
    // Issued before the fault is known.
    engine.op("behind").reads([&x]).writes([&y]).on(&b).run_on(move |queue, [_x], [_y]| {
        // SAFETY: as above.
        Ok(unsafe { driver.copy(queue.native(), at_y, at_x, 64) }?)
    })?;
    for (name, outcome) in [("x", x.wait()), ("y", y.wait())] {
        let error = outcome.err().ok_or_else(|| Failure::wrong(format!("{name} succeeded after a fault")))?;
        let text = error.to_string();
        ensure(text.contains("700") || text.contains("719"), || {
            format!("{name} fails without the number: {text}")
        })?;
    }
    ensure(matches!(y.state(), TensorState::Failed(_)), || "y does not say that it failed".to_owned())?;
    // The host goes on.
    let z = engine.zeros(&[4], DType::F32)?;
    engine.op("host").writes([&z]).run(|[], [_z]| Ok(()))?;
    z.wait()?;
    ensure(setup.device.fault().is_some(), || "the device does not say that it broke".to_owned())
}
