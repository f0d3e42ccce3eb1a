//! `cargo xtask install PREFIX`: the C library as C programs want it.
//!
//! This is no call of cargo-c, which packagers may use: cargo-c knows no CMake files, its pkg-config file
//! lacks one flag for static linking, and a new machine builds it for many minutes before the first test in
//! C.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::lint::source;
use crate::suites::TESTED;
use crate::{dist, shell};

/// Files and their places, from the folder of the C bindings.
const FILES: [(&str, &str); 5] = [
    ("include/estafette.h", "include/estafette.h"),
    ("include/estafette.hpp", "include/estafette.hpp"),
    ("../fence/include/dlpack_fence.h", "include/dlpack_fence.h"),
    ("install/estafetteConfig.cmake", "lib/cmake/estafette/estafetteConfig.cmake"),
    ("install/estafette.supp", "share/estafette/estafette.supp"),
];

const VERSIONED: [(&str, &str); 2] = [
    ("install/estafette.pc.in", "lib/pkgconfig/estafette.pc"),
    ("install/estafetteConfigVersion.cmake.in", "lib/cmake/estafette/estafetteConfigVersion.cmake"),
];

/// The names of the shared library: the file, what programs record, and what the linker looks for.
const SHARED: [&str; 3] = ["libestafette.so.0.1.0", "libestafette.so.0", "libestafette.so"];

/// Arguments that build the library. The Rust library that other packages of the workspace link to is left
/// out, as nothing can be optimized across it.
const BUILD: [&str; 6] = ["rustc", "--package", "estafette-c", "--lib", "--crate-type", "cdylib,staticlib"];

/// Arguments that build the library for tests alone: with everything that the Rust tests have compiled.
const BUILD_FOR_TESTS: [&str; 4] = ["build", "--lib", "--test", "c_programs"];

/// Builds the C library and installs it, with its headers and what pkg-config and CMake look for
#[derive(Debug, Args)]
pub struct InstallOptions {
    prefix: PathBuf,
    /// A profile of cargo; `dist` is small and optimized as a whole
    #[arg(long, default_value = "dist")]
    profile: String,
    /// As in a release: for systems with glibc 2.28 or newer
    #[arg(long, conflicts_with = "profile")]
    portable: bool,
}

/// Builds the library and installs it with its headers and what build systems look for.
pub fn run(options: &InstallOptions) -> Result<bool, String> {
    if options.portable {
        return run_portable(&options.prefix);
    }
    let target = shell::target()?;
    // The profile "dev" has a folder of another name.
    let (build, folder) = match &*options.profile {
        "dev" => ([&BUILD_FOR_TESTS, TESTED].concat(), "debug"),
        other => ([&BUILD[..], &["--profile", other]].concat(), other),
    };
    shell::run(&mut shell::cargo(&target, &build))?;
    copy_from(&target.join(folder), &options.prefix)
}

/// The library of a release: optimized as a whole, and linked for systems with an older C library.
pub fn run_portable(prefix: &Path) -> Result<bool, String> {
    let target = shell::target()?;
    shell::run(&mut build_portable(&target)?)?;
    copy_from(&target.join("dist"), prefix)
}

/// Builds the library of a release.
pub fn build_portable(target: &Path) -> Result<Command, String> {
    let rest = ["--profile", "dist", "--", "-C", &dist::linker()?];
    Ok(shell::cargo(target, &[&BUILD[..], &rest].concat()))
}

/// Installs the library that lies in `built`.
fn copy_from(built: &Path, prefix: &Path) -> Result<bool, String> {
    let bindings = shell::root().join("bindings/c");
    let version = env!("CARGO_PKG_VERSION");
    for (from, to) in FILES {
        copy(&bindings.join(from), &prefix.join(to))?;
    }
    for (from, to) in VERSIONED {
        let text = source::read(&bindings.join(from))?;
        write(&prefix.join(to), &text.replace("@VERSION@", version))?;
    }
    let lib = prefix.join("lib");
    copy(&built.join("libestafette_c.a"), &lib.join("libestafette.a"))?;
    copy(&built.join("libestafette_c.so"), &lib.join(SHARED[0]))?;
    for pair in SHARED.windows(2) {
        let link = lib.join(pair[1]);
        // An older one is replaced.
        let _ = fs::remove_file(&link);
        symlink(pair[0], &link).map_err(|error| format!("cannot link {}: {error}", link.display()))?;
    }
    println!("{}", prefix.display());
    Ok(true)
}

/// Copies a file, into folders that are made.
pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    make_room(to)?;
    // A library that a program has loaded must not change under it: the new one is another file.
    let _ = fs::remove_file(to);
    fs::copy(from, to)
        .map_err(|error| format!("cannot copy {} to {}: {error}", from.display(), to.display()))?;
    Ok(())
}

/// Writes a file, into folders that are made.
pub fn write(to: &Path, text: &str) -> Result<(), String> {
    make_room(to)?;
    fs::write(to, text).map_err(|error| format!("cannot write {}: {error}", to.display()))
}

/// Writes a program that the shell runs.
pub fn write_script(to: &Path, text: &str) -> Result<(), String> {
    write(to, text)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("cannot make {} executable: {error}", to.display()))
}

fn make_room(to: &Path) -> Result<(), String> {
    make_folder(to.parent().unwrap_or(to))
}

/// Makes a folder and those above it.
pub fn make_folder(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))
}
