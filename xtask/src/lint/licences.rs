//! Packages carry the licence texts of the project. They are copies, as archives and some systems do not keep
//! links.

use std::path::Path;

use super::source;

/// The folders of what is published on its own.
const PACKAGES: [&str; 9] = [
    "sync",
    "graph",
    "devices",
    "links",
    "report",
    "engine",
    "bindings/c",
    "bindings/fence",
    "bindings/python",
];

/// Returns each copy that is not the project's text.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let text = source::read(&root.join(name))?;
        for package in PACKAGES {
            if source::read(&root.join(package).join(name)).as_ref() != Ok(&text) {
                wrong.push(format!("{package}/{name} is not the project's"));
            }
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_the_texts_is_named() {
        assert_eq!(check(crate::shell::root()), Ok(Vec::new()));
        assert!(check(Path::new("/nowhere")).is_err_and(|message| message.contains("LICENSE-APACHE")));
    }
}
