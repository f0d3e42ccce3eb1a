//! The command `estafette`: lists devices, runs workloads, and reads traces.

mod bench;
mod demo;
mod devices;
mod report;

use std::process::ExitCode;

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
    Demo(demo::Arguments),
    Report(report::Arguments),
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    // Prints help, the version, or what is wrong, and exits with 0 or 2.
    let arguments = Arguments::parse();
    match run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("estafette: {}", shown(&error.to_string()));
            ExitCode::from(2)
        }
    }
}

fn run(command: Option<Command>) -> Result<(), Box<dyn std::error::Error>> {
    match command {
        None => Ok(Arguments::command().print_help()?),
        Some(Command::Devices) => devices::print(),
        Some(Command::Demo(arguments)) => demo::run(&arguments),
        Some(Command::Report(arguments)) => report::run(&arguments),
        Some(Command::Bench(arguments)) => bench::run(&arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::{Arguments, CommandFactory};

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
