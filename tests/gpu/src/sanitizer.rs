//! The checks once more under NVIDIA's compute-sanitizer, where it is installed.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::Options;
use crate::failure::Failure;
use crate::record::Record;
use crate::supervise::{self, How};

/// Limit of one tool: it slows kernels down many times, and ours are small.
const LIMIT: Duration = Duration::from_secs(38);

/// A step that blocks no stream, since instrumented kernels behind a blocked stream can hang, and whose
/// outcome does not depend on how long a kernel takes.
const STEPS: &str = "programs";

/// Message of a tool that needs the driver's debugger on a machine without it.
const NO_DEBUGGER: &str = "Could not find CUDA Debugger back-end";

fn find() -> Option<PathBuf> {
    let places = ["compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"];
    let answers = |program: &&str| {
        let quiet = || Stdio::null();
        let status = Command::new(program).arg("--version").stdout(quiet()).stderr(quiet()).status();
        status.is_ok_and(|status| status.success())
    };
    places.iter().find(|program| answers(program)).map(PathBuf::from)
}

pub fn run(options: &Options, record: &mut Record) -> Result<(), Failure> {
    if options.simulator {
        record.skipped("sanitizer", "it looks at kernels of a device, and the simulator has none");
        return Ok(());
    }
    let Some(sanitizer) = find() else {
        record.skipped("sanitizer", "compute-sanitizer is not installed");
        return Ok(());
    };
    for tool in ["memcheck", "racecheck", "initcheck"] {
        let name = format!("sanitizer: {tool}");
        let mut command = Command::new(&sanitizer);
        // Some checks ask for what cannot be had, and a program may ask whether something is over: the
        // driver's refusals are no findings.
        command.args(["--tool", tool, "--error-exitcode", "99", "--report-api-errors", "no"]);
        // In the process that it looks at, not in another one.
        command.arg(std::env::current_exe()?).args(["--steps", STEPS]);
        let (how, said) = supervise::logged(&mut command, tool, LIMIT)?;
        println!("{said}");
        match how {
            How::Ended(status) if status.success() => record.passed(&name, STEPS),
            // Before it looks at anything.
            How::Ended(_) if said.contains(NO_DEBUGGER) => record.skipped(&name, NO_DEBUGGER),
            how => record.failed(&name, &format!("{tool} {}; what it found is above", how.words())),
        }
    }
    Ok(())
}
