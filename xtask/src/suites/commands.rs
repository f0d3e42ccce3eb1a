//! The commands of suites that need more than a line.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{CHECKED, MODELS, PORTABLE, SuiteContext, TESTED, configured};
use crate::python::BORROWED;
use crate::{fuzz, shell};

/// Makes the simulator the driver that a program finds, by its path and by the driver's names.
pub(super) fn play_the_driver(context: &SuiteContext, command: &mut Command) {
    let simulator = context.target.join("debug/libestafette_cuda_sim.so");
    let folder = context.target.join("simulated-driver");
    // The program reports a link that cannot be made: it finds no simulator there.
    let _ = std::fs::create_dir_all(&folder);
    for name in ["libcuda.so", "libcuda.so.1"] {
        let link = folder.join(name);
        let _ = std::fs::remove_file(&link);
        let _ = std::os::unix::fs::symlink(&simulator, link);
    }
    command.env("ESTAFETTE_CUDA_SIM", simulator).env("LD_LIBRARY_PATH", folder);
}

/// Builds the two frameworks with the C interface in the wheel, and runs the relay.
pub(super) fn delegate(context: &SuiteContext) -> Vec<Command> {
    let build = context.target.join("delegate");
    let mut configure = shell::command("cmake");
    configure.args(["-S", "examples/delegate", "-DCMAKE_BUILD_TYPE=Release", "-B"]).arg(&build);
    let environment = context.python();
    let package = environment.packages().map(|packages| packages.join("estafette/cmake"));
    // CMake says that it does not find the package.
    configure.arg(format!("-Destafette_DIR={}", package.unwrap_or_default().display()));
    let mut compile = shell::command("cmake");
    compile.arg("--build").arg(&build);
    let program = build.join("libdelegate.so");
    vec![configure, compile, python(context, &["examples/delegate/delegate.py", &program.to_string_lossy()])]
}

/// nextest where it is installed, as it runs tests in parallel across binaries; else plain `cargo test`.
pub(super) fn rust_tests(target: &Path, extra: &[&str]) -> Command {
    let runner: &[&str] = if shell::answers("cargo", &["nextest", "--version"]) {
        &["nextest", "run", "--tests", "--no-fail-fast", "--no-tests=fail"]
    } else {
        &["test", "--tests", "--no-fail-fast"]
    };
    cargo(target, runner, &[TESTED, extra].concat())
}

/// The models are built optimized, as a checker runs each of them many thousand times.
pub(super) fn models(target: &Path, checker: &str, quick: bool) -> Vec<Command> {
    let chosen = MODELS.iter().filter(|model| model.checker == checker);
    let chosen = chosen.map(|model| if quick { model.quick() } else { *model });
    // The simulation is built for shuttle as well, with the checks of a test build.
    let test: &[&str] = if checker == "shuttle" { &["test"] } else { &["test", "--profile", "model"] };
    // Other unit tests use the same primitives, which exist inside of a model only.
    chosen.map(|model| model.cargo(target, test, &["--", "--skip", "tests::"])).collect()
}

/// Tests of the adapter of candle, `which` of them, built without optimization as most of their time is the
/// compiler's.
pub(super) fn candle(target: &Path, which: &str) -> Command {
    let config = ["test", "--config", "profile.dev.opt-level=0"];
    let package = ["--package", "estafette", "--features", "candle", which, "candle"];
    cargo(target, &config, &package)
}

pub(super) fn portable(target: &Path) -> Command {
    configured("estafette_portable", target, &PORTABLE.split_whitespace().collect::<Vec<_>>())
}

/// Links with hostile peers, instrumented. The stable compiler has the sanitizer and its runtime, and leaves
/// the flag to nightly ones; AddressSanitizer of the C compiler sees no access of Rust code. With a target
/// triple, so that build scripts and macros are not instrumented, and without optimization, as most of the
/// time is the compiler's.
pub(super) fn sanitized_links(target: &Path) -> [Command; 2] {
    // A host that the compiler does not name is one that cargo refuses.
    let host = fuzz::host().unwrap_or_default();
    let first = ["test", "--config", "profile.dev.opt-level=0", "--target", &host, "--package"];
    let hostile = ["estafette", "--no-default-features", "--features", "links", "--test", "hostile_peers"];
    // The kills are of honest peers.
    [&["estafette-links", "--lib", "--", "--skip", "deaths"][..], &hostile].map(|rest| {
        let mut tests = cargo(&target.join("asan"), &first, rest);
        tests.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
        tests
    })
}

