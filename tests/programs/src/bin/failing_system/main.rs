//! Lets the k-th call of one function of the system fail, for k = 1, 2, ... until none fails, under programs
//! that use everything: one in Rust, one in C that uses the shared library, and one in Python. All of them
//! fork.
//!
//! Each run must end, in time, in one of these ways:
//! - with nothing lost: every operation that was accepted has run once or failed, every deleter and every
//!   capture is gone; and each error names the cause;
//! - by `SIGABRT` with the message of Rust's allocator or of glibc, if a small allocation failed, or of the
//!   standard library, if a new thread's alternative stack did;
//! - by a panic or `SIGABRT` with a message, if the clock failed, which the standard library makes no error
//!   of.
//!
//! `tests/failing-system/fail.c` does the failing; in C and Python, of calls of the library and the extension
//! alone. Calls after the first [`Language::each`] are sampled, one of a growing number. `failing_system
//! LANGUAGE NAME` runs one function only, `failing_system LANGUAGE NAME K` one call, with the program's
//! output. Python's program needs an interpreter with the package, in `FAILING_PYTHON`, and is left out
//! without.

mod elsewhere;
mod everything;
mod interposed;
mod language;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitCode, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use language::Language::{self, C, Python, Rust};
use language::Programs;

/// Beyond [`Language::each`], the next call to fail is this fraction further on.
const STRIDE: usize = 16;
/// A longer run counts as hanging. A hundred times the usual length.
const LIMIT: Duration = Duration::from_secs(60);
/// A sweep with as much to complain about is over.
const COMPLAINTS_MAX: usize = 20;
/// Runs at a time, for each processor: a run mostly waits.
const RUNNERS: usize = 4;
/// More than the calls of any function in one run: a sweep that gets here does not end.
const CALLS_MAX: usize = 1 << 20;

/// One function that fails.
struct Sweep {
    language: Language,
    call: &'static str,
    error: i32,
    /// From the k-th call on, instead of only that one.
    all: bool,
    /// Messages with one of which the process may end instead.
    ends_with: &'static [&'static str],
}

const fn once(language: Language, call: &'static str, error: i32) -> Sweep {
    Sweep { language, call, error, all: false, ends_with: &[] }
}

/// The messages that the process may end with where an allocation fails: Rust's own, glibc's for a thread's
/// destructors, and that of zlib-rs, which has no error for a stream that it cannot allocate.
const NO_MEMORY: &[&str] = &["memory allocation of ", "out of memory", "left: MemError"];
/// The standard library gives each thread an alternative stack, and makes no error of one that it does not
/// get.
const NO_STACK: &[&str] = &["failed to allocate an alternative stack"];
const NO_MEMORY_OR_STACK: &[&str] = &[NO_MEMORY[0], NO_MEMORY[1], NO_MEMORY[2], NO_STACK[0]];
const NO_BARRIER: &[&str] = &["estafette: membarrier(2) is refused"];

const SWEEPS: &[Sweep] = &[
    once(Rust, "pthread_create", libc::EAGAIN),
    Sweep { all: true, ..once(Rust, "pthread_create", libc::EAGAIN) },
    once(Rust, "membarrier", libc::ENOMEM),
    once(Rust, "membarrier", libc::EPERM),
    Sweep { all: true, ends_with: NO_BARRIER, ..once(Rust, "membarrier", libc::ENOSYS) },
    Sweep { ends_with: NO_STACK, ..once(Rust, "mmap", libc::ENOMEM) },
    once(Rust, "descriptor", libc::EMFILE),
    once(Rust, "write", libc::ENOSPC),
    Sweep { ends_with: NO_MEMORY, ..once(Rust, "malloc", libc::ENOMEM) },
    Sweep { ends_with: &["panicked at"], ..once(Rust, "clock_gettime", libc::EINVAL) },
    once(C, "pthread_create", libc::EAGAIN),
    Sweep { all: true, ..once(C, "pthread_create", libc::EAGAIN) },
    Sweep { all: true, ends_with: NO_BARRIER, ..once(C, "membarrier", libc::ENOSYS) },
    Sweep { ends_with: NO_STACK, ..once(C, "mmap", libc::ENOMEM) },
    once(C, "open", libc::EMFILE),
    Sweep { ends_with: NO_MEMORY, ..once(C, "malloc", libc::ENOMEM) },
    once(Python, "pthread_create", libc::EAGAIN),
    Sweep { all: true, ..once(Python, "pthread_create", libc::EAGAIN) },
    Sweep { all: true, ends_with: NO_BARRIER, ..once(Python, "membarrier", libc::ENOSYS) },
    Sweep { ends_with: NO_MEMORY_OR_STACK, ..once(Python, "mmap", libc::ENOMEM) },
    once(Python, "open", libc::EMFILE),
    once(Python, "write", libc::ENOSPC),
];

