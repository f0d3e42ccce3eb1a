//! The layers of `engine/src`: a folder may use the folders below it, in the order that ARCHITECTURE.md
//! gives.

use std::collections::BTreeSet;
use std::path::Path;

use super::source;

/// Files that use a layer above their own, and why. The list may only get shorter.
const UPWARD: [(&str, &str, &str); 15] = [
    ("core/coalesced.rs", "wait", "the thread that inspects long waits also inspects work that is held back"),
    ("core/engine_core.rs", "wait", "fields: deadlock detection, stand-ins"),
    ("core/operation.rs", "lease", "a role of an operation: the lease that it grants"),
    ("core/operation.rs", "operation", "an operation keeps its body in its own block"),
    ("core/operation.rs", "trace", "an operation notes once whether it is traced"),
    ("core/operation.rs", "wait", "a field of the handle: its place among pending futures"),
    ("core/var_state.rs", "lease", "a variable counts the pins on it"),
    ("lease/operation.rs", "operation", "the end of a lease dispatches its successors"),
    ("lease/pins.rs", "operation", "the end of a pin dispatches its successors"),
    ("lease/request.rs", "wait", "a request is a future and a blocking wait"),
    ("operation/active.rs", "program", "a scope belongs to an operation or to a node"),
    ("operation/completion.rs", "program", "a completion belongs to an operation or to a node"),
    ("tensor/alias_map.rs", "lease", "an import of leased memory finds the lease by its address"),
    ("tensor/alias_map.rs", "operation", "variables are merged by an operation"),
    ("tensor/handle.rs", "lease", "a tensor imported under a lease keeps it"),
];
/// Files beside the folders.
const LOOSE_MAX: usize = 2;

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
        upward.extend(above.map(|name| (path.display().to_string(), name)));
    }
    for (file, layer) in &upward {
        match UPWARD.iter().find(|(known, above, _)| known == file && above == layer) {
            Some((.., why)) => println!("upward: {file} uses {layer}: {why}"),
            None => wrong.push(format!("engine/src/{file} uses {layer}, a layer above its own")),
        }
    }
    for (file, layer, _) in UPWARD {
        if !upward.contains(&(file.to_owned(), layer.to_owned())) {
            wrong.push(format!("engine/src/{file} no longer uses {layer}: take it from the list"));
        }
    }
    println!("layers: {} uses upward, {loose} loose files (at most {LOOSE_MAX})", upward.len());
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
