//! Lets the k-th call of one function of the system fail, for k = 1, 2, ... until none fails, under a program that uses everything.
//!
//! Each run must end, in time, in one of these ways:
//! - with nothing lost: every operation that was accepted has run once or failed, every deleter and every capture is gone; and each error
//!   names the cause;
//! - by `SIGABRT` with the message of Rust's allocator or of glibc, if a small allocation failed, or of the standard library, if a new
//!   thread's alternative stack did;
//! - by a panic or `SIGABRT` with a message, if the clock failed, which the standard library makes no error of.
//!
//! `tests/failing-system/fail.c` does the failing. Allocations after the first [`EACH`] are sampled, one of a growing number of calls.
//! `failing_system NAME` runs one function only, `failing_system NAME K` one call, with the program's output.

mod everything;
mod interposed;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// So many calls fail one by one; later ones are sampled.
const EACH: usize = 1_000;
/// Beyond [`EACH`], the next call to fail is this fraction further on.
const STRIDE: usize = 16;
/// A run that takes longer hangs. A hundred times what it needs.
const LIMIT: Duration = Duration::from_secs(60);
/// More than the calls of any function in one run: a sweep that gets here does not end.
const CALLS_MAX: usize = 1 << 20;

/// One function that fails.
struct Sweep {
    call: &'static str,
    error: i32,
    /// From the k-th call on, instead of only that one.
    all: bool,
    /// Whether the process may end instead, with a message that holds one of these.
    ends_with: &'static [&'static str],
}

const fn once(call: &'static str, error: i32) -> Sweep {
    Sweep { call, error, all: false, ends_with: &[] }
}

const SWEEPS: &[Sweep] = &[
    once("pthread_create", libc::EAGAIN),
    Sweep { all: true, ..once("pthread_create", libc::EAGAIN) },
    once("membarrier", libc::ENOMEM),
    once("membarrier", libc::EPERM),
    Sweep {
        all: true,
        ends_with: &["estafette: membarrier(2) is refused"],
        ..once("membarrier", libc::ENOSYS)
    },
    // The standard library gives each thread an alternative stack, and makes no error of it.
    Sweep { ends_with: &["failed to allocate an alternative stack"], ..once("mmap", libc::ENOMEM) },
    once("open", libc::EMFILE),
    once("write", libc::ENOSPC),
    // Rust's own message, and glibc's for a thread's destructors.
    Sweep { ends_with: &["memory allocation of ", "out of memory"], ..once("malloc", libc::ENOMEM) },
    Sweep { ends_with: &["panicked at"], ..once("clock_gettime", libc::EINVAL) },
];

/// How a run ended.
struct Ended {
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
    let folder = std::env::temp_dir().join(format!("estafette-failing-system-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the recordings");
    let library = compile(&folder);
    let chosen = SWEEPS.iter().filter(|sweep| arguments.first().is_none_or(|name| name == sweep.call));
    let only = arguments.get(1).map(|at| at.parse().expect("the number of a call"));
    let mut failed = 0;
    for sweep in chosen {
        let began = Instant::now();
        let (runs, complaints) = match only {
            Some(at) => {
                let ended = run(&library, &folder, sweep, at);
                println!("{}{}", ended.output, ended.errors);
                (1, judge(sweep, at, &ended).err().into_iter().collect())
            }
            None => failures(&library, &folder, sweep),
        };
        let which = if sweep.all { "from it on" } else { "alone" };
        let error = std::io::Error::from_raw_os_error(sweep.error);
        println!("{:<15} {which:<11} {runs:>4} runs {:>6.1?}  {error}", sweep.call, began.elapsed());
        complaints.iter().for_each(|complaint| println!("  {complaint}"));
        failed += complaints.len();
    }
    // A folder that stays is no failure.
    let _ = std::fs::remove_dir_all(&folder);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn compile(folder: &Path) -> PathBuf {
    let library = folder.join("libfail.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("failing-system/fail.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]);
    let status = command.arg(source).arg("-o").arg(&library).arg("-ldl").status().expect("a C compiler");
    assert!(status.success(), "{command:?}");
    library
}

/// Runs with each call failing in turn, several at a time. Gives the number of runs, and what was wrong.
fn failures(library: &Path, folder: &Path, sweep: &Sweep) -> (usize, Vec<String>) {
    let next = Mutex::new(Some(1));
    let (runs, struck) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let complaints = Mutex::new(Vec::new());
    let lanes = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for lane in 0..lanes {
            let (next, runs, struck, complaints) = (&next, &runs, &struck, &complaints);
            scope.spawn(move || {
                let folder = folder.join(lane.to_string());
                std::fs::create_dir_all(&folder).expect("a folder");
                loop {
                    let at = {
                        let mut next = next.lock().expect("no panic under the lock");
                        let Some(at) = *next else { return };
                        *next = Some(following(at)).filter(|at| *at < CALLS_MAX);
                        at
                    };
                    runs.fetch_add(1, Ordering::Relaxed);
                    match judge(sweep, at, &run(library, &folder, sweep, at)) {
                        Ok(true) => drop(struck.fetch_add(1, Ordering::Relaxed)),
                        // There are not as many calls: the sweep is over.
                        Ok(false) => *next.lock().expect("no panic under the lock") = None,
                        Err(complaint) => complaints.lock().expect("no panic under the lock").push(complaint),
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

fn following(at: usize) -> usize {
    if at < EACH { at + 1 } else { at + at / STRIDE }
}

fn run(library: &Path, folder: &Path, sweep: &Sweep, at: usize) -> Ended {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.arg("--child").arg(folder).env("LD_PRELOAD", library);
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
    Ended { status, output: text.0, errors: text.1 }
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

/// Whether a call failed, or what is wrong.
fn judge(sweep: &Sweep, at: usize, ended: &Ended) -> Result<bool, String> {
    let wrong = |what: &str| {
        let (output, errors) = (ended.output.trim_end(), ended.errors.trim_end());
        Err(format!("call {at}: {what}: {:?}\n    {output}\n    {errors}", ended.status))
    };
    let Some(status) = ended.status else { return wrong("it hangs") };
    if status.code() != Some(0) {
        let explained = sweep.ends_with.iter().any(|message| ended.errors.contains(message));
        let ends = status.signal() == Some(libc::SIGABRT) || status.code() == Some(101);
        return if explained && ends { Ok(true) } else { wrong("it ends without an explanation") };
    }
    let line =
        |prefix: &str| ended.output.lines().filter_map(|line| line.strip_prefix(prefix)).collect::<Vec<_>>();
    let struck = line("struck ").first().and_then(|count| count.parse::<usize>().ok());
    let (Some(struck), true) = (struck, ended.output.contains("whole")) else { return wrong("no account") };
    if !line("lost ").is_empty() {
        return wrong("something is lost");
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
    let mut causes = vec![error];
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
