//! Fuzz targets: what must hold for any bytes.
//!
//! `cargo xtask fuzz` runs them under libFuzzer, which changes inputs by the code that they reach. The inputs
//! that reach the most are in `tests/fuzz`, a folder per target, with those that once failed (`found-*`).
//! `tests/tests/fuzz/corpora.rs` runs all of them in every plain test run.

use std::path::PathBuf;

mod arrow;
mod operators;
mod traces;

#[derive(Debug)]
pub struct FuzzTarget {
    pub name: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
}

pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "c-abi", run: |bytes| drop(crate::c_fuzz::run(bytes)) },
    FuzzTarget { name: "traces", run: traces::run },
    FuzzTarget { name: "arrow", run: arrow::run },
    FuzzTarget { name: "operators", run: operators::run },
];

impl FuzzTarget {
    /// The kept inputs, by name.
    pub fn corpus(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz")).join(self.name);
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("a folder can be listed").path()).collect();
        paths.sort();
        let read = |path: PathBuf| {
            let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (path, bytes)
        };
        paths.into_iter().map(read).collect()
    }
}
