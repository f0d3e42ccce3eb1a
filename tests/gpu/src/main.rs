//! The GPU suite: checks and figures that need a real CUDA device, in one program that needs no Rust
//! toolchain.
//!
//! `cargo xtask gpu` builds and runs it. Without a driver or device it says *skipped: no device*. With the
//! feature `simulator` it can run what is possible on the simulated driver, to keep itself in working order:
//! such figures are printed as *simulator, not a result*, and a record of them says so.
//!
//! | file | idea |
//! |---|---|
//! | `supervise` | each step in a process of its own, under a time limit |
//! | `driver` | streams, events, kernels and memory by hand: what a user without the engine would write |
//! | `setup` | the device, the engine, and what every step uses |
//! | `conformance` | the suite that every device passes, on this one |
//! | `races` | consumers that would be wrong without their waits, and are wrong when these are left out |
//! | `copies` | copies between host and device that hold up no other work |
//! | `programs` | random programs on several queues against the host |
//! | `faults` | a real fault, in a process of its own |
//! | `streams` | many streams beside one that is blocked |
//! | `exits` | processes that exit while the device works |
//! | `device_tests` | the tests of CUDA devices that otherwise run on the simulator |
//! | `cpu` | figures of the machine's processor |
//! | `machine` | facts of the machine |
//! | `ping_pong`, `replays`, `wake`, `ready` | figures |
//! | `python` | relays and figures of the libraries of the machine's Python |
//! | `sanitizer` | the checks once more under compute-sanitizer |
//! | `record` | what is printed and written |

mod conformance;
mod copies;
mod cpu;
mod device_tests;
#[expect(dead_code, reason = "other suites use more of it")]
#[path = "../../src/dice.rs"]
mod dice;
mod driver;
mod exits;
mod failure;
mod faults;
mod machine;
mod ping_pong;
mod programs;
mod python;
mod races;
mod ready;
mod record;
mod replays;
mod sanitizer;
mod setup;
mod streams;
mod supervise;
mod wake;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::builder::PossibleValuesParser;

use failure::Failure;
use record::Record;
use setup::Setup;

/// For all steps together.
const SECONDS: u64 = 480;

/// Checks and figures on a CUDA device
#[derive(Debug, Parser)]
struct Options {
    /// Also write a record in Markdown, after every step anew
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Folder of the Python files of the suite
    #[arg(long, value_name = "FOLDER")]
    files: Option<PathBuf>,
    /// The interpreter for them (python3)
    #[arg(long, value_name = "PROGRAM")]
    python: Option<String>,
    /// The tests of CUDA devices
    #[arg(long, value_name = "PROGRAM")]
    tests: Option<PathBuf>,
    /// Only these steps
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = names_of_steps())]
    only: Vec<String>,
    /// For all of it; what no time is left for is skipped
    #[arg(long, value_name = "NUMBER", default_value_t = SECONDS)]
    seconds: u64,
    /// On the simulated driver, where this program has one; figures are no results
    #[arg(long)]
    simulator: bool,
    /// Only look for a device; ends with 3 where there is none
    #[arg(long)]
    probe: bool,
    /// Steps to run in this process, named by the process that started it
    #[arg(long, hide = true, value_delimiter = ',', value_parser = names_of_steps())]
    steps: Vec<String>,
    /// File for the result of such a process
    #[arg(long, hide = true)]
    events: Option<PathBuf>,
    #[arg(long, hide = true)]
    child: Option<String>,
}

fn names_of_steps() -> PossibleValuesParser {
    PossibleValuesParser::new(STEPS.iter().map(|step| step.name))
}

struct Step {
    name: &'static str,
    /// After this time it hangs. Several times what it takes.
    limit: Duration,
    run: fn(&Setup, &Options, &mut Record) -> Result<(), Failure>,
}

const fn step(
    name: &'static str,
    seconds: u64,
    run: fn(&Setup, &Options, &mut Record) -> Result<(), Failure>,
) -> Step {
    Step { name, limit: Duration::from_secs(seconds), run }
}

/// The step that is most likely to succeed comes first: a step that hangs costs its limit, and nothing of
/// those before it.
const STEPS: &[Step] = &[
    step("races", 60, |setup, _, record| races::run(setup, record)),
    step("copies", 60, |setup, _, record| copies::run(setup, record)),
    step("programs", 60, |setup, _, record| programs::run(setup, record)),
    step("ping-pong", 60, |setup, _, record| ping_pong::run(setup, record)),
    step("replays", 60, |setup, _, record| replays::run(setup, record)),
    step("wake", 60, |setup, _, record| wake::run(setup, record)),
    step("ready", 30, |setup, _, record| ready::run(setup, record)),
    step("faults", 75, |_, options, record| faults::run(options.simulator, record)),
    step("streams", 40, |setup, _, record| streams::run(setup, record)),
    step("exits", 75, |_, options, record| exits::run(options.simulator, record)),
    step("cpu", 60, |_, options, record| cpu::run(options.simulator, record)),
    step("conformance", 60, |setup, _, record| conformance::run(setup, record)),
    step("device-tests", 90, |_, options, record| device_tests::run(options, record)),
    step("python", 300, python::run),
    step("sanitizer", 120, |_, options, record| sanitizer::run(options, record)),
];

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(StepEnd::Passed) => ExitCode::SUCCESS,
        Ok(StepEnd::NoDevice) if options.probe => ExitCode::from(NO_DEVICE),
        Ok(StepEnd::NoDevice) => ExitCode::SUCCESS,
        Ok(StepEnd::Failed) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Status of `--probe` if there is no device.
const NO_DEVICE: u8 = 3;

enum StepEnd {
    Passed,
    Failed,
    NoDevice,
}

fn run(options: &Options) -> Result<StepEnd, Failure> {
    if options.child.is_none() && options.steps.is_empty() && !options.probe {
        return supervise::run(options);
    }
    if options.simulator {
        setup::load_simulator()?;
    }
    let setup = match Setup::new(options.simulator) {
        Ok(setup) => setup,
        Err(why) => {
            println!("skipped: no device ({why})");
            return Ok(StepEnd::NoDevice);
        }
    };
    match options.child.as_deref() {
        None => {}
        Some(faults::CHILD) => return faults::child(&setup).map(|()| StepEnd::Passed),
        Some(exits::CHILD) => return exits::child(&setup).map(|()| StepEnd::Passed),
        Some(other) => return Err(Failure::wrong(format!("no child is called {other}"))),
    }
    let mut record = Record::new(setup.simulated);
    if let Some(events) = &options.events {
        record.read_events(events)?;
    }
    if options.probe {
        record.describe(&setup);
        return Ok(StepEnd::Passed);
    }
    setup.driver.warm_up()?;
    for step in STEPS.iter().filter(|step| options.steps.iter().any(|name| name == step.name)) {
        if let Err(failure) = (step.run)(&setup, options, &mut record) {
            record.failed(step.name, &failure.to_string());
        }
        setup.forget();
    }
    Ok(if record.all_passed() { StepEnd::Passed } else { StepEnd::Failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Options, String> {
        let arguments = ["gpu-suite"].iter().chain(arguments);
        Options::try_parse_from(arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn steps_are_known_by_name() {
        assert!(parsed(&["--only", "races,faults"]).is_ok_and(|options| options.only.len() == 2));
        assert!(parsed(&["--only", "race"]).is_err_and(|why| why.contains("'race'")));
        assert!(parsed(&["--only"]).is_err());
    }
}
