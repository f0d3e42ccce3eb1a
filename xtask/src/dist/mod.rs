//! `cargo xtask dist`: the release artifacts, in one folder, and a check of them as users take them.
//!
//! Nothing is published: CONTRIBUTING.md has the commands for that.

mod check;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::install;
use crate::lint::source;
use crate::pgo::Trained;
use crate::python::{DIST, Environment};
use crate::shell::{self, CommandEnd};

/// The crates that are published, each after those that it depends on.
pub const CRATES: [&str; 7] = [
    "estafette-sync",
    "estafette-graph",
    "estafette-devices",
    "estafette-links",
    "estafette-report",
    "estafette",
    "estafette-c",
];

const PYTHON: &str = "bindings/python/Cargo.toml";

/// Files that every `.crate` file must hold.
const IN_EACH_CRATE: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// The platform of the wheel, and with it of the C library: systems with glibc 2.28 or newer.
const PLATFORM: &str = "manylinux_2_28";
const GLIBC_MINOR: u32 = 28;
/// The same for zig's linker, which knows the symbols of every glibc.
const ZIG_TARGET: &str = "x86_64-linux-gnu.2.28";

/// Limit of the archive of the C library: it takes 5.54 MiB.
const C_BYTES_MAX: u64 = (5 << 20) + (5 << 17);

/// Limit of a tool whose output is read.
const TOOL_LIMIT: Duration = Duration::from_secs(10 * 60);

/// The time of every file in an archive, in seconds since 1970: the oldest that a wheel can hold, as it is a
/// zip file.
const FILE_TIME: &str = "315532800";

/// Makes the release artifacts, into target/artifacts, and publishes nothing
///
/// They are crates, Python wheel and source distribution, C library, checksums and an SBOM.
#[derive(Debug, Args)]
pub struct DistOptions {
    /// Take them as users do, in a folder outside of the repository
    #[arg(long)]
    check: bool,
    /// Make them twice, and compare them byte by byte
    #[arg(long, conflicts_with = "check")]
    compare: bool,
    /// Optimize the wheel by a profile of the Python benches: two builds, and it needs `llvm-profdata`
    #[arg(long, conflicts_with = "compare")]
    pgo: bool,
}

/// Makes the artifacts, and prints their folder.
pub fn run(options: &DistOptions) -> Result<bool, String> {
    let target = shell::target()?;
    let trained = options.pgo.then(Trained::prepare).transpose()?;
    let files = Files::make(&target, trained.as_ref())?;
    if options.check {
        check::run(&files, &target)?;
    }
    if options.compare {
        compare(&files, &target.join("again"))?;
    }
    println!("{}", files.folder.display());
    Ok(true)
}

/// Makes the artifacts in another target folder. A rebuilt release has the same bytes.
fn compare(files: &Files, target: &Path) -> Result<(), String> {
    shell::run(shell::command("cargo").args(["xtask", "dist"]).env("CARGO_TARGET_DIR", target))?;
    let sums = |folder: &Path| source::read(&folder.join("SHA256SUMS"));
    let (first, second) = (sums(&files.folder)?, sums(&target.join("artifacts"))?);
    if first == second {
        return Ok(());
    }
    let differs = |line: &&str| !second.lines().any(|other| other == *line);
    let differing: Vec<_> = first.lines().filter(differs).collect();
    Err(format!("made twice, these files differ:\n{}", differing.join("\n")))
}

/// Files that were made.
pub struct Files {
    pub folder: PathBuf,
    pub wheel: PathBuf,
    pub sdist: PathBuf,
    /// The C library, as it is installed, in a folder named after the file.
    pub c_library: PathBuf,
    /// The `.crate` files, in the order of [`CRATES`].
    pub crates: Vec<PathBuf>,
}

impl Files {
    fn make(target: &Path, trained: Option<&Trained>) -> Result<Self, String> {
        let folder = target.join("artifacts");
        // A folder that an earlier version left there must not be taken for this one.
        remove_folder(&folder)?;
        install::make_folder(&folder)?;
        let tools = Environment::prepare(DIST)?;
        let crates = crates(target, &folder)?;
        let sdist = sdist(&tools, &folder)?;
        let wheel = wheel(&folder, trained)?;
        let c_library = c_library(target, &folder)?;
        sbom::write(target, &folder)?;
        let mut sums = shell::command("sh");
        sums.args(["-c", "sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS ."]).current_dir(&folder);
        shell::run(&mut sums)?;
        Ok(Self { folder, wheel, sdist, c_library, crates })
    }
}

/// Packs the crates. A warning of cargo is a failure.
fn crates(target: &Path, folder: &Path) -> Result<Vec<PathBuf>, String> {
    // The check builds the packed crates; cargo would build them with no dependency built before.
    let mut package = shell::cargo(target, &["package", "--locked", "--allow-dirty", "--no-verify"]);
    CRATES.iter().for_each(|name| {
        package.args(["--package", name]);
    });
    let output = collect(package)?;
    if let Some(warning) = output.lines().find(|line| line.starts_with("warning")) {
        return Err(format!("cargo package: {warning}\n{output}"));
    }
    let mut packed = Vec::new();
    for name in CRATES {
        let file = format!("{name}-{}.crate", env!("CARGO_PKG_VERSION"));
        let to = folder.join(&file);
        install::copy(&target.join("package").join(&file), &to)?;
        let mut list = shell::command("tar");
        list.arg("-tzf").arg(&to);
        let listed = collect(list)?;
        let has = |wanted: &&str| {
            listed.lines().any(|path| path.split_once('/').is_some_and(|(_, path)| path == *wanted))
        };
        if let Some(lacking) = IN_EACH_CRATE.iter().find(|wanted| !has(wanted)) {
            return Err(format!("{file} has no {lacking}"));
        }
        packed.push(to);
    }
    Ok(packed)
}

