//! A process that exits while the device works: no thread of the engine calls the driver once its own
//! shutdown has begun. Each exit is a process of its own.

use std::process::Command;
use std::time::{Duration, Instant};

use estafette::devices::DLDevice;

use crate::failure::{Failure, ensure};
use crate::record::Record;
use crate::setup::Setup;
use crate::supervise::{self, How};

pub const CHILD: &str = "exit";
const EXITS: usize = 50;
/// Processes at a time: the driver's start takes a second on some machines.
const AT_A_TIME: usize = 5;
/// Limit of one process, the start of the driver included.
const LIMIT: Duration = Duration::from_secs(20);
/// After this time no further process is started.
const ENOUGH: Duration = Duration::from_secs(30);
/// Time for which the device is busy when the process exits.
const DELAY: u64 = 30_000_000;

pub fn run(simulator: bool, record: &mut Record) -> Result<(), Failure> {
    let begin = Instant::now();
    let exits = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..AT_A_TIME).map(|number| scope.spawn(move || exits(simulator, number, begin))).collect();
        let ends = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        ends.sum::<Result<usize, Failure>>()
    })?;
    let took = begin.elapsed().as_secs_f64();
    record
        .passed("exits", &format!("{exits} processes with work pending, {AT_A_TIME} at a time, {took:.1} s"));
    Ok(())
}

/// One process after the other. How many there were.
fn exits(simulator: bool, number: usize, begin: Instant) -> Result<usize, Failure> {
    let mut exits = 0;
    while exits < EXITS / AT_A_TIME && begin.elapsed() < ENOUGH {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--child", CHILD]).args(simulator.then_some("--simulator"));
        let (how, said) = supervise::logged(&mut command, &format!("exits-{number}"), LIMIT)?;
        let quiet = matches!(how, How::Ended(status) if status.success()) && said.is_empty();
        ensure(quiet, || format!("exit {exits} {}: {}", how.words(), said.trim()))?;
        exits += 1;
    }
    Ok(exits)
}

/// The child leaves work on the device, a copy behind it, an operation that waits for both, and a
/// thread that awaits the end, and exits.
pub fn child(setup: &Setup) -> Result<(), Failure> {
    let engine = setup.engine()?;
    let queue = setup.queue()?;
    let (x, at) = setup.bytes(&engine, 1 << 20)?;
    let driver = setup.driver;
    let slow = engine.op("slow").writes([&x]).on(&queue).run_on(move |queue, [], [_x]| {
        driver.delay(queue.native(), DELAY)?;
        // SAFETY: the operation keeps the memory, and the process ends with it.
        Ok(unsafe { driver.fill(queue.native(), at, 1 << 20, 1) }?)
    })?;
    // Until its body has run, which calls the driver by hand and knows nothing of exits.
    slow.wait()?;
    let copy = engine.copy(&x, DLDevice::CPU)?;
    let behind = engine.op("behind").reads([&copy]).run(|[_copy], []| Ok(()))?;
    std::thread::spawn(move || behind.wait());
    // With everything alive: handlers of the C library's `exit` run, and destructors of Rust do not.
    std::process::exit(0)
}
