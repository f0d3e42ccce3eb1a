//! The sources of the project, as the checks read them.

use std::path::{Path, PathBuf};

pub fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The files below `folder` with that extension, sorted; build outputs are left out.
pub fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                found.append(&mut files(&path, extension)?);
            }
        } else if path.extension().is_some_and(|its| its == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// `text` without comments and without the tests and models at its end.
pub fn code(text: &str) -> String {
    let text = without_comments(text);
    let lines: Vec<&str> = text.lines().collect();
    let end = (0..lines.len()).find(|&at| begins_tests(&lines[at..])).unwrap_or(lines.len());
    lines[..end].join("\n")
}

/// `text` without comments.
pub fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// True if the first of `lines` is the condition of a module of tests or models.
fn begins_tests(lines: &[&str]) -> bool {
    let conditional = lines[0].starts_with("#[cfg(test)]") || lines[0].starts_with("#[cfg(all(test,");
    let item = lines.iter().find(|line| !line.is_empty() && !line.starts_with("#["));
    conditional && item.is_some_and(|item| item.starts_with("mod ") && item.ends_with('{'))
}

#[cfg(test)]
mod tests {
    #[test]
    fn code_ends_where_tests_or_models_begin() {
        let code = "let a = 1; // one\n#[cfg(test)]\nfn f() {}\n#[cfg(all(test, unix))]\n#[allow(x)]\nmod models {\n}\n";
        assert_eq!(super::code(code), "let a = 1; \n#[cfg(test)]\nfn f() {}");
    }
}
