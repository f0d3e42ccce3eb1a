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

use failure::Failure;
use record::Record;
use setup::Setup;

const HELP: &str = "\
Checks and figures on a CUDA device.

usage: gpu-suite [options]

  --record FILE     also write a record in Markdown, after every step anew
  --files FOLDER    where the Python files of the suite are
  --python PROGRAM  the interpreter for them (python3)
  --tests PROGRAM   the tests of CUDA devices
  --only NAME,...   only these steps: races, copies, programs, ping-pong, replays, wake, ready, faults,
                    streams, exits, cpu, conformance, device-tests, python, sanitizer
  --seconds NUMBER  for all of it (480); what no time is left for is skipped
  --probe           only look for a device; ends with 3 where there is none
  --simulator       on the simulated driver, where this program has one; figures are no results
  --help            this text
";

/// For all steps together.
const SECONDS: u64 = 480;

#[derive(Debug)]
struct Options {
    record: Option<PathBuf>,
    files: Option<PathBuf>,
    python: Option<String>,
    tests: Option<PathBuf>,
    only: Vec<String>,
    simulator: bool,
    probe: bool,
    limit: Duration,
    /// Steps to run in this process, named by the process that started it.
    steps: Vec<String>,
    /// Where such a process says what came out.
    events: Option<PathBuf>,
    /// What a child of a step does.
    child: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            record: None,
            files: None,
            python: None,
            tests: None,
            only: Vec::new(),
            simulator: false,
            probe: false,
            limit: Duration::from_secs(SECONDS),
            steps: Vec::new(),
            events: None,
            child: None,
        }
    }
}

/// A part of the suite.
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

/// What is most likely to succeed comes first: a step that hangs costs its limit, and nothing of those before it.
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

fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    let mut arguments = arguments;
    let list = |names: String| names.split(',').map(str::to_owned).collect::<Vec<_>>();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} wants a value"));
        match argument.as_str() {
            "--record" => options.record = Some(value()?.into()),
            "--files" => options.files = Some(value()?.into()),
            "--python" => options.python = Some(value()?),
            "--tests" => options.tests = Some(value()?.into()),
            "--only" => options.only = list(value()?),
            "--steps" => options.steps = list(value()?),
            "--events" => options.events = Some(value()?.into()),
            "--child" => options.child = Some(value()?),
            "--seconds" => {
                let seconds: u64 = value()?.parse().map_err(|_| "--seconds wants a number".to_owned())?;
                options.limit = Duration::from_secs(seconds);
            }
            "--simulator" => options.simulator = true,
            "--probe" => options.probe = true,
            "--help" => return Ok(None),
            other => return Err(format!("cannot make sense of `{other}`; see --help")),
        }
    }
    let named = options.only.iter().chain(&options.steps);
    let unknown = named.into_iter().find(|name| STEPS.iter().all(|step| step.name != **name));
    match unknown {
        Some(name) => Err(format!("there is no step `{name}`; see --help")),
        None => Ok(Some(options)),
    }
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("error: {message}");
            return ExitCode::FAILURE;
        }
    };
    match run(&options) {
        Ok(Ended::Passed) => ExitCode::SUCCESS,
        Ok(Ended::NoDevice) if options.probe => ExitCode::from(NO_DEVICE),
        Ok(Ended::NoDevice) => ExitCode::SUCCESS,
        Ok(Ended::Failed) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// How `--probe` says that there is no device.
const NO_DEVICE: u8 = 3;

enum Ended {
    Passed,
    Failed,
    NoDevice,
}

fn run(options: &Options) -> Result<Ended, Failure> {
    if options.child.is_none() && options.steps.is_empty() && !options.probe {
        return supervise::run(options);
    }
    if options.simulator {
        setup::take_the_simulator()?;
    }
    let setup = match Setup::new(options.simulator) {
        Ok(setup) => setup,
        Err(why) => {
            println!("skipped: no device ({why})");
            return Ok(Ended::NoDevice);
        }
    };
    match options.child.as_deref() {
        None => {}
        Some(faults::CHILD) => return faults::child(&setup).map(|()| Ended::Passed),
        Some(exits::CHILD) => return exits::child(&setup).map(|()| Ended::Passed),
        Some(other) => return Err(Failure::wrong(format!("no child is called {other}"))),
    }
    let mut record = Record::new(setup.simulated);
    if let Some(events) = &options.events {
        record.tell(events)?;
    }
    if options.probe {
        record.describe(&setup);
        return Ok(Ended::Passed);
    }
    setup.driver.warm_up()?;
    for step in STEPS.iter().filter(|step| options.steps.iter().any(|name| name == step.name)) {
        if let Err(failure) = (step.run)(&setup, options, &mut record) {
            record.failed(step.name, &failure.to_string());
        }
        setup.forget();
    }
    Ok(if record.all_passed() { Ended::Passed } else { Ended::Failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Option<Options>, String> {
        parse(arguments.iter().map(|argument| (*argument).to_owned()))
    }

    #[test]
    fn steps_are_known_by_name() {
        assert!(parsed(&["--only", "races,faults"]).is_ok_and(|options| options.is_some()));
        assert!(parsed(&["--only", "race"]).is_err_and(|why| why.contains("`race`")));
        assert!(parsed(&["--only"]).is_err_and(|why| why.contains("wants a value")));
    }
}
