//! The release artifacts as users take them: in a new folder outside of the repository, where nothing of the
//! repository is found.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::{CRATES, Files, collect, file_with, remove_folder};
use crate::install::{self, make_folder, write};
use crate::peers::measurement::Spread;
use crate::python::{ALL, DIST, Environment};
use crate::shell;
use crate::suites::{TESTED, blocks, python_examples};

/// The size of the wheel stays below this number of bytes, and so does the size of the package once it is
/// installed.
const WHEEL_BYTES_MAX: u64 = 15 << 20;
const INSTALLED_BYTES_MAX: u64 = 15 << 20;
/// Number of measured imports.
const IMPORTS: usize = 5;
/// The manifest of a program of a user, with what the README's example needs.
const USER: &str = "[package]\nname = \"user\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n\
                    estafette = \"0.1.0\"\ntokio = { version = \"1\", features = [\"macros\", \"rt-multi-thread\"] }\n\n[workspace]\n";
const README: &str = include_str!("../../../README.md");

/// Runs every check; the folder is left behind when one fails.
pub fn run(files: &Files, target: &Path) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("estafette-dist-{}", std::process::id()));
    make_folder(&folder)?;
    println!("in {}", folder.display());
    wheel(files, &folder)?;
    sdist(files, &folder, target)?;
    crates(files, &folder)?;
    c_library(files, &folder, target)?;
    remove_folder(&folder)
}

/// The wheel in a new environment: the README's example, and the command on what the example recorded. No
/// program is in `PATH`, so no compiler either.
fn wheel(files: &Files, folder: &Path) -> Result<(), String> {
    let bytes =
        fs::metadata(&files.wheel).map_err(|error| format!("{}: {error}", files.wheel.display()))?.len();
    if bytes > WHEEL_BYTES_MAX {
        return Err(format!("{} has {bytes} bytes", files.wheel.display()));
    }
    // Its peers are gigabytes; the new environment finds those of the suites, after its own packages.
    let peers = Environment::prepare(ALL)?;
    let venv = folder.join("venv");
    shell::run(peers.command(&["-m", "venv"]).arg(&venv))?;
    let python = venv.join("bin/python");
    let within = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).env_clear().env("PATH", "").env("HOME", folder);
        peers.name_opencl(&mut command);
        command
    };
    let wheel = files.wheel.to_string_lossy();
    let before = Instant::now();
    shell::run(&mut within(&python, &["-m", "pip", "install", "--quiet", "--no-index", &wheel]))?;
    let install = before.elapsed();
    let (major, minor) = peers.version()?;
    let own = venv.join(format!("lib/python{major}.{minor}/site-packages"));
    write(&own.join("peers.pth"), &format!("{}\n", peers.packages()?.display()))?;
    // An import starts no thread, and is of the new environment.
    let import = "import os, estafette as est; assert est.__file__.startswith(os.getcwd()), est.__file__; \
                  assert os.listdir('/proc/self/task') == [str(os.getpid())]";
    shell::run(&mut within(&python, &["-c", import]))?;
    // The times are shown and judged by people: a busy machine takes longer.
    let mut imports = Vec::new();
    for _ in 0..IMPORTS {
        let said = collect(within(&python, &["-X", "importtime", "-c", "import estafette"]))?;
        imports.push(import_us(&said)? as f64);
    }
    let import = Spread::of(imports).expect("it was measured");
    let size = within(&python, &["-c", INSTALLED_BYTES]);
    let installed: u64 =
        collect(size)?.trim().parse().map_err(|error| format!("the installed size: {error}"))?;
    if installed > INSTALLED_BYTES_MAX {
        return Err(format!("{installed} bytes are installed"));
    }
    println!(
        "the wheel: {:.1} MB, {:.1} MB installed in {:.1} s by pip; an import takes {:.1} ms (median of {IMPORTS})",
        bytes as f64 / 1e6,
        installed as f64 / 1e6,
        install.as_secs_f64(),
        import.median / 1e3
    );
    shell::run(within(&python, &["-c", &python_examples(README)]).env("ESTAFETTE_TRACE", "readme.pftrace"))?;
    let command = venv.join("bin/estafette");
    let devices = collect(within(&command, &["devices"]))?;
    expect(&devices, "cpu:0")?;
    let report = collect(within(&command, &["report", "readme.pftrace"]))?;
    expect(&report, "sqrt")
}

/// A program that prints the bytes of the package's files.
const INSTALLED_BYTES: &str = "import importlib.metadata as m; \
                               print(sum(f.locate().stat().st_size for f in m.files('estafette-engine')))";

/// The microseconds that the import of the package and of all that it imports took, as `-X importtime` says
/// it.
fn import_us(said: &str) -> Result<u64, String> {
    let line =
        said.lines().find(|line| line.split('|').next_back().is_some_and(|name| name.trim() == "estafette"));
    let cumulative = line.and_then(|line| line.split('|').nth(1)).and_then(|time| time.trim().parse().ok());
    cumulative.ok_or_else(|| format!("no time of `estafette` in\n{said}"))
}

