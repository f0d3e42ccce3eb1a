//! Code for one operating system or processor stands behind `estafette_sync::platform`; code for processes
//! alone that speak to each other (descriptors, sockets, sealed memory) behind the platform of links. No
//! other file that users install names one; tests may.

use std::path::Path;

use super::source;

/// Text of code that asks for an operating system or a processor.
const NAMES: [&str; 15] = [
    "target_os",
    "target_arch",
    "target_family",
    "target_env",
    "cfg(unix",
    "cfg(windows",
    "cfg!(unix",
    "cfg!(windows",
    "libc::",
    "::arch::",
    "asm!(",
    "::os::",
    "\"/proc/",
    ".so.",
    ".so\"",
];

const DOORS: [&str; 2] = ["sync/src/platform", "links/src/platform"];

/// Files that name one all the same: how many lines, and why. The numbers may only fall.
const ELSEWHERE: [(&str, usize, &str); 1] =
    [("report/src/format/file.rs", 2, "a report uses no other crate of the project")];

/// The folders of what users install.
const FOLDERS: [&str; 9] = [
    "sync/src",
    "graph/src",
    "devices/src",
    "links/src",
    "engine/src",
    "report/src",
    "bindings/c/src",
    "bindings/cli/src",
    "bindings/python/src",
];

/// Prints the count, and returns each file with more lines than it may have.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let (mut total, mut wrong) = (0, Vec::new());
    for folder in FOLDERS {
        for file in source::files(&root.join(folder), "rs")? {
            let path = file.strip_prefix(root).map_err(|error| error.to_string())?;
            if DOORS.iter().any(|door| path.starts_with(door))
                || path.iter().any(|part| part == "tests" || part == "tests.rs")
            {
                continue;
            }
            let code = source::code(&source::read(&file)?);
            let lines = named(&code);
            let known = ELSEWHERE.iter().find(|(known, ..)| path == Path::new(known));
            let most = known.map_or(0, |(_, most, _)| *most);
            total += lines.len();
            if lines.len() > most {
                wrong.extend(lines.iter().map(|line| format!("{}: {line}", path.display())));
            } else if lines.len() < most {
                wrong.push(format!("{} has {} such lines: lower its number", path.display(), lines.len()));
            }
        }
    }
    println!(
        "platform: {total} lines name an operating system or a processor outside of {}",
        DOORS.join(" and ")
    );
    Ok(wrong)
}

/// The lines of `code` that name an operating system or a processor.
fn named(code: &str) -> Vec<&str> {
    code.lines().map(str::trim).filter(|line| NAMES.iter().any(|name| line.contains(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_calls_and_names_of_files_are_found() {
        let code = "#[cfg(unix)]\nlibc::fork();\nuse std::os::unix::fs;\nlet x = \"libcuda.so.1\";\nx.windows(2);\nlet y = 1;";
        assert_eq!(named(code).len(), 4);
    }
}
