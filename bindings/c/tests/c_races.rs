//! Findings of valgrind's race detectors in a program that uses the installed library;
//! `cargo xtask test --suite c-memcheck` runs this.

use std::path::{Path, PathBuf};
use std::process::Command;

fn prefix() -> PathBuf {
    let prefix = std::env::var_os("ESTAFETTE_PREFIX");
    prefix.expect("ESTAFETTE_PREFIX is not set; run `cargo xtask test --suite c-memcheck`").into()
}

/// Compiles `orders.c`, with the race in it if `planted`.
fn compile(planted: bool) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join(if planted { "orders-planted" } else { "orders" });
    let lib = prefix().join("lib");
    let mut command = Command::new("gcc");
    command.args(["-std=c11", "-D_GNU_SOURCE", "-g", "-pthread", "-I"]).arg(prefix().join("include"));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/orders.c")).arg("-L").arg(&lib);
    command.arg("-lestafette").arg(format!("-Wl,-rpath,{}", lib.display()));
    if planted {
        command.arg("-DPLANTED");
    }
    let status = command.arg("-o").arg(&program).status().expect("gcc starts");
    assert!(status.success(), "{command:?}: {status}");
    program
}

/// True if the tool found nothing; and its output.
fn check(tool: &str, program: &Path) -> (bool, String) {
    let mut command = Command::new("valgrind");
    command.arg(format!("--tool={tool}")).args(["--fair-sched=yes", "--error-exitcode=99"]);
    let suppressions = prefix().join("share/estafette/estafette.supp");
    command.arg(format!("--suppressions={}", suppressions.display())).arg(program);
    let output = command.output().expect("valgrind starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(0) => (true, said),
        Some(99) => (false, said),
        _ => panic!("{command:?}: {}\n{said}", output.status),
    }
}

#[test]
fn what_the_engine_orders_is_no_race() {
    let program = compile(false);
    for tool in ["helgrind", "drd"] {
        let (clean, said) = check(tool, &program);
        assert!(clean, "{said}");
    }
}

#[test]
fn a_race_of_the_program_itself_is_found_and_nothing_else() {
    let program = compile(true);
    for (tool, says, place) in [
        ("helgrind", "Possible data race", "data symbol \"planted\""),
        ("drd", "Conflicting", "BSS section of"),
    ] {
        let (clean, said) = check(tool, &program);
        assert!(!clean, "{tool} did not find the race:\n{said}");
        let found = said.matches(says).count();
        assert!(found > 0 && said.matches(place).count() == found, "{tool} found something else:\n{said}");
    }
}
