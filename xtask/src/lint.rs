//! Formatting, clippy and rustdoc, with warnings denied; the stored listings of public interfaces; the layers
//! of the engine, what names an operating system, the words of comments, and the licence texts of packages.

mod guarantees;
mod interface;
mod kinds;
mod layers;
mod licences;
mod names;
mod platform;
mod shared;
mod snippets;
pub mod source;
mod tables;
mod width;
mod words;

use std::process::Command;

use crate::dist::CRATES;
use crate::suites::{MODELS, ModelSuite, SIMULATED, SIMULATION};
use crate::{api, shell};

/// Runs every check, so that one failure does not hide the next; true when all pass.
pub fn run() -> Result<bool, String> {
    let target = shell::target()?;
    let mut failed = Vec::new();
    let mut checks = vec![format(), clippy(&target)];
    checks.push(with_feature(&target, ""));
    checks.extend(features(&target)?.iter().map(|feature| with_feature(&target, feature)));
    // Code that only the model checkers see.
    let models = MODELS.iter().chain([&SIMULATION]);
    checks.extend(models.map(|model| lint_of_models(&target, model)));
    checks.push(other_docs(&target)?);
    for mut check in checks {
        if let Err(message) = shell::run(&mut check) {
            failed.push(message);
        }
    }
    match shell::run(&mut api::docs(&target)?) {
        Ok(()) => failed.append(&mut api::check(&target)?),
        Err(message) => failed.push(message),
    }
    failed.append(&mut counted()?);
    let passed = shell::passed(&failed);
    if passed {
        println!("lint: all passed");
    }
    Ok(passed)
}

fn format() -> Command {
    let mut command = shell::command("cargo");
    command.args(["fmt", "--all", "--", "--check"]);
    command
}

/// Every feature that adds code to packages that are not published.
fn every_feature() -> String {
    format!("{SIMULATED},benches/criterion,estafette-python/another-kind,tests/fuzzing")
}

/// The Python extension is checked too. Its stable ABI needs no interpreter, so this works on a machine
/// without one.
fn clippy(target: &std::path::Path) -> Command {
    let features = every_feature();
    let arguments =
        ["clippy", "--workspace", "--all-targets", "--features", &features, "--", "-D", "warnings"];
    let mut command = shell::cargo(target, &arguments);
    command.env("PYO3_NO_PYTHON", "1");
    command
}

/// Clippy on models, by a script that calls it. It makes no shared library, and so shares what it has
/// compiled with the first check.
fn lint_of_models(target: &std::path::Path, model: &ModelSuite) -> Command {
    let script = shell::root().join("xtask/rustc").join(format!("clippy_{}", model.checker));
    let mut check = model.cargo(target, &["check"], &[]);
    check.env("RUSTC_WORKSPACE_WRAPPER", script);
    check.env("CARGO_TARGET_DIR", target).env_remove("CARGO_BUILD_BUILD_DIR");
    check
}

/// The documentation of packages that are not published, with the features that clippy has compiled them
/// with.
fn other_docs(target: &std::path::Path) -> Result<Command, String> {
    let mut command = api::rustdoc(target)?;
    command.args(["--workspace", "--features", &every_feature()]);
    CRATES.iter().for_each(|name| {
        command.args(["--exclude", name]);
    });
    Ok(command)
}

/// The features of the crate `estafette`, each of which compiles alone.
pub fn features(target: &std::path::Path) -> Result<Vec<String>, String> {
    let mut metadata = shell::cargo(target, &["metadata", "--locked", "--no-deps", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&shell::output(&mut metadata)?)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let engine = packages
        .filter(|package| package["name"] == "estafette")
        .find_map(|package| package["features"].as_object());
    let engine = engine.ok_or("cargo metadata lists no features of the package estafette")?;
    Ok(engine.keys().filter(|feature| *feature != "default").cloned().collect())
}

/// The crate `estafette` with one feature, or with none. Clippy looks at what the workspace is compiled
/// without: the adapter of candle, and code that features replace. The other features are compiled alone,
/// which takes less, also with warnings denied.
fn with_feature(target: &std::path::Path, feature: &str) -> Command {
    let clippy = ["", "candle"].contains(&feature);
    let first = if clippy { "clippy" } else { "check" };
    let package = [first, "--package", "estafette", "--lib", "--no-default-features", "--features", feature];
    if clippy {
        return shell::cargo(target, &[&package[..], &["--", "-D", "warnings"]].concat());
    }
    let mut check = shell::cargo(target, &package);
    check.env("RUSTC_WORKSPACE_WRAPPER", shell::root().join("xtask/rustc/denied"));
    check
}

/// The checks of what is counted, without the compiler: true when all pass.
pub fn run_counted() -> Result<bool, String> {
    Ok(shell::passed(&counted()?))
}

fn counted() -> Result<Vec<String>, String> {
    let checks = [
        guarantees::check,
        interface::check,
        kinds::check,
        layers::check,
        licences::check,
        names::check,
        platform::check,
        shared::check,
        snippets::check,
        tables::check,
        width::check,
        words::check,
    ];
    let failed: Result<Vec<_>, _> = checks.into_iter().map(|check| check(shell::root())).collect();
    Ok(failed?.concat())
}