/// End of a run.
struct RunEnd {
    status: Option<ExitStatus>,
    output: String,
    errors: String,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, folder] = &arguments[..]
        && mode == "--child"
    {
        return everything::run(Path::new(folder));
    }
    if arguments == ["--owner"] {
        return elsewhere::run();
    }
    let folder = std::env::temp_dir().join(format!("estafette-failing-system-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the traces");
    let programs = Programs::make(&folder);
    let chosen = SWEEPS.iter().filter(|sweep| {
        let [language, call] = [0, 1].map(|at| arguments.get(at));
        language.is_none_or(|name| *name == format!("{:?}", sweep.language).to_lowercase())
            && call.is_none_or(|name| name == sweep.call)
            && programs.has(sweep.language)
    });
    let only = arguments.get(2).map(|at| at.parse().expect("the number of a call"));
    let mut failed = 0;
    for sweep in chosen {
        let began = Instant::now();
        let (runs, complaints) = match only {
            Some(at) => {
                let ended = run(&programs, &folder, sweep, at);
                println!("{}{}", ended.output, ended.errors);
                (1, judge(sweep, at, &ended).err().into_iter().collect())
            }
            None => failures(&programs, &folder, sweep),
        };
        let which = if sweep.all { "from it on" } else { "alone" };
        let error = std::io::Error::from_raw_os_error(sweep.error);
        let language = format!("{:?}", sweep.language);
        let took = began.elapsed();
        println!("{language:<6} {:<15} {which:<11} {runs:>4} runs {took:>6.1?}  {error}", sweep.call);
        complaints.iter().for_each(|complaint| println!("  {complaint}"));
        failed += complaints.len();
    }
    // A folder that stays is no failure.
    let _ = std::fs::remove_dir_all(&folder);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Makes each call fail in turn, several runs at a time. Returns the number of runs, and the faults found.
fn failures(programs: &Programs, folder: &Path, sweep: &Sweep) -> (usize, Vec<String>) {
    let next = Mutex::new(Some(1));
    let (runs, struck) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let complaints = Mutex::new(Vec::new());
    let runners = RUNNERS * std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for runner in 0..runners {
            let (next, runs, struck, complaints) = (&next, &runs, &struck, &complaints);
            scope.spawn(move || {
                let folder = folder.join(runner.to_string());
                std::fs::create_dir_all(&folder).expect("a folder");
                loop {
                    let at = {
                        let mut next = next.lock().expect("no panic under the lock");
                        let Some(at) = *next else { return };
                        *next = Some(following(at, sweep.language.each())).filter(|at| *at < CALLS_MAX);
                        at
                    };
                    runs.fetch_add(1, Ordering::Relaxed);
                    match judge(sweep, at, &run(programs, &folder, sweep, at)) {
                        Ok(true) => drop(struck.fetch_add(1, Ordering::Relaxed)),
                        // There are not as many calls: the sweep is over.
                        Ok(false) => *next.lock().expect("no panic under the lock") = None,
                        Err(complaint) => {
                            let mut complaints = complaints.lock().expect("no panic under the lock");
                            complaints.push(complaint);
                            if complaints.len() == COMPLAINTS_MAX {
                                *next.lock().expect("no panic under the lock") = None;
                            }
                        }
                    }
                }
            });
        }
    });
    let mut complaints = complaints.into_inner().expect("no panic under the lock");
    if struck.into_inner() == 0 {
        complaints.push("no call failed: is it interposed?".into());
    }
    complaints.sort_unstable();
    (runs.into_inner(), complaints)
}

