//! A folder opens with a table of its parts: `mod.rs` names each module that it declares, and so does the `main.rs` of a test binary.

use std::path::Path;

use super::source;

/// Folders whose modules are listed.
const FOLDERS: [&str; 8] = [
    "bindings/python/src",
    "devices/src",
    "engine/src",
    "graph/src",
    "links/src",
    "report/src",
    "sync/src",
    "tests/tests",
];

/// Other files with a table of parts.
const FILES: [&str; 3] = ["bindings/python/src/lib.rs", "devices/src/lib.rs", "engine/src/remote.rs"];

/// Prints how many modules there are, and returns those that no table names.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut files: Vec<_> = FILES.iter().map(|file| root.join(file)).collect();
    for folder in FOLDERS {
        let heads = source::files(&root.join(folder), "rs")?;
        files.extend(heads.into_iter().filter(|file| file.ends_with("mod.rs") || file.ends_with("main.rs")));
    }
    let (mut known, mut wrong) = (0, Vec::new());
    for file in files {
        let text = source::read(&file)?;
        let modules = modules(&text);
        // One module needs no table.
        for module in modules.iter().filter(|_| modules.len() > 1) {
            match is_named(&text, module) {
                true => known += 1,
                false => wrong.push(format!("{}: the table of parts lacks `{module}`", file.display())),
            }
        }
    }
    println!("tables: {known} modules in the tables of their folders");
    Ok(wrong)
}

/// The modules that `text` declares in files of their own, but for those of tests and those with a path, which stand for one another.
fn modules(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let declared = lines.iter().enumerate().filter_map(|(at, line)| {
        let name = line.strip_suffix(';')?.rsplit_once("mod ").filter(|(before, _)| is_visibility(before))?.1;
        let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
        let is_other = |line: &&str| line.contains("(test") || line.contains("path =");
        (!attributes.clone().any(is_other)).then_some(name)
    });
    declared.collect()
}

fn is_visibility(text: &str) -> bool {
    text.is_empty() || text.starts_with("pub")
}

/// Whether the comment at the beginning of `text` has the module in backticks, perhaps with the extension of its file.
fn is_named(text: &str, module: &str) -> bool {
    let head = text.lines().take_while(|line| line.starts_with("//!"));
    head.flat_map(|line| line.split('`').skip(1).step_by(2))
        .any(|name| name.trim_end_matches(".rs") == module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_the_table_lacks_is_found() {
        let text = "//! | `a` | one |\n//! | [`b`] |\n//! `c.rs`\n\nmod a;\npub mod b;\n#[cfg(x)]\npub(crate) mod c;\nmod d;\n\
                    #[cfg(test)]\nmod e;\n#[path = \"f.rs\"]\nmod f;\nmod g {}\n";
        let found = modules(text);
        assert_eq!(found, ["a", "b", "c", "d"]);
        assert_eq!(found.into_iter().filter(|module| !is_named(text, module)).collect::<Vec<_>>(), ["d"]);
    }
}
