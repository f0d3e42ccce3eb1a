//! Builds of suites in folders that no other suite builds into: cargo makes them at the lowest priority,
//! while tests of earlier suites leave a processor idle.

use std::path::Path;
use std::process::Command;

use super::commands::{checked, models, portable, random, sanitized_links};
use crate::{install, shell};

/// Builds ahead: the suite, and its commands, also in the quick form. If a command runs tests, these are only
/// built.
type Builds = fn(&Path, bool) -> Result<Vec<Command>, String>;

/// In the order of the suites.
const AHEAD: &[(&str, Builds)] = &[
    ("loom", |target, quick| Ok(models(target, "loom", quick))),
    ("shuttle", |target, quick| Ok(models(target, "shuttle", quick))),
    ("property", |target, _| Ok(random(target).into())),
    ("c", |target, _| Ok(vec![install::build_portable(target)?])),
    ("memcheck", |target, _| Ok(vec![checked(target)])),
    ("links-asan", |target, _| Ok(sanitized_links(target).into())),
    ("portable", |target, _| Ok(vec![portable(target)])),
];

/// The commands that build for `suite` what can be built before its turn.
pub fn ahead(suite: &str, target: &Path, quick: bool) -> Vec<Command> {
    // The quick form uses the C library that the Rust tests are built with.
    let builds = AHEAD.iter().filter(|(name, _)| *name == suite && !(quick && suite == "c"));
    // The suite reports a command that cannot be made here, as it makes it again.
    let commands = builds.filter_map(|(_, commands)| commands(target, quick).ok()).flatten();
    commands.map(|command| niced(&command, "19", true)).collect()
}

/// The same command at a lower priority, of which 19 is the lowest. With `only_built`, cargo's `test` runs
/// none.
pub fn niced(command: &Command, niceness: &str, only_built: bool) -> Command {
    let mut idle = shell::command("nice");
    idle.args(["-n", niceness]).arg(command.get_program());
    for argument in command.get_args() {
        idle.arg(argument);
        if only_built && argument == "test" {
            idle.arg("--no-run");
        }
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => idle.env(name, value),
            None => idle.env_remove(name),
        };
    }
    idle
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::SUITES;

    #[test]
    fn what_is_built_ahead_belongs_to_a_suite_and_runs_no_test() {
        for (name, _) in AHEAD {
            assert!(SUITES.iter().any(|suite| suite.name == *name), "{name}");
        }
        let built = ahead("loom", Path::new("/elsewhere"), true);
        let described: Vec<String> = built.iter().map(shell::describe).collect();
        assert!(described[0].contains("xtask/rustc/estafette_loom nice -n 19 "), "{described:?}");
        assert!(described[0].contains("cargo test --no-run --profile model"), "{described:?}");
    }
}
