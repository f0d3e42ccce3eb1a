//! The layers of `engine/src`: a folder may use the folders below it, in the order that ARCHITECTURE.md gives.

use std::collections::BTreeSet;
use std::path::Path;

use super::source;

/// Files of a folder that use a folder above it. The number may only fall; each has its reason in a comment there.
const UPWARD_MAX: usize = 41;
/// Files beside the folders.
const LOOSE_MAX: usize = 6;

/// The line of ARCHITECTURE.md that has the order.
const ORDER: &str = "Layers of `engine/src`, bottom to top:";

/// Prints each use that runs upward and the counts, and returns what is wrong.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let text = source::read(&root.join("ARCHITECTURE.md"))?;
    let order = order(&text).ok_or(format!("ARCHITECTURE.md has no line `{ORDER}`"))?;
    let folder = root.join("engine/src");
    let mut wrong = Vec::new();
    let mut upward = BTreeSet::new();
    let mut loose = 0;
    for file in source::files(&folder, "rs")? {
        let path = file.strip_prefix(&folder).map_err(|error| error.to_string())?;
        let mut parts = path.components();
        let first =
            parts.next().map(|part| part.as_os_str().to_string_lossy().into_owned()).unwrap_or_default();
        if parts.next().is_none() {
            loose += 1;
            continue;
        }
        let Some(layer) = order.iter().position(|name| *name == first) else {
            wrong.push(format!("engine/src/{first} is no layer of ARCHITECTURE.md"));
            continue;
        };
        if path.ends_with("tests.rs") {
            continue;
        }
        let used = used(&source::code(&source::read(&file)?));
        let above = used.into_iter().filter(|name| order[..=layer].iter().all(|below| below != name));
        upward.extend(above.map(|name| format!("{} uses {name}", path.display())));
    }
    upward.iter().for_each(|line| println!("upward: {line}"));
    println!(
        "layers: {} uses upward (at most {UPWARD_MAX}), {loose} loose files (at most {LOOSE_MAX})",
        upward.len()
    );
    if upward.len() > UPWARD_MAX {
        wrong.push(format!("{} files use a layer above their own", upward.len()));
    }
    if loose > LOOSE_MAX {
        wrong.push(format!("{loose} files lie beside the folders of engine/src"));
    }
    wrong.sort();
    wrong.dedup();
    Ok(wrong)
}

/// The names in backticks after the announcement, to the end of the paragraph.
fn order(text: &str) -> Option<Vec<String>> {
    let (_, rest) = text.split_once(ORDER)?;
    let paragraph = rest.split("\n\n").next()?;
    Some(paragraph.split('`').skip(1).step_by(2).map(str::to_owned).collect())
}

/// The first part of each path that begins with `crate::`.
fn used(code: &str) -> BTreeSet<String> {
    let names = code.split("crate::").skip(1).flat_map(|rest| match rest.strip_prefix('{') {
        // `use crate::{a::B, c::D}`: formatting keeps such a list together.
        Some(list) => list.split('}').next().unwrap_or_default().split(',').collect::<Vec<_>>(),
        None => vec![rest],
    });
    let ends = |c: char| !c.is_alphanumeric() && c != '_';
    names
        .filter_map(|name| name.trim().split(ends).next())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_ends_with_its_paragraph() {
        let text = format!("{ORDER} `core`, `tensor`\nand `wait`.\n\nThe `engine`.");
        assert_eq!(order(&text).unwrap(), ["core", "tensor", "wait"]);
        assert!(order("none").is_none());
    }

    #[test]
    fn uses_are_found_by_their_first_part() {
        let code =
            "use crate::core::error::Error;\nuse crate::{lease::X, Tensor};\nfn f() { crate::wait::g() }";
        assert_eq!(used(code).into_iter().collect::<Vec<_>>(), ["Tensor", "core", "lease", "wait"]);
    }
}
