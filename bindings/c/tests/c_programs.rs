//! Compiles and runs the C and C++ programs in `tests/c` against an installed library.
//!
//! `cargo xtask test --suite c` installs one and runs this, with `ESTAFETTE_PREFIX`, the place, and
//! `ESTAFETTE_DLPACK`, a folder with DLPack's own header. It is no part of a plain `cargo test`, which may
//! have no C++ compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

mod compile;

use compile::*;
use estafette_report::model::OperationKind;

/// The C side is instrumented, and both sides allocate through the sanitizer.
const SANITIZED: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// A program whose `tests` pass under AddressSanitizer. Suite `c-memcheck` runs those of this kind as they
/// are.
fn sanitized(name: &str, tests: usize) {
    assert_ran(&compile_and_run(name, "c11", SANITIZED), tests);
}

#[test]
fn hard_cases() {
    sanitized("hard_cases.c", 8);
}

#[test]
fn misuse_is_an_error() {
    sanitized("misuse.c", 9);
}

#[test]
fn waits() {
    assert_ran(&compile_and_run("waits.c", "c11", &[]), 10);
}

#[test]
fn foreign_fences() {
    sanitized("fences.c", 6);
}

#[test]
fn programs_and_their_replays() {
    assert_ran(&compile_and_run("replays.c", "c11", &[]), 4);
}

#[test]
fn every_other_call() {
    sanitized("calls.c", 19);
}

#[test]
fn failures_that_nothing_has_looked_at() {
    assert_ran(&compile_and_run("failures.c", "c11", &[]), 5);
}

#[test]
fn operators() {
    sanitized("operators.c", 6);
}

#[test]
fn links_to_another_process() {
    // Valgrind does not run this one.
    assert_ran(&compile_and_run("links.c", "c11", &[]), 14);
    sanitized("links.c", 14);
}

#[test]
fn tickets_for_another_process() {
    assert_ran(&compile_and_run("tickets.c", "c11", &[]), 3);
}

