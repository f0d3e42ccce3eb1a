//! `cargo xtask api`: the stored listings of the public interfaces, in `docs/api`, compared with the sources.
//!
//! The listings show a changed public name in review. Rust: rustdoc's JSON, with all features. Python:
//! `bindings/python/stubs/listing.py`. C and C++ have the headers themselves.

use std::path::Path;
use std::process::Command;

use crate::dist::CRATES;
use crate::{install, lint, python, shell};

const FOLDER: &str = "docs/api";

/// The crate of the C library, which Rust programs do not use.
const C_CRATE: &str = "estafette-c";

/// Documents the crates, and compares the listings or replaces them; true when the stored ones are right.
pub fn run(save: bool) -> Result<bool, String> {
    let target = shell::target()?;
    shell::run(&mut docs(&target)?)?;
    if save {
        for (name, listing) in listings(&target)? {
            install::write(&shell::root().join(FOLDER).join(name), &listing)?;
        }
        return Ok(true);
    }
    Ok(shell::passed(&check(&target)?))
}

/// After [`docs`] has run: prints how the sources differ from the stored listings, and returns which do.
pub fn check(target: &Path) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for (name, listing) in listings(target)? {
        let stored = Path::new(FOLDER).join(&name);
        let made = target.join("api").join(&name);
        install::write(&made, &listing)?;
        let mut compare = shell::command("diff");
        compare.arg("-u").arg(&stored).arg(&made);
        if !compare.status().map_err(|error| format!("diff: {error}"))?.success() {
            let stored = stored.display();
            wrong.push(format!("{stored} is not what the sources have: `cargo xtask api --save` accepts it"));
        }
    }
    Ok(wrong)
}

/// rustdoc over the published crates, with all features of `estafette`: what [`crate::site`] is compiled from
/// too.
pub fn docs(target: &Path) -> Result<Command, String> {
    let mut command = rustdoc(target)?;
    CRATES.iter().for_each(|name| {
        command.args(["--package", name]);
    });
    let features: Vec<_> =
        lint::features(target)?.iter().map(|feature| format!("estafette/{feature}")).collect();
    command.args(["--features", &features.join(",")]);
    Ok(command)
}

/// rustdoc with warnings denied. It makes JSON, as it checks the same then as with pages.
pub fn rustdoc(target: &Path) -> Result<Command, String> {
    // Only rustdoc is allowed what is unstable: build scripts that see the variable would run again, and all
    // that depends on them.
    let script = target.join("rustdoc-json");
    install::write_script(&script, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    let mut command = shell::cargo(target, &["doc", "--no-deps"]);
    command.env("RUSTDOC", script).env("PYO3_NO_PYTHON", "1");
    command.env("RUSTDOCFLAGS", "-D warnings -Z unstable-options --output-format json");
    Ok(command)
}

/// The listings as the sources have them, with the names of their files.
fn listings(target: &Path) -> Result<Vec<(String, String)>, String> {
    let mut made = Vec::new();
    for name in CRATES.iter().filter(|name| **name != C_CRATE) {
        let json = target.join("doc").join(format!("{}.json", name.replace('-', "_")));
        let mut list = shell::cargo(target, &["run", "--quiet", "--package", "api-listing", "--"]);
        list.arg(json);
        made.push((format!("{name}.txt"), shell::output(&mut list)?));
    }
    match python::interpreter() {
        Ok(interpreter) => {
            let mut list = shell::command(interpreter);
            list.arg("bindings/python/stubs/listing.py");
            made.push(("python.txt".to_owned(), shell::output(&mut list)?));
        }
        Err(why) => println!("python.txt is left out: {why}"),
    }
    Ok(made)
}
