//! Fuzz targets under libFuzzer, with the coverage of an instrumented build as feedback.
//!
//! The compiler of the stable toolchain instruments by LLVM's own pass; libFuzzer comes with the crate
//! `libfuzzer-sys`. Both are built into a target folder of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::{dist, install, shell};

/// Every target; `tests/src/fuzz` has them.
pub const TARGETS: [&str; 4] = ["c-abi", "traces", "arrow", "operators"];

/// A counter for each edge, a table of their places, and the operands of comparisons.
const INSTRUMENTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Inputs are not longer: short ones run faster, and say more about a failure.
const LENGTH_MAX: usize = 4096;

/// Runs the fuzz targets under libFuzzer, which needs a C++ compiler
#[derive(Debug, Args)]
pub struct FuzzOptions {
    #[arg(value_name = "TARGET", default_values = TARGETS, value_parser = PossibleValuesParser::new(TARGETS))]
    targets: Vec<String>,
    /// Seconds for which each target looks for new inputs, after the kept ones
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Add what reaches new code to tests/fuzz, the fewest inputs that do
    #[arg(long)]
    keep: bool,
    /// Run one input of one target instead
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

/// Builds the targets and runs those asked for, one after the other. True when none failed.
pub fn run(options: &FuzzOptions) -> Result<bool, String> {
    if options.input.is_some() && options.targets.len() != 1 {
        return Err("--input needs one target".into());
    }
    let target = shell::target()?;
    shell::run(&mut build(&target)?)?;
    let (target, host) = (target.join("fuzz"), host()?);
    let program = target.join(&host).join("checked/fuzz");
    let mut failed = Vec::new();
    for name in &options.targets {
        let outcome = match &options.input {
            Some(input) => shell::run(of(&program, name).arg(input)),
            None => Session::new(&target, &program, name)?.run(options),
        };
        failed.extend(outcome.err());
    }
    Ok(shell::passed(&failed))
}

/// Builds the targets, into a folder of their own. With a target triple, so that build scripts, which have no
/// libFuzzer, are not instrumented.
fn build(target: &Path) -> Result<Command, String> {
    let setting = "profile.checked.package.estafette-report.opt-level=3";
    let arguments =
        ["build", "--profile", "checked", "--config", setting, "--package", "tests", "--bin", "fuzz"];
    let mut command = shell::cargo(&target.join("fuzz"), &arguments);
    command.args(["--features", "libfuzzer", "--target", &host()?]).env("RUSTFLAGS", INSTRUMENTED);
    Ok(command)
}

/// Target of the compiler.
pub fn host() -> Result<String, String> {
    let mut rustc = shell::command(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let about = shell::output(rustc.arg("-vV"))?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| format!("rustc does not say what it compiles for: {about}"))
}

/// The program for one target. Freed memory is overwritten, so that a use of it shows.
fn of(program: &Path, name: &str) -> Command {
    let mut command = shell::command(program);
    command.env("ESTAFETTE_FUZZ_TARGET", name).env("MALLOC_PERTURB_", "165");
    command.args(["-timeout=60", "-rss_limit_mb=4096"]);
    command
}

struct Session<'a> {
    program: &'a Path,
    name: &'a str,
    /// The repository's.
    kept: PathBuf,
    /// Inputs that runs have found so far.
    work: PathBuf,
    failing: PathBuf,
    scratch: PathBuf,
}

fn folder(path: PathBuf) -> Result<PathBuf, String> {
    install::make_folder(&path)?;
    Ok(path)
}

/// Names that libFuzzer gives are hashes; the others say what an input is kept for.
fn is_hash(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.len() == 40 && name.chars().all(|letter| letter.is_ascii_hexdigit()))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(wrong)?;
    entries.map(|entry| Ok(entry.map_err(wrong)?.path())).collect()
}

impl<'a> Session<'a> {
    fn new(target: &Path, program: &'a Path, name: &'a str) -> Result<Self, String> {
        Ok(Self {
            program,
            name,
            kept: folder(shell::root().join("tests/fuzz").join(name))?,
            work: folder(target.join("work").join(name))?,
            failing: folder(target.join("failing").join(name))?,
            scratch: target.join("scratch").join(name),
        })
    }

    fn run(&self, options: &FuzzOptions) -> Result<(), String> {
        let mut command = of(self.program, self.name);
        command.arg(format!("-max_total_time={}", options.seconds)).arg(format!("-max_len={LENGTH_MAX}"));
        command.args(["-print_final_stats=1", "-use_value_profile=1"]);
        command.arg(format!("-artifact_prefix={}/", self.failing.display()));
        command.args([&self.work, &self.kept]);
        let fuzzed = shell::run(&mut command).map_err(|message| {
            format!(
                "{message}; the input is in {}: `cargo xtask fuzz {} --input FILE`",
                self.failing.display(),
                self.name
            )
        });
        if options.keep && fuzzed.is_ok() { self.keep() } else { fuzzed }
    }

    /// Replaces the kept inputs that have no name by the fewest that reach every edge that was reached so
    /// far.
    fn keep(&self) -> Result<(), String> {
        dist::remove_folder(&self.scratch)?;
        let fewest = folder(self.scratch.clone())?;
        let copy =
            |from: &Path, to: &Path| install::copy(from, &to.join(from.file_name().unwrap_or_default()));
        let (hashes, named): (Vec<_>, Vec<_>) =
            files(&self.kept)?.into_iter().partition(|path| is_hash(path));
        named.iter().try_for_each(|path| copy(path, &fewest))?;
        let mut merge = of(self.program, self.name);
        merge.args(["-merge=1", "-use_counters=0"]).args([&fewest, &self.kept, &self.work]);
        shell::run(&mut merge)?;
        for path in hashes {
            std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let found: Vec<_> = files(&fewest)?.into_iter().filter(|path| is_hash(path)).collect();
        found.iter().try_for_each(|path| copy(path, &self.kept))?;
        println!("{}: {} inputs with a name and {} others are kept", self.name, named.len(), found.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_target_all_of_them_run() {
        let options: FuzzOptions = crate::parse(&["--seconds", "7"]).unwrap();
        assert_eq!((options.targets.len(), options.seconds, options.keep), (TARGETS.len(), 7, false));
        let options: FuzzOptions = crate::parse(&["--input", "x"]).unwrap();
        assert!(run(&options).is_err_and(|why| why.contains("one target")));
        let unknown = crate::parse::<FuzzOptions>(&["teapots"]).unwrap_err();
        assert!(unknown.to_string().contains("traces"), "{unknown}");
    }

    #[test]
    fn the_names_of_inputs_that_fuzzing_found_are_hashes() {
        assert!(is_hash(Path::new("tests/fuzz/arrow/06a5651f728cbacbc05b13d350defec17e0b9a19")));
        assert!(!is_hash(Path::new("tests/fuzz/c-abi/found-01-cleared-without-data.bin")));
    }
}
