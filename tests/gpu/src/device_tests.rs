//! The tests of CUDA devices that `cargo xtask test --suite cuda` runs on the simulator, on this machine's
//! driver: a program of their own.

use std::process::Command;
use std::time::Duration;

use crate::Options;
use crate::failure::Failure;
use crate::record::Record;
use crate::supervise::{self, How};

/// Several times what they take.
const LIMIT: Duration = Duration::from_secs(80);

pub fn run(options: &Options, record: &mut Record) -> Result<(), Failure> {
    let Some(program) = &options.tests else {
        record.skipped("device-tests", "no --tests: the program of the tests was not named");
        return Ok(());
    };
    let mut command = Command::new(program);
    // One after the other, so that a test that hangs is the last one that is named.
    command.args(["--test-threads=1", "--nocapture"]);
    if !options.simulator {
        command.env("ESTAFETTE_CUDA", "gpu");
    }
    let (how, said) = supervise::logged(&mut command, "tests", LIMIT)?;
    let skips = said.lines().filter(|line| line.contains("skipped")).count();
    match how {
        How::Ended(status) if status.success() => {
            let counts = said.lines().rfind(|line| line.starts_with("test result:")).unwrap_or_default();
            record.passed("device-tests", &format!("{counts} parts skipped: {skips}"));
        }
        how => {
            println!("{said}");
            record.failed("device-tests", &format!("the program {}; what it said is above", how.words()));
        }
    }
    Ok(())
}
