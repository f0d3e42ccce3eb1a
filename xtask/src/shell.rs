//! Running other programs: where, with what, for how long at most, and with their output passed on as it
//! comes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in a folder of the repository")
}

/// The target folder that this very program was built into, so that everything it starts shares one.
pub fn target() -> Result<PathBuf, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("cannot find this program's own path: {error}"))?;
    match program.parent().and_then(Path::parent) {
        Some(target) => Ok(target.to_owned()),
        None => Err(format!("{} does not lie in a target folder", program.display())),
    }
}

/// A command in the repository's root. It gets no standard input: a chore that asks questions hangs on a
/// server.
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// `cargo` with `arguments`, in the root, building into `target`.
pub fn cargo(target: &Path, arguments: &[&str]) -> Command {
    let mut command = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).env("CARGO_TARGET_DIR", target);
    command
}

/// True if `program` is there and answers to `arguments`.
pub fn answers(program: &str, arguments: &[&str]) -> bool {
    command(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs a command that must succeed, with its output going where ours goes.
pub fn run(command: &mut Command) -> Result<(), String> {
    announce(command);
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("`{}`: {status}", describe(command))) }
}

/// Standard output of a command that must succeed.
pub fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| cannot_start(command, &error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{}`: {}\n{said}", describe(command), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Prints what has failed; true when nothing has.
pub fn passed(failed: &[String]) -> bool {
    failed.iter().for_each(|message| println!("failed: {message}"));
    failed.is_empty()
}

/// End of a watched command.
pub enum CommandEnd {
    Exit(ExitStatus),
    /// It was still running at its limit and was killed, with everything it had started.
    OverLimit,
}

impl CommandEnd {
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Exit(status) if status.success())
    }
}

impl std::fmt::Display for CommandEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exit(status) => status.fmt(f),
            Self::OverLimit => f.write_str("it was still running at its limit"),
        }
    }
}

/// Runs a command for at most `limit`, passes its output on line by line and shows each line to `on_line`.
///
/// Both of its output streams go through one pipe, so lines keep the order in which they were written.
pub fn watch(command: Command, limit: Duration, mut on_line: impl FnMut(&str)) -> Result<CommandEnd, String> {
    announce(&command);
    follow(command, limit, |line| {
        print!("{line}");
        on_line(line.trim_end());
    })
}

/// Runs commands at once, each for at most `limit`, and shows each line of output to `on_line` with the
/// number of its command. The output of the first goes to `show` line by line, and that of the others when
/// those before have ended, so that a reader can tell them apart.
pub fn watch_at_once(
    commands: Vec<Command>,
    limit: Duration,
    show: &mut dyn FnMut(&str),
    mut on_line: impl FnMut(usize, &str),
) -> Vec<Result<CommandEnd, String>> {
    commands.iter().for_each(|command| show(&format!("$ {}\n", describe(command))));
    let mut commands = commands.into_iter();
    let first = commands.next();
    let others: Vec<_> =
        commands.map(|command| std::thread::spawn(move || collect(command, limit))).collect();
    let first = first.map(|command| {
        follow(command, limit, |line| {
            show(line);
            on_line(0, line.trim_end());
        })
    });
    let mut all: Vec<_> = first.into_iter().collect();
    for other in others {
        let ended =
            other.join().unwrap_or_else(|_| Err("the thread that reads its output panicked".to_owned()));
        let number = all.len();
        all.push(ended.map(|(ended, output)| {
            show(&output);
            output.lines().for_each(|line| on_line(number, line));
            ended
        }));
    }
    all
}

/// Runs a command for at most `limit` and keeps its output, both streams together, instead of passing it on.
pub fn collect(command: Command, limit: Duration) -> Result<(CommandEnd, String), String> {
    let mut output = String::new();
    let ended = follow(command, limit, |line| output.push_str(line))?;
    Ok((ended, output))
}

/// Runs a command for at most `limit` and shows each line of its output to `on_line`, with the line's end.
fn follow(
    mut command: Command,
    limit: Duration,
    mut on_line: impl FnMut(&str),
) -> Result<CommandEnd, String> {
    let pipe_error = |error: std::io::Error| format!("cannot make a pipe: {error}");
    let (output, input) = std::io::pipe().map_err(pipe_error)?;
    command.stdout(input.try_clone().map_err(pipe_error)?).stderr(input);
    let mut child = command.spawn().map_err(|error| cannot_start(&command, &error))?;
    // The command still holds our ends of the pipe; while it lives the pipe would never end.
    drop(command);

    let (finished, watchdog) = guard(&child, limit);
    let mut lines = BufReader::new(output);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).map_err(|error| format!("cannot read output: {error}"))? > 0 {
        on_line(&String::from_utf8_lossy(&line));
        line.clear();
    }
    let status = child.wait().map_err(|error| format!("cannot wait for a child: {error}"))?;
    drop(finished);
    let over_limit = watchdog.join().map_err(|_| "the watchdog panicked".to_owned())?;
    Ok(if over_limit { CommandEnd::OverLimit } else { CommandEnd::Exit(status) })
}

/// Starts a thread that kills `child` and its descendants at the limit, unless the sender was dropped before.
fn guard(child: &Child, limit: Duration) -> (mpsc::Sender<()>, std::thread::JoinHandle<bool>) {
    let (finished, wait) = mpsc::channel();
    let child = child.id();
    let watchdog = std::thread::spawn(move || {
        let over_limit = wait.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        if over_limit {
            let pids = with_descendants(child).iter().map(u32::to_string).collect::<Vec<_>>();
            // A process that ended in the meantime makes `kill` complain; the others are killed all the same.
            let _ = command("kill").arg("-KILL").args(&pids).stderr(Stdio::null()).status();
        }
        over_limit
    });
    (finished, watchdog)
}

/// `pid` and the processes below it, as far as `/proc` shows (on other systems: `pid` alone).
fn with_descendants(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let child = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // "pid (name) state parent ...", where the name may hold spaces and brackets itself.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((child, parent))
        })
        .collect();
    let mut family = vec![pid];
    let mut next = 0;
    while next < family.len() {
        let parent = family[next];
        family.extend(parents.iter().filter(|(_, its_parent)| *its_parent == parent).map(|(child, _)| child));
        next += 1;
    }
    family
}

fn announce(command: &Command) {
    println!("$ {}", describe(command));
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start `{}`: {error}", command.get_program().to_string_lossy())
}

/// The command as one would type it, with the root's path left out.
pub fn describe(command: &Command) -> String {
    let root = format!("{}/", root().display());
    let variables =
        command.get_envs().filter(|(name, _)| *name != "CARGO_TARGET_DIR").filter_map(|(name, value)| {
            let value = value?.to_string_lossy();
            let quote = if value.contains(' ') { "'" } else { "" };
            Some(format!("{}={quote}{value}{quote}", name.to_string_lossy()))
        });
    let program = Path::new(command.get_program());
    let name = match program.file_name() {
        Some(name) if name == "cargo" => name.to_string_lossy(),
        _ => program.to_string_lossy(),
    };
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    let words: Vec<String> = variables.chain([name.into_owned()]).chain(arguments).collect();
    words.join(" ").replace(&root, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = command("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_streams_of_a_watched_command_are_seen_in_order() {
        let mut lines = Vec::new();
        let limit = Duration::from_secs(60);
        let ended = watch(shell("echo one; echo two >&2; echo three; exit 3"), limit, |line| {
            lines.push(line.to_owned())
        });
        assert_eq!(lines, ["one", "two", "three"]);
        assert!(matches!(ended, Ok(CommandEnd::Exit(status)) if status.code() == Some(3)));
    }

    #[test]
    fn commands_at_once_are_distinguished_and_run_together() {
        let (open, opener) = ("read line < \"$0\"; echo first", "echo > \"$0\"; echo second; exit 3");
        let pipe = std::env::temp_dir().join(format!("estafette-at-once-{}", std::process::id()));
        assert!(command("mkfifo").arg(&pipe).status().unwrap().success());
        // Either end of the pipe waits for the other.
        let commands = [open, opener].map(|script| {
            let mut command = shell(script);
            command.arg(&pipe);
            command
        });
        let mut lines = Vec::new();
        let limit = Duration::from_secs(60);
        let ended = watch_at_once(commands.into(), limit, &mut |_| (), |number, line| {
            lines.push((number, line.to_owned()))
        });
        std::fs::remove_file(&pipe).unwrap();
        assert_eq!(lines, [(0, "first".to_owned()), (1, "second".to_owned())]);
        let codes = ended.into_iter().map(|ended| match ended {
            Ok(CommandEnd::Exit(status)) => status.code(),
            _ => None,
        });
        assert_eq!(codes.collect::<Vec<_>>(), [Some(0), Some(3)]);
    }

    #[test]
    fn the_output_of_a_collected_command_is_kept_as_it_was() {
        let (ended, output) = collect(shell("echo one; echo two >&2"), Duration::from_secs(60)).unwrap();
        assert_eq!(output, "one\ntwo\n");
        assert!(matches!(ended, CommandEnd::Exit(status) if status.success()));
    }

    #[test]
    fn a_command_over_its_limit_is_killed_with_its_children() {
        // The grandchild holds the pipe: without killing it too, this test would last a minute.
        let start = std::time::Instant::now();
        let ended = watch(shell("sleep 60 & echo started; wait"), Duration::from_millis(300), |_| ());
        assert!(matches!(ended, Ok(CommandEnd::OverLimit)));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let ended = watch(command("no-such-program-here"), Duration::from_secs(1), |_| ());
        assert!(ended.is_err_and(|message| message.contains("no-such-program-here")));
    }

    #[test]
    fn a_command_is_described_as_one_would_type_it() {
        let mut command = cargo(Path::new("/elsewhere"), &["test", "--lib"]);
        command.env("RUSTFLAGS", "--cfg a").arg(root().join("graph"));
        assert_eq!(describe(&command), "RUSTFLAGS='--cfg a' cargo test --lib graph");
    }
}
