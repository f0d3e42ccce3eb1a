//! The GPU suite: checks and figures that need a real CUDA device, in one program that needs no Rust toolchain.
//!
//! `cargo xtask gpu` builds and runs it. Without a driver or device it says *skipped: no device*. With the feature
//! `simulator` it can run what is possible on the simulated driver, to keep itself in working order: such figures are
//! printed as *simulator, not a result*, and never written into a record.
//!
//! | file | idea |
//! |---|---|
//! | `driver` | streams, events, kernels and memory by hand: what a user without the engine would write |
//! | `setup` | the device, the engine, and what every step uses |
//! | `conformance` | the suite that every device passes, on this one |
//! | `races` | consumers that would be wrong without their waits, and are wrong when these are left out |
//! | `programs` | random programs on several queues against the host |
//! | `faults` | a real fault, in a process of its own |
//! | `ping_pong`, `replays`, `wake`, `ready` | figures |
//! | `python` | relays and figures of the libraries of the machine's Python |
//! | `sanitizer` | the checks once more under compute-sanitizer |
//! | `record` | what is printed and written |

mod conformance;
mod driver;
mod failure;
mod faults;
mod ping_pong;
mod programs;
mod python;
mod races;
mod ready;
mod record;
mod replays;
mod sanitizer;
mod setup;
mod wake;

use std::path::PathBuf;
use std::process::ExitCode;

use failure::Failure;
use record::Record;
use setup::Setup;

const HELP: &str = "\
Checks and figures on a CUDA device.

usage: gpu-suite [options]

  --record FILE     also write a record in Markdown
  --files FOLDER    where the Python files of the suite are
  --python PROGRAM  the interpreter for them (python3)
  --only NAME,...   only these steps: conformance, races, programs, faults, ping-pong, replays, wake,
                    ready, python, sanitizer
  --probe           only look for a device; ends with 3 where there is none
  --simulator       on the simulated driver, where this program has one; figures are no results
  --help            this text
";

#[derive(Debug, Default)]
struct Options {
    record: Option<PathBuf>,
    files: Option<PathBuf>,
    python: Option<String>,
    only: Vec<String>,
    simulator: bool,
    probe: bool,
    /// What a child of this program does.
    child: Option<String>,
}

/// A step: its name, and what it does.
type Step = (&'static str, fn(&Setup, &Options, &mut Record) -> Result<(), Failure>);

const STEPS: &[Step] = &[
    ("conformance", |setup, _, record| conformance::run(setup, record)),
    ("races", |setup, _, record| races::run(setup, record)),
    ("programs", |setup, _, record| programs::run(setup, record)),
    ("faults", |_, options, record| faults::run(options.simulator, record)),
    ("ping-pong", |setup, _, record| ping_pong::run(setup, record)),
    ("replays", |setup, _, record| replays::run(setup, record)),
    ("wake", |setup, _, record| wake::run(setup, record)),
    ("ready", |setup, _, record| ready::run(setup, record)),
    ("python", |setup, options, record| python::run(setup, options, record)),
    ("sanitizer", |_, options, record| sanitizer::run(options, record)),
];

fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} wants a value"));
        match argument.as_str() {
            "--record" => options.record = Some(value()?.into()),
            "--files" => options.files = Some(value()?.into()),
            "--python" => options.python = Some(value()?),
            "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
            "--child" => options.child = Some(value()?),
            "--simulator" => options.simulator = true,
            "--probe" => options.probe = true,
            "--help" => return Ok(None),
            other => return Err(format!("cannot make sense of `{other}`; see --help")),
        }
    }
    let unknown = options.only.iter().find(|name| STEPS.iter().all(|(step, _)| step != name));
    match unknown {
        Some(name) => Err(format!("there is no step `{name}`; see --help")),
        None if options.simulator && options.record.is_some() => {
            Err("the simulator has no results, so there is nothing to record".to_owned())
        }
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
    if options.probe {
        return Ok(Ended::Passed);
    }
    if let Some(child) = &options.child {
        return faults::child(&setup, child).map(|()| Ended::Passed);
    }
    let mut record = Record::new(&setup);
    for (name, step) in STEPS {
        if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
            continue;
        }
        println!("== {name}");
        if let Err(failure) = step(&setup, options, &mut record) {
            record.failed(name, &failure.to_string());
        }
        setup.forget();
    }
    record.print_summary();
    if let Some(path) = &options.record {
        record.write(path)?;
        println!("wrote {}", path.display());
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
    fn a_simulator_has_nothing_to_record() {
        let refused = parsed(&["--simulator", "--record", "file.md"]);
        assert!(refused.is_err_and(|why| why.contains("no results")));
        assert!(parsed(&["--record", "file.md"]).is_ok_and(|options| options.is_some()));
    }

    #[test]
    fn steps_are_known_by_name() {
        assert!(parsed(&["--only", "races,faults"]).is_ok_and(|options| options.is_some()));
        assert!(parsed(&["--only", "race"]).is_err_and(|why| why.contains("`race`")));
        assert!(parsed(&["--only"]).is_err_and(|why| why.contains("wants a value")));
    }
}
