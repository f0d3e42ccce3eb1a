//! The software bill of materials (SBOM) of the release artifacts, in the form of CycloneDX.
//!
//! Cargo's own tree of a package has exactly the features that the package is built with; a listing of the
//! workspace would have those of tests as well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::{CRATES, collect};
use crate::{install, shell};

/// Writes it into `folder`.
pub fn write(target: &Path, folder: &Path) -> Result<(), String> {
    let mut components = BTreeMap::new();
    let mut uses = Vec::new();
    let lock = include_str!("../../../Cargo.lock");
    for package in CRATES.iter().chain(&["estafette-python"]) {
        let tree = ["tree", "--locked", "--package", package, "--edges", "normal,build", "--prefix", "none"];
        // Without a target the tree would have the components of all platforms.
        let format = ["--target", "x86_64-unknown-linux-gnu", "--format", "{p}|{l}"];
        let listed = collect(shell::cargo(target, &[&tree[..], &format].concat()))?;
        let mut used = BTreeSet::new();
        for line in listed.lines() {
            let Some(component) = Component::parse(line) else { continue };
            used.insert(component.reference());
            components.insert(component.reference(), component.as_json(lock));
        }
        // The first line is the package itself.
        let itself = listed.lines().find_map(Component::parse).ok_or("cargo tree lists nothing")?.reference();
        used.remove(&itself);
        uses.push(json!({ "ref": itself, "dependsOn": used }));
    }
    let version = env!("CARGO_PKG_VERSION");
    let list = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "library", "name": "estafette", "version": version } },
        "components": components.values().collect::<Vec<_>>(),
        "dependencies": uses,
    });
    install::write(&folder.join(format!("estafette-{version}.cdx.json")), &format!("{list:#}\n"))
}

/// A line of cargo's tree.
struct Component<'a> {
    name: &'a str,
    version: &'a str,
    licence: &'a str,
}

impl<'a> Component<'a> {
    /// Reads `name v1.2.3 (where from)|licence (*)`.
    fn parse(line: &'a str) -> Option<Self> {
        let (package, licence) = line.split_once('|')?;
        let mut words = package.split(' ');
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        Some(Self { name, version, licence: licence.trim_end_matches(" (*)") })
    }

    fn reference(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }

    fn as_json(&self, lock: &str) -> Value {
        let reference = self.reference();
        let mut component = json!({
            "type": "library",
            "bom-ref": reference,
            "purl": reference,
            "name": self.name,
            "version": self.version,
            // Older manifests write "or" as a slash.
            "licenses": [{ "expression": self.licence.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ") }],
        });
        if let Some(sum) = checksum(lock, self.name, self.version) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        component
    }
}

/// Checksum of a package in the lock file; none of the project's own.
fn checksum<'a>(lock: &'a str, name: &str, version: &str) -> Option<&'a str> {
    let start = format!("name = \"{name}\"\nversion = \"{version}\"\n");
    let package = lock.split("[[package]]\n").find(|package| package.starts_with(&start))?;
    package.lines().find_map(|line| line.strip_prefix("checksum = \"")?.strip_suffix('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_tree_becomes_a_component() {
        let libc = Component::parse("libc v0.2.1|MIT / Apache-2.0 (*)").unwrap();
        let lock = "[[package]]\nname = \"libc\"\nversion = \"0.2.1\"\nsource = \"s\"\nchecksum = \"ab\"\n";
        let component = libc.as_json(lock);
        assert_eq!(component["purl"], "pkg:cargo/libc@0.2.1");
        assert_eq!(component["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(component["hashes"][0]["content"], "ab");
        assert!(Component::parse("own v0.1.0 (/here)|MIT").unwrap().as_json(lock).get("hashes").is_none());
        assert!(Component::parse("").is_none());
    }
}