/// Random programs and random steps, with many seeds.
pub(super) fn random(target: &Path) -> [Command; 2] {
    [("oracle", "20"), ("who_may_run", "100")].map(|(file, seeds)| {
        let mut command = cargo(target, &["test"], &[CHECKED, &["--test", "random", file]].concat());
        command.env("ESTAFETTE_SEEDS", seeds);
        command
    })
}

/// Builds the optimized programs of several suites.
pub(super) fn checked(target: &Path) -> Command {
    cargo(target, &["build"], &[CHECKED, &["--examples", "--bin", "churn", "--bin", "scale"]].concat())
}

pub(super) fn memcheck() -> Command {
    let mut command = shell::command("valgrind");
    // Without fair scheduling, threads that spin for each other starve under valgrind's single lock.
    command.args([
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
        "--show-leak-kinds=definite",
        "--fair-sched=yes",
    ]);
    command
}

fn c_prefix(context: &SuiteContext) -> PathBuf {
    context.target.join("c-prefix")
}

/// This very program, so that a run by hand is the same.
pub(super) fn this_program(arguments: &[&str]) -> Command {
    let this = std::env::current_exe().unwrap_or_else(|_| "cargo-xtask-that-cannot-be-found".into());
    let mut command = shell::command(this);
    command.args(arguments);
    command
}

fn install_c(context: &SuiteContext) -> Command {
    let mut command = this_program(&["install"]);
    command.arg(c_prefix(context));
    // In full the library of a release.
    if context.quick {
        command.args(["--profile", "dev"])
    } else {
        command.arg("--portable")
    };
    command
}

pub(super) fn c_programs(context: &SuiteContext) -> Vec<Command> {
    let environment = context.python();
    // The compiler reports a folder that cannot be found, as a missing header.
    let packages = environment.packages().unwrap_or_default();
    let mut programs =
        cargo(&context.target, &["test", "--test", "c_programs", "--test", "c_fences"], TESTED);
    programs.env("ESTAFETTE_PREFIX", c_prefix(context));
    programs.env("ESTAFETTE_DLPACK", packages.join("tvm_ffi/include"));
    if context.quick {
        // The skipped test checks the library of a release.
        programs.args(["--", "--skip", "the_shared_library_is_small"]);
    }
    vec![install_c(context), programs]
}

/// The C programs that need nothing but the library, compiled and run under valgrind.
pub(super) fn c_memcheck(context: &SuiteContext) -> Vec<Command> {
    let prefix = c_prefix(context);
    let mut commands = vec![install_c(context)];
    let programs = ["hard_cases", "misuse", "fences", "calls", "failures", "operators"]
        .map(|name| (name, format!("bindings/c/tests/c/{name}.c")));
    let examples = ["alone", "through"].map(|name| (name, format!("examples/fences/{name}.c")));
    for (name, source) in programs.into_iter().chain(examples) {
        let program = prefix.join(name);
        let mut compile = shell::command("gcc");
        compile.args(["-std=c11", "-D_GNU_SOURCE", "-g", "-pthread", "-I"]).arg(prefix.join("include"));
        compile.arg(&source);
        if source.starts_with("examples") {
            compile.args(["examples/fences/pool.c", "examples/fences/reader.c"]);
        }
        compile.arg("-L").arg(prefix.join("lib"));
        // `alone` uses nothing of the library, and shows that its absence is not noticed.
        compile
            .arg("-Wl,--as-needed")
            .arg("-lestafette")
            .arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
        compile.arg("-o").arg(&program);
        let mut check = memcheck();
        check.arg(format!("--suppressions={}", prefix.join("share/estafette/estafette.supp").display()));
        check.arg("--errors-for-leak-kinds=definite,possible").arg(&program);
        commands.extend([compile, check]);
    }
    let mut races = cargo(&context.target, &["test", "--test", "c_races"], TESTED);
    races.env("ESTAFETTE_PREFIX", &prefix);
    commands.push(races);
    commands
}

