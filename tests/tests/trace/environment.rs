//! `ESTAFETTE_TRACE` and its siblings: a program that knows nothing of traces, as a process of its own.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use estafette::trace;
use estafette_report::Trace;
use tests::ops::{until, until_some};

use crate::files::Folder;

fn program(how: &str, file: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_recorded"));
    command.arg(how).env("ESTAFETTE_TRACE", file);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts it, and waits until it is ready.
fn started(command: &mut Command) -> Child {
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// Runs it to its end, which is to be a good one. Returns what it said on its standard error stream.
fn run(command: &mut Command) -> String {
    ended(command.spawn().unwrap())
}

fn ended(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}: {said}", output.status);
    said
}

fn count(trace: &Trace, name: &str) -> usize {
    trace.operations.iter().filter(|operation| operation.name == name).count()
}

fn signal(child: &Child, number: i32) {
    // SAFETY: the child was not waited for, so its number is its own.
    assert_eq!(unsafe { libc::kill(child.id().cast_signed(), number) }, 0);
}

#[test]
fn a_program_leaves_the_trace_of_all_its_engines_when_it_ends() {
    for how in ["returns", "exits in a body", "forks"] {
        let folder = Folder::new("variable");
        let path = folder.0.join("run.pftrace");
        assert_eq!(run(&mut program(how, &path)), "");
        assert_eq!(folder.names(), ["run.pftrace"], "{how}");
        let trace = trace::read(&path).unwrap();
        assert_eq!((count(&trace, "first"), count(&trace, "second")), (10, 10), "{how}");
        assert_eq!(count(&trace, "after the fork"), if how == "forks" { 10 } else { 0 });
        assert_eq!((trace.program.as_ref(), trace.losses), ("recorded", Default::default()), "{how}");
    }
}

#[test]
fn it_is_written_when_an_engine_is_shut_down() {
    let folder = Folder::new("shut-down");
    let path = folder.0.join("run.pftrace");
    let child = program("is shut down and aborts", &path).spawn().unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.signal(), Some(libc::SIGABRT));
    assert_eq!(count(&trace::read(&path).unwrap(), "second"), 10);
}

#[test]
fn what_cannot_be_recorded_is_reported_and_the_program_runs() {
    let folder = Folder::new("refused-variable");
    let absent = folder.0.join("absent").join("run");
    let said = run(&mut program("returns", &absent));
    assert!(
        said.starts_with("estafette: ESTAFETTE_TRACE: nothing is recorded: ") && said.contains("absent"),
        "{said}"
    );
    let run_with = |name: &str, value: &str| run(program("returns", &folder.0.join("run")).env(name, value));
    assert!(run_with("ESTAFETTE_TRACE_LAST", "soon").contains("ESTAFETTE_TRACE_LAST is soon"));
    assert!(run_with("ESTAFETTE_TRACE_LAST", "-1").contains("a number of seconds"));
    assert!(run_with("ESTAFETTE_TRACE_SIGNAL", "PHONE").contains("ESTAFETTE_TRACE_SIGNAL is PHONE"));
    assert!(
        run_with("ESTAFETTE_TRACE_SIGNAL", &libc::SIGSEGV.to_string())
            .contains("no signal that may be waited for")
    );
    assert_eq!(folder.names(), [""; 0]);
    // A folder takes the place of the file meanwhile.
    let path = folder.0.join("run");
    let child = started(&mut program("waits for input", &path));
    std::fs::create_dir(&path).unwrap();
    let said = until_ended(child);
    assert!(said.contains("cannot be saved to") && said.contains(".unfinished"), "{said}");
}

/// Lets a program go on that waits for input, to its end.
fn until_ended(mut child: Child) -> String {
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"x").unwrap();
    ended(child)
}

#[test]
fn a_process_whose_number_another_one_has_or_had_takes_no_file_of_it() {
    let folder = Folder::new("number");
    let path = folder.0.join("run.pftrace");
    // The number is known before the program begins.
    let mut shell = Command::new("sh");
    shell.args(["-c", "read go && exec \"$0\" \"$1\"", env!("CARGO_BIN_EXE_recorded"), "waits for input"]);
    shell.env("ESTAFETTE_TRACE", &path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    let number = child.id();
    // In another container there is another process of this number; one of before had it; and another one has
    // the next name.
    let locked = |name: String| {
        let file = std::fs::File::create(folder.0.join(name)).unwrap();
        file.lock().unwrap();
        file
    };
    let others = [
        locked(format!("run.pftrace.{number}.unfinished")),
        locked(format!("run.{number}-2.pftrace.1.unfinished")),
    ];
    std::fs::write(folder.0.join(format!("run.{number}.pftrace")), "precious").unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"go\n").unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), until_ended(child)), ("ready\n", String::new()));
    drop(others);
    let mut expected = vec![
        format!("run.pftrace.{number}.unfinished"),
        format!("run.{number}-2.pftrace.1.unfinished"),
        format!("run.{number}-3.pftrace"),
        format!("run.{number}.pftrace"),
    ];
    expected.sort();
    assert_eq!(folder.names(), expected);
    assert_eq!(std::fs::read(folder.0.join(format!("run.{number}.pftrace"))).unwrap(), b"precious");
}

