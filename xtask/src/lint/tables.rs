//! A file that declares several modules opens with a table of its parts, which names each of them, and no
//! module that is not there. The crate of tests has such a table of its binaries.

use std::path::Path;

use super::source;

/// Folders whose files have tables.
const FOLDERS: [&str; 9] = [
    "bindings/c/src",
    "bindings/python/src",
    "devices/src",
    "engine/src",
    "graph/src",
    "links/src",
    "report/src",
    "sync/src",
    "tests/tests",
];

const HEADINGS: [&str; 4] = ["| part |", "| module |", "| file |", "| binary |"];

/// The table of the binaries in the folder `BINARIES`.
const BINARIES_TABLE: &str = "tests/src/lib.rs";
const BINARIES: &str = "tests/tests";

/// Prints how many modules and binaries there are. Returns those that no table names, and names in tables
/// that are neither.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let (mut known, mut wrong) = (0, Vec::new());
    for folder in FOLDERS {
        for file in source::files(&root.join(folder), "rs")? {
            let text = source::read(&file)?;
            let modules = modules(&text);
            // One module needs no table, and neither do tests.
            if modules.len() < 2 || file.ends_with("tests.rs") {
                continue;
            }
            let (named, lacking): (Vec<&str>, Vec<&str>) =
                modules.iter().copied().partition(|module| is_named(&text, module));
            known += named.len();
            let path = file.strip_prefix(root).unwrap_or(&file).display().to_string();
            wrong.extend(lacking.iter().map(|module| format!("{path}: the table of parts lacks `{module}`")));
            let strange = parts(&text).into_iter().filter(|part| !is_declared(&text, part));
            wrong.extend(strange.map(|part| format!("{path}: `{part}` of the table of parts is no module")));
        }
    }
    let binaries = binaries(&root.join(BINARIES))?;
    let text = source::read(&root.join(BINARIES_TABLE))?;
    let named = parts(&text);
    let lacking = binaries.iter().filter(|binary| !named.contains(&binary.as_str()));
    wrong.extend(lacking.map(|binary| format!("{BINARIES_TABLE}: the table of binaries lacks `{binary}`")));
    let strange = named.iter().filter(|name| !binaries.iter().any(|binary| binary == *name));
    wrong.extend(strange.map(|name| format!("{BINARIES_TABLE}: `{name}` is no binary of {BINARIES}")));
    println!(
        "tables: {known} modules in the tables of their folders, {} binaries of {BINARIES}",
        binaries.len()
    );
    Ok(wrong)
}

/// The names of the test binaries in a folder: its files, and its folders with a `main.rs`.
fn binaries(folder: &Path) -> Result<Vec<String>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(|error| error.to_string())?;
    paths.retain(|path| path.extension().is_some_and(|its| its == "rs") || path.join("main.rs").exists());
    paths.sort();
    let stem = |path: &std::path::PathBuf| Some(path.file_stem()?.to_string_lossy().into_owned());
    Ok(paths.iter().filter_map(stem).collect())
}

/// The modules that `text` declares in files of their own, but for those of tests, and those whose path a
/// condition chooses: these stand for one another.
fn modules(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let declared = lines.iter().enumerate().filter_map(|(at, line)| {
        let name = declared(line)?;
        let above = lines[..at].iter().rev();
        let is_of_another =
            |line: &&str| line.is_empty() || line.ends_with([';', '}']) || declared(line).is_some();
        let attributes = above.take_while(|line| !is_of_another(line)).filter(|line| !line.starts_with("//"));
        let has = |text: &str| attributes.clone().any(|line| line.contains(text));
        let is_other = has("(test") || has("path =") && has("#[cfg(");
        (!is_other).then_some(name)
    });
    declared.collect()
}

/// The module that a line at the outermost level declares in a file of its own, perhaps with a comment
/// behind.
fn declared(line: &str) -> Option<&str> {
    let code = line.split("//").next()?.trim_end();
    Some(code.strip_suffix(';')?.rsplit_once("mod ").filter(|(before, _)| is_visibility(before))?.1)
}

/// True if `text` declares the module, or takes it from elsewhere by `use`. A name with capital letters is a
/// type, and any is fine.
fn is_declared(text: &str, module: &str) -> bool {
    let has = |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == module);
    let declares = |line: &&str| {
        let is_item = !line.starts_with([' ', '/']) && (line.contains("mod ") || line.contains("use "));
        is_item || line.starts_with("macro_rules!")
    };
    module.chars().any(char::is_uppercase) || text.lines().filter(declares).any(has)
}

fn is_visibility(text: &str) -> bool {
    text.is_empty() || text.starts_with("pub")
}

/// True if the comment at the beginning of `text` has the module in backticks, perhaps with the extension of
/// its file.
fn is_named(text: &str, module: &str) -> bool {
    head(text).flat_map(names).any(|name| name == module)
}

/// The names in the first column of the table of parts.
fn parts(text: &str) -> Vec<&str> {
    let rows = head(text)
        .map(|line| line.trim_start_matches("//!").trim())
        .skip_while(|line| !HEADINGS.iter().any(|heading| line.starts_with(heading)));
    let cells = rows.take_while(|line| line.starts_with('|')).filter_map(|line| line.split('|').nth(1));
    cells.flat_map(names).collect()
}

fn head(text: &str) -> impl Iterator<Item = &str> {
    text.lines().take_while(|line| line.starts_with("//!"))
}

/// Contents of backticks, as the name of a module: without the extension of its file, the stroke of its
/// folder, and the kind of a link.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let names = line.split('`').skip(1).step_by(2);
    names.map(|name| name.trim_end_matches(".rs").trim_end_matches('/').trim_start_matches("mod@"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "//! One `x`.\n//!\n//! | part | idea |\n//! |---|---|\n//! | `a`, [`mod@b`] | `one` |\n//! | `c.rs`, `d/`, `gone` | two |\n//!\n\
                        //! | other |\n//! | `y` |\n\nmod a;\npub mod b; // A comment.\n#[cfg(x)]\npub(crate) mod c;\nmod d;\nmod e;\n\
                        #[cfg(test)]\nmod f;\n#[path = \"g.rs\"]\nmod g;\n\
                        #[cfg(not(\n    y\n))]\n#[path = \"k.rs\"]\nmod k;\nmod h {}\n    mod i;\n// mod j;\n";

    #[test]
    fn modules_are_those_with_files_of_their_own() {
        assert_eq!(modules(TEXT), ["a", "b", "c", "d", "e", "g"]);
    }

    #[test]
    fn a_module_that_the_table_lacks_is_found() {
        let lacking = modules(TEXT).into_iter().filter(|module| !is_named(TEXT, module));
        assert_eq!(lacking.collect::<Vec<_>>(), ["e", "g"]);
    }

    #[test]
    fn a_name_in_the_table_that_is_no_module_is_found() {
        assert_eq!(parts(TEXT), ["a", "b", "c", "d", "gone"]);
        let strange = parts(TEXT).into_iter().filter(|part| !is_declared(TEXT, part));
        assert_eq!(strange.collect::<Vec<_>>(), ["gone"]);
        assert!(is_declared("pub use std::{hint, time};", "time") && !is_declared("fn time() {}", "time"));
        assert!(is_declared(TEXT, "h") && is_declared(TEXT, "g") && is_declared(TEXT, "Type"));
    }
}
