//! Chores of the project, one entry for all of them: `cargo xtask help`.
//!
//! It knows how to set up, build, check and package; it never holds logic of the engine. It compiles in
//! seconds, since a chore that does gets used.

mod api;
mod counts;
mod dist;
mod fuzz;
mod gpu;
mod install;
mod instructions;
mod links;
mod lint;
mod mutants;
mod peers;
mod pgo;
mod python;
mod requirements;
mod shell;
mod site;
mod suites;
mod test;

use std::process::ExitCode;

use clap::Parser;

/// Chores of Estafette; each has its own `--help`
#[derive(Debug, Parser)]
#[command(
    bin_name = "cargo xtask",
    after_help = "ESTAFETTE_PYTHON names the Python interpreter (3.11 or newer) to make the environment with; for `gpu`, the one to run with"
)]
enum Chore {
    Test(test::TestOptions),
    /// Lists the suites and what each needs
    Suites,
    /// Formatting, clippy and rustdoc, with warnings denied; the listings of `api`; what is counted of layers
    /// and words may only fall
    Lint {
        /// Only what is counted, without the compiler
        #[arg(long)]
        counted: bool,
    },
    /// Compares the listings of the public interfaces in docs/api (Rust, Python) with the sources
    Api {
        /// Replace them
        #[arg(long)]
        save: bool,
    },
    Fuzz(fuzz::FuzzOptions),
    /// Counts the instructions of an operation with valgrind, for some workloads of `estafette bench`
    Instructions {
        /// Append them to benches/results/instructions.md
        #[arg(long)]
        save: bool,
    },
    /// Builds the Python wheel and prints its path
    Wheel {
        /// Optimize it by a profile of the Python benches: two builds, and it needs `llvm-profdata`
        #[arg(long)]
        pgo: bool,
    },
    /// Makes or updates the private Python environment with the wheel in it, and prints its path
    Venv {
        /// With all Python peers
        #[arg(long)]
        all: bool,
    },
    /// Locks what the Python environments are made from
    ///
    /// NAME.in in tests/python-env and benches/peers becomes NAME.txt, with all that is installed and the
    /// hashes of its files.
    Requirements {
        /// Packages that NAME.in does not pin get their newest version
        #[arg(long)]
        upgrade: bool,
    },
    Install(install::InstallOptions),
    Dist(dist::DistOptions),
    /// Makes the documents and references into a site of plain files, in target/site, that needs no network
    /// to be read
    Site,
    Peers(peers::PeersOptions),
    Links(links::LinksOptions),
    /// Puts faults into a copy of the crate of links, each of which a test must catch
    Mutants,
    Gpu(gpu::GpuOptions),
}

fn main() -> ExitCode {
    let outcome = match Chore::parse() {
        Chore::Test(options) => test::run(&options),
        Chore::Suites => {
            suites::list();
            Ok(true)
        }
        Chore::Lint { counted: true } => lint::run_counted(),
        Chore::Lint { counted: false } => lint::run(),
        Chore::Api { save } => api::run(save),
        Chore::Fuzz(options) => fuzz::run(&options),
        Chore::Instructions { save } => instructions::run(save),
        Chore::Wheel { pgo } => wheel(pgo),
        Chore::Venv { all } => venv(if all { python::ALL } else { python::SMALL }),
        Chore::Requirements { upgrade } => requirements::run(upgrade),
        Chore::Install(options) => install::run(&options),
        Chore::Dist(options) => dist::run(&options),
        Chore::Site => site::run(),
        Chore::Peers(options) => peers::run(&options),
        Chore::Links(options) => links::run(&options),
        Chore::Mutants => mutants::run(),
        Chore::Gpu(options) => gpu::run(&options),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn wheel(pgo: bool) -> Result<bool, String> {
    let environment = python::Environment::prepare(python::SMALL)?;
    let trained = pgo.then(pgo::Trained::prepare).transpose()?;
    println!("{}", environment.build_wheel_by(python::Build::Release, trained.as_ref())?.display());
    Ok(true)
}

fn venv(contents: python::Contents) -> Result<bool, String> {
    let environment = python::Environment::prepare(contents)?;
    environment.install_wheel(python::Build::Release)?;
    println!("{}", environment.path().display());
    Ok(true)
}

/// The options of a chore, from what follows its name.
#[cfg(test)]
fn parse<O: clap::Args>(arguments: &[&str]) -> Result<O, clap::Error> {
    let command = O::augment_args(clap::Command::new("chore").no_binary_name(true));
    O::from_arg_matches(&command.try_get_matches_from(arguments)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_in_order() {
        <super::Chore as clap::CommandFactory>::command().debug_assert();
    }
}