pub(super) fn python(context: &SuiteContext, arguments: &[&str]) -> Command {
    context.python().command(arguments)
}

/// The Python tests that `arguments` name.
pub(super) fn pytest(context: &SuiteContext, arguments: &[&str]) -> Command {
    python(context, &[&["-m", "pytest", "-rfEs"], arguments].concat())
}

/// Python tests of the files that a trace becomes; first the files. Their program is built as the Rust tests
/// are, where the report is optimized.
pub(super) fn looks_at_reports(context: &SuiteContext) -> Vec<Command> {
    let samples = context.target.join("report-samples");
    let mut write = shell::command(context.target.join("debug/examples/made_up"));
    write.arg(&samples);
    let mut look = pytest(context, &["report/tests/python"]);
    look.env("ESTAFETTE_REPORT_SAMPLES", samples);
    vec![built(context, &["--example", "made_up"]), write, look]
}

/// Other people's tests of DLPack, on our tensors. What deviates is listed beside the plugin.
pub(super) fn borrowed(context: &SuiteContext) -> Vec<Command> {
    let environment = context.python();
    let run = |role: &str, packages: Result<PathBuf, String>, test: &str| {
        // pytest reports a folder that cannot be found, as a missing file.
        let test = packages.unwrap_or_default().join(test);
        let mut command = pytest(context, &["-p", "borrowed", "--noconftest"]);
        command.args(["-p", "no:cacheprovider", "--rootdir=bindings/python/borrowed", "--role", role]);
        command.arg(test).env("PYTHONPATH", shell::root().join("bindings/python/borrowed"));
        command
    };
    let numpy = "numpy/_core/tests/test_dlpack.py";
    let mut commands =
        vec![run("producer", environment.packages(), numpy), run("middleman", environment.packages(), numpy)];
    if !context.quick {
        let usm = "dpnp/tests/tensor/test_usm_ndarray_dlpack.py";
        commands.push(run("usm-middleman", environment.packages(), usm));
        let cupy = "dpnp/tests/third_party/cupy/core_tests/test_dlpack.py";
        commands.push(run("host-cupy", context.environment(BORROWED).packages(), cupy));
    }
    commands
}

/// Builds what the Rust tests are made of, and of that `what`.
pub(super) fn built(context: &SuiteContext, what: &[&str]) -> Command {
    // A test among the targets: without one, cargo leaves out what tests alone depend on, and its features.
    cargo(&context.target, &["build", "--test", "c_programs", "--test", "c_fences"], &[TESTED, what].concat())
}

pub(super) fn cargo(target: &Path, first: &[&str], rest: &[&str]) -> Command {
    shell::cargo(target, &[first, rest].concat())
}

/// The names of the files in `folder` with that extension, sorted; none when there is no such folder.
pub(super) fn names_in(folder: &str, extension: &str) -> Vec<String> {
    let files = std::fs::read_dir(shell::root().join(folder))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|its_extension| its_extension == extension))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort_unstable();
    names
}

/// The blocks in that language of a Markdown text.
pub fn blocks<'a>(markdown: &'a str, language: &str) -> impl Iterator<Item = &'a str> {
    let parts = markdown.split("\n```");
    let start = format!("{language}\n");
    parts.filter_map(move |part| part.strip_prefix(&start))
}

/// The Python blocks of a Markdown text, one after the other. Without any, a program that fails.
pub fn python_examples(markdown: &str) -> String {
    let program = blocks(markdown, "python").collect::<Vec<_>>().join("\n\n");
    if program.is_empty() { "raise SystemExit('there is no Python example')".to_owned() } else { program }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_blocks_of_a_text_become_one_program() {
        let text =
            "# Title\n```rust\nlet a = 1;\n```\n```python\na = 1\n```\nand\n```python\nprint(a)\n```\n";
        assert_eq!(python_examples(text), "a = 1\n\nprint(a)");
        assert!(python_examples("# Title").starts_with("raise SystemExit"));
    }
}
