//! `dlpack_fence.h` by itself, the two libraries of `examples/fences`, and the checks for adopters: on those
//! libraries, on mutants of them, each of which is caught, and on Estafette.
//!
//! `cargo xtask test --suite c` runs this, as it runs `c_programs`.

use std::path::{Path, PathBuf};
use std::process::Command;

mod compile;

use compile::*;

const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A compiler for programs of `examples/fences`, which sees nothing of Estafette.
fn gcc(files: &[PathBuf]) -> Command {
    let mut command = Command::new("gcc");
    command.args(WARNINGS).args(["-std=c11", "-g", "-D_GNU_SOURCE", "-pthread"]);
    for folder in ["bindings/fence/include", "bindings/fence/check", "examples/fences"] {
        command.arg("-I").arg(root().join(folder));
    }
    command.args(files);
    command
}

fn example(name: &str) -> PathBuf {
    root().join("examples/fences").join(name)
}

fn checks() -> PathBuf {
    root().join("bindings/fence/check/dlpack_fence_check.c")
}

/// Output of a program of these files, with and without sanitizers.
fn run_files(name: &str, files: &[PathBuf], with_estafette: bool) -> [String; 2] {
    [&[][..], &SANITIZERS].map(|sanitizers| {
        let program = scratch("fences").join(format!("{name}{}", sanitizers.len()));
        let mut command = gcc(files);
        command.args(sanitizers).arg("-o").arg(&program).arg("-ldl");
        if with_estafette {
            shared(command.arg("-I").arg(prefix().join("include")));
        }
        run(&mut command);
        run(&mut Command::new(program))
    })
}

#[test]
fn the_header_compiles_in_every_standard_and_is_short() {
    let include = root().join("bindings/fence/include");
    let text = std::fs::read_to_string(include.join("dlpack_fence.h")).expect("the header is there");
    assert!(text.lines().count() < 300, "{} lines", text.lines().count());
    compile_alone("dlpack_fence.h", &include);
}

#[test]
fn two_libraries_exchange_without_estafette() {
    for out in run_files("alone", &["alone.c", "pool.c", "reader.c"].map(example), false) {
        assert_ran(&out, 5);
    }
}

#[test]
fn two_libraries_exchange_through_estafette() {
    for out in run_files("through", &["through.c", "pool.c", "reader.c"].map(example), true) {
        assert_ran(&out, 3);
    }
}

/// Every check passes, and none is missing.
fn assert_kept(out: &str, checks: usize) {
    assert_eq!(out.lines().filter(|line| line.starts_with("ok ")).count(), checks, "{out}");
}

#[test]
fn the_libraries_keep_the_rules() {
    let files = [example("check_libraries.c"), checks(), example("pool.c"), example("reader.c")];
    for out in run_files("check_libraries", &files, false) {
        assert_kept(&out, 15 + 8 + 8);
    }
}

#[test]
fn estafette_keeps_the_rules() {
    for out in run_files("check_estafette", &[example("check_estafette.c"), checks()], true) {
        assert_kept(&out, 15 + 8);
    }
}

/// A library that breaks a rule: a file, what is in it and what becomes of that, and a check that fails then.
struct Mutant(&'static str, &'static str, &'static str, &'static str);

