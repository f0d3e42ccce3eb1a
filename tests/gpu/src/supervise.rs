//! Each step in a process of its own, under a time limit: one that hangs, crashes, or breaks the device's
//! context takes nothing of the others along, and the record is written anew after each.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::record::Record;
use crate::{NO_DEVICE, Options, STEPS, StepEnd, machine};

/// Limit for looking for a device: the driver's start, and loading kernels.
const PROBE: Duration = Duration::from_secs(60);
/// A process that the driver holds does not end when it is killed.
const DEATH: Duration = Duration::from_secs(5);
/// With less left a step is not begun.
const LEAST: Duration = Duration::from_secs(5);

pub fn run(options: &Options) -> Result<StepEnd, Failure> {
    let begin = Instant::now();
    let mut record = Record::new(options.simulator);
    let events = std::env::temp_dir().join(format!("estafette-gpu-suite-{}.jsonl", std::process::id()));
    let result = supervise(options, &mut record, &events, begin);
    let _ = fs::remove_file(&events);
    result
}

fn supervise(
    options: &Options,
    record: &mut Record,
    events: &Path,
    begin: Instant,
) -> Result<StepEnd, Failure> {
    match one(options, "--probe", PROBE, events, record)? {
        How::Ended(status) if status.success() => {}
        How::Ended(status) if status.code() == Some(i32::from(NO_DEVICE)) => return Ok(StepEnd::NoDevice),
        how => record.failed("device", &format!("looking for a device {}", how.words())),
    }
    if !options.simulator {
        machine::describe(record);
    }
    for step in STEPS {
        if !options.only.is_empty() && !options.only.iter().any(|only| only == step.name) {
            continue;
        }
        println!("== {}", step.name);
        let left = Duration::from_secs(options.seconds).saturating_sub(begin.elapsed());
        if left < LEAST {
            record.skipped(step.name, &format!("no time left of {} s", options.seconds));
        } else {
            let before = record.failures();
            let how = one(options, step.name, step.limit.min(left), events, record)?;
            // A failure that the step reported itself is enough.
            let told = record.failures() > before;
            if !matches!(how, How::Ended(status) if status.success() || told) {
                record.failed(step.name, &format!("the step {}", how.words()));
            }
        }
        write(options, record)?;
    }
    record.note("suite took", &format!("{:.0} s", begin.elapsed().as_secs_f64()));
    record.print_table();
    write(options, record)?;
    Ok(if record.all_passed() { StepEnd::Passed } else { StepEnd::Failed })
}

fn write(options: &Options, record: &Record) -> Result<(), Failure> {
    match &options.record {
        Some(path) => record.write(path, &options.only),
        None => Ok(()),
    }
}

/// Runs one step, or looks for a device, in a process, and takes what it says.
fn one(
    options: &Options,
    what: &str,
    limit: Duration,
    events: &Path,
    record: &mut Record,
) -> Result<How, Failure> {
    fs::write(events, "")?;
    let mut command = command(options, what, events)?;
    let how = within(&mut command, limit)?;
    // A process that was killed may have written half a line.
    for line in fs::read_to_string(events)?.lines() {
        if let Ok(event) = serde_json::from_str(line) {
            record.take(&event);
        }
    }
    Ok(how)
}

/// The environment of every process that uses the device. By default a process has eight hardware
/// connections, and a stream that waits holds up every other one on its connection; 32 are the most. Code is
/// loaded at the start, not with the first launch, which can wait for the whole device.
const ENVIRONMENT: [(&str, &str); 2] =
    [("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("CUDA_MODULE_LOADING", "EAGER")];

fn command(options: &Options, what: &str, events: &Path) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.envs(ENVIRONMENT);
    if what == "--probe" {
        command.arg(what);
    } else {
        command.args(["--steps", what]);
    }
    command.arg("--events").arg(events).args(options.simulator.then_some("--simulator"));
    if let Some(folder) = &options.files {
        command.arg("--files").arg(folder);
    }
    if let Some(python) = &options.python {
        command.args(["--python", python]);
    }
    if let Some(tests) = &options.tests {
        command.arg("--tests").arg(tests);
    }
    Ok(command)
}

pub enum How {
    Ended(ExitStatus),
    /// It was killed after its time.
    Hung(Duration),
}

impl How {
    pub fn words(&self) -> String {
        match self {
            Self::Ended(status) => format!("ended with {status}"),
            Self::Hung(limit) => format!("hung: killed after {} s", limit.as_secs()),
        }
    }
}

/// Runs a command and whatever it starts, but not longer than `limit`.
pub fn within(command: &mut Command, limit: Duration) -> Result<How, Failure> {
    let mut child = start(command)?;
    let begin = Instant::now();
    while begin.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(How::Ended(status));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(&mut child);
    Ok(How::Hung(limit))
}

/// Runs a command as [`within`], and returns what it has printed, which goes to a file meanwhile: whatever
/// the command has started may keep a pipe open.
pub fn logged(command: &mut Command, name: &str, limit: Duration) -> Result<(How, String), Failure> {
    let log = std::env::temp_dir().join(format!("estafette-gpu-{name}-{}.log", std::process::id()));
    let file = fs::File::create(&log)?;
    command.stdout(file.try_clone()?).stderr(file);
    let how = within(command, limit);
    let said = fs::read_to_string(&log)?;
    let _ = fs::remove_file(&log);
    Ok((how?, said))
}

/// Starts a command as the head of a group of its own.
pub fn start(command: &mut Command) -> Result<Child, Failure> {
    Ok(command.process_group(0).spawn()?)
}

/// Kills a process that was started so, and whatever it has started.
pub fn kill(child: &mut Child) {
    // SAFETY: sends a signal to the group of a child that was not waited for, so no other process has its
    // number.
    let _ = unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
    let begin = Instant::now();
    while begin.elapsed() < DEATH && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;

    #[test]
    fn a_step_has_all_connections_and_loads_its_code_at_the_start() {
        let command = command(&Options::parse_from(["gpu-suite"]), "races", Path::new("events"))
            .expect("there is a program");
        let environment: Vec<_> = command.get_envs().collect();
        for (name, value) in [("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("CUDA_MODULE_LOADING", "EAGER")] {
            assert!(environment.contains(&(name.as_ref(), Some(value.as_ref()))), "{environment:?}");
        }
    }

    #[test]
    fn what_hangs_is_killed_with_its_children() {
        let begin = Instant::now();
        let mut hangs = Command::new("sh");
        // The pipe of the grandchild would keep a reader waiting.
        hangs.args(["-c", "sleep 60 & sleep 60"]);
        let how = within(&mut hangs, Duration::from_millis(100)).expect("there is a shell");
        assert!(matches!(how, How::Hung(_)) && begin.elapsed() < Duration::from_secs(10));
        let mut ends = Command::new("sh");
        ends.args(["-c", "exit 4"]);
        let how = within(&mut ends, Duration::from_secs(60)).expect("there is a shell");
        assert!(how.words().contains('4'), "{}", how.words());
    }
}
