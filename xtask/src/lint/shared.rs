//! Whether the wheel of the quick suites is made of what the Rust tests are made of, feature by feature: otherwise a plain
//! `cargo xtask test` compiles the engine twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::shell;
use crate::suites::TESTED;

/// Differences are added to the feature `shared-build` of `estafette-python`, or to what `tests` depends on.
pub fn check(_root: &Path) -> Result<Vec<String>, String> {
    let tested = features(&[TESTED, &["--edges", "normal,build,dev"]].concat())?;
    let wheel = ["--package", "estafette-python", "--features", "shared-build", "--edges", "normal,build"];
    let alone =
        |package: &str| package.starts_with("estafette-python ") || package.starts_with("estafette-cli ");
    let differing: Vec<String> = features(&wheel)?
        .into_iter()
        .filter(|(package, _)| !alone(package))
        .filter_map(|(package, wanted)| {
            let there = tested.get(&package)?;
            (!wanted.is_subset(there))
                .then(|| format!("{package}: {wanted:?}, and for the Rust tests {there:?}"))
        })
        .collect();
    println!(
        "shared: {} dependencies of the quick wheel have other features in the Rust tests",
        differing.len()
    );
    Ok(differing)
}

/// The sets of features that each package is compiled with.
fn features(arguments: &[&str]) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let mut tree = shell::command("cargo");
    tree.args(["tree", "--locked", "--prefix", "none", "--no-dedupe", "--format", "{p}\t{f}"])
        .args(arguments);
    let output = tree.output().map_err(|error| format!("cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let mut packages = BTreeMap::<_, BTreeSet<_>>::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some((package, features)) = line.split_once('\t') {
            packages.entry(package.to_owned()).or_default().insert(features.to_owned());
        }
    }
    Ok(packages)
}