const MUTANTS: [Mutant; 24] = [
    // Producers.
    Mutant(
        "pool.c",
        "  made->uses = 0;\n",
        "  made->uses = 0;\n  dlpack_fence_flag_settle(&made->flag, DLPACK_FENCE_DONE, NULL);\n",
        "late_readiness",
    ),
    Mutant("pool.c", "settle(self, self->status, self->text);", "settle(self, 0, NULL);", "failure"),
    Mutant(
        "pool.c",
        "  if (dlpack_fence_query(done) == DLPACK_FENCE_DONE) return DLPACK_FENCE_DONE;\n",
        "  if (done) return DLPACK_FENCE_DONE;\n",
        "a_write_waits_for_the_consumers_fence",
    ),
    Mutant("pool.c", "  dlpack_fence_retain(&after);\n", "", "two_consumers"),
    Mutant(
        "pool.c",
        "      dlpack_fence_release(&next->after);\n",
        "",
        "a_write_waits_for_the_consumers_fence",
    ),
    Mutant(
        "pool.c",
        "if (before->uses) before->writer",
        "if (0) before->writer",
        "a_write_waits_for_the_deleter",
    ),
    Mutant("pool.c", "--content->uses == 0", "--content->uses <= 1", "two_consumers"),
    Mutant(
        "pool.c",
        "int last = --tensor->holders == 0",
        "int last = --tensor->holders <= 1",
        "late_readiness",
    ),
    Mutant("pool.c", "  push(&owner->polled, added);\n", "", "a_consumers_fence_that_is_polled"),
    Mutant(
        "pool.c",
        "if (self->status == DLPACK_FENCE_DEVICE) {",
        "if (self->status != DLPACK_FENCE_DONE) {",
        "a_consumers_work_that_fails_ends_its_use",
    ),
    Mutant(
        "pool.c",
        "if (self->status == DLPACK_FENCE_DEVICE) {",
        "if (self->status > 0) {",
        "memory_is_not_released_after_a_fault_of_a_device",
    ),
    Mutant(
        "pool.c",
        "  use_over(self->tensor, self->version);\n  task_free(self);\n}\n\nstatic int32_t add_done",
        "  if (self->status != DLPACK_FENCE_DEVICE) use_over(self->tensor, self->version);\n  task_free(self);\n}\n\nstatic \
         int32_t add_done",
        "a_write_after_a_fault_of_a_device_begins",
    ),
    Mutant(
        "pool.c",
        "  self->status = status;\n",
        "  self->status = status;\n  dlpack_fence_release(&self->after);\n",
        "a_write_waits_for_the_consumers_fence",
    ),
    Mutant(
        "pool.c",
        "  made->raw.ready = tensor->now->fence;\n",
        "  made->raw.ready = tensor->now->fence;\n  made->raw.ready.retain = made->raw.ready.release = NULL;\n",
        "a_retained_fence_outlives_its_tensor",
    ),
    Mutant(
        "pool.c",
        "static void deleter(DLManagedTensorVersioned *raw) {\n",
        "#include <unistd.h>\nstatic void deleter(DLManagedTensorVersioned *raw) {\n  if (gettid() != getpid()) return;\n",
        "other_threads",
    ),
    Mutant(
        "pool.c",
        "DLManagedTensorFenced *pool_export(pool_tensor *tensor) {\n",
        "#include <unistd.h>\nstatic pid_t home;\nstatic int32_t stuck(void *context) {\n  while (home != getpid()) usleep(1);\n  \
         return dlpack_fence_flag_query_(context);\n}\nDLManagedTensorFenced *pool_export(pool_tensor *tensor) {\n  \
         home = getpid();\n  tensor->now->fence.query = stuck;\n",
        "a_forked_child",
    ),
    // Consumers.
    Mutant(
        "reader.c",
        "int32_t status = wait_for(&self->ready);",
        "int32_t status = 0;",
        "a_tensor_that_is_ready_late",
    ),
    Mutant(
        "reader.c",
        "      made->kept = NULL;\n",
        "      made->kept = NULL;\n      dlpack_fence_flag_settle(made->done, DLPACK_FENCE_DONE, NULL);\n",
        "a_tensor_that_is_ready_late",
    ),
    Mutant(
        "reader.c",
        "      tensor->managed.deleter(&tensor->managed);\n",
        "",
        "a_tensor_that_is_ready_already",
    ),
    Mutant("reader.c", "  if (status < 0) {\n", "  if (status < -100) {\n", "a_tensor_that_fails"),
    Mutant("reader.c", "  dlpack_fence_retain(&made->ready);\n", "", "a_tensor_that_is_ready_late"),
    Mutant(
        "reader.c",
        "    dlpack_fence_flag_settle(self->done, DLPACK_FENCE_DONE, NULL);\n",
        "",
        "a_fence_that_only_answers",
    ),
    Mutant(
        "reader.c",
        "if (tensor->add_done(tensor, &made->done_fence) == DLPACK_FENCE_DONE) {",
        "if (tensor->add_done(tensor, &made->done_fence) <= DLPACK_FENCE_PENDING) {",
        "a_producer_that_accepts_no_fence",
    ),
    Mutant(
        "reader.c",
        "if (!(tensor->fence_flags & DLPACK_FENCE_DESCRIBED_LATE)) {",
        "if (tensor) {",
        "a_tensor_that_is_described_late",
    ),
];

#[test]
fn every_mutant_is_caught_by_its_check() {
    let object = scratch("mutants").join("checks.o");
    run(gcc(&[checks()]).arg("-c").arg("-o").arg(&object));
    let numbered: Vec<(usize, &Mutant)> = MUTANTS.iter().enumerate().collect();
    // Most checks of a mutant wait until their patience is over.
    std::thread::scope(|scope| {
        for part in numbered.chunks(6) {
            let object = &object;
            scope.spawn(move || {
                part.iter().for_each(|(number, mutant)| assert_caught(*number, mutant, object))
            });
        }
    });
}

/// `object` is what the checks were compiled to.
fn assert_caught(number: usize, Mutant(file, from, to, check): &Mutant, object: &Path) {
    let folder = scratch(&format!("mutant-{number}"));
    let text = std::fs::read_to_string(example(file)).expect("the example is there");
    assert!(text.matches(from).count() >= 1, "{file} has no `{from}`");
    std::fs::write(folder.join(file), text.replacen(from, to, 1)).expect("writable");
    let whole = if *file == "pool.c" { "reader.c" } else { "pool.c" };
    let program = folder.join("checks");
    let files = [example("check_libraries.c"), object.to_path_buf(), folder.join(file), example(whole)];
    let mut compile = gcc(&files);
    compile.args(["-Wno-error", "-w"]).arg("-o").arg(&program);
    // Freed memory that this mutant uses may look right.
    if *check == "a_retained_fence_outlives_its_tensor" {
        compile.args(SANITIZERS);
    }
    run(&mut compile);
    let mut checking = Command::new(&program);
    // A mutant may wait for ever.
    checking.env("DLPACK_FENCE_PATIENCE_MS", "1000").env("DLPACK_FENCE_ONLY", check);
    let output = checking.output().expect("it can be started");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "mutant {number} of {file} passes");
    let caught = out.lines().any(|line| line == format!("FAILED  {check}"));
    assert!(caught, "mutant {number} of {file} is not caught by {check}:\n{out}");
}