fn recorded(path: &Path) -> Vec<String> {
    let trace = estafette::trace::read(path).expect("a trace");
    assert!(trace.losses.is_empty(), "{:?}", trace.losses);
    let operations = trace.operations.iter().filter(|operation| operation.kind == OperationKind::Operation);
    let mut names: Vec<String> = operations.map(|operation| operation.name.to_string()).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn traces() {
    let folder = scratch("traces");
    let program = folder.join("traces");
    run(shared(compiler(&source("traces.c"), "c11").arg("-o").arg(&program)));
    let whole = folder.join("whole.pftrace");
    let output = run(Command::new(&program).arg(&folder).env("ESTAFETTE_TRACE", &whole));
    assert_ran(&output, 4);
    let logged =
        Command::new(&program).arg(&folder).env("RUST_LOG", "estafette=debug").output().expect("it starts");
    let logged = String::from_utf8_lossy(&logged.stderr);
    assert!(logged.contains("estafette: submitted id=") && logged.contains("operation=\"both\""), "{logged}");
    let of = |name: &str| recorded(&folder.join(name));
    assert_eq!((of("outer"), of("inner")), (vec!["both".to_owned(), "one".into()], vec!["both".to_owned()]));
    assert_eq!(of("snapshot"), ["first"]);
    assert_eq!(of("rolling.snapshot-1.pftrace"), ["late"]);
    // The variable's recording is beside the program's own.
    for name in ["one", "both", "first", "late", "after"] {
        assert!(recorded(&whole).contains(&name.to_owned()), "{name}");
    }
}

#[test]
fn the_wrapper_under_c_plus_plus_17() {
    assert_eq!(compile_and_run("wrapper.cpp", "c++17", &[]), "done\n");
}

#[test]
fn the_wrapper_under_c_plus_plus_20_has_coroutines_and_address_sanitizer_finds_nothing() {
    assert_eq!(compile_and_run("wrapper.cpp", "c++20", SANITIZED), "with coroutines\ndone\n");
}

#[test]
fn our_structs_are_those_of_dlpacks_own_header() {
    let folder = scratch("abi");
    let (ours, theirs) = (folder.join("ours"), folder.join("theirs"));
    run(compiler(&source("abi.c"), "c11").arg("-o").arg(&ours));
    run(compiler(&source("abi.c"), "c11")
        .args(["-DWITH_DLPACK", "-I"])
        .arg(variable("ESTAFETTE_DLPACK"))
        .arg("-o")
        .arg(&theirs));
    let (ours, theirs) = (run(&mut Command::new(ours)), run(&mut Command::new(theirs)));
    assert_eq!(ours, theirs);
    assert!(ours.lines().count() > 50, "{ours}");
}

#[test]
fn the_header_compiles_alone_in_every_standard() {
    compile_alone("estafette.h", &prefix().join("include"));
}

#[test]
fn only_our_names_are_exported() {
    let listed =
        run(Command::new("nm").args(["-D", "--defined-only"]).arg(prefix().join("lib/libestafette.so")));
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let strangers: Vec<_> = names.iter().filter(|name| !name.starts_with("estafette_")).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
    // And they are those of the header.
    let header = std::fs::read_to_string(prefix().join("include/estafette.h")).expect("installed");
    for name in &names {
        assert!(header.contains(&format!("{name}(")), "{name} is exported but not declared");
    }
    assert!(names.len() > 40, "{names:?}");
}

/// So much holds the code, with links and NIXL; debug lines would be many times that.
#[test]
fn the_shared_library_is_small_and_without_debug_lines() {
    const SIZE_MAX: u64 = 5_100_000;
    let library = prefix().join("lib/libestafette.so");
    let size = std::fs::metadata(&library).expect("installed").len();
    assert!(size < SIZE_MAX, "{} has {size} bytes", library.display());
    let sections = run(Command::new("readelf").args(["--section-headers", "--wide"]).arg(&library));
    assert!(sections.contains(".text") && !sections.contains(".debug_"), "{sections}");
}

#[test]
fn a_program_that_loads_copies_and_forks() {
    let program = scratch("embedding").join("embedding");
    run(compiler(&source("embedding.c"), "c11").arg("-ldl").arg("-o").arg(&program));
    let library = prefix().join("lib/libestafette.so");
    let copy = scratch("embedding").join("another.so");
    std::fs::copy(&library, &copy).expect("the library can be copied");
    assert_eq!(run(Command::new(program).arg(library).arg(copy)), "done\n");
}

#[test]
fn a_program_that_is_linked_statically() {
    let program = scratch("static").join("hard_cases");
    let mut command = compiler(&source("hard_cases.c"), "c11");
    command.arg(prefix().join("lib/libestafette.a")).args(["-ldl", "-lm", "-o"]).arg(&program);
    run(&mut command);
    assert_ran(&run(&mut Command::new(program)), 8);
}

fn blocks(page: &str) -> Vec<&str> {
    page.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// The first C block of the page.
fn first_program(folder: &Path) -> PathBuf {
    let file = folder.join("first.c");
    std::fs::write(&file, blocks(include_str!("../../../docs/c.md"))[0]).expect("writable");
    file
}

#[test]
fn the_program_of_the_page_on_operators() {
    let folder = scratch("operators-page");
    let (file, program) = (folder.join("page.c"), folder.join("page"));
    std::fs::write(&file, blocks(include_str!("../../../docs/operators.md"))[0]).expect("writable");
    run(shared(compiler(&file, "c11").arg("-Wno-unused-parameter")).arg("-o").arg(&program));
    assert_eq!(run(&mut Command::new(program)), "3\n");
}

/// They are fragments: what a program has around each is declared here.
#[test]
fn the_other_blocks_of_the_pages_compile() {
    let fragments = [
        (
            blocks(include_str!("../../../README.md")),
            "void part(DLManagedTensorVersioned *managed, DLFence fence, DLFence last_use, estafette_tensor *y, void *context, \
             void (*drop_context)(void *), void (*blur)(void *, estafette_op *)) {",
            "}",
        ),
        (
            blocks(include_str!("../../../docs/c.md")).split_off(1),
            "void part(estafette_engine *engine, void *model, estafette_tensor *x, estafette_tensor *y, \
             void (*forward)(void *, estafette_op *), void (*update)(void *, estafette_op *)) {",
            "}",
        ),
        // The structs are those of the header.
        (
            blocks(include_str!("../../../docs/proposal.md")),
            "typedef DLFence HeaderFence;\ntypedef DLManagedTensorFenced HeaderFenced;\n\
             #define DLFence PageFence\n#define DLManagedTensorFenced PageFenced",
            "_Static_assert(sizeof(PageFence) == sizeof(HeaderFence), \"\");\n\
             _Static_assert(sizeof(PageFenced) == sizeof(HeaderFenced), \"\");",
        ),
    ];
    for (number, (blocks, before, after)) in fragments.into_iter().enumerate() {
        assert!(!blocks.is_empty(), "page {number}");
        let block = blocks.join("\n");
        let file = scratch("fragments").join(format!("{number}.c"));
        std::fs::write(&file, format!("#include <estafette.h>\n{before}\n{block}\n{after}\n"))
            .expect("writable");
        run(compiler(&file, "c11").arg("-fsyntax-only"));
    }
}

/// By the page's own command, from a prefix where the system looks for no library.
#[test]
fn the_first_program_of_the_page_by_its_command() {
    let program = first_program(&scratch("page"));
    let page = include_str!("../../../docs/c.md");
    let line = page.lines().find(|line| line.starts_with("cc first.c")).expect("the page has a command");
    let mut command = Command::new("sh");
    command
        .env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"))
        .current_dir(program.parent().expect("a folder"));
    run(command.arg("-c").arg(line));
    assert_eq!(run(&mut Command::new(program.with_extension(""))), "30\n");
}

#[test]
fn the_first_program_of_the_page_by_cmake() {
    let folder = scratch("cmake");
    first_program(&folder);
    let project = "cmake_minimum_required(VERSION 3.18)\nproject(consumer C)\nfind_package(estafette 0.1 REQUIRED)\n\
                   foreach(kind estafette static)\n  add_executable(with_${kind} first.c)\n  \
                   target_link_libraries(with_${kind} PRIVATE estafette::${kind})\nendforeach()\n\
                   add_library(plugin MODULE first.c)\ntarget_link_libraries(plugin PRIVATE estafette::static)\n";
    std::fs::write(folder.join("CMakeLists.txt"), project).expect("writable");
    let build = folder.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&folder).arg("-B").arg(&build);
    run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["with_estafette", "with_static"] {
        assert_eq!(run(&mut Command::new(build.join(program))), "30\n");
    }
    // Its threads would run on in memory that `dlclose` has unmapped.
    let plugin = run(Command::new("readelf").arg("--dynamic").arg(build.join("libplugin.so")));
    assert!(plugin.contains("NODELETE"), "{plugin}");
    let mut linked = Command::new("pkg-config");
    linked.env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    assert!(run(linked.args(["--static", "--libs", "estafette"])).contains("-z,nodelete"));
}
