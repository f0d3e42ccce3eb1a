//! docs/guarantees.md: every guarantee names tests that exist, and tests cite numbers that exist.

use std::path::{Path, PathBuf};

use super::source;

const PAGE: &str = "docs/guarantees.md";
/// Folders of the tests that the page names by their functions.
const TESTED: &[&str] = &["sync", "graph", "devices", "links", "engine", "report", "bindings", "tests"];

/// Prints how many guarantees and tests there are, and returns what is wrong.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let page = source::read(&root.join(PAGE))?;
    let mut sources = String::new();
    let mut files = Vec::new();
    for folder in TESTED {
        for extension in ["rs", "py", "c"] {
            files.append(&mut source::files(&root.join(folder), extension)?);
        }
    }
    for file in &files {
        sources.push_str(&source::read(file)?);
    }
    let guarantees = guarantees(&page);
    let mut wrong = Vec::new();
    let exists = |name: &String| is_file(root, name) || is_suite(name);
    for (number, text) in &guarantees {
        if !emphasized(text).iter().any(exists) {
            wrong.push(format!("guarantee {number} names no test"));
        }
    }
    let names = emphasized(&page);
    let is_cited = |name: &&String| name.contains(['/', '_', '-']) || exists(name);
    wrong.extend(
        names
            .iter()
            .filter(|name| is_cited(name) && !exists(name))
            .map(|name| format!("{PAGE} names `{name}`, which is no file of tests/tests and no suite")),
    );
    let functions = functions(&page);
    wrong.extend(
        functions
            .iter()
            .filter(|name| !is_function(&sources, name))
            .map(|name| format!("{PAGE} names the test `{name}`, which does not exist")),
    );
    for file in files {
        for number in cited(&source::read(&file)?) {
            if !guarantees.iter().any(|(known, _)| *known == number) {
                wrong.push(format!("{} cites guarantee {number}, which does not exist", shown(root, &file)));
            }
        }
    }
    println!(
        "guarantees: {}, held by {} files and {} single tests",
        guarantees.len(),
        names.len(),
        functions.len()
    );
    Ok(wrong)
}

fn shown(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).unwrap_or(file).display().to_string()
}

/// The numbered items of the section "Always".
fn guarantees(page: &str) -> Vec<(usize, String)> {
    let section = page.split("\n## ").find(|section| section.starts_with("Always")).unwrap_or_default();
    let mut found: Vec<(usize, String)> = Vec::new();
    for line in section.lines() {
        match line.split_once(". ").and_then(|(number, text)| Some((number.parse().ok()?, text))) {
            Some((number, text)) => found.push((number, text.to_owned())),
            None => found.iter_mut().next_back().into_iter().for_each(|(_, text)| {
                text.push(' ');
                text.push_str(line);
            }),
        }
    }
    found
}

/// The names between single asterisks, taken apart at commas. A word without a slash, dash or underscore may be plain emphasis.
fn emphasized(text: &str) -> Vec<String> {
    let text = text.replace("**", "");
    let names = text.split('*').skip(1).step_by(2).flat_map(|part| part.split(','));
    let is_name =
        |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || "/_-".contains(c));
    names.map(str::trim).filter(is_name).map(str::to_owned).collect()
}

fn is_file(root: &Path, name: &str) -> bool {
    let tests = root.join("tests/tests");
    let file: PathBuf = tests.join(format!("{name}.rs"));
    file.is_file() || tests.join(name).is_dir()
}

fn is_suite(name: &str) -> bool {
    crate::suites::SUITES.iter().any(|suite| suite.name == name)
}

/// The names of test functions in backticks; an ellipsis stands for the rest of a name.
fn functions(page: &str) -> Vec<&str> {
    let code = page.split('`').skip(1).step_by(2);
    code.filter(|name| {
        let bare = name.trim_matches('…').trim_end_matches('_');
        bare.matches('_').count() >= 3
            && bare.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    })
    .collect()
}

fn is_function(sources: &str, name: &str) -> bool {
    let bare = name.trim_matches('…');
    let begins = if name.starts_with('…') { String::new() } else { "fn ".to_owned() };
    let ends = if name.ends_with('…') { "" } else { "(" };
    let rust = format!("{begins}{bare}{ends}");
    let python = format!("def {bare}{ends}");
    sources.contains(&rust) || sources.contains(&python) || sources.contains(&format!("void {bare}{ends}"))
}

/// The numbers behind the word "guarantee".
fn cited(text: &str) -> Vec<usize> {
    let behind = text.split("uarantee ").skip(1);
    behind.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Title\n\n## Always\n\n1. **One.** It *must* hold. *order/access, memory*\n2. **Two**\n   more.\n\n## Else\n3. no";

    #[test]
    fn guarantees_have_numbers_and_tests() {
        let found = guarantees(TEXT);
        assert_eq!(found.len(), 2);
        assert_eq!(emphasized(&found[0].1), ["must", "order/access", "memory"]);
        assert!(emphasized(&found[1].1).is_empty());
    }

    #[test]
    fn tests_are_found_by_whole_names_and_by_parts() {
        assert_eq!(functions("`a_b_c_d` and `Op::run` and `a_b_c_d_…`"), ["a_b_c_d", "a_b_c_d_…"]);
        assert!(is_function("fn a_b_c_d() {}", "a_b_c_d") && is_function("fn a_b_c_d() {}", "a_b_…"));
        assert!(!is_function("fn a_b_c_de() {}", "a_b_c_d"));
        assert_eq!(cited("Guarantee 4 and guarantee 12: x"), [4, 12]);
    }
}