/// The source distribution, built by pip as pip does it, and imported.
fn sdist(files: &Files, folder: &Path, target: &Path) -> Result<(), String> {
    let python = folder.join("venv/bin/python");
    let (built, unpacked) = (folder.join("from-sdist"), folder.join("from-sdist/unpacked"));
    let mut build = Command::new(&python);
    build.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir", "--wheel-dir"]).arg(&built);
    build.arg(&files.sdist).current_dir(folder);
    // Optimizing shows nothing more of the sources.
    build.env("MATURIN_PEP517_ARGS", "--profile dev --features shared-build").env("CARGO_TARGET_DIR", target);
    build.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    shell::run(&mut build)?;
    let wheel = file_with(&built, ".whl")?;
    shell::run(Command::new(&python).args(["-m", "zipfile", "-e"]).args([&wheel, &unpacked]))?;
    let mut import = Command::new(&python);
    let program = "import os, estafette as est; assert est.__file__.startswith(os.environ['PYTHONPATH']); \
                   eng = est.Engine(workers=1); assert bytes(eng.zeros(2, 'int8')) == b'\\0\\0'";
    import.args(["-c", program]).current_dir(folder).env("PYTHONPATH", &unpacked);
    shell::run(&mut import)
}

/// A new crate that depends on the packed ones. Cargo takes them, and everything that they depend on, from a
/// folder that stands for the registry: with their checksums and without a network.
fn crates(files: &Files, folder: &Path) -> Result<(), String> {
    let (user, registry) = (folder.join("user"), folder.join("registry"));
    make_folder(&user.join("src"))?;
    let program = blocks(README, "rust").next().ok_or("the README has no Rust example")?;
    write(&user.join("src/main.rs"), program)?;
    write(&user.join("Cargo.toml"), USER)?;
    // The versions that everything else was tested with.
    install::copy(&shell::root().join("Cargo.lock"), &user.join("Cargo.lock"))?;
    let cargo = |arguments: &[&str]| {
        let mut command = shell::cargo(&user.join("target"), arguments);
        command.current_dir(&user);
        command
    };
    // First what the packed crates depend on, with the packed crates as folders that are theirs; then the
    // packed crates.
    let mut vendor = cargo(&["vendor", "--quiet", "--versioned-dirs"]);
    vendor.arg(&registry);
    for (name, file) in CRATES.iter().zip(&files.crates) {
        shell::run(Command::new("tar").arg("-xzf").arg(file).current_dir(folder))?;
        let unpacked = folder.join(file.file_stem().unwrap_or_default());
        vendor.arg("--config").arg(format!("patch.crates-io.{name}.path={:?}", unpacked));
    }
    collect(vendor)?;
    for file in &files.crates {
        shell::run(Command::new("tar").arg("-xzf").arg(file).current_dir(&registry))?;
        let mut sum = Command::new("sha256sum");
        sum.arg(file);
        let sum = collect(sum)?;
        let sum = sum.split(' ').next().unwrap_or_default();
        let checksums = registry.join(file.file_stem().unwrap_or_default()).join(".cargo-checksum.json");
        write(&checksums, &format!(r#"{{"files":{{}},"package":"{sum}"}}"#))?;
    }
    let mut run = cargo(&["run", "--offline", "--config", r#"source.crates-io.replace-with="artifacts""#]);
    run.arg("--config").arg(format!("source.artifacts.directory={registry:?}"));
    // Debug information shows nothing more of the crates.
    run.env("CARGO_PROFILE_DEV_DEBUG", "0");
    shell::run(&mut run)
}

/// The archive of the C library: the program of `docs/c.md` by pkg-config and by CMake, and the size of the
/// library.
fn c_library(files: &Files, folder: &Path, target: &Path) -> Result<(), String> {
    shell::run(Command::new("tar").arg("-xzf").arg(&files.c_library).current_dir(folder))?;
    let name = files.c_library.file_name().unwrap_or_default().to_string_lossy();
    let prefix = folder.join(name.trim_end_matches(".tar.gz"));
    clang(&prefix.join("include"), folder)?;
    let mut test = shell::cargo(target, &[&["test", "--test", "c_programs"], TESTED].concat());
    test.args(["--", "the_first_program_of_the_page", "the_shared_library_is_small"])
        .env("ESTAFETTE_PREFIX", prefix);
    expect(&collect(test)?, "3 passed")
}

/// The headers in clang, which zig contains. The suite of C compiles each alone with gcc.
fn clang(include: &Path, folder: &Path) -> Result<(), String> {
    const C: &[&str] = &["c99", "c11", "c17", "c23"];
    const CPP: &[&str] = &["c++11", "c++14", "c++17", "c++20", "c++23"];
    // The wrapper is for C++17 and newer.
    let headers = "#include \"dlpack_fence.h\"\n#include \"estafette.h\"\n#if defined(__cplusplus) && __cplusplus >= 201703L\n\
                   #include \"estafette.hpp\"\n#endif\nint main(void) { return 0; }\n";
    let tools = Environment::prepare(DIST)?;
    for (compiler, file, standards) in [("cc", "header.c", C), ("c++", "header.cpp", CPP)] {
        let source = folder.join(file);
        write(&source, headers)?;
        for standard in standards {
            let mut command = tools.command(&["-m", "ziglang", compiler, &format!("-std={standard}")]);
            command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c", "-o", "header.o", "-I"]);
            shell::run(command.current_dir(folder).arg(include).arg(&source))
                .map_err(|error| format!("the headers as {standard}: {error}"))?;
        }
    }
    Ok(())
}

fn expect(output: &str, part: &str) -> Result<(), String> {
    if output.contains(part) { Ok(()) } else { Err(format!("`{part}` is missing in\n{output}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_package_is_that_with_all_it_imports() {
        let said = "import time: self [us] | cumulative | imported package\nimport time:  10 |  20 |   estafette._estafette\n\
                    import time:       300 |       1234 | estafette\n";
        assert_eq!(import_us(said), Ok(1234));
        assert!(import_us("import time: 1 | 2 | os").is_err());
    }
}