fn following(at: usize, each: usize) -> usize {
    if at < each { at + 1 } else { at + (at / STRIDE).max(1) }
}

fn run(programs: &Programs, folder: &Path, sweep: &Sweep, at: usize) -> RunEnd {
    let mut command = programs.command(sweep.language, folder);
    command.env("FAILING_CALL", sweep.call).env("FAILING_AT", at.to_string());
    command.env("FAILING_ERRNO", sweep.error.to_string()).env("RUST_BACKTRACE", "0");
    if sweep.all {
        command.env("FAILING_ALL", "1");
    }
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    // Neither is long enough to fill a pipe.
    let status = wait(&mut child);
    let mut text = (String::new(), String::new());
    child.stdout.take().expect("piped").read_to_string(&mut text.0).expect("text");
    child.stderr.take().expect("piped").read_to_string(&mut text.1).expect("text");
    RunEnd { status, output: text.0, errors: text.1 }
}

/// `None` for a program that hangs, which is killed.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().expect("a child") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().expect("a child");
    child.wait().expect("a child");
    None
}

/// Returns whether a call failed, or the fault found.
fn judge(sweep: &Sweep, at: usize, ended: &RunEnd) -> Result<bool, String> {
    let wrong = |what: &str| {
        let (output, errors) = (ended.output.trim_end(), ended.errors.trim_end());
        Err(format!("call {at}: {what}: {:?}\n    {output}\n    {errors}", ended.status))
    };
    let Some(status) = ended.status else { return wrong("it hangs") };
    let ends_as_documented = sweep.ends_with.iter().any(|message| ended.errors.contains(message));
    if status.code() != Some(0) {
        let ends = status.signal() == Some(libc::SIGABRT) || status.code() == Some(101);
        return if ends_as_documented && ends { Ok(true) } else { wrong("it ends without an explanation") };
    }
    let line =
        |prefix: &str| ended.output.lines().filter_map(|line| line.strip_prefix(prefix)).collect::<Vec<_>>();
    let struck = line("struck ").first().and_then(|count| count.parse::<usize>().ok());
    let (Some(struck), true) = (struck, ended.output.contains("whole")) else { return wrong("no account") };
    if !line("lost ").is_empty() {
        return wrong("something is lost");
    }
    if !line("ended ").is_empty() && !ends_as_documented {
        return wrong("a forked child ends without an explanation");
    }
    let errors = line("error ");
    if struck == 0 && !errors.is_empty() {
        return wrong("an error where nothing failed");
    }
    let causes = causes(sweep);
    if errors.iter().any(|error| !causes.iter().any(|cause| error.contains(cause))) {
        return wrong("an error that does not name the cause");
    }
    Ok(struck > 0)
}

/// Words of which an error has one.
fn causes(sweep: &Sweep) -> Vec<String> {
    let error = std::io::Error::from_raw_os_error(sweep.error).to_string();
    let number = sweep.error;
    // As Python says it of a file.
    let of_file = format!("[Errno {number}] {}", error.replace(&format!(" (os error {number})"), ""));
    let mut causes = vec![error, of_file];
    match sweep.call {
        // A thread that the C library has no memory for is refused as one too many.
        "malloc" | "mmap" => {
            let too_many = std::io::Error::from_raw_os_error(libc::EAGAIN).to_string();
            causes.extend(["memory".into(), "allocat".into(), too_many]);
        }
        "clock_gettime" => causes.extend(["Invalid argument", "panicked"].map(String::from)),
        _ => {}
    }
    causes
}
