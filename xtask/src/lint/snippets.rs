//! Every block of code of a document is run by a test, or the line before it says why not.

use std::path::Path;

use super::source;

/// Runners of the blocks of a language: files that name the pages.
const RUN_BY: &[(&str, &[&str])] = &[
    ("python", &["bindings/python/tests/test_guide.py", "xtask/src/suites.rs"]),
    ("rust", &["tests/src/lib.rs"]),
    ("c", &["bindings/c/tests/c_programs.rs"]),
    ("cpp", &[]),
    ("console", &[]),
    ("sh", &["bindings/c/tests/c_programs.rs"]),
];

/// Folders whose pages are the site's.
const FOLDERS: &[&str] =
    &["benches", "bindings", "devices", "docs", "examples", "graph", "links", "report", "sync", "tests"];

/// Prints how many blocks there are, and returns what is wrong.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(root).map_err(|error| error.to_string())?.flatten() {
        pages.extend(Some(entry.path()).filter(|path| path.extension().is_some_and(|its| its == "md")));
    }
    for folder in FOLDERS {
        pages.append(&mut source::files(&root.join(folder), "md")?);
    }
    let (mut run, mut excused, mut wrong) = (0, 0, Vec::new());
    for page in pages {
        let name = page.strip_prefix(root).unwrap_or(&page).display().to_string();
        for block in blocks(&source::read(&page)?) {
            match runners(block.language) {
                None => {}
                Some(_) if block.is_excused => excused += 1,
                Some(runners) if block.is_plain && is_named(root, runners, &name)? => run += 1,
                Some(_) => {
                    wrong.push(format!("{name}:{}: nothing runs this {} block", block.line, block.language))
                }
            }
        }
    }
    println!("snippets: {run} run by tests, {excused} with the reason why not");
    Ok(wrong)
}

fn runners(language: &str) -> Option<&'static [&'static str]> {
    RUN_BY.iter().find(|(its, _)| *its == language).map(|(_, files)| *files)
}

/// True if one of `files` names the page, or all pages of its folder.
fn is_named(root: &Path, files: &[&str], page: &str) -> Result<bool, String> {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let names = [format!("\"{page}\""), format!("../{page}\""), format!("\"{folder}/*.md\"")];
    for file in files {
        let text = source::read(&root.join(file))?;
        if names.iter().any(|name| text.contains(name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

struct CodeBlock<'a> {
    line: usize,
    language: &'a str,
    /// Nothing follows the language.
    is_plain: bool,
    /// The line before gives a reason.
    is_excused: bool,
}

fn blocks(markdown: &str) -> Vec<CodeBlock<'_>> {
    let (mut found, mut before, mut is_open) = (Vec::new(), "", false);
    for (index, line) in markdown.lines().enumerate() {
        if let Some(info) = line.trim_start().strip_prefix("```") {
            if !is_open {
                let language = info.split_whitespace().next().unwrap_or_default();
                let reason =
                    before.trim().strip_prefix("<!-- not run: ").and_then(|rest| rest.strip_suffix(" -->"));
                let is_excused = reason.is_some_and(|reason| !reason.is_empty());
                found.push(CodeBlock { line: index + 1, language, is_plain: language == info, is_excused });
            }
            is_open = !is_open;
        }
        before = line;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_a_language_and_perhaps_a_reason() {
        let found = blocks(
            "```c\nint a;\n```\n\n<!-- not run: no GPU -->\n```python notest\nb\n```\n  ```sh\n  ```\n```\n```",
        );
        let seen: Vec<_> = found.iter().map(|b| (b.line, b.language, b.is_plain, b.is_excused)).collect();
        assert_eq!(
            seen,
            [
                (1, "c", true, false),
                (6, "python", false, true),
                (9, "sh", true, false),
                (11, "", true, false)
            ]
        );
    }
}
