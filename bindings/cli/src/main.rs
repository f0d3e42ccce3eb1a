//! The command `estafette`: looks at devices and shows the engine at work. Everything it does is the library's doing.

mod bench;
mod demo;
mod devices;
mod report;

use std::process::ExitCode;

use estafette_report::shown::shown;
use lexopt::prelude::*;

const USAGE: &str = "\
estafette: orchestrates tensor exchange as a dependency graph

usage: estafette <command>

commands:
  devices            list the devices that the engine finds here
  demo [--tensors N] stream N tensors (default 1000) through a small graph and show what was waited for
  report FILE [--short] [--json] [--width N] [--html OUT] [--chrome OUT]
                     say who waited for whom in a recording, and why; --html and --chrome also write it to OUT
  report --diff A B [--json] [--width N]
                     compare two recordings
  bench NAME [--n N] [--workers W] [--body NS] [--rounds R] [--json] [--trace]
                     measure a workload, or each of a group: N operations with bodies of NS nanoseconds on W workers
                     (0: the submitting thread runs everything), R times after one run to warm up; with --trace
                     while stalls are recorded
  bench --list       list the workloads
  help               print this text";

fn main() -> ExitCode {
    match run(lexopt::Parser::from_env()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("estafette: {}", shown(&error.to_string()));
            ExitCode::from(2)
        }
    }
}

fn run(mut arguments: lexopt::Parser) -> Result<(), Box<dyn std::error::Error>> {
    let Some(first) = arguments.next()? else {
        println!("{USAGE}");
        return Ok(());
    };
    match first {
        Value(command) if command == "devices" => {
            nothing_more(&mut arguments)?;
            devices::print()
        }
        Value(command) if command == "demo" => {
            let mut tensors = demo::TENSORS_DEFAULT;
            while let Some(option) = arguments.next()? {
                match option {
                    Long("tensors") => tensors = arguments.value()?.parse()?,
                    other => return Err(other.unexpected().into()),
                }
            }
            demo::run(tensors)
        }
        Value(command) if command == "bench" => bench::run(&mut arguments),
        Value(command) if command == "report" => report::run(&mut arguments),
        Value(command) if command == "help" => {
            println!("{USAGE}");
            Ok(())
        }
        Long("help") | Short('h') => {
            println!("{USAGE}");
            Ok(())
        }
        Long("version") | Short('V') => {
            println!("estafette {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        Value(command) => Err(format!("no command `{}`; try `estafette help`", command.display()).into()),
        other => Err(other.unexpected().into()),
    }
}

fn nothing_more(arguments: &mut lexopt::Parser) -> Result<(), lexopt::Error> {
    match arguments.next()? {
        None => Ok(()),
        Some(argument) => Err(argument.unexpected()),
    }
}
