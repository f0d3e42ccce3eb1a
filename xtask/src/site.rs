//! `cargo xtask site`: the documents of the repository, and the references of Rust, Python and C, as plain
//! files.

use std::path::Path;
use std::process::Command;

use crate::dist;
use crate::install;
use crate::python::{Environment, SITE};
use crate::shell;

/// Makes the site, and prints its first page. A warning of a tool is a failure.
pub fn run() -> Result<bool, String> {
    let target = shell::target()?;
    let (site, rust) = (target.join("site"), target.join("site/reference/rust"));
    let tools = Environment::prepare(SITE)?;
    shell::run(&mut published_docs(&target))?;
    // A page whose source is gone must not stay.
    dist::remove_folder(&site)?;
    let mut build =
        tools.command(&["-m", "sphinx", "--quiet", "--fail-on-warning", "--fresh-env", "--jobs", "2"]);
    build
        .args(["--conf-dir", "docs/site", "--doctree-dir"])
        .arg(target.join("site-doctrees"))
        .arg(".")
        .arg(&site);
    shell::run(&mut build)?;
    install::make_folder(&rust)?;
    shell::run(shell::command("cp").arg("-r").arg(target.join("published/doc/.")).arg(&rust))?;
    println!("{}", site.join("index.html").display());
    Ok(true)
}

/// The documentation of the published crates, with every feature, in a folder of its own.
fn published_docs(target: &Path) -> Command {
    let mut command = shell::cargo(&target.join("published"), &["doc", "--no-deps", "--all-features"]);
    dist::CRATES.iter().for_each(|name| {
        command.args(["--package", name]);
    });
    // Compiled dependencies are shared with everything else.
    command.env("CARGO_BUILD_BUILD_DIR", target).env("RUSTDOCFLAGS", "-D warnings");
    command
}