#[test]
fn processes_with_the_same_file_have_one_each() {
    let folder = Folder::new("same");
    let path = folder.0.join("run.pftrace");
    let children: Vec<Child> = (0..3).map(|_| started(&mut program("waits for input", &path))).collect();
    let ids: Vec<u32> = children.iter().map(Child::id).collect();
    children.into_iter().for_each(|child| assert_eq!(until_ended(child), ""));
    let mut expected: Vec<String> = ids[1..].iter().map(|id| format!("run.{id}.pftrace")).collect();
    expected.push("run.pftrace".into());
    expected.sort();
    assert_eq!(folder.names(), expected);
    // A killed process leaves nothing behind that keeps a later process from its file.
    let mut killed = started(&mut program("waits for input", &path));
    killed.kill().unwrap();
    killed.wait().unwrap();
    std::fs::remove_file(&path).unwrap();
    run(&mut program("returns", &path));
    assert_eq!(count(&trace::read(&path).unwrap(), "first"), 10);
}

fn unfinished(path: &Path, child: &Child) -> PathBuf {
    let name = path.file_name().unwrap().to_str().unwrap();
    path.with_file_name(format!("{name}.{}.unfinished", child.id()))
}

#[test]
fn a_killed_process_leaves_what_it_did_until_its_last_second() {
    for last in [None, Some("1.5")] {
        let folder = Folder::new("killed");
        let path = folder.0.join("run.pftrace");
        let mut command = program("works until it is killed", &path);
        let mut child = started(command.env("ESTAFETTE_TRACE_LAST", last.unwrap_or_default()));
        let unfinished = unfinished(&path, &child);
        let started = Instant::now();
        // Longer than what is lost at most.
        until("two seconds have passed", || started.elapsed() > Duration::from_secs(2));
        let ran = started.elapsed();
        child.kill().unwrap();
        child.wait().unwrap();
        let trace = trace::read(&unfinished).unwrap();
        assert!(
            trace.losses.damage.iter().any(|what| what.contains("before the trace was finished")),
            "{:?}",
            trace.losses
        );
        let end = trace.operations.iter().filter_map(|operation| operation.done).max().unwrap();
        assert!(Duration::from_nanos(end) + Duration::from_secs(1) > ran, "{end} of {ran:?}");
        assert!(count(&trace, "last") > 10);
    }
}

#[test]
fn a_signal_asks_for_a_snapshot_of_the_end() {
    let folder = Folder::new("signal");
    let path = folder.0.join("run.pftrace");
    let mut command = program("works until it is killed", &path);
    let mut child = started(command.env("ESTAFETTE_TRACE_LAST", "0.3").env("ESTAFETTE_TRACE_SIGNAL", "USR2"));
    let wait = Instant::now();
    until("half a second has passed", || wait.elapsed() > Duration::from_millis(500));
    for number in 1..=2 {
        signal(&child, libc::SIGUSR2);
        let snapshot = folder.0.join(format!("run.snapshot-{number}.pftrace"));
        let trace = until_some("a snapshot", || trace::read(&snapshot).ok(), String::new);
        assert_eq!(trace.losses, Default::default());
        assert!((299_000_000..301_000_000).contains(&trace.duration), "{}", trace.duration);
        assert!(count(&trace, "last") > 0 && count(&trace, "first") == 0);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_watchdog_asks_for_a_snapshot_of_the_end() {
    let folder = Folder::new("watchdog");
    let path = folder.0.join("run.pftrace");
    let mut command = program("stalls", &path);
    let child = started(command.env("ESTAFETTE_TRACE_LAST", "3600"));
    let trace =
        until_some("a snapshot", || trace::read(&folder.0.join("run.snapshot-1.pftrace")).ok(), String::new);
    let late = trace.operations.iter().find(|operation| operation.name == "late").unwrap();
    let slow = trace.operations.iter().find(|operation| operation.name == "slow").unwrap();
    assert!(trace.stalls.iter().any(|stall| stall.waiter == late.id), "{:?}", trace.stalls);
    assert!(slow.began.is_some() && slow.done.is_none());
    assert_eq!(until_ended(child), "");
    assert_eq!(folder.names(), ["run.pftrace", "run.snapshot-1.pftrace"]);
}
