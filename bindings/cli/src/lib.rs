//! The command `estafette`: lists devices, runs workloads, and reads traces.
//!
//! The program of this package and the script of the Python package both call [`run`]. The latter is built
//! without the feature `bench`, as the workloads are not for users.

#[cfg(feature = "bench")]
mod bench;
mod demo;
mod devices;
mod report;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};
use estafette_report::shown::shown;

/// Orchestrates tensor exchange as a dependency graph.
#[derive(Parser)]
#[command(name = "estafette", version, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// List the devices that the engine finds here.
    Devices,
    Demo(demo::DemoArguments),
    Report(report::ReportArguments),
    #[cfg(feature = "bench")]
    Bench(bench::BenchArguments),
}

/// The exit code for wrong arguments or files.
const WRONG: u8 = 2;

/// Runs the command with its arguments, of which the first is its name, and returns the exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let outcome = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => execute(arguments.command),
        // Help, the version, or what is wrong.
        Err(message) => {
            if let Some(words) = of_the_other_package(&message) {
                eprintln!("estafette: {words}");
                return WRONG;
            }
            return message.print().map_or(WRONG, |()| message.exit_code().try_into().unwrap_or(WRONG));
        }
    };
    match outcome {
        Ok(()) => 0,
        // The reader has seen enough.
        Err(error)
            if error
                .downcast_ref()
                .is_some_and(|error: &io::Error| error.kind() == ErrorKind::BrokenPipe) =>
        {
            0
        }
        Err(error) => {
            eprintln!("estafette: {}", shown(&error.to_string()));
            WRONG
        }
    }
}

/// The message for a command that the Python package has alone, or that of Rust.
fn of_the_other_package(message: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(name)) = message.get(ContextKind::InvalidSubcommand) else { return None };
    match name.as_str() {
        "config" | "merge" | "observe" | "top" => Some(format!(
            "`{name}` is a command of the Python package: `python -m estafette {name}`, where that is installed"
        )),
        "bench" => Some(format!(
            "`{name}` is not in the Python package: `cargo run --release --bin estafette -- {name}` in the repository"
        )),
        _ => None,
    }
}

fn execute(command: Option<Command>) -> Result<(), Box<dyn std::error::Error>> {
    let out = &mut io::stdout();
    match command {
        None => Arguments::command().print_help()?,
        Some(Command::Devices) => devices::print(out)?,
        Some(Command::Demo(arguments)) => demo::run(&arguments, out)?,
        Some(Command::Report(arguments)) => report::run(&arguments, out)?,
        #[cfg(feature = "bench")]
        Some(Command::Bench(arguments)) => bench::run(&arguments, out)?,
    }
    // A program that is not Rust's does not flush at its end.
    Ok(out.flush()?)
}