fn sdist(tools: &Environment, folder: &Path) -> Result<PathBuf, String> {
    let mut pack = tools.command(&["-m", "maturin", "sdist", "--manifest-path", PYTHON, "--out"]);
    pack.arg(folder).env("SOURCE_DATE_EPOCH", FILE_TIME);
    shell::run(&mut pack)?;
    file_with(folder, ".tar.gz")
}

/// Builds the wheel into `folder`, linked for systems with an older C library.
pub fn wheel(folder: &Path, trained: Option<&Trained>) -> Result<PathBuf, String> {
    let (tools, target) = (Environment::prepare(DIST)?, shell::target()?);
    let mut build =
        tools.command(&["-m", "maturin", "build", "--profile", "wheel", "--compatibility", PLATFORM]);
    build.args(["--manifest-path", PYTHON, "--interpreter"]).arg(tools.python()).arg("--out").arg(folder);
    build.env("SOURCE_DATE_EPOCH", FILE_TIME).env("CARGO_TARGET_DIR", target);
    if let Some(trained) = trained {
        trained.apply(&mut build)?;
    }
    build.args(["--", "-C"]).arg(linker()?);
    shell::run(&mut build)?;
    let wheel = file_with(folder, ".whl")?;
    let mut audit = tools.command(&["-m", "auditwheel", "show"]);
    audit.arg(&wheel);
    match oldest_platform(&collect(audit)?) {
        Some(minor) if minor <= GLIBC_MINOR => Ok(wheel),
        found => {
            Err(format!("auditwheel finds glibc 2.{found:?} instead of 2.{GLIBC_MINOR}: {}", wheel.display()))
        }
    }
}

/// The C library with what build systems look for, as an archive.
fn c_library(target: &Path, folder: &Path) -> Result<PathBuf, String> {
    let name = format!("estafette-c-{}-{PLATFORM}_x86_64", env!("CARGO_PKG_VERSION"));
    let stage = target.join("c-library");
    remove_folder(&stage)?;
    install::run_portable(&stage.join(&name))?;
    // The static library has debug lines of the standard library, which are a third of it, and names that no
    // linker asks for.
    let mut strip = shell::command("strip");
    strip.arg("--strip-unneeded").arg(stage.join(&name).join("lib/libestafette.a"));
    shell::run(&mut strip)?;
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        install::copy(&shell::root().join(licence), &stage.join(&name).join(licence))?;
    }
    let archive = folder.join(format!("{name}.tar.gz"));
    let mut pack = shell::command("tar");
    pack.args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--use-compress-program=gzip -9 -n",
    ]);
    pack.arg(format!("--mtime=@{FILE_TIME}")).arg("-C").arg(&stage).arg("-cf").arg(&archive).arg(&name);
    shell::run(&mut pack)?;
    let bytes = fs::metadata(&archive).map_err(|error| format!("{}: {error}", archive.display()))?.len();
    if bytes > C_BYTES_MAX { Err(format!("{} has {bytes} bytes", archive.display())) } else { Ok(archive) }
}

/// Runs a command that must succeed, and returns its output.
fn collect(command: std::process::Command) -> Result<String, String> {
    let what = shell::describe(&command);
    println!("$ {what}");
    match shell::collect(command, TOOL_LIMIT)? {
        (CommandEnd::Exit(status), output) if status.success() => Ok(output),
        (ended, output) => Err(format!("`{what}`: {ended}\n{output}")),
    }
}

/// The second number of glibc in the platform that auditwheel finds. It breaks lines anywhere.
fn oldest_platform(said: &str) -> Option<u32> {
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, tag) = said.split_once("following platform tag: \"manylinux_2_")?;
    tag.split('_').next()?.parse().ok()
}

/// The one file in `folder` whose name ends like that.
pub fn file_with(folder: &Path, end: &str) -> Result<PathBuf, String> {
    let unreadable = |error| format!("cannot read {}: {error}", folder.display());
    fs::read_dir(folder)
        .map_err(unreadable)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().ends_with(end))
        .ok_or_else(|| format!("there is no *{end} in {}", folder.display()))
}

pub fn remove_folder(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot empty {}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// The compiler's option for zig as linker, by a script. maturin knows which arguments of rustc zig takes,
/// and looks for `python3 -m ziglang`.
///
/// zig would link an unwinder of its own into the library. A thread that ends by `pthread_exit`, as one does
/// that comes back to an interpreter that is gone, is unwound by the system's `libgcc_s`, which crashes in
/// functions of another one. So the system's is named by its path.
pub fn linker() -> Result<String, String> {
    let tools = Environment::prepare(DIST)?;
    let script = shell::target()?.join("zig-linker");
    let text = format!(
        "#!/bin/sh\nunwinder=$(gcc -print-file-name=libgcc_s.so.1)\nfor argument; do\n    shift\n    case $argument in\n    -lgcc_s) \
         set -- \"$@\" \"$unwinder\" ;;\n    *) set -- \"$@\" \"$argument\" ;;\n    esac\ndone\n\
         PATH='{}':$PATH exec python3 -m maturin zig cc -- -target {ZIG_TARGET} \"$@\"\n",
        tools.path().join("bin").display()
    );
    install::write_script(&script, &text)?;
    Ok(format!("linker={}", script.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_is_found_across_lines() {
        let said = "x.whl\nis consistent with the following platform\ntag: \"manylinux_2_17_x86_64\".\n";
        assert_eq!(oldest_platform(said), Some(17));
        assert_eq!(oldest_platform("following platform tag: \"linux_x86_64\""), None);
    }
}
