//! Compiling and running C and C++ programs against an installed library.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;

pub const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

pub fn variable(name: &str) -> PathBuf {
    let value = std::env::var_os(name);
    value.unwrap_or_else(|| panic!("{name} is not set; run `cargo xtask test --suite c`")).into()
}

pub fn prefix() -> PathBuf {
    variable("ESTAFETTE_PREFIX")
}

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

/// A folder for what this test makes.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-{name}"));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

/// Runs a command that must succeed, and gives what it printed.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// A compiler for `source`, with this standard.
pub fn compiler(source: &Path, standard: &str) -> Command {
    let cpp = source.extension().is_some_and(|extension| extension == "cpp");
    let mut command = Command::new(if cpp { "g++" } else { "gcc" });
    command.args(WARNINGS).arg(format!("-std={standard}")).args(["-g", "-D_GNU_SOURCE", "-pthread"]);
    command.arg("-I").arg(prefix().join("include")).arg(source);
    command
}

/// gcc takes the header by itself in every standard. Suite `dist` gives all headers to clang.
pub fn compile_alone(header: &str, include: &Path) {
    let folder = scratch("alone");
    let c = ["c99", "c11", "c17", "c2x"];
    let cpp = ["c++11", "c++14", "c++17", "c++20", "c++23"];
    for (compiler, extension, standards) in [("gcc", "c", &c[..]), ("g++", "cpp", &cpp)] {
        let file = folder.join(header).with_extension(extension);
        std::fs::write(&file, format!("#include <{header}>\nint main(void) {{ return 0; }}\n"))
            .expect("writable");
        for standard in standards {
            let mut command = Command::new(compiler);
            command.args(WARNINGS).arg(format!("-std={standard}")).arg("-fsyntax-only");
            run(command.arg("-I").arg(include).arg(&file));
        }
    }
}

/// Links the shared library.
pub fn shared(command: &mut Command) -> &mut Command {
    let lib = prefix().join("lib");
    command.arg("-L").arg(&lib).arg("-lestafette").arg(format!("-Wl,-rpath,{}", lib.display()))
}

pub fn compile_and_run(name: &str, standard: &str, extra: &[&str]) -> String {
    let program = scratch(name).join(format!("{standard}{}", extra.len()));
    run(shared(compiler(&source(name), standard).args(extra)).arg("-o").arg(&program));
    run(&mut Command::new(program))
}

/// The tests that a program has run, one per line.
pub fn assert_ran(output: &str, tests: usize) {
    assert_eq!(output.lines().count(), tests, "{output}");
}
