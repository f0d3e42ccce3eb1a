//! Ranges of NVTX: a program that knows nothing of profilers, under one that `tests/nvtx/injection.c` stands
//! for.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::Folder;

fn injection(folder: &Path) -> PathBuf {
    let library = folder.join("libinjection.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/nvtx/injection.c");
    let options = ["-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", "-o"];
    assert!(Command::new(compiler).args(options).arg(&library).arg(source).status().unwrap().success());
    library
}

/// Runs the program, and returns what the profiler got. It says nothing on its standard error stream.
fn ranges(folder: &Path, injection: &Path, more: &[(&str, &str)]) -> String {
    let file = folder.join("ranges");
    let mut program = Command::new(env!("CARGO_BIN_EXE_recorded"));
    program
        .arg("returns")
        .env("NVTX_INJECTION64_PATH", injection)
        .env("RANGES", &file)
        .envs(more.iter().copied());
    let output = program.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let ranges = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    ranges
}

#[test]
fn bodies_are_ranges_with_the_names_of_their_operations() {
    let folder = Folder::new("ranges");
    let injection = injection(&folder.0);
    let expected =
        format!("domain estafette\n{}{}", "0 first numbered\n".repeat(10), "0 second numbered\n".repeat(10));
    assert_eq!(ranges(&folder.0, &injection, &[]), expected);
    // A trace notes what it notes otherwise.
    let trace = folder.0.join("run.pftrace");
    assert_eq!(ranges(&folder.0, &injection, &[("ESTAFETTE_TRACE", trace.to_str().unwrap())]), expected);
    let noted = estafette::trace::read(&trace).unwrap().operations;
    assert_eq!(noted.iter().filter(|operation| operation.name == "first").count(), 10);
}

#[test]
fn a_program_runs_without_ranges_where_the_profiler_cannot_be_loaded_or_refuses() {
    let folder = Folder::new("no-ranges");
    let injection = injection(&folder.0);
    assert_eq!(ranges(&folder.0, &injection, &[("RANGES_REFUSED", "1")]), "");
    assert_eq!(ranges(&folder.0, Path::new(""), &[]), "");
    assert_eq!(ranges(&folder.0, Path::new("/nowhere/libinjection.so"), &[]), "");
    let no_profiler = folder.0.join("libempty.so");
    std::fs::write(&no_profiler, "no library").unwrap();
    assert_eq!(ranges(&folder.0, &no_profiler, &[]), "");
}
