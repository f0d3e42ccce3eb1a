//! `cargo xtask requirements`: the locked requirements of the Python environments, with all that they depend
//! on and the hashes of all files, from the short files that people edit.
//!
//! `NAME.in` becomes `NAME.txt`, which pip installs. Versions that are in `NAME.txt` stay, unless `NAME.in`
//! asks for others.

use crate::python::{
    ALL, BORROWED, Contents, DIST, Environment, LEGACY, MXNET, NIXL, OTHER, SITE, SMALL, UV,
};
use crate::shell;

/// All of them, each after what it takes versions from.
const FILES: [Contents; 10] = [ALL, SMALL, LEGACY, OTHER, DIST, SITE, BORROWED, NIXL, MXNET, UV];

/// The oldest Python that the files hold for. They have markers for newer ones and for other systems.
const PYTHON: &str = "3.11";

/// Writes the locked files. With `upgrade`, all that no file pins by itself gets its newest version.
pub fn run(upgrade: bool) -> Result<bool, String> {
    let tool = Environment::prepare(UV)?;
    for contents in FILES {
        let name = contents.requirements;
        let mut lock =
            tool.command(&["-m", "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"]);
        lock.args(["--python-version", PYTHON, "--annotation-style", "line"]);
        lock.args(["--custom-compile-command", "cargo xtask requirements"]);
        // The same versions in the quick suites as in all.
        if contents == SMALL {
            lock.args(["--constraint", &format!("{}.txt", ALL.requirements)]);
        }
        lock.args(contents.bare.then_some("--no-deps"));
        lock.args(upgrade.then_some("--upgrade"));
        lock.args([format!("{name}.in"), "--output-file".into(), format!("{name}.txt")]);
        shell::run(&mut lock)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `name==version` of each requirement, without extras and markers.
    fn pins(text: &str) -> impl Iterator<Item = String> {
        let requirements = text.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '-', ' ']));
        requirements.map(|line| {
            let pin = line.split([' ', ';']).next().unwrap_or_default();
            match (pin.split_once('['), pin.split_once(']')) {
                (Some((name, _)), Some((_, version))) => format!("{name}{version}"),
                _ => pin.to_owned(),
            }
        })
    }

    #[test]
    fn each_requirement_is_pinned_and_locked_with_hashes() {
        for Contents { requirements: name, .. } in FILES {
            let read = |extension: &str| {
                std::fs::read_to_string(shell::root().join(format!("{name}.{extension}")))
                    .expect("there is such a file")
            };
            let (edited, locked) = (read("in"), read("txt"));
            assert!(edited.contains("# download: "), "{name}.in has no size");
            let known: Vec<_> = pins(&locked).collect();
            for pin in pins(&edited) {
                assert!(pin.contains("=="), "{name}.in does not pin `{pin}`");
                assert!(known.contains(&pin), "{name}.txt lacks {pin}: `cargo xtask requirements`");
            }
            for requirement in locked.split("\n    #").filter(|part| part.contains("==")) {
                assert!(requirement.contains("--hash=sha256:"), "{name}.txt has no hash: {requirement}");
            }
        }
    }
}
