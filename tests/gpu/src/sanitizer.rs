//! The checks once more under NVIDIA's compute-sanitizer, where it is installed.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::Options;
use crate::failure::{Failure, ensure};
use crate::record::Record;

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
        let status = Command::new(&sanitizer)
            .args(["--tool", tool, "--error-exitcode", "99"])
            .arg(std::env::current_exe()?)
            .args(["--only", "conformance,programs"])
            .status()?;
        ensure(status.success(), || format!("{tool} ended with {status}; what it found is above"))?;
        record.passed(&format!("sanitizer: {tool}"), "");
    }
    Ok(())
}
