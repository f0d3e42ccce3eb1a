//! Profile-guided optimization of the Python wheel: a wheel that counts what runs is built and run, and what
//! it counted says to the compiler which branches are taken, what is worth inlining and which code belongs
//! together. The way is that of the rustc book.
//!
//! Counts of threads are never the same twice, so such a wheel cannot be made twice with the same bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dist::{file_with, remove_folder};
use crate::fuzz::host;
use crate::python::{Build, Environment, SMALL};
use crate::shell;

/// Workloads while the wheel counts: each call of the package, in the form that is measured too.
const TRAINING: &[&str] = &["benches/python/bench.py", "--rounds", "1"];

/// Flags for the compiler that optimize by a profile, and the target folder to build in with them.
pub struct Trained {
    flags: String,
    target: PathBuf,
}

impl Trained {
    /// Builds the wheel that counts, runs it, and sums up what it counted.
    pub fn prepare() -> Result<Self, String> {
        let merge = profdata()?;
        let target = shell::target()?.join("pgo");
        let (counts, profile, wheels) =
            (target.join("counts"), target.join("wheel.profdata"), target.join("wheels"));
        remove_folder(&counts)?;
        remove_folder(&wheels)?;
        let environment = Environment::prepare(SMALL)?;
        let counting = Self { flags: format!("-Cprofile-generate={}", counts.display()), target };
        let mut build = environment.wheel_command(Build::Release, &wheels)?;
        counting.apply(&mut build)?;
        shell::run(&mut build)?;
        // Not installed: whatever imported it later would count too.
        let site = wheels.join("site");
        let mut unpack = environment.command(&["-m", "zipfile", "-e"]);
        unpack.args([&file_with(&wheels, ".whl")?, &site]);
        shell::run(&mut unpack)?;
        shell::run(environment.command(TRAINING).env("PYTHONPATH", &site))?;
        shell::run(shell::command(merge).args(["merge", "--output"]).arg(&profile).arg(&counts))?;
        Ok(Self { flags: format!("-Cprofile-use={}", profile.display()), ..counting })
    }

    /// Adds the flags to a build by maturin. With a target named, cargo builds what only runs at build time
    /// without the flags.
    pub fn apply(&self, build: &mut Command) -> Result<(), String> {
        build.args(["--target", &host()?]);
        build.env("RUSTFLAGS", &self.flags).env("CARGO_TARGET_DIR", &self.target);
        Ok(())
    }
}

/// `llvm-profdata` of the compiler's LLVM: rustup's, or the system's of the same version.
fn profdata() -> Result<PathBuf, String> {
    let about = shell::output(shell::command("rustc").arg("-vV"))?;
    let version = about.lines().find_map(|line| line.strip_prefix("LLVM version: "));
    let major =
        version.and_then(|version| version.split('.').next()).ok_or("rustc -vV names no LLVM version")?;
    let sysroot = shell::output(shell::command("rustc").args(["--print", "sysroot"]))?;
    let of_rustup = Path::new(sysroot.trim()).join("lib/rustlib").join(host()?).join("bin/llvm-profdata");
    let of_system = PathBuf::from(format!("llvm-profdata-{major}"));
    [of_rustup, of_system].into_iter().find(|path| shell::answers(&path.to_string_lossy(), &["--version"])).ok_or_else(
        || {
            format!(
                "there is no llvm-profdata of LLVM {major}, which the compiler has: `rustup component add llvm-tools`, or on Debian \
                 `apt-get install llvm-{major}`"
            )
        },
    )
}
