//! Equality of the quick wheel's dependencies with the Rust tests', feature by feature: otherwise a plain
//! `cargo xtask test` compiles the engine twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::shell;
use crate::suites::TESTED;

/// Differences are added to the feature `shared-build` of `estafette-python`, or to what `tests` depends on.
pub fn check(_root: &Path) -> Result<Vec<String>, String> {
    let wheel = &["--package", "estafette-python", "--features", "shared-build"];
    let (tested, quick) =
        (CompiledPackages::of(TESTED, "normal,dev")?, CompiledPackages::of(wheel, "normal")?);
    // Suites that run single tests.
    let fewer = CompiledPackages::of(TESTED, "normal")?;
    let alone =
        |package: &str| package.starts_with("estafette-python ") || package.starts_with("estafette-cli ");
    let mut differing = Vec::new();
    for (package, wanted) in quick.all.iter().filter(|(package, _)| !alone(package)) {
        if let Some(there) = tested.all.get(package).filter(|there| !wanted.is_subset(there)) {
            differing.push(format!("{package}: {wanted:?}, and for the Rust tests {there:?}"));
        }
    }
    differing.extend(
        tested.otherwise(&quick).map(|package| format!("{package}: for macros alone in one of both")),
    );
    differing.extend(
        tested.otherwise(&fewer).map(|package| format!("{package}: for macros alone without cbindgen")),
    );
    println!("shared: {} dependencies of the Rust tests are made otherwise for others", differing.len());
    Ok(differing)
}

/// The features of each package that is compiled.
type Features = BTreeMap<String, BTreeSet<String>>;

/// Packages that a command compiles.
struct CompiledPackages {
    all: Features,
    /// Packages that are not for macros and build scripts alone, which cargo compiles with other flags where
    /// a profile names `lto`.
    linked: Features,
}

impl CompiledPackages {
    fn of(packages: &[&str], edges: &str) -> Result<Self, String> {
        let made = |more| features(&[packages, &["--edges", &format!("{edges},{more}")]].concat());
        Ok(Self { all: made("build")?, linked: made("no-proc-macro")? })
    }

    /// The packages that both compile with the same features and other flags.
    fn otherwise(&self, other: &Self) -> impl Iterator<Item = String> {
        let both = other.all.iter().flat_map(|(package, sets)| sets.iter().map(move |set| (package, set)));
        let has = |made: &Features, package, set| made.get(package).is_some_and(|sets| sets.contains(set));
        both.filter(move |&(package, set)| {
            has(&self.all, package, set)
                && has(&self.linked, package, set) != has(&other.linked, package, set)
        })
        .map(|(package, _)| package.clone())
    }
}

/// The sets of features that each package is compiled with.
fn features(arguments: &[&str]) -> Result<Features, String> {
    let mut tree = shell::command("cargo");
    tree.args(["tree", "--locked", "--prefix", "none", "--no-dedupe", "--format", "{p}\t{f}"])
        .args(arguments);
    let mut packages = Features::new();
    for line in shell::output(&mut tree)?.lines() {
        if let Some((package, features)) = line.split_once('\t') {
            packages.entry(package.to_owned()).or_default().insert(features.to_owned());
        }
    }
    Ok(packages)
}
