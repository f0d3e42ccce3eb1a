//! Chores of the project, one entry for all of them: `cargo xtask help`.
//!
//! It knows how to set up, build, check and package; it never holds logic of the engine. It compiles in seconds, since a chore that
//! does gets used.

mod api;
mod counts;
mod dist;
mod fuzz;
mod gpu;
mod install;
mod instructions;
mod links;
mod lint;
mod peers;
mod python;
mod requirements;
mod shell;
mod site;
mod suites;
mod test;

use std::process::ExitCode;

use dist::Then;

const HELP: &str = "\
Chores of Estafette.

usage: cargo xtask <command> [options]

commands
  test [--all] [--require] [--suite NAME...]
               set up what is missing, run the suites, end with one line per suite
                 --all      every suite, with all Python peers (JAX, PyTorch, TensorFlow and others); else the quick ones
                 --require  a skipped suite or test is a failure, unless its reason starts with \"no GPU\"
                 --suite    only the named suites
  suites       list the suites and what each needs
  lint [--counted]
               formatting, clippy and rustdoc, with warnings denied; the listings of `api`; what is counted of layers and words may
               only fall
                 --counted  only what is counted, without the compiler
  api [--save] compare the listings of the public interfaces in docs/api (Rust, C, Python) with the sources
                 --save     replace them
  fuzz [TARGET...] [--seconds N] [--keep] [--input FILE]
               run the fuzz targets (c-abi, recordings, arrow, operators) under libFuzzer with coverage; needs a C++ compiler
                 --seconds  how long each target runs (60); 0: the kept inputs only
                 --keep     add what reaches new code to tests/fuzz, the fewest inputs that do
                 --input    run one input of one target instead
  instructions [--save]
               count the instructions of an operation with valgrind, for some workloads of `estafette bench`
                 --save     append them to benches/results/instructions.md
  wheel        build the Python wheel and print its path
  venv [--all]
               make or update the private Python environment with the wheel in it, and print its path
  requirements [--upgrade]
               lock what the Python environments are made from: NAME.in in tests/python-env and benches/peers becomes NAME.txt
               with all that is installed and the hashes of its files
                 --upgrade  what NAME.in does not pin gets its newest version
  install PREFIX [--profile NAME | --portable]
               build the C library and install it there, with its headers and what pkg-config and CMake look for
                 --profile  a profile of cargo (dist: small, optimized as a whole)
                 --portable as in a release: for systems with glibc 2.28 or newer
  dist [--check | --compare]
               make the release artifacts, into target/artifacts: crates, Python wheel and source distribution, C library,
               checksums, SBOM. Publishes nothing
                 --check    take them as users do, in a folder outside of the repository
                 --compare  make them twice, and compare them byte by byte
  site         make the documents and references into a site of plain files, in target/site, that needs no network to be read
  peers [--rounds R] [--only PEER,...] [--workloads NAME,...] [--check] [--install] [--save]
               run the benches' workloads on our engine and on GCC and LLVM OpenMP, StarPU, oneTBB and MXNet's engine,
               interleaved, and print tables of both; a peer that cannot be built is reported as missing
                 --rounds     how often every engine runs each workload (5)
                 --only       these peers; ours is always there
                 --workloads  these workloads
                 --check      measure nothing; compare each peer's result with the sequential one
                 --install    install the Debian packages that the peers need (apt-get, as root)
                 --save       write the tables to benches/results/DATE-peers.md
  links [--python PATH] [--save]
               measure tensors that go to other processes, beside multiprocessing, PyTorch, ZeroMQ, Arrow, Ray and Dask, and print each
               goal as met or missed; minutes, on a machine that does nothing else
                 --python   an interpreter that has the package and the peers, instead of an environment that is made for it
                 --save     write the tables to benches/results/DATE-links.md
  gpu [--only STEP,...]
               checks and figures on a real GPU, with the libraries of the machine's Python: what is there is run, the rest is
               skipped with the reason; writes benches/results/DATE-gpu.md. Without a driver or device it says so
                 --only       these steps, without a record; `gpu-suite --help` has their names
  gpu --package FOLDER
               the same as a folder for a machine without Rust: `sh run.sh` there runs it
  help         this text

environment
  ESTAFETTE_PYTHON   the Python interpreter (3.11 or newer) to make the environment with; for `gpu`, the one to run with
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(true)
        }
        ["test", rest @ ..] => test::Options::parse(rest).and_then(|options| test::run(&options)),
        ["suites"] => {
            suites::list();
            Ok(true)
        }
        ["lint"] => lint::run(),
        ["lint", "--counted"] => lint::run_counted(),
        ["api"] => api::run(false),
        ["api", "--save"] => api::run(true),
        ["fuzz", rest @ ..] => fuzz::Options::parse(rest).and_then(|options| fuzz::run(&options)),
        ["instructions"] => instructions::run(false),
        ["instructions", "--save"] => instructions::run(true),
        ["peers", rest @ ..] => peers::Options::parse(rest).and_then(|options| peers::run(&options)),
        ["links", rest @ ..] => links::Options::parse(rest).and_then(|options| links::run(&options)),
        ["gpu", rest @ ..] => gpu::Options::parse(rest).and_then(|options| gpu::run(&options)),
        ["install", prefix] => install::run(prefix, "dist"),
        ["install", prefix, "--profile", profile] => install::run(prefix, profile),
        ["dist"] => dist::run(Then::Keep),
        ["dist", "--check"] => dist::run(Then::Check),
        ["dist", "--compare"] => dist::run(Then::Compare),
        ["install", prefix, "--portable"] => install::run_portable(prefix),
        ["requirements"] => requirements::run(false),
        ["requirements", "--upgrade"] => requirements::run(true),
        ["site"] => site::run(),
        ["wheel"] => wheel(),
        ["venv"] => venv(python::Peers::Small),
        ["venv", "--all"] => venv(python::Peers::All),
        other => Err(format!("cannot make sense of `{}`; see `cargo xtask help`", other.join(" "))),
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

fn wheel() -> Result<bool, String> {
    let environment = python::Environment::prepare(python::Peers::Small)?;
    println!("{}", environment.build_wheel(python::Build::Release)?.display());
    Ok(true)
}

fn venv(peers: python::Peers) -> Result<bool, String> {
    let environment = python::Environment::prepare(peers)?;
    environment.install_wheel(python::Build::Release)?;
    println!("{}", environment.path().display());
    Ok(true)
}
