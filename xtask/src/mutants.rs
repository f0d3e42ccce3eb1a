//! `cargo xtask mutants`: faults of the protocol of links. Each is put into a copy of the crate, where the
//! test that is named for it must fail: a test that passes all the same guards nothing.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::shell::{self, CommandEnd};
use crate::suites::configured;

struct Mutant {
    fault: &'static str,
    /// Below `links/src`.
    file: &'static str,
    /// Texts that the file has once, and what takes their place.
    edits: &'static [[&'static str; 2]],
    caught_by: Test,
}

/// The name of the test that must fail.
enum Test {
    /// A model under loom.
    Model(&'static str),
    Unit(&'static str),
    Processes(&'static str),
}

const WAKEUP: Test = Test::Model("models::a_process_that_goes_to_sleep_sees_the_change_or_is_woken");

const MUTANTS: &[Mutant] = &[
    Mutant {
        fault: "a promise fails by a slot that was read before the death was known",
        file: "link.rs",
        edits: &[[
            "    (fate.load(Ordering::Acquire), read())",
            "    let seen = read();\n    (fate.load(Ordering::Acquire), seen)",
        ]],
        caught_by: Test::Model("models::what_was_done_before_a_death_stays_done"),
    },
    Mutant {
        fault: "a process notifies without a fence",
        file: "notify.rs",
        edits: &[["        fence(Ordering::SeqCst);\n        let listening", "        let listening"]],
        caught_by: WAKEUP,
    },
    Mutant {
        fault: "a process listens without a fence",
        file: "notify.rs",
        edits: &[["        drop(state);\n        fence(Ordering::SeqCst);", "        drop(state);"]],
        caught_by: WAKEUP,
    },
    Mutant {
        fault: "memory is used again once a process is lost",
        file: "link.rs",
        edits: &[["Kind::Used if fate & FATE_GONE", "Kind::Used if fate & FATE_LOST"]],
        caught_by: Test::Processes("a_process_that_is_lost_and_not_gone_keeps_what_it_uses"),
    },
    Mutant {
        fault: "an index is used again before its answer",
        file: "slots.rs",
        edits: &[["own.is_settled(*slot) && answer.outcome().is_some()", "own.is_settled(*slot)"]],
        caught_by: Test::Model("models::an_index_is_used_again_once_both_of_its_slots_are_settled"),
    },
    Mutant {
        fault: "a slot is counted before it is settled",
        file: "board.rs",
        edits: &[[
            "        self.store(slot.kind.place(slot.index), word);\n        step!(\"settle, slot\");\n        self.words.words()[SETTLED].fetch_add(1, Ordering::Release);",
            "        self.words.words()[SETTLED].fetch_add(1, Ordering::Release);\n        self.store(slot.kind.place(slot.index), word);",
        ]],
        caught_by: Test::Model("models::what_settles_is_polled_once_it_was_counted"),
    },
    Mutant {
        fault: "a slot is watched that was settled and counted before",
        file: "watched.rs",
        edits: &[["if event.outcome().is_none() {", "{"]],
        caught_by: Test::Model("models::what_settles_is_polled_also_beside_an_event_that_is_new"),
    },
    Mutant {
        fault: "a use ends twice",
        file: "link.rs",
        edits: &[["self.answer.take()", "self.answer.clone()"]],
        caught_by: Test::Unit("tests::a_use_ends_once_and_as_it_ended_first"),
    },
    Mutant {
        fault: "a thread of the program holds the liveness locks",
        file: "liveness.rs",
        edits: &[
            [
                "        threads::start(\"estafette-alive\"",
                "        self.state.lock().held = RobustList::of_this_thread().ok();\n        threads::start(\"estafette-alive\"",
            ],
            ["Ok(held) => state.held = Some(held)", "Ok(_) => {}"],
        ],
        caught_by: Test::Processes("a_thread_that_has_made_a_link_may_end"),
    },
    Mutant {
        fault: "a process is gone once its socket has ended",
        file: "hub.rs",
        edits: &[
            [
                "                    link.note_gone();",
                "                    self.poll.remove(&link.channel().end);",
            ],
            ["link.note_lost();", "link.note_gone();"],
        ],
        caught_by: Test::Processes("the_dead_are_named_although_a_forked_child_of_them_lives"),
    },
];

/// Several times what a small machine needs to build a test, and to run it. One that waits for what a mutant
/// never does is caught as well.
const BUILD_LIMIT: Duration = Duration::from_secs(10 * 60);
const LIMIT: Duration = Duration::from_secs(20);

pub fn run() -> Result<bool, String> {
    let target = shell::target()?.join("mutants");
    let copy = target.join("source");
    copy_of_the_workspace(&copy)?;
    for Mutant { caught_by, .. } in MUTANTS {
        if let Some(output) = caught_by.failure(&copy, &target)? {
            return Err(format!("`{}` fails without a mutant:\n{output}", caught_by.name()));
        }
    }
    let mut failed = Vec::new();
    for Mutant { fault, file, edits, caught_by } in MUTANTS {
        let path = copy.join("links/src").join(file);
        let io_error = |error: std::io::Error| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(&path).map_err(io_error)?;
        let mutated =
            edits.iter().try_fold(text.clone(), |text, [from, to]| match text.matches(from).count() {
                1 => Ok(text.replace(from, to)),
                times => Err(format!("`{fault}`: {file} has `{from}` {times} times, and not once")),
            })?;
        std::fs::write(&path, mutated).map_err(io_error)?;
        match caught_by.failure(&copy, &target)? {
            Some(output) => {
                // A model has no message of its own.
                let mut after = output.lines().skip_while(|line| !line.contains("panicked at")).skip(1);
                let why = after.next().unwrap_or("it hangs");
                println!("caught: {fault}, by {}: {why}", caught_by.name());
            }
            None => failed.push(format!("{fault}: `{}` passes", caught_by.name())),
        }
        std::fs::write(&path, text).map_err(io_error)?;
    }
    Ok(shell::passed(&failed))
}

impl Test {
    fn name(&self) -> &'static str {
        match self {
            Self::Model(name) | Self::Unit(name) | Self::Processes(name) => name,
        }
    }

    fn command(&self, copy: &Path, target: &Path, last: &[&str]) -> Command {
        let links = ["test", "--package", "estafette-links"];
        let which: &[&str] = match self {
            Self::Model(_) => &["--profile", "model", "--lib"],
            Self::Unit(_) => &["--lib"],
            Self::Processes(_) => &["--test", "processes"],
        };
        let arguments = [&links, which, last].concat();
        let mut command = match self {
            Self::Model(_) => configured("estafette_loom", target, &arguments),
            Self::Unit(_) | Self::Processes(_) => shell::cargo(target, &arguments),
        };
        command.current_dir(copy);
        command
    }

    /// Output of the test if it fails. A copy that does not compile is an error.
    fn failure(&self, copy: &Path, target: &Path) -> Result<Option<String>, String> {
        let (built, output) = shell::collect(self.command(copy, target, &["--no-run"]), BUILD_LIMIT)?;
        if !built.is_success() {
            return Err(format!("{built}:\n{output}"));
        }
        let run = self.command(copy, target, &["--", "--exact", self.name()]);
        match shell::collect(run, LIMIT)? {
            (CommandEnd::Exit(status), output) if status.success() => {
                let is_run = output.contains("test result: ok. 1 passed");
                if is_run { Ok(None) } else { Err(format!("there is no test `{}`", self.name())) }
            }
            (_, output) => Ok(Some(output)),
        }
    }
}

/// The workspace by links, but for `links`, which is copied.
fn copy_of_the_workspace(copy: &Path) -> Result<(), String> {
    let io_error = |error: std::io::Error| format!("{}: {error}", copy.display());
    let _ = std::fs::remove_dir_all(copy);
    std::fs::create_dir_all(copy).map_err(io_error)?;
    for entry in std::fs::read_dir(shell::root()).map_err(io_error)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).map_err(io_error)?;
        match name.to_str() {
            Some("links") => {
                let mut copying = shell::command("cp");
                copying.arg("-R").args([&path, copy]);
                shell::output(&mut copying)?;
            }
            Some("target") => {}
            Some(name) if name.starts_with('.') => {}
            _ => std::os::unix::fs::symlink(path, copy.join(name)).map_err(io_error)?,
        }
    }
    Ok(())
}
