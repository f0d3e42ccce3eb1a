//! `cargo xtask gpu`: the GPU suite of `tests/gpu`, here or packed for a machine without Rust.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use clap::Args;

use crate::install::copy;
use crate::lint::source;
use crate::peers::machine;
use crate::python::{Build, Environment, SMALL};
use crate::{dist, shell};

/// Limit of a package, so that it travels easily.
const PACKAGE_MIB_MAX: u64 = 64;
/// Status of `gpu-suite --probe` if there is no device.
const NO_DEVICE: i32 = 3;
/// The suite's kernels, which the Python files use as well.
const KERNELS: &str = "tests/gpu/src/kernels.ptx";
/// The Python files, for the suite and its package.
const FILES: &str = "tests/gpu/python";
/// The package of fences, which one of them uses.
const FENCES: &str = "bindings/fence/python/dlpack_fence";

/// Checks and figures on a real GPU, with the libraries of the machine's Python
///
/// Runs what the machine has, and skips the rest with the reason. Without a driver or device it says so.
#[derive(Debug, Default, Args)]
pub struct GpuOptions {
    /// Make a folder that does the same on a machine without Rust, by `sh run.sh` there
    #[arg(long, value_name = "FOLDER", conflicts_with = "only")]
    package: Option<PathBuf>,
    /// These steps, without a record in benches/results; `gpu-suite --help` has their names
    #[arg(long, value_name = "STEP,...")]
    only: Option<String>,
}

/// Runs the suite, or packs it; true when nothing failed.
pub fn run(options: &GpuOptions) -> Result<bool, String> {
    let target = shell::target()?;
    shell::run(&mut shell::cargo(&target, &["build", "--release", "--package", "estafette-gpu-suite"]))?;
    let suite = target.join("release").join("gpu-suite");
    match &options.package {
        Some(folder) => package(&suite, &device_tests(&target)?, folder).map(|()| true),
        None => run_here(&suite, &target, options),
    }
}

/// Builds the tests of CUDA devices, which the suite runs on the machine's driver. The path of their program.
fn device_tests(target: &Path) -> Result<PathBuf, String> {
    let test = ["test", "--release", "--package", "estafette-devices", "--test", "cuda", "--no-run"];
    let mut build = shell::cargo(target, &[&test[..], &["--message-format", "json"]].concat());
    program_in(&shell::output(build.stderr(Stdio::inherit()))?)
        .ok_or_else(|| "cargo does not say where the tests of CUDA devices are".to_owned())
}

/// The program that cargo's messages name last.
fn program_in(messages: &str) -> Option<PathBuf> {
    let messages = serde_json::Deserializer::from_str(messages).into_iter::<serde_json::Value>().flatten();
    messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).last()
}

fn run_here(suite: &Path, target: &Path, options: &GpuOptions) -> Result<bool, String> {
    // Without a device there is no reason to build the wheel.
    let mut probe = shell::command(suite);
    probe.arg("--probe");
    if status(probe)?.code() == Some(NO_DEVICE) {
        return Ok(true);
    }
    let wheel = Environment::prepare(SMALL)?.build_wheel(Build::Release)?;
    // The machine's own libraries, and our package beside them.
    let python = std::env::var("ESTAFETTE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let site = target.join("gpu-site");
    dist::remove_folder(&site)?;
    shell::run(shell::command(&python).args(["-m", "zipfile", "-e"]).args([&wheel, &site]))?;
    let mut command = shell::command(suite);
    command.args(["--files", FILES, "--python", &python]).env("PYTHONPATH", &site);
    command.arg("--tests").arg(device_tests(target)?);
    match &options.only {
        Some(steps) => command.args(["--only", steps]),
        // A record that is kept is of the whole suite.
        None => command.arg("--record").arg(format!("benches/results/{}-gpu.md", machine::date()?)),
    };
    Ok(status(command)?.success())
}

/// Programs, wheel and Python files in a folder with a script that runs them.
fn package(suite: &Path, tests: &Path, folder: &Path) -> Result<(), String> {
    let wheel = Environment::prepare(SMALL)?.build_wheel(Build::Release)?;
    let folder = &shell::root().join(folder);
    let python = folder.join("python");
    for (program, name) in [(suite, "gpu-suite"), (tests, "cuda-tests")] {
        let packed = folder.join(name);
        copy(program, &packed)?;
        shell::run(shell::command("strip").arg(&packed))?;
    }
    copy(&wheel, &folder.join(wheel.file_name().unwrap_or_default()))?;
    copy_python(FILES, &python)?;
    copy_python(FENCES, &python.join("dlpack_fence"))?;
    copy(&shell::root().join(KERNELS), &python.join("kernels.ptx"))?;
    let script = folder.join("run.sh");
    copy(&shell::root().join("tests/gpu/run.sh"), &script)?;
    let bytes = size(folder)?;
    println!(
        "{}: {:.1} MiB; `sh run.sh` there runs the suite",
        folder.display(),
        bytes as f64 / f64::from(1 << 20)
    );
    if bytes > PACKAGE_MIB_MAX << 20 {
        return Err(format!("the package is larger than {PACKAGE_MIB_MAX} MiB"));
    }
    Ok(())
}

fn copy_python(from: &str, to: &Path) -> Result<(), String> {
    let files = source::files(&shell::root().join(from), "py")?;
    files.iter().try_for_each(|file| copy(file, &to.join(file.file_name().unwrap_or_default())))
}

fn size(folder: &Path) -> Result<u64, String> {
    let unreadable = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let about = entry.metadata().map_err(unreadable)?;
        bytes += if about.is_dir() { size(&entry.path())? } else { about.len() };
    }
    Ok(bytes)
}

/// Status of a command whose failure says something.
fn status(mut command: Command) -> Result<ExitStatus, String> {
    command.status().map_err(|error| format!("cannot start {}: {error}", command.get_program().display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_tests_is_the_one_that_cargo_names_last() {
        let messages = r#"{"reason":"compiler-artifact","executable":null}
            {"reason":"compiler-artifact","executable":"/target/release/deps/cuda-1","fresh":true}
            {"reason":"build-finished","success":true}"#;
        assert_eq!(program_in(messages), Some("/target/release/deps/cuda-1".into()));
        assert_eq!(program_in("{}"), None);
    }

    #[test]
    fn a_package_is_whole() {
        assert!(crate::parse::<GpuOptions>(&["--package", "here"]).is_ok());
        assert!(crate::parse::<GpuOptions>(&["--package", "here", "--only", "races"]).is_err());
    }
}
